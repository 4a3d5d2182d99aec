"""Iris as a table with the names of the kinds, in a mixed order, and the greenhouse of each flower."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_iris

NAMES = ("sepal length", "sepal width", "petal length", "petal width")


def rows() -> list[dict[str, Any]]:
    data = load_iris()
    order = np.random.default_rng(0).permutation(150)
    return [
        {
            **dict(zip(NAMES, data.data[number].tolist(), strict=True)),
            "greenhouse": f"house {place % 7}",
            "kind": str(data.target_names[data.target[number]]),
        }
        for place, number in enumerate(order)
    ]


def write(path: Path, table: list[dict[str, Any]], columns: Any = None) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns or list(table[0]), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(table)
    return path


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
