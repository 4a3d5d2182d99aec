"""An agent's work: it goes through training again up to where it was, and stops where it must wait."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsurf.common.writing import lock_folder
from fedsurf.deploy.flower.learning import Agreement, Learning, describe, star_of
from fedsurf.deploy.flower.memory import Memory
from fedsurf.deploy.flower.plan import Plan
from fedsurf.estimator.agreement import Columns
from fedsurf.estimator.federations import Array
from fedsurf.estimator.saved import SavedClassifier
from fedsurf.estimator.tables import LabelledTable
from fedsurf.network.engines.flower.agent import AgentSide, PausedError
from fedsurf.network.engines.flower.parcels import Item, Parcel

log = logging.getLogger("fedsurf")


def answer(
    parcel: Parcel,
    plan: Plan,
    agent: int,
    run: int,
    folder: Path,
    read: Callable[[], LabelledTable],
) -> Parcel:
    """Return an agent's reply to a parcel: the item that the server wants, or why it is not there.

    What goes wrong here is said to the server, which goes on without this agent.

    Parameters
    ----------
    agent, run : int
        The agent's number, and that of the run.
    folder : Path
        The agent's own; the state of the run is in a folder inside it.
    read : callable
        Reads the agent's rows.
    """
    if not parcel.want:
        return Parcel()
    taken = ""
    given: dict[str, Item] = {}
    try:
        own = folder / f"run-{run}"
        with lock_folder(own):
            memory = Memory(own)
            memory.keep(parcel.items)
            taken = parcel.want
            note = "has finished"
            given = memory.given
            if taken not in given and not memory.finished:
                side = AgentSide(star_of(plan), agent, memory.received, taken, plan.kind)
                given = side.given
                note = _work(plan, side, memory, read())
    except Exception as error:  # of the user's data, of the disk, …
        log.exception("agent %d", agent)
        note = f"{type(error).__name__}: {error}"
    items = {taken: given[taken]} if taken in given else {}
    return Parcel(items, taken, "" if items else note)


@torch.no_grad()
def _work(plan: Plan, side: AgentSide, memory: Memory, rows: LabelledTable) -> str:
    """Work until the server must be heard; return the reason of the pause."""
    try:
        memory.remove_older()
        names = None if rows.features is None else list(rows.features)
        own = Columns.of(rows.x, np.unique(rows.y), names)
        side.tell(json.dumps(describe(own, len(rows.x), plan)))
        agreement = Agreement.of(side.hear(""), own)
        learning = Learning(plan, agreement, side, rows.x, rows.y)
        state = learning.begin()
        kept = set(side.taken)  # the beginning is repeated every time
        side.given_since.clear()
        state = memory.load(state, side)
        step = state.steps
        while True:
            # Two stages for each step: the step, and the evaluation after it, if there is one.
            if memory.stage < 2 * step + 1:
                memory.save(2 * step + 1, state, side, side.taken - kept)
                side.pause()
            if step and learning.evaluates(step) and memory.stage < 2 * step + 2:
                model = learning.model(state)
                side.tell(json.dumps(_measures(learning, model, rows)))
                if step == learning.steps:
                    saved = classifier(model, learning, rows.label)
                    saved.write(memory.folder.parent)
                    memory.finish()
                    return "has finished"
                memory.save(2 * step + 2, state, side, side.taken - kept)
                side.pause()
            state = learning.advance(state)
            step = state.steps
    except PausedError as pause:
        return str(pause)


def classifier(model: Tensor, learning: Learning, label: str | None) -> SavedClassifier:
    """Return the model `[1, parameters]` as the classifier that `fedsurf fit` writes."""
    head, agreement, plan = learning.head, learning.agreement, learning.plan
    matrix: Array = model.reshape(head.features + 1, head.classes).T.cpu().numpy().copy()
    config: dict[str, Any] = {
        **vars(plan),
        "settings": json.dumps(agreement.settings),
        "engine": "flower",
    }
    columns = agreement.columns
    names = None if columns.names is None else list(columns.names)
    return SavedClassifier(
        matrix[:, :-1], matrix[:, -1], list(columns.classes), names, label, config
    )


def _measures(learning: Learning, model: Tensor, rows: LabelledTable) -> dict[str, float]:
    """Return how good a model is on the own rows: sums that the server adds up."""
    head, train = learning.head, learning.task.train.pooled()
    found = {
        "rows": float(len(rows.y)),
        "loss": float(head.loss(model, train)[0]) * len(rows.y),
        "hits": float(head.accuracy(model, train)[0]) * len(rows.y),
        "test_rows": float(len(rows.test_y)),
        "test_hits": 0.0,
    }
    if len(rows.test_y):
        saved = classifier(model, learning, None)
        classes = np.array(saved.classes)
        labels = classes[(rows.test_x @ saved.weight.T + saved.bias).argmax(1)]
        found["test_hits"] = float(np.sum(labels == rows.test_y))
    return found
