"""The contract of every algorithm: the methods of the catalogue, and the learned ones.

Learned layers are compared with their naive versions in tests/unrolled.
"""

from dataclasses import dataclass, fields, replace
from itertools import count, repeat

import naive
import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_methods import MESSAGES, NAIVE, OPTIMA, World
from random_data import real_examples, seeded
from random_data import task as draw_task
from running import advance, begin, lopsided_graph, streams
from torch import nn

from fedsurf.algorithms import Start, State
from fedsurf.algorithms.gossip import AveragingMethod
from fedsurf.algorithms.server import RoundState, ServerMethod
from fedsurf.evaluation.methods import METHODS
from fedsurf.evaluation.run import Trajectories, run
from fedsurf.models import ModuleModel, SoftmaxHead
from fedsurf.network import GraphConfig, Network, StarNetwork, make_graph
from fedsurf.tasks.task import Examples, Task
from fedsurf.unrolled import Transferable, UDGDConfig
from fedsurf.unrolled.config import GradientTransferConfig, TransferableConfig
from fedsurf.unrolled.module_layer import GradientTransfer
from fedsurf.unrolled.udgd import UDGD

HEAD = SoftmaxHead(3, 3)
PARAMETERS = HEAD.parameters
AGENTS = 6
BAD = {
    "step_size": (0.0, float("nan")),
    "batch_size": (0,),
    "local_steps": (0,),
    "momentum": (1.0, -0.1),
    "server_step_size": (0.0,),
    "weighting": ("sizes",),
    "strength": (0.0, float("inf")),
    "iterations": (0,),
    "bits": (1, 33),
    "mu": (-0.1, float("nan")),
    "temperature": (0.0,),
    "representation": ("pixels",),
    "alpha": (0.0,),
    "beta1": (1.0,),
    "beta2": (-0.1,),
    "tau": (0.0,),
    "shrinkage": (0.0, 1.1),
}


class RelabelledStar(StarNetwork):
    """A star whose agents have other numbers: new agent k is old agent order[k]."""

    def __init__(self, order, *arguments):
        super().__init__(*arguments)
        self._place = order.argsort()

    def _draw(self):
        return self._place[super()._draw()]


@dataclass(frozen=True)
class Subject:
    """An algorithm by name, on a graph or a star."""

    name: str
    star: bool

    @property
    def learned(self):
        return self.name not in METHODS

    def algorithm(self, *, dtype=torch.float64, full=True, deviation=0.5, **options):
        """Make it with the catalogue's settings; with `full`, on all examples in each step."""
        if self.name == "U-DGD":
            config = UDGDConfig(4, 2 - self.star, 1, initial_deviation=deviation)
            return UDGD(HEAD, config, seeded(0)).to(dtype)
        if self.name == "transferable":
            return Transferable(TransferableConfig(), seeded(0)).to(dtype).on(HEAD, 8)
        if self.name == "modules":
            made = GradientTransfer(GradientTransferConfig(), seeded(0)).to(dtype)
            return made.on(ModuleModel(nn.Linear(3, 3)), 8, Start(0.0, deviation))
        made = METHODS[self.name].make(HEAD, Start(0.0, deviation), {})
        if full and hasattr(made, "batch_size"):
            options["batch_size"] = None
        return replace(made, **options)

    def task(self, seed, agents=AGENTS, **options):
        """Draw a task; U-DGD, which always draws, gets agents with a single example."""
        return draw_task(seed, agents, 1 if self.name == "U-DGD" else 12, **options)

    def network(self, agents=AGENTS, reporting=None, order=None):
        if not self.star:
            graph = lopsided_graph() if agents == AGENTS else nx.complete_graph(agents)
            if order is not None:
                graph = nx.relabel_nodes(graph, dict(enumerate(order.argsort().tolist())))
                graph = nx.Graph(graph.edges) if agents > 1 else graph
                graph = nx.compose(nx.empty_graph(agents), graph)
            return Network(graph, "metropolis")
        order = torch.arange(agents) if order is None else order
        return RelabelledStar(order, agents, reporting, seeded(7), "metropolis")

    def __str__(self):
        return f"{self.name}-{'star' if self.star else 'graph'}"


CLASSICAL = [
    Subject(method.name, star)
    for method in METHODS.values()
    for star in (False, True)
    if method.runs_on in ("any", "server" if star else "graph")
]
LEARNED = [Subject(name, star) for name in ("U-DGD", "transferable") for star in (False, True)]
SUBJECTS = [*CLASSICAL, *LEARNED, Subject("modules", star=False)]
every = pytest.mark.parametrize("subject", SUBJECTS, ids=str)
every_classical = pytest.mark.parametrize("subject", CLASSICAL, ids=str)
every_method = pytest.mark.parametrize("name", METHODS)


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def states(algorithm, task, network, steps=3, seed=0):
    """Return the states from the first to the one after `steps` steps."""
    found = [begin(algorithm, task, network, seed)]
    for _ in range(steps):
        found.append(advance(algorithm, found[-1], task, network, seed))
    return found


def end(algorithm, task, network, steps=3, seed=0):
    """Return a server's row, if the state has one, and the agents' weights in the end."""
    state = states(algorithm, task, network, steps, seed)[-1]
    return torch.cat([state.weights[: network.servers], state.agent_weights(network)])


def tensors(state):
    values = {field.name: getattr(state, field.name) for field in fields(state)}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def test_every_method_has_a_naive_version():
    assert set(NAIVE) == set(METHODS)


@every_classical
@settings(max_examples=6)
@given(
    agents=st.integers(1, 5),
    seed=st.integers(0, 1000),
    masked=st.booleans(),
    full=st.booleans(),
    weighting=st.sampled_from(["uniform", "examples"]),
    data=st.data(),
)
def test_it_equals_its_naive_version(subject, agents, seed, masked, full, weighting, data):
    method = subject.algorithm(full=full)
    if hasattr(method, "weighting"):
        method = replace(method, weighting=weighting)
    if isinstance(method, AveragingMethod):
        method = replace(method, accelerated=False)
    if not full and getattr(method, "batch_size", None) is not None:
        method = replace(method, batch_size=1)
    task = draw_task(seed, agents, train=30, masked=masked)
    reporting = None
    graph, shift = nx.star_graph(agents), data.draw(st.sampled_from(["adjacency", "metropolis"]))
    if not subject.star:
        shift = "metropolis" if METHODS[subject.name].runs_on == "graph" else shift
        shift = "metropolis" if isinstance(method, AveragingMethod) else shift
        graph = make_graph(GraphConfig("erdos-renyi", probability=0.6), agents, seeded(seed))
        network = Network(graph, shift)
    else:
        if isinstance(method, ServerMethod | AveragingMethod):
            reporting = data.draw(st.integers(1, agents))
        network = StarNetwork(agents, reporting, seeded(7), shift)
    found = states(method, task, network, 4)
    twin, numbers = StarNetwork(agents, reporting, seeded(7), shift), count()

    def draw(called):
        if getattr(method, "batch_size", None) is None:
            return [examples[agent] for agent in called]
        number, rows = next(numbers), torch.tensor(list(called))
        if hasattr(method, "local_steps"):
            step, local = divmod(number, method.local_steps)
            draws = streams(network, step=step).at("local step", local)
        else:
            draws = streams(network, step=number)
        return real_examples(task.train.of(rows).draw(1, network.agent_rows(draws)[rows]))

    examples = real_examples(task.train)
    world = World(
        found[0].weights.tolist(),
        examples,
        3,
        lambda rows: naive.mix(graph, rows, shift),
        draw,
        (twin.call().agents.tolist() for _ in repeat(None)) if subject.star else None,
    )
    tolerance = 1e-3 if subject.name in OPTIMA else 1e-9
    for state, rows in zip(found[1:], NAIVE[subject.name](method, world), strict=False):
        wanted = torch.tensor(rows, dtype=torch.float64)
        torch.testing.assert_close(state.weights, wanted, rtol=tolerance, atol=tolerance)


@every
def test_permuting_agents_permutes_rows(subject):
    task, order = subject.task(1, masked=True), torch.tensor([3, 5, 0, 1, 4, 2])
    moved = Task(task.train.of(order), task.test.of(order), task.classes)
    method = subject.algorithm(deviation=0.0)
    reporting = 3 if isinstance(method, ServerMethod) else None
    found = end(method, task, subject.network(reporting=reporting))
    other = end(method, moved, subject.network(reporting=reporting, order=order))
    server, rows = found[: int(subject.star)], found[int(subject.star) :]
    assert not torch.allclose(found, torch.zeros_like(found))
    torch.testing.assert_close(other, torch.cat([server, rows[order]]), rtol=1e-7, atol=1e-7)


@every
def test_one_agent_works(subject):
    network = subject.network(1)
    first, *_, last = states(subject.algorithm(), subject.task(2, 1), network)
    assert last.weights.isfinite().all()
    assert not torch.equal(last.weights, first.weights)
    if not subject.star:
        assert network.floats == 0


@every
def test_masked_padding_changes_nothing(subject):
    task = subject.task(3)
    x, y = (
        torch.cat([part, torch.zeros_like(part[:, :1])], 1) for part in (task.train.x, task.train.y)
    )
    mask = torch.ones_like(y, dtype=torch.bool)
    mask[:, -1] = False
    padded = Task(Examples(x, y, mask), task.test, task.classes)
    plain, other = (end(subject.algorithm(), given, subject.network()) for given in (task, padded))
    torch.testing.assert_close(plain, other, rtol=1e-7, atol=1e-7)


@every
def test_the_same_seed_gives_the_same_bits_and_no_other_randomness_is_used(subject):
    task = draw_task(4, AGENTS, train=12)
    method = subject.algorithm(full=False)

    def finish(seed):
        return end(method, task, subject.network(), seed=seed)

    before = torch.random.get_rng_state()
    assert torch.equal(finish(0), finish(0))
    if subject.name not in ("transferable", "class-means", "lda", "ridge"):  # no random start
        assert not torch.equal(finish(0), finish(1))
    assert torch.equal(torch.random.get_rng_state(), before)


@every
def test_it_changes_neither_the_task_nor_the_state_before(subject):
    task, method, network = subject.task(5, masked=True), subject.algorithm(), subject.network()
    data = [getattr(part, name) for part in (task.train, task.test) for name in ("x", "y", "mask")]
    copies = [value.clone() for value in data]
    state = states(method, task, network, 2)[-1]
    kept = {name: value.clone() for name, value in tensors(state).items()}
    advance(method, state, task, network)
    assert all(torch.equal(*pair) for pair in zip(data, copies, strict=True))
    assert all(torch.equal(value, kept[name]) for name, value in tensors(state).items())


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_states_count_steps_and_have_the_tasks_dtype(subject, dtype):
    found = states(subject.algorithm(dtype=dtype), subject.task(6, dtype=dtype), subject.network())
    assert [state.steps for state in found] == [0, 1, 2, 3]
    for state in found:
        assert state.weights.dtype == dtype


@every
def test_it_counts_rounds_and_floats_of_its_messages(subject):
    method, network = subject.algorithm(), subject.network()
    states(method, subject.task(7), network)
    links = network.links.shape[1]
    if subject.name == "local-only":
        assert (network.rounds, network.floats) == (0, 0)
    elif subject.name == "U-DGD":
        order = method.config.filter_order
        assert (network.rounds, network.floats) == (3 * order, 3 * order * links * PARAMETERS)
    elif subject.learned:
        assert network.rounds == 6  # two rounds a layer
        assert len(set(network.link_floats.tolist())) <= 2
    elif subject.star and isinstance(method, AveragingMethod):
        size = MESSAGES[subject.name](3, 3)
        # Each agent uploads its statistic once and downloads the weights in every round.
        assert (network.rounds, network.floats) == (3, AGENTS * (size + 3 * PARAMETERS))
    else:
        size = MESSAGES[subject.name](3, 3)
        assert (network.rounds, network.floats) == (3, 3 * links * size)


@every_classical
def test_divergence_is_reported(subject):
    task = draw_task(8, AGENTS, dtype=torch.float32)
    parts = [Examples(1e30 * part.x, part.y) for part in (task.train, task.test)]
    method = subject.algorithm(dtype=torch.float32)
    found = run(method, Task(*parts, 3), subject.network(), 6)
    (diverged,) = Trajectories.stack(method.name, [found]).diverged
    finite = found.loss.isfinite()
    assert (diverged is None) == bool(finite.all())
    assert (finite.int().diff() <= 0).all()  # nothing is recorded after it
    if hasattr(method, "step_size"):
        assert diverged is not None


@every_classical
def test_it_learns(subject):
    task = draw_task(9, AGENTS, train=20, dtype=torch.float32)
    method = subject.algorithm(dtype=torch.float32, full=False)
    found = run(method, task, subject.network(), 40)
    assert found.pooled_accuracy[-1] > max(0.55, found.pooled_accuracy[0])


@every
def test_a_task_of_another_number_of_agents_is_refused(subject):
    with pytest.raises(ValueError, match=r"^task: got examples of 5 agents, .* 6 agents"):
        begin(subject.algorithm(), subject.task(10, 5), subject.network())


@every_classical
def test_the_state_of_another_method_is_refused(subject):
    method, task, network = subject.algorithm(), subject.task(11), subject.network()
    kind = type(begin(method, task, network))
    weights = torch.zeros(network.nodes, PARAMETERS, dtype=torch.float64)
    others = [State(weights), RoundState(weights[:1], total=weights.new_tensor(AGENTS))]
    for other in others[: 1 + isinstance(method, ServerMethod)]:
        if kind not in (State, type(other)):
            wanted = rf"^state: got a {type(other).__name__}, .* {kind.__name__} "
            with pytest.raises(TypeError, match=wanted):
                advance(method, other, task, network)


@every_method
def test_bad_arguments_are_refused(name):
    method = METHODS[name].make(HEAD, Start(), {})
    for argument in {field.name for field in fields(method)} & set(BAD):
        for value in BAD[argument]:
            wanted = rf"^{argument}: got {value!r}, but it must be "
            with pytest.raises(ValueError, match=wanted):
                replace(method, **{argument: value})


@pytest.mark.parametrize(
    "name", [one for one, method in METHODS.items() if method.runs_on == "graph"]
)
@pytest.mark.parametrize("shift", ["adjacency", "laplacian"])
def test_exact_methods_refuse_an_operator_that_does_not_keep_the_average(name, shift):
    network = Network(nx.path_graph(4), shift)
    with pytest.raises(ValueError, match=rf"^network: got .* '{shift}', .* use 'metropolis'"):
        begin(METHODS[name].make(HEAD, Start(), {}), draw_task(12), network)


@every_method
def test_a_model_with_a_hidden_layer_learns_unless_the_method_is_for_heads(name):
    model = ModuleModel(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)))
    method = METHODS[name]
    if name in ("class-means", "lda", "ridge"):
        with pytest.raises(TypeError, match=r"^model: got ModuleModel, .* a SoftmaxHead"):
            method.make(model, Start(), {})
        return
    task = draw_task(13, AGENTS, train=20, dtype=torch.float32)
    network = Subject(name, star=method.runs_on == "server").network()
    made = method.make(model, Start(0.0, 0.5), {})
    found = run(made, task, network, 30)
    assert found.gradient_norm[-1] < found.gradient_norm[0]
    assert found.pooled_accuracy[-1] > 0.6
