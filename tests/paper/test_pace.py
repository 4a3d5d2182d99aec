"""The seconds of a meta-training step, without those of validations."""

import json

from fedsurf.paper import pace as pace_module
from fedsurf.paper.pace import PaceOfSteps
from fedsurf.surf.training import ValidationRecord


def test_it_writes_the_mean_seconds_of_a_step_without_those_of_validations(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(pace_module, "perf_counter", lambda: now[0])
    file = tmp_path / "pace.json"
    pace = PaceOfSteps(file)
    now[0] += 50  # what comes before the first step
    pace.on_start(0, 4)
    for step in range(1, 5):
        now[0] += step
        pace.on_step(None)
        if step % 2 == 0:
            now[0] += 30
            pace.on_validation(ValidationRecord(step, 0.0, 0.0, 0.0, [], [], []), None)
    expected = {"step": 4, "steps": 4, "timed": 4, "seconds_per_step": 2.5}
    assert json.loads(file.read_text()) == expected
