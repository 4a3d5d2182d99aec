"""Eight folders that stand for eight sites, each with a table of its own, and a ninth table for testing.

The rows are those of the breast cancer data in scikit-learn, in very unequal parts. `together.csv` has the
rows of all sites, with a column that names the site, for `fedsurf fit`.

    python eight_sites.py
"""

from itertools import pairwise
from pathlib import Path

import pandas as pd
from sklearn.datasets import load_breast_cancer

ENDS = (0, 20, 50, 90, 140, 200, 270, 350, 450)
"""Where the rows of a site end, and those of the next begin; the rows after the last are for testing."""

frame = load_breast_cancer(as_frame=True).frame.sample(frac=1, random_state=0)
frame["label"] = frame.pop("target").map({0: "malignant", 1: "benign"})
parts = {f"agent-{n}": frame[a:b] for n, (a, b) in enumerate(pairwise(ENDS), 1)}
for site, rows in parts.items():
    Path(site).mkdir(exist_ok=True)
    rows.to_csv(Path(site) / "table.csv", index=False)
together = pd.concat([rows.assign(site=site) for site, rows in parts.items()])
together.to_csv("together.csv", index=False)
frame[ENDS[-1] :].to_csv("test.csv", index=False)
print(f"{len(together)} rows at {len(parts)} sites, {len(frame) - ENDS[-1]} for testing")
