"""The tables of the sites of a process, as the federation describes them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsurf.common.files import FileError, column_names
from fedsurf.common.text import listed
from fedsurf.estimator.tables import LabelledTable, read_labelled
from fedsurf.network.engines.config import Learned


def read_site(path: Path, learned: Learned, test_share: float) -> LabelledTable:
    """Read a site's table: the features that the federation names, in their order, or all."""
    if path.suffix == ".npz":
        raise FileError(f"{path}: a site's table is a .csv or .parquet file")
    other: list[str] = []
    if learned.features:
        names = column_names(path)
        missing = [name for name in learned.features if name not in names]
        if missing:
            raise FileError(f"{path}: lacks the features {listed(missing)} of the federation")
        other = [n for n in names if n != learned.label and n not in learned.features]
    table = read_labelled(
        path, label=learned.label, drop=other, test_share=test_share, one_agent=True
    )
    if not learned.features or table.features is None:
        return table
    order = [table.features.index(name) for name in learned.features]
    x, test_x = table.x[:, order], table.test_x[:, order]
    return replace(table, x=x, test_x=test_x, features=learned.features)


def classes_of(learned: Learned, table: LabelledTable) -> list[Any] | None:
    """Return the classes that the federation names, as the labels of a table are, or None."""
    if not learned.classes:
        return None
    if table.y.dtype.kind not in "biuf":
        return [str(label) for label in learned.classes]
    try:
        return [int(label) for label in learned.classes]
    except ValueError as error:
        raise FileError(
            f"data.classes: got {listed(learned.classes)}, but the labels here are numbers"
        ) from error


def stacked(tables: Sequence[LabelledTable], agents: Sequence[int]) -> LabelledTable:
    """Return the rows of several agents' tables as one table."""
    features = tables[0].features
    for table in tables:
        if table.features != features:
            got, wanted = (listed(names or ()) for names in (table.features, features))
            raise FileError(f"data: got tables with the features {got}, and with {wanted}")
    return replace(
        tables[0],
        x=np.concatenate([table.x for table in tables]),
        y=np.concatenate([table.y for table in tables]),
        test_x=np.concatenate([table.test_x for table in tables]),
        test_y=np.concatenate([table.test_y for table in tables]),
        agents=np.repeat(agents, [len(table.y) for table in tables]),
    )
