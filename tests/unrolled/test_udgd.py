"""U-DGD against the paper's formula, agent by agent and hop by hop, in double precision."""

import math

import naive
import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_data import examples as draw_examples
from random_data import seeded, weights
from random_data import task as draw_task
from running import begin, calls, streams

from fedsurf.algorithms import State
from fedsurf.models import ModuleModel, SoftmaxHead
from fedsurf.network import GraphConfig, Network, StarNetwork, make_graph
from fedsurf.unrolled import UDGD, UDGDConfig

ACTIVATIONS = {
    "relu": lambda value: max(value, 0.0),
    "tanh": math.tanh,
    "leaky-relu": lambda value: value if value > 0 else 0.01 * value,
    "identity": lambda value: value,
}


def naive_layer(layer, graph, shift, rows, batch, classes, activation, *, server=False):
    """w_i = [Σ_k h_k S^k W]_i − σ(M [w_i ‖ b_i] + d); the server: w_0 = Σ_{k≥1} h_k [S^k W]_0."""
    taps = layer.filter.taps.tolist()
    matrix, offset = layer.perceptron.matrix.tolist(), layer.perceptron.offset.tolist()
    hops = [rows]
    for _ in taps[1:]:
        hops.append(naive.mix(graph, hops[-1], shift))
    result = []
    for node, row in enumerate(rows):
        is_server = server and node == 0
        new = [
            sum(
                tap * hops[k][node][place]
                for k, tap in enumerate(taps)
                if not (is_server and k == 0)
            )
            for place in range(len(row))
        ]
        if not is_server:
            agent = node - int(server)
            inputs = list(row)
            for x, y in zip(batch.x[agent].tolist(), batch.y[agent].tolist(), strict=True):
                inputs += x
                inputs += [1.0 if label == y else 0.0 for label in range(classes)]
            for place in range(len(row)):
                total = offset[place]
                for value, entry in zip(inputs, matrix[place], strict=True):
                    total += value * entry
                new[place] -= ACTIVATIONS[activation](total)
        result.append(new)
    return torch.tensor(result, dtype=torch.float64)


def optimizer(seed=0, features=2, classes=3, **settings):
    """Return an optimizer in double precision with random taps."""
    config = UDGDConfig(**{"layers": 2, "batch_size": 2, **settings})
    made = UDGD(SoftmaxHead(features, classes), config, seeded(seed)).double()
    with torch.no_grad():
        for layer in made.layers:
            layer.filter.taps.copy_(
                torch.randn(config.filter_order + 1, generator=seeded(seed + 1))
            )
    return made


@given(
    agents=st.integers(1, 5),
    order=st.integers(0, 3),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    shift=st.sampled_from(["adjacency", "metropolis", "laplacian"]),
    seed=st.integers(0, 1000),
)
def test_a_layer_equals_the_formula(agents, order, activation, shift, seed):
    graph = make_graph(GraphConfig("erdos-renyi", probability=0.6), agents, seeded(seed))
    network = Network(graph, shift)
    made = optimizer(seed, filter_order=order, activation=activation)
    start = weights(seed, agents, 9)
    batch = draw_examples(seed, agents, size=2, features=2)
    state = made.apply_layer(State(start), batch, network)
    expected = naive_layer(made.layers[0], graph, shift, start.tolist(), batch, 3, activation)
    torch.testing.assert_close(state.weights, expected, rtol=1e-11, atol=1e-11)
    assert state.steps == 1
    assert network.rounds == order
    again = made.apply_layer(state, batch, network)
    expected = naive_layer(made.layers[1], graph, shift, expected.tolist(), batch, 3, activation)
    torch.testing.assert_close(again.weights, expected, rtol=1e-10, atol=1e-10)


def test_over_a_star_the_server_filters_and_the_agents_apply_the_layer():
    network, made = StarNetwork(4, None, seeded(0)), optimizer(1, filter_order=1)
    start, batch = weights(2, 5, 9), draw_examples(3, 4, size=2, features=2)
    found = made.apply_layer(State(start), batch, network).weights
    expected = naive_layer(
        made.layers[0], nx.star_graph(4), "adjacency", start.tolist(), batch, 3, "relu", server=True
    )
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    # The server's row is h_1 [S]_0 W, to the letter.
    tap, row = made.layers[0].filter.taps[1], torch.full((5,), 1 / 5, dtype=torch.float64)
    torch.testing.assert_close(found[0], tap * (row @ start))


def test_a_server_receives_only_from_the_sampled_agents():
    made = optimizer(4, filter_order=1)
    start, batch = weights(5, 101, 9), draw_examples(6, 100, size=2, features=2)
    network = StarNetwork(100, 10, seeded(7))
    found = made.apply_layer(State(start), batch, network).weights
    reporters = 1 + torch.tensor(calls(100, 10, 7, 1)[0])
    tap = made.layers[0].filter.taps[1]
    heard = start[0] / 101 + start[reporters].sum(0) * 10 / 101
    torch.testing.assert_close(found[0], tap * heard)
    everybody = StarNetwork(100, None, seeded(7))
    others = made.apply_layer(State(start), batch, everybody).weights
    torch.testing.assert_close(found[1:], others[1:])
    assert network.floats == 9 * 110


def test_a_step_draws_each_agents_mini_batch_from_its_stream():
    made, task, network = optimizer(14), draw_task(15, features=2), Network(nx.cycle_graph(4))
    state = begin(made, task, network)
    for step in range(2):
        draws = streams(network, 1, step)
        expected = made.apply_layer(state, task.train.draw(2, draws), network)
        state = made.step(state, task, network, draws)
        assert torch.equal(state.weights, expected.weights)


def test_at_the_papers_scale_there_are_531_million_parameters():
    with torch.device("meta"):
        made = UDGD(SoftmaxHead(512, 10), UDGDConfig(), seeded(0))
    weight, batch = 513 * 10, 10 * (512 + 10)
    shapes = {name: tuple(value.shape) for name, value in made.layers[0].named_parameters()}
    assert shapes == {
        "filter.taps": (3,),
        "perceptron.matrix": (weight, weight + batch),
        "perceptron.offset": (weight,),
    }
    assert len(made.layers) == 10
    assert sum(value.numel() for value in made.parameters()) == 531_006_330


def test_derivatives_reach_every_parameter_and_agree_with_finite_differences():
    made = optimizer(16, features=1, classes=2, activation="tanh")
    network, batch = Network(nx.path_graph(3)), draw_examples(17, 3, size=2, features=1, classes=2)
    start = weights(18, 3, 4)
    names = [name for name, _ in made.named_parameters()]

    def result(*values):
        def run(optimizer):
            state = State(start)
            for _ in range(2):
                state = optimizer.apply_layer(state, batch, network)
            return state.weights

        class Runner(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.made = made

            def forward(self):
                return run(self.made)

        given = {f"made.{name}": value for name, value in zip(names, values, strict=True)}
        return torch.func.functional_call(Runner(), given, ())

    values = [value.detach().clone().requires_grad_() for value in made.parameters()]
    assert torch.autograd.gradcheck(result, values)
    slopes = torch.autograd.grad(result(*values).square().sum(), values)
    assert all(slope.abs().max() > 0 for slope in slopes)


def test_parameters_follow_the_seed_within_their_bounds():
    head, config = SoftmaxHead(4, 3), UDGDConfig(layers=2, batch_size=3)
    first, again, other = (UDGD(head, config, seeded(seed)) for seed in (1, 1, 2))
    for (name, one), two, three in zip(
        first.named_parameters(), again.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(one, two)
        if name.endswith("taps"):
            torch.testing.assert_close(one, torch.full((3,), 1 / 3))
        else:
            assert not torch.equal(one, three)
            assert one.abs().max() <= (15 + 3 * 7) ** -0.5
    matrices = [layer.perceptron.matrix for layer in first.layers]
    assert not torch.equal(*matrices)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": 0}, r"^layers: got 0"),
        ({"batch_size": 0}, r"^batch_size: got 0"),
        ({"filter_order": -1}, r"^filter_order: got -1"),
        ({"activation": "sigmoid"}, r"^activation: got 'sigmoid', .*relu"),
    ],
)
def test_invalid_configurations_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        optimizer(**settings)


def test_models_tasks_and_states_that_do_not_fit_are_refused():
    made, network = optimizer(batch_size=7), Network(nx.cycle_graph(4))
    draws = streams(network)
    with pytest.raises(TypeError, match=r"^model: got .*ModuleModel.* must be a SoftmaxHead"):
        UDGD(ModuleModel(torch.nn.Linear(2, 3)), UDGDConfig(), seeded(0))
    for task, message in (
        (draw_task(20, features=3), r"^task: got 3 features and 3 classes, .* 2 and 3"),
        (draw_task(20, features=2, classes=4), r"^task: got 2 features and 4 classes, .* 2 and 3"),
        (draw_task(20, agents=3, features=2), r"^task: got examples of 3 agents, .* 4 agents"),
        (draw_task(20, features=2).to(torch.float32), r"^task: got features in torch\.float32"),
    ):
        with pytest.raises(ValueError, match=message):
            made.init(task, network, draws)
    task = draw_task(21, train=6, features=2)
    state = made.init(task, network, draws)
    with pytest.raises(ValueError, match=r"^batch_size: got 7, .* between 1 and 6"):
        made.step(state, task, network, draws)
    with pytest.raises(ValueError, match=r"^state: got one after 2 steps, .* 2 layers"):
        made.step(State(state.weights, 2), task, network, draws)
