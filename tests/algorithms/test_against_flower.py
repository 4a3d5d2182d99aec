"""FedAvg, FedProx and FedAvgM against Flower's own strategies, on the same clients and batches.

The clients are Flower's `NumPyClient`s that train a `torch.nn.Linear` with `torch.optim.SGD`: they
share no code with fedsurf, only the examples and which of them form each mini-batch.
"""

import pytest
import torch
from random_data import seeded
from random_data import task as draw_task
from running import advance, begin, streams

from fedsurf.algorithms.fedavg import FedAvg
from fedsurf.algorithms.fedavgm import FedAvgM
from fedsurf.algorithms.fedprox import FedProx
from fedsurf.models import SoftmaxHead
from fedsurf.network import StarNetwork
from fedsurf.tasks.task import Examples, Task

pytestmark = pytest.mark.slow

FEATURES, CLASSES = 8, 4
STEPS, STEP_SIZE, BATCH = 6, 0.3, 5
CLOSE = {"rtol": 0, "atol": 1e-5}


@pytest.fixture
def flower(monkeypatch):
    """Flower's server with its strategies and without telemetry, or a skipped test."""
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    return pytest.importorskip(
        "flwr.server",
        reason="Flower is not installed: pip install 'flwr[simulation]' to compare with it",
    )


def uneven_task(agents):
    """Agents with 5 to 5 + 3 (agents − 1) examples, in single precision."""
    sizes = [BATCH + 3 * agent for agent in range(agents)]
    full = draw_task(3, agents, max(sizes), 5, FEATURES, CLASSES, dtype=torch.float32)
    train = Examples.pad(
        [x[:size] for x, size in zip(full.train.x, sizes, strict=True)],
        [y[:size] for y, size in zip(full.train.y, sizes, strict=True)],
    )
    return Task(train, full.test, CLASSES)


def run_here(method, task, reporting, rounds):
    """Run the method here; return the server's models and the batches of every called agent.

    `shown[round][agent]` is a list of mini-batches (x, y), one for each local step.
    """
    network = StarNetwork(task.agents, reporting, seeded(1))
    twin = StarNetwork(task.agents, reporting, seeded(1))
    state = begin(method, task, network, 2)
    models, shown = [state.weights[0]], []
    for number in range(rounds):
        called = twin.call().agents
        drawn = network.agent_rows(streams(network, 2, number))[called]
        batches = [
            task.train.of(called).draw(BATCH, drawn.at("local step", step)) for step in range(STEPS)
        ]
        shown.append(
            {
                agent: [(batch.x[place].numpy(), batch.y[place].numpy()) for batch in batches]
                for place, agent in enumerate(called.tolist())
            }
        )
        state = advance(method, state, task, network, 2)
        models.append(state.weights[0])
    return models, shown


def to_arrays(row):
    """Flat weights of a softmax head as `torch.nn.Linear`'s weight and bias."""
    matrix = row.reshape(FEATURES + 1, CLASSES)
    return [matrix[:-1].T.contiguous().numpy(), matrix[-1].numpy()]


def to_row(arrays):
    """Flatten a weight and a bias into weights of a softmax head."""
    weight, bias = (torch.tensor(array) for array in arrays)
    return torch.cat([weight.T, bias[None]]).flatten()


def client_maker(shown, sizes):
    """Return a function that makes Flower's client of an agent.

    It has no references to this module, so that it can be sent to other processes.
    """
    features, classes, step_size = FEATURES, CLASSES, STEP_SIZE

    def make(agent):
        import torch
        from flwr.client import NumPyClient

        class Client(NumPyClient):
            def fit(self, parameters, config):
                model = torch.nn.Linear(features, classes)
                received = [torch.tensor(array) for array in parameters]
                with torch.no_grad():
                    for own, given in zip(model.parameters(), received, strict=True):
                        own.copy_(given)
                optimizer = torch.optim.SGD(model.parameters(), lr=step_size)
                mu = config.get("proximal_mu", 0.0)
                for x, y in shown[config["round"] - 1][agent]:
                    optimizer.zero_grad()
                    scores = model(torch.tensor(x))
                    loss = torch.nn.functional.cross_entropy(scores, torch.tensor(y))
                    for own, given in zip(model.parameters(), received, strict=True):
                        loss = loss + mu / 2 * (own - given).square().sum()
                    loss.backward()
                    optimizer.step()
                trained = [own.detach().numpy() for own in model.parameters()]
                return trained, sizes[agent], {}

        return Client().to_client()

    return make


def strategy_of(method, first, seen, *, reporting, agents):
    """Flower's strategy for a method here; it appends the server's model of each round to `seen`."""
    from flwr.common import ndarrays_to_parameters
    from flwr.server import strategy

    settings = {
        "fraction_fit": reporting / agents,
        "fraction_evaluate": 0.0,
        "min_fit_clients": reporting,
        "min_evaluate_clients": 0,
        "min_available_clients": agents,
        "initial_parameters": ndarrays_to_parameters(to_arrays(first)),
        "on_fit_config_fn": lambda server_round: {"round": server_round},
        "evaluate_fn": lambda _, arrays, __: seen.append(to_row(arrays)),
    }
    if isinstance(method, FedProx):
        return strategy.FedProx(**settings, proximal_mu=method.mu)
    if isinstance(method, FedAvgM):
        return strategy.FedAvgM(
            **settings,
            server_momentum=method.momentum,
            server_learning_rate=method.server_step_size,
        )
    return strategy.FedAvg(**settings)


def run_server(flower, method, first, shown, sizes, reporting):
    """Run Flower's server loop over clients in this process, in the given order of calls."""
    from flwr.server.client_proxy import ClientProxy

    make = client_maker(shown, sizes)

    class Proxy(ClientProxy):
        def fit(self, ins, **_):
            return make(int(self.cid)).fit(ins)

        def get_properties(self, ins, **_):
            raise NotImplementedError

        get_parameters = evaluate = reconnect = get_properties

    class Manager(flower.SimpleClientManager):
        """A sampler of the same clients as in the run here."""

        called = iter(shown)

        def sample(self, num_clients, **_):
            chosen = [self.clients[str(agent)] for agent in next(self.called)]
            assert len(chosen) == num_clients
            return chosen

    manager = Manager()
    for agent in range(len(sizes)):
        manager.register(Proxy(str(agent)))
    seen = []
    strategy = strategy_of(method, first, seen, reporting=reporting, agents=len(sizes))
    flower.Server(client_manager=manager, strategy=strategy).fit(len(shown), None)
    return seen


def run_simulated(flower, method, first, shown, sizes):
    """Run Flower's simulation engine, each client in its own process."""
    from flwr.client import ClientApp
    from flwr.simulation import run_simulation

    make, seen = client_maker(shown, sizes), []

    def server(context):
        return flower.ServerAppComponents(
            strategy=strategy_of(method, first, seen, reporting=len(sizes), agents=len(sizes)),
            config=flower.ServerConfig(num_rounds=len(shown)),
        )

    run_simulation(
        flower.ServerApp(server_fn=server),
        ClientApp(client_fn=lambda context: make(int(context.node_config["partition-id"]))),
        num_supernodes=len(sizes),
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    return seen


def methods():
    head, common = SoftmaxHead(FEATURES, CLASSES), (STEPS, STEP_SIZE, BATCH, "examples")
    return [
        FedAvg(head, *common),
        FedProx(head, *common, mu=0.5),
        FedAvgM(head, *common, momentum=0.5),
    ]


def assert_equal_models(here, there):
    """Assert that the server's models agree after every round, and that they change."""
    assert len(there) == len(here)
    difference = (torch.stack(here) - torch.stack(there)).abs().max()
    print(f"largest difference: {float(difference):.2e}")  # noqa: T201 - shown with -s
    torch.testing.assert_close(torch.stack(there), torch.stack(here), **CLOSE)
    assert (here[-1] - here[0]).abs().max() > 0.1


@pytest.mark.parametrize("method", methods(), ids=lambda method: method.name)
def test_ten_of_thirty_uneven_clients_give_flowers_models(flower, method):
    task = uneven_task(agents=30)
    here, shown = run_here(method, task, reporting=10, rounds=10)
    sizes = task.train.counts.tolist()
    assert_equal_models(here, run_server(flower, method, here[0], shown, sizes, 10))


def test_the_methods_differ_on_these_batches():
    task = uneven_task(agents=30)
    ends = [run_here(method, task, reporting=10, rounds=10)[0][-1] for method in methods()]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (ends[one] - ends[other]).abs().max() > 1e-2


@pytest.mark.parametrize("method", methods()[:2], ids=lambda method: method.name)
def test_flowers_simulation_gives_the_same_models(flower, method):
    pytest.importorskip(
        "ray",
        reason="Flower's simulation needs Ray: pip install 'flwr[simulation]' to compare with it",
    )
    task = uneven_task(agents=4)
    here, shown = run_here(method, task, reporting=4, rounds=3)
    sizes = task.train.counts.tolist()
    assert_equal_models(here, run_simulated(flower, method, here[0], shown, sizes))
