"""Tables as CSV files."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsurf.files import replacing


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with the columns of all of them, whole or not at all."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
