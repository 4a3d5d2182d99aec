"""The commands of docs/deploy.md, as they stand there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedsurf.estimator.saved import SavedClassifier

ROOT = Path(__file__).parents[2]
SECTION = re.compile(r"^## Eight sites on one machine\n(.*?)^## ", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow  # eight commands that start from nothing
def test_eight_folders_end_with_the_classifier_of_the_simulator(tmp_path):
    (tmp_path / "fedsurf").symlink_to(ROOT)
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    script = "set -e\n" + "".join(BLOCK.findall(SECTION.search(page)[1]))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", script],  # noqa: S607
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.findall(r"[\d.]+ % of them right", done.stderr) == ["100.0 % of them right"] * 2
    wanted = SavedClassifier.read(tmp_path / "try" / "simulated")
    for number in range(1, 9):
        found = SavedClassifier.read(tmp_path / "try" / f"agent-{number}" / "run")
        for name in ("weight", "bias"):
            mine, its = getattr(found, name), getattr(wanted, name)
            np.testing.assert_allclose(mine, its, rtol=0, atol=1e-5 * np.abs(wanted.weight).max())
