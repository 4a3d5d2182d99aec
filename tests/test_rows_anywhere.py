"""One process with all rows, two with half of them, and one for each agent give the same numbers."""

from dataclasses import dataclass, replace

import pytest
import torch
from random_data import seeded
from torch import nn

from fedsurf.algorithms import Start
from fedsurf.common.streams import Streams
from fedsurf.evaluation.methods import METHODS
from fedsurf.evaluation.run import run
from fedsurf.models import ModuleModel, SoftmaxHead
from fedsurf.network import (
    FaultConfig,
    GraphConfig,
    NetworkConfig,
    make_network,
    with_faults,
)
from fedsurf.network.engines.memory import run_parts
from fedsurf.tasks.task import Examples, Task
from fedsurf.unrolled import UDGD, Transferable, UDGDConfig
from fedsurf.unrolled.config import GradientTransferConfig, TransferableConfig
from fedsurf.unrolled.module_layer import GradientTransfer

AGENTS, FEATURES, CLASSES, ROUNDS = 12, 5, 3, 6
SIZES = (3, 9, 4, 7, 3, 12, 5, 6, 3, 8, 10, 4)
HEAD = SoftmaxHead(FEATURES, CLASSES)
FAULTS = FaultConfig(stale=3, loss=0.15)


@dataclass(frozen=True)
class Subject:
    """A method by name, over a graph or through a server, with or without faults."""

    name: str
    star: bool
    faults: bool
    wire: str = "float32"

    def algorithm(self, dtype):
        start = Start(0.1, 0.5)
        match self.name:
            case "U-DGD":
                config = UDGDConfig(ROUNDS, 2 - self.star, 3, initial_deviation=0.5)
                return UDGD(HEAD, config, seeded(0)).to(dtype)
            case "transferable" | "transferable, units, batches":
                made = Transferable(TransferableConfig(confidence_width=4), seeded(0)).to(dtype)
                if self.name == "transferable":
                    return made.on(HEAD, ROUNDS)
                options = {"ease_rare": True, "weigh_agents": True}
                return made.on(HEAD, ROUNDS, "features", 4, **options)
            case "modules":
                made = GradientTransfer(GradientTransferConfig(), seeded(0)).to(dtype)
                return made.on(ModuleModel(nn.Linear(FEATURES, CLASSES)), ROUNDS, start)
        made = METHODS[self.name].make(HEAD, start, {})
        if hasattr(made, "batch_size"):
            made = replace(made, batch_size=2)
        return replace(made, weighting="examples") if hasattr(made, "weighting") else made

    def network(self):
        if self.star:
            config = NetworkConfig(GraphConfig("star"), "metropolis", reporting=5, wire=self.wire)
        else:
            config = NetworkConfig(GraphConfig("regular"), "metropolis", wire=self.wire)
        return make_network(config, AGENTS, seeded(3))

    def __str__(self):
        wire = "" if self.wire == "float32" else f"-{self.wire}"
        faults = "-faults" if self.faults else ""
        return f"{self.name}-{'star' if self.star else 'graph'}{faults}{wire}"


SUBJECTS = [
    Subject(name, star, faults)
    for name, runs_on in [
        *((method.name, method.runs_on) for method in METHODS.values()),
        ("U-DGD", "any"),
        ("transferable", "any"),
        ("transferable, units, batches", "any"),
        ("modules", "graph"),
    ]
    for star in (False, True)
    for faults in (False, True)
    if runs_on in ("any", "server" if star else "graph")
]
OWNERS = {
    "halves": torch.arange(AGENTS) // 6,
    "one and eleven": (torch.arange(AGENTS) > 0).long(),
    "single rows": torch.arange(AGENTS),
}


def task(dtype):
    xs, ys = [], []
    random = seeded(5)
    for size in SIZES:
        y = torch.randint(CLASSES, (size,), generator=random)
        centre = torch.randn(FEATURES, generator=random, dtype=torch.float64)
        noise = torch.randn(size, FEATURES, generator=random, dtype=torch.float64)
        scale = torch.tensor([1.0, 2.0, 1.0, 5.0, 0.5], dtype=torch.float64)
        xs.append(scale * (noise + y[:, None] + 0.3 * centre))
        ys.append(y)
    examples = Examples.pad(xs, ys)
    return Task(examples, examples, CLASSES).to(dtype)


def finish(subject, network, dtype):
    """Run on the rows of `network`; return the agents' weights, the trajectory and the floats."""
    if subject.faults:
        network = with_faults(network, FAULTS, seeded(4))
    agents = network.agent_rows(network.ids)
    own = task(dtype).of(agents)
    algorithm = subject.algorithm(dtype)
    steps = getattr(algorithm, "steps", ROUNDS)
    streams = Streams(9, network.ids)
    network.reset(seeded(7))
    state = algorithm.init(own, network, streams.at("start"))
    for step in range(steps):
        state = algorithm.step(state, own, network, streams.at("step", step))
    weights = state.agent_weights(network)
    found = run(algorithm, own, network, steps, seed=2, weighting="examples", record=(0, steps))
    return weights, found, network.floats, network.bytes


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("layout", OWNERS)
@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_the_same_numbers_in_one_process_and_in_many(subject, layout, dtype):
    check(subject, layout, dtype)


@pytest.mark.parametrize(("wire", "layout"), [("float16", "halves"), ("int8", "single rows")])
@pytest.mark.parametrize(
    ("name", "star", "faults"),
    [
        ("dgd", False, True),
        ("gradient-tracking", False, False),
        ("transferable, units, batches", False, True),
        ("transferable, units, batches", True, True),
        ("U-DGD", True, False),
        ("fedavg", True, False),
        ("scaffold", True, True),
    ],
)
def test_the_same_rounded_numbers_in_one_process_and_in_many(name, star, faults, wire, layout):
    check(Subject(name, star, faults, wire), layout, torch.float64)


def check(subject, layout, dtype):
    owners = OWNERS[layout]
    if subject.star:  # the server lives with the first agents, or alone
        server = 0 if layout == "one and eleven" else int(owners.max()) + 1
        owners = torch.cat([torch.tensor([server]), owners])
    network = subject.network()
    with torch.no_grad():
        weights, trajectory, floats, sent = finish(subject, network, dtype)
    parts = run_parts(subject.network(), owners, lambda part: finish(subject, part, dtype))
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    found = torch.cat([part[0] for part in parts if len(part[0])])
    size = float(weights.abs().max())
    torch.testing.assert_close(found, weights, rtol=tolerance, atol=tolerance * size)
    assert sum(part[2] for part in parts) == floats
    assert sum(part[3] for part in parts) == sent
    for part in parts:
        assert torch.equal(part[1].floats, trajectory.floats)
        assert torch.equal(part[1].bytes, trajectory.bytes)
        for name in ("loss", "accuracy", "pooled_accuracy", "gradient_norm", "disagreement"):
            mine, wanted = getattr(part[1], name), getattr(trajectory, name)
            torch.testing.assert_close(mine, wanted, rtol=100 * tolerance, atol=100 * tolerance)
