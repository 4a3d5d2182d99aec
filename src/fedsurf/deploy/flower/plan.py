"""The run configuration of the app: what is learned, by which method, and how long the server waits."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fedsurf.common.checks import check_count, check_not_negative, check_option, check_positive
from fedsurf.common.configuration import from_table
from fedsurf.evaluation.methods import METHODS, Setting
from fedsurf.network.config import Calling

FlowerWire = Literal["float32", "float16", "int8", "float64"]
PRETRAINED, UNROLLED = "softmax-head", "u-dgd"
"""Names of the methods that are learned: a pretrained optimizer, and the optimizer of a run folder."""


@dataclass(frozen=True)
class Plan:
    """The keys of `[tool.flwr.app.config]`, there with `-` in place of `_`.

    Examples
    --------
    >>> plan = Plan.read({"agents": 5, "method": "fedavg", "settings": "step_size = 0.1"})
    >>> plan.method, plan.rounds, plan.method_settings
    ('fedavg', 10, {'step_size': 0.1})
    >>> Plan.read({"agents": 5, "round": 3})
    Traceback (most recent call last):
    ...
    ValueError: run config: round: there is no such field; did you mean 'rounds'?
    """

    #: Number of agents, of whom each has its own node.
    agents: int
    #: softmax-head (pretrained), u-dgd, or a method of the catalogue that runs through a server.
    method: str = PRETRAINED
    #: Rounds of training; U-DGD has its own number.
    rounds: int = 10
    #: Agents that the server calls in a round; 0 for all.
    reporting: int = 0
    #: How it calls them: every agent once before any is called again, or at random.
    calling: Calling = "in-turn"
    #: Seed of the start, the calls and mini-batches.
    seed: int = 0
    #: File of a pretrained optimizer, or run folder of U-DGD; the same at all nodes.
    optimizer: str = ""
    #: Settings of a method of the catalogue, such as "step_size = 0.3, local_steps = 6".
    settings: str = ""
    #: Standard deviation of the initial weights of such a method.
    initial_deviation: float = 0.0
    #: Column of labels; by default the one called label, y or target, or else the last.
    label: str = ""
    #: Table of all agents' rows, for simulations; nodes name their own in their node config.
    data: str = ""
    #: Its column of agents; by default the one called agent or agents.
    agent_column: str = ""
    #: Share of an agent's rows of each class that it holds out.
    test_share: float = 0.2
    #: Steps between two evaluations by the agents; 0 for one at the end.
    evaluate_every: int = 0
    #: Longest wait for the replies of a round, in seconds.
    timeout: float = 60.0
    #: Longest wait where the server cannot go on without an agent.
    patience: float = 600.0
    #: Numbers of a round on their way: float32, or rounded to float16 or int8, or exactly, as float64.
    wire: FlowerWire = "float32"
    #: Folder of the server's results.
    folder: str = "run"
    #: Folder of the agents' states, one inside it for each; nodes may name their own in their node config.
    state_folder: str = "agents"

    def __post_init__(self) -> None:
        check_count(self.agents, "agents")
        check_count(self.rounds, "rounds")
        check_count(self.evaluate_every, "evaluate-every", 0)
        check_not_negative(self.initial_deviation, "initial-deviation")
        check_positive(self.timeout, "timeout")
        check_positive(self.patience, "patience")
        check_option(self.calling, Calling, "calling")
        check_option(self.wire, FlowerWire, "wire")
        if not 0 <= self.reporting <= self.agents:
            raise ValueError(
                f"reporting: got {self.reporting}, but it must be between 0, for all, and {self.agents}"
            )
        if not 0 <= self.test_share < 1:
            raise ValueError(
                f"test-share: got {self.test_share}, but it must be at least 0 and below 1"
            )
        known = [
            PRETRAINED,
            UNROLLED,
            *(name for name, one in METHODS.items() if one.runs_on != "graph"),
        ]
        if self.method not in known:
            raise ValueError(
                f"method: got {self.method!r}, but it must be one of {', '.join(known)}"
            )
        if self.settings and self.method not in METHODS:
            raise ValueError(f"settings: got {self.settings!r}, but {self.method} has none")
        if self.method == UNROLLED and not self.optimizer:
            raise ValueError("optimizer: got none, but u-dgd needs the folder of a run")

    @property
    def kind(self) -> Literal["float32", "float64"]:
        """The type of numbers that are not rounded."""
        return "float64" if self.wire == "float64" else "float32"

    @property
    def method_settings(self) -> dict[str, Setting]:
        """The settings as a table."""
        try:
            found = tomllib.loads(f"settings = {{{self.settings}}}")
        except tomllib.TOMLDecodeError as error:
            raise ValueError(
                f"settings: got {self.settings!r}, but it must be like 'step_size = 0.3, local_steps = 6' "
                f"({error})"
            ) from error
        settings: dict[str, Setting] = found["settings"]
        return settings

    @staticmethod
    def read(config: Mapping[str, Any]) -> "Plan":
        """Return the plan of a run configuration, or raise with all its problems."""
        given = {name.replace("-", "_"): value for name, value in config.items()}
        plan, problems = from_table(Plan, given)
        if plan is None:
            raise ValueError(f"run config: {'; '.join(problems)}")
        return plan
