"""What the server and the agents do alike: agree on classes and settings, make the algorithm, and step.

Both sides make the same calls of their network in the same order; that is all that keeps them together.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsurf.algorithms import Algorithm, Start, State
from fedsurf.algorithms.algorithm import ServerState
from fedsurf.common.randomness import generator
from fedsurf.common.streams import Streams
from fedsurf.deploy.flower.plan import PRETRAINED, UNROLLED, Plan
from fedsurf.estimator.agreement import Columns, columns_from, common_columns
from fedsurf.estimator.federations import Array, examples_of
from fedsurf.evaluation.experiment import load_optimizer, read_run_config, run_digest
from fedsurf.evaluation.measures import consensus
from fedsurf.evaluation.methods import METHODS, Setting, settings_for_sizes
from fedsurf.models import SoftmaxHead
from fedsurf.network import Network, StarNetwork
from fedsurf.network.build import shift_of
from fedsurf.network.config import Shift, Wire
from fedsurf.pretrained import digest, load
from fedsurf.tasks.task import Task

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Agreement:
    """What the server found that all agents have in common, and what it decided from their sizes."""

    columns: Columns
    dtype: str
    fewest: int
    """The rows of the agent with the fewest."""
    settings: dict[str, Setting]
    """Settings of the method that suit all agents."""

    def to_json(self) -> str:
        """Return the agreement as text."""
        return json.dumps(asdict(self))

    @staticmethod
    def of(text: str, own: Columns) -> "Agreement":
        """Return the server's agreement, or raise where it does not cover what an agent has itself."""
        content = json.loads(text)
        found = columns_from(content["columns"])
        difference = own.difference(found)
        if difference:
            raise ValueError(f"X, y: the server has {difference}")
        if not set(own.classes) <= set(found.classes) or content["dtype"] not in DTYPES:
            raise ValueError("network: got classes from the server that lack some of the own ones")
        return Agreement(found, *(content[name] for name in ("dtype", "fewest", "settings")))


def describe(own: Columns, rows: int, plan: Plan) -> dict[str, Any]:
    """Return what an agent tells the server of itself: no row, but how many there are."""
    return {"columns": asdict(own), "rows": rows, "optimizer": optimizer_digest(plan)}


def agree(told: Mapping[str, str], plan: Plan) -> Agreement:
    """Return what agents' descriptions, by name, have in common, or raise with the name of one that differs."""
    described = {name: _read(name, text) for name, text in told.items()}
    columns = common_columns({name: one["columns"] for name, one in described.items()})
    own = optimizer_digest(plan)
    for name, one in described.items():
        if one["optimizer"] != own:
            raise ValueError(f"optimizer: {name} has another file than the server")
    rows = [one["rows"] for one in described.values()]
    settings: dict[str, Setting] = {}
    if plan.method in METHODS:
        method = METHODS[plan.method]
        settings = settings_for_sizes(
            method,
            {**method.defaults, **plan.method_settings},
            min(rows),
            unequal=min(rows) < max(rows),
        )
    if len(columns.classes) < 2:
        raise ValueError(
            f"y: got one class only ({columns.classes[0]!r}), but there must be at least two"
        )
    dtype = "float32" if columns.single or plan.method == UNROLLED else "float64"
    return Agreement(columns, dtype, min(rows), settings)


def _read(name: str, text: str) -> dict[str, Any]:
    """Parse an agent's description, which is not trusted to have the right form."""
    try:
        found: dict[str, Any] = json.loads(text)
        found = {**found, "columns": columns_from(found["columns"])}
        sound = type(found["rows"]) is int and found["rows"] > 0 and "optimizer" in found
    except (ValueError, TypeError, KeyError, RecursionError):
        sound = False
    if not sound:
        raise ValueError(f"network: got something else than features and classes from {name}")
    return found


def optimizer_digest(plan: Plan) -> str:
    """Return the checksum of the learned parameters that a plan names."""
    if plan.method == UNROLLED:
        return run_digest(plan.optimizer)
    return digest(plan.optimizer or PRETRAINED) if plan.method == PRETRAINED else ""


def star_of(plan: Plan) -> StarNetwork:
    """Return the whole network, as `FederatedClassifier(graph="star")` makes it."""
    drawn, reporting = generator(plan.seed, "graph"), plan.reporting or None
    shift: Shift = "adjacency"
    if plan.method == UNROLLED:
        config = read_run_config(plan.optimizer).network
        if config.graph.kind != "star":
            raise ValueError(
                f"optimizer: got {plan.optimizer}, which was trained for the graph "
                f"{config.graph.kind!r}, but it must be for a star"
            )
        shift = shift_of(config)
    wire: Wire = "float32" if plan.wire == "float64" else plan.wire
    return StarNetwork(plan.agents, reporting, drawn, shift, calling=plan.calling, wire=wire)


class Learning:
    """An algorithm on the rows that live here; at the server there are none.

    Parameters
    ----------
    plan, agreement
        What is learned, the same at all sides.
    network : Network
        A side of a star, or a simulated star.
    x, y, owner : Array or None
        Features, labels, and the place of each row's agent among those that live here.
    """

    def __init__(
        self,
        plan: Plan,
        agreement: Agreement,
        network: Network,
        x: Array | None = None,
        y: Array | None = None,
        owner: Array | None = None,
    ) -> None:
        self.plan, self.agreement, self.network = plan, agreement, network
        self.head = SoftmaxHead(agreement.columns.count, len(agreement.columns.classes))
        kind = agreement.dtype
        if x is None or y is None:  # shapes from which mini-batches can be drawn, and no agents
            rows, nobody = agreement.fewest, torch.empty(0, dtype=torch.int64)
            zero = np.zeros(rows, dtype=np.int64)
            shapes = examples_of(np.zeros((rows, self.head.features), kind), zero, zero, 1)
            self.task = Task(shapes, shapes, self.head.classes).of(nobody)
        else:
            labels = np.searchsorted(agreement.columns.found(), y)
            owner = np.zeros(len(x), dtype=np.int64) if owner is None else owner
            examples = examples_of(
                x.astype(kind), labels, owner, len(network.ids) - network.servers
            )
            self.task = Task(examples, examples, self.head.classes)
        self.streams = Streams(plan.seed, network.ids, "fit")

    @cached_property
    def algorithm(self) -> Algorithm:
        """The algorithm that the plan names."""
        plan = self.plan
        if plan.method == UNROLLED:
            return load_optimizer(plan.optimizer, self.head)
        if plan.method == PRETRAINED:
            optimizer = load(plan.optimizer or PRETRAINED, argument="optimizer")
            return optimizer.on(self.head, plan.rounds, "auto", ease_rare=True, weigh_agents=True)
        start = Start(deviation=plan.initial_deviation)
        return METHODS[plan.method].make(self.head, start, self.agreement.settings)

    @property
    def steps(self) -> int:
        """The number of steps: of a learned algorithm its layers, of another one rounds."""
        return int(getattr(self.algorithm, "steps", self.plan.rounds))

    def evaluates(self, step: int) -> bool:
        """Return whether agents evaluate the model after a step."""
        every = self.plan.evaluate_every
        return step == self.steps or bool(every and step % every == 0)

    def begin(self) -> State:
        """Return the state before the first step."""
        self.network.reset(generator(self.plan.seed, "network"))
        algorithm, here = self.algorithm, self.task.agents
        if here and hasattr(algorithm, "check"):
            algorithm.check(self.task)
        return algorithm.init(self.task, self.network, self.streams.at("start"))

    def advance(self, state: State) -> State:
        """Return the state after one more step."""
        streams = self.streams.at("step", state.steps)
        return self.algorithm.step(state, self.task, self.network, streams)

    def model(self, state: State) -> Tensor:
        """Return the model of all agents, `[1, parameters]`: the server's, or the mean of theirs."""
        if isinstance(state, ServerState):
            published = self.network.publish(state.weights)
            return state.weights if self.network.servers else published[:1]
        return consensus(state.agent_weights(self.network), self.network)
