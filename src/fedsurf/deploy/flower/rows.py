"""The rows of one agent: its own table, its part of a table of all agents, or what the user loads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedsurf.deploy.flower.plan import Plan
from fedsurf.estimator.federations import check_features, check_label_types, check_labels
from fedsurf.estimator.tables import LabelledTable, read_labelled
from fedsurf.tasks.dataset import split

if TYPE_CHECKING:
    from flwr.app import Context

Load = Callable[["Context"], tuple[Any, Any]]
"""Returns the features and labels of the node that a context describes."""


def rows_of(agent: int, data: str | None, plan: Plan) -> LabelledTable:
    r"""Return an agent's rows: those of its own table, or else its part of the plan's.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "all.csv"
    ...     _ = path.write_text("size,agent,label\n1,north,a\n2,south,b\n3,south,a\n")
    ...     table = rows_of(1, None, Plan(agents=2, data=str(path), test_share=0.0))
    >>> table.x.tolist(), table.y.tolist()
    ([[2.0], [3.0]], ['b', 'a'])
    """
    label, column = plan.label or None, plan.agent_column or None
    if data:
        return read_labelled(Path(data), label=label, test_share=plan.test_share)
    if not plan.data:
        raise ValueError(
            'data: got no table: name it in the node config, data="clinic.csv", or in the run config one of '
            "all agents' rows"
        )
    table = read_labelled(Path(plan.data), label=label, agent=column, test_share=0.0)
    ids = np.array([]) if table.agents is None else np.unique(table.agents)
    if table.agents is None or len(ids) != plan.agents:
        raise ValueError(
            f"data: got {len(ids)} different agents in {plan.data}, but the run config has "
            f"agents={plan.agents}"
        )
    mine = table.agents == ids[agent]
    names = None if table.features is None else list(table.features)
    return _divided(table.x[mine], table.y[mine], names, table.label, plan.test_share)


def loaded_rows(load: Load, context: Context, plan: Plan) -> LabelledTable:
    """Return the rows that the user's function loads."""
    x, y = load(context)
    check_features(x)
    check_labels(y)
    names = [str(name) for name in x.columns] if isinstance(x, pd.DataFrame) else None
    features, labels = np.asarray(x), np.asarray(y)
    if features.dtype != np.float32:
        features = features.astype(np.float64)
    check_label_types(labels)
    if features.ndim != 2 or labels.shape != (len(features),) or not len(labels):
        raise ValueError(
            f"load: got x of shape {list(features.shape)} and y of shape {list(labels.shape)}, but they must "
            "be [rows, features] and [rows]"
        )
    if not np.isfinite(features).all():
        raise ValueError("load: got features that are not finite, but all must be numbers")
    return _divided(features, labels, names, None, plan.test_share)


def _divided(
    x: Any, y: Any, names: list[str] | None, label: str | None, share: float
) -> LabelledTable:
    held = split(y, share) if share > 0 else np.zeros(len(y), dtype=bool)
    features = None if names is None else tuple(names)
    return LabelledTable(x[~held], y[~held], None, x[held], y[held], features, label)
