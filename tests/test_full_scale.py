"""Tests at full scale: minutes to an hour, run by `make test-slow`."""

import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fedsurf import Experiment, evaluate, preset

FEATURES = Path("../shared/features/cifar10-efficientnet-lite0-160-pca512.npz")


@pytest.mark.slow
def test_the_papers_scale_fits_into_16_gib(tmp_path: Path) -> None:
    if not FEATURES.exists():
        pytest.skip(f"needs 512 features of CIFAR-10 in {FEATURES}")
    subprocess.run(
        [
            *(sys.executable, "-m", "fedsurf", "train", "paper-regular"),
            *("--data.source", str(FEATURES), "--data.backbone", "none"),
            *(
                "--surf.steps",
                "2",
                "--surf.validation-tasks",
                "2",
                "--folder",
                str(tmp_path / "run"),
            ),
        ],
        check=True,
    )
    assert (tmp_path / "run" / "best.safetensors").stat().st_size > 531e6 * 4
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    assert peak < 9 * 2**30


@pytest.mark.slow
def test_with_constraints_it_descends_to_the_ceiling_and_without_it_jumps(tmp_path: Path) -> None:
    config = preset("demo")
    constrained = Experiment(config)
    constrained.train(tmp_path / "with")
    result = evaluate(constrained, tasks=30, rounds=(20,))
    accuracy = 100 * result.unrolled.pooled_accuracy.mean(0)
    assert float(accuracy[-1]) > 100 * float(result.centralised.mean()) - 3
    assert bool(result.descent.holds.all())
    assert float(accuracy.diff().min()) > 0
    assert float(accuracy.diff().max()) < 20

    descent = replace(config.surf.descent, constrained=False)
    free = Experiment(replace(config, surf=replace(config.surf, descent=descent)))
    free.train(tmp_path / "without")
    result = evaluate(free, tasks=30, rounds=(20,))
    accuracy = 100 * result.unrolled.pooled_accuracy.mean(0)
    assert float(accuracy[-1]) > 100 * float(result.centralised.mean()) - 3
    assert not bool(result.descent.holds.all())
    assert float(accuracy[-1] - accuracy[-2]) > 20
