"""The training of a classifier: rounds, an evaluation after every layer, and a file to go on from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsurf.algorithms.saving import load_extra, load_state, save_state
from fedsurf.common.devices import CPU
from fedsurf.common.files import FileError
from fedsurf.common.streams import Streams
from fedsurf.estimator.federations import diverged
from fedsurf.models import SoftmaxHead, cross_entropy
from fedsurf.network import Network
from fedsurf.tasks.groups import group_agents, split_examples, split_groups
from fedsurf.tasks.task import Task
from fedsurf.unrolled.config import ROUNDS_PER_LAYER
from fedsurf.unrolled.transferable.optimizer import TransferableAlgorithm

FIELDS = ("rounds", "floats", "bytes", "loss", "accuracy", "agent_accuracy", "disagreement")
"""What a training records after every layer."""


@dataclass(frozen=True)
class StateFile:
    """A file that holds a run after each of its rounds, so that a run that was stopped goes on."""

    path: Path
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What the run's result depends on besides its state, such as the classes; JSON."""

    def read_notes(self) -> dict[str, Any] | None:
        """Return the notes in the file, or None if there is none."""
        return load_extra(self.path)[1] if self.path.exists() else None


@dataclass
class Training:
    """A run of a learned optimizer on softmax heads, and what it recorded."""

    algorithm: TransferableAlgorithm
    task: Task
    network: Network
    streams: Streams
    records: list[dict[str, float]] = field(default_factory=list)
    """The values of `FIELDS` at the start and after every layer."""
    heads: list[Tensor] = field(default_factory=list)
    """The consensus, the mean of all agents' heads, at the start and after every layer, `[parameters]`."""

    def run(
        self, file: StateFile | None = None, on_layer: Callable[[], None] | None = None
    ) -> tuple[Any, Tensor]:
        """Train, from a file on if it exists; return the last state and the heads of the agents here.

        A process that was away goes on in the round of its neighbours.
        """
        network, algorithm = self.network, self.algorithm
        state: Any = algorithm.init(self.task, network, self.streams.at("start"))
        if file is not None and file.path.exists():
            state = self._resumed(state, file)
        else:
            self._judge(state.agent_weights(network))
        weights = state.weights
        while state.rounds < algorithm.rounds:
            if file is not None:
                self._save(state, file)
            # Through a server, agents take the rounds that they missed, without messages.
            now = state.rounds if network.server else min(network.catch_up(), algorithm.rounds)
            if now > state.rounds:
                state = replace(state, rounds=now)
            else:
                draws = self.streams.at("step", state.rounds // ROUNDS_PER_LAYER)
                state = algorithm.round(state, self.task, network, draws)
            over = state.rounds == algorithm.rounds
            if over or state.rounds % ROUNDS_PER_LAYER == 0:
                state = algorithm.after_layer(state, network)
                if over or not network.behind():
                    weights = state.agent_weights(network)
                    self._judge(weights)
                if on_layer is not None:
                    on_layer()
        return state, weights

    def _judge(self, weights: Tensor) -> None:
        """Record how good the consensus and the agents' own heads are on the training examples."""
        network = self.network
        model, pool = self.algorithm.model, self.task.train.pooled()
        wrong = (~weights.isfinite()).sum(1, keepdim=True).to(weights)
        known = torch.cat([weights.nan_to_num(), wrong, torch.ones_like(wrong)], 1)
        *sums, bad, agents = network.total(known).unbind()
        if bad:
            raise diverged(network)
        mean = torch.stack(sums) / agents
        scores = model.logits(mean[None], pool.x)
        shares = {
            "loss": cross_entropy(scores, pool.y),
            "accuracy": (scores.max(2).indices == pool.y).to(scores.dtype),
        }
        sums_here = [float(each.sum()) for each in shares.values()]
        own = [pool.x.shape[1], network.floats, network.bytes, *sums_here]
        apart = (weights - mean).square().sum(1).double()
        of_agents = torch.stack([self._hits(weights).double(), apart], 1)
        own += of_agents.sum(0).tolist()
        total = network.total(torch.tensor([own], dtype=torch.float64, device=CPU))
        rows, floats, sent_bytes, loss, hits, agent_hits, squares = total.tolist()
        self.heads.append(mean)
        self.records.append(
            {
                "rounds": network.rounds,
                "floats": int(floats),
                "bytes": int(sent_bytes),
                "loss": loss / rows,
                "accuracy": hits / rows,
                "agent_accuracy": agent_hits / float(agents),
                "disagreement": (squares / float(agents)) ** 0.5,
            }
        )

    def _hits(self, weights: Tensor) -> Tensor:
        """Return the accuracy of each agent's head on its own examples, `[agents]`."""
        groups = group_agents(self.task.train)
        pairs = zip(
            split_groups(weights, groups), split_examples(self.task.train, groups), strict=True
        )
        found = [self.algorithm.model.accuracy(heads, part) for heads, part in pairs]
        return torch.cat(found) if found else weights[:, 0]

    def _save(self, state: Any, file: StateFile) -> None:
        rows = [[row[name] for name in FIELDS] for row in self.records]
        extra = {
            "records": torch.tensor(rows, dtype=torch.float64, device=CPU),
            "heads": torch.stack(self.heads),
        }
        save_state(file.path, state, self.network, extra, file.notes)

    def _resumed(self, like: Any, file: StateFile) -> Any:
        state = load_state(file.path, like, self.network)
        extra, notes = load_extra(file.path)
        if notes.get("run") != file.notes.get("run"):
            raise FileError(
                f"{file.path}: is of a run with other rows, settings or links, and cannot go on with these"
            )
        records, heads = extra.get("records"), extra.get("heads")
        if records is None or heads is None or records.shape != (len(heads), len(FIELDS)):
            raise FileError(
                f"{file.path}: damaged, there must be a record and a head for each layer"
            )
        self.records = [dict(zip(FIELDS, row, strict=True)) for row in records.tolist()]
        self.heads = list(heads)
        self.network.rejoin()
        return state


def matrix(weights: Tensor, head: SoftmaxHead) -> np.ndarray:
    """Turn flat heads `[heads, parameters]` into `[heads, classes, features + 1]`."""
    return weights.reshape(-1, head.features + 1, head.classes).mT.cpu().numpy().copy()
