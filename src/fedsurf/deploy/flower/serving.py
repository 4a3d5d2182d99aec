"""The server's work: rounds until the end, and what came out of them as files."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedsurf.common.writing import filled_folder, write_json, write_rows
from fedsurf.deploy.flower.learning import Learning, agree, star_of
from fedsurf.deploy.flower.plan import Plan
from fedsurf.deploy.flower.site import classifier
from fedsurf.estimator.fit import check_model_folder
from fedsurf.estimator.saved import SavedClassifier
from fedsurf.network.engines.flower.parcels import Courier
from fedsurf.network.engines.flower.server import ServerSide

Record = dict[str, float | None]
MEASURES = ("rows", "loss", "hits", "test_rows", "test_hits")


@dataclass(frozen=True, eq=False)
class FlowerResult:
    """What the server has after training."""

    saved: SavedClassifier
    """The classifier."""
    trajectory: list[Record]
    """Rounds, floats, bytes, seconds and, after evaluations, loss and accuracies, after every step."""
    sites: dict[str, Record]
    """Each agent's accuracy on its own rows, and on those that it held out, by name."""
    missing: list[tuple[int, str, str]]
    """The round, the agent and the reason of every reply that the server went on without."""
    bytes_sent: dict[str, int]
    bytes_received: dict[str, int]
    """Bytes of the numbers sent to and received from each agent, by name."""

    def write(self, folder: str | Path) -> None:
        """Write the classifier as `fedsurf fit` does, trajectory.csv, config.json and messages.json."""
        folder = Path(folder)
        check_model_folder(folder)
        result = {"sites": self.sites, **self.trajectory[-1]}
        messages = {
            "missing": [
                {"round": number, "from": name, "why": why} for number, name, why in self.missing
            ],
            "bytes_sent": self.bytes_sent,
            "bytes_received": self.bytes_received,
        }
        with filled_folder(folder) as temporary:
            write_rows(temporary / "trajectory.csv", self.trajectory)
            write_json(temporary / "config.json", {**self.saved.config, "result": result})
            write_json(temporary / "messages.json", messages)
            self.saved.write(temporary)


@torch.no_grad()
def serve(
    plan: Plan, courier: Courier, report: Callable[[str], None] = lambda _: None
) -> FlowerResult:
    """Train with the agents that a courier reaches; return the classifier, and who was missing when.

    Parameters
    ----------
    report : callable
        Takes a line for each step.
    """
    check_model_folder(Path(plan.folder))
    network = ServerSide(
        star_of(plan), courier, deadline=plan.timeout, patience=plan.patience, kind=plan.kind
    )
    told = network.tell(required=True)
    by_name = {courier.names[one]: text for one, text in enumerate(told) if text is not None}
    agreement = agree(by_name, plan)
    network.hear(agreement.to_json())
    report(
        f"{plan.agents} agents, {agreement.columns.count} features, {len(agreement.columns.classes)} classes"
    )
    learning = Learning(plan, agreement, network)
    began, absent = time.monotonic(), len(network.missing)
    state = learning.begin()
    trajectory: list[Record] = []
    sites: dict[str, Record] = {}
    model = None
    for step in range(learning.steps + 1):
        if step:
            state = learning.advance(state)
        found: dict[str, Record] = {}
        if step and learning.evaluates(step):
            model = learning.model(state)
            if not bool(model.isfinite().all()):
                raise ValueError(f"training diverged (round {network.rounds})")
            sites = found = _sites(network, courier)
        trajectory.append(_record(network, time.monotonic() - began, found))
        late = network.missing[absent:]
        absent = len(network.missing)
        report(_line(trajectory[-1], late))
    if model is None:
        raise RuntimeError("no step was evaluated")
    saved = classifier(model, learning, plan.label or None)
    counts = network.bytes_sent, network.bytes_received
    return FlowerResult(saved, trajectory, sites, network.missing, *counts)


def _sites(network: ServerSide, courier: Courier) -> dict[str, Record]:
    """Return the agents' measures, by name."""
    found: dict[str, Record] = {}
    for agent, text in enumerate(network.tell()):
        if text is None:
            continue
        sums = _sums(text)
        if sums is None:
            network.missing.append((network.rounds, courier.names[agent], "refused: no measures"))
            continue
        test = sums["test_rows"]
        found[courier.names[agent]] = {
            **sums,
            "accuracy": sums["hits"] / sums["rows"],
            "test_accuracy": sums["test_hits"] / test if test else None,
        }
    return found


def _sums(text: str) -> dict[str, float] | None:
    """Return the sums in an agent's text, which is not trusted to be right."""
    try:
        content = json.loads(text)
        sums = {name: content[name] for name in MEASURES}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    sound = all(type(v) in (int, float) and math.isfinite(v) and v >= 0 for v in sums.values())
    return sums if sound and sums["rows"] >= 1 else None


def _record(network: ServerSide, seconds: float, sites: dict[str, Record]) -> Record:
    """Return a row of the trajectory; without an evaluation, loss and accuracies are None."""
    record: Record = {
        "rounds": network.rounds,
        "floats": int(network.whole.link_floats.sum()),
        "bytes": sum(network.bytes_sent.values()) + sum(network.bytes_received.values()),
        "seconds": round(seconds, 3),
        "loss": None,
        "accuracy": None,
        "test_accuracy": None,
    }
    sums = {name: float(np.sum([one[name] for one in sites.values()])) for name in MEASURES}
    if sums["rows"]:
        record |= {"loss": sums["loss"] / sums["rows"], "accuracy": sums["hits"] / sums["rows"]}
    if sums["test_rows"]:
        record["test_accuracy"] = sums["test_hits"] / sums["test_rows"]
    return record


def _line(record: Record, late: list[tuple[int, str, str]]) -> str:
    """Return a line about a step."""
    parts = [f"round {record['rounds']}", f"{record['seconds']:.1f} s", f"{record['bytes']} bytes"]
    accuracies = {name: record[name] for name in ("accuracy", "test_accuracy")}
    known = {name: value for name, value in accuracies.items() if value is not None}
    parts += [f"{name.replace('_', ' ')} {value:.3f}" for name, value in known.items()]
    parts += [f"without {name} ({why})" for _, name, why in late]
    return ", ".join(parts)
