"""Tables as a terminal shows them."""

import io
import re
from pathlib import Path

import torch
from experiments import CONFIG, features
from rich.console import Console
from rich.table import Table

from fedsurf.cli.tables import layers_table, methods_table, reached_table, scores_table
from fedsurf.common.writing import write_json
from fedsurf.evaluation.compare import Comparison
from fedsurf.evaluation.config import SHOWN_ROUNDS, StudyConfig
from fedsurf.evaluation.evaluate import evaluate
from fedsurf.evaluation.experiment import Experiment
from fedsurf.evaluation.scores import REACHED_SHARES, Reached, Score


def shown(table: Table, width: int = 80) -> str:
    text = io.StringIO()
    Console(file=text, width=width).print(table)
    return text.getvalue()


def test_a_narrow_terminal_shows_all_digits_of_a_comparison() -> None:
    score = Score(
        label="SURF-T (my-own-weights), 20 rounds, batches of 10",
        accuracy=dict.fromkeys(SHOWN_ROUNDS, (0.843, 0.012)),
        end=(200, 0.8768, 0.0123),
        spread=0.02,
        gap=(0.1234, 0.0123),
        floats=1_638_400.0,
        bytes=6_563_200.0,
        reached=[Reached(share, 1.0, 195.0, 1_543_200.0, 6_182_160.0) for share in REACHED_SHARES],
        diverged=[],
    )
    found = Comparison(StudyConfig(), [], [], [score], torch.tensor([0.9, 0.91]), None, [])
    for text, numbers in (
        (shown(scores_table(found)), ["84.3", "87.7 ±1.2", "12.34 ±1.23"]),
        (shown(reached_table([score])), ["195", "1,543.2", "1,638", "6,563"]),
    ):
        assert "…" not in text
        assert all(number in text for number in numbers)


def test_an_optimizer_that_diverges_has_accuracy_0_and_no_nan_in_tables(tmp_path: Path) -> None:
    experiment = Experiment(CONFIG, features())
    with torch.no_grad():
        for parameter in experiment.optimizer.parameters():
            parameter.mul_(1e20)
    found = evaluate(experiment, tasks=2, rounds=[1], tuning_tasks=1)
    (at,) = set(found.unrolled.diverged)
    methods = shown(methods_table(found))
    assert re.search(rf"U-DGD \(diverged at {at}\).* 0\.0 ± 0\.0 +0\.0 ± 0\.0", methods)
    layers = shown(layers_table(found))
    assert "…" not in layers
    write_json(tmp_path / "evaluation.json", found.to_dict())
    for text in (methods, layers, (tmp_path / "evaluation.json").read_text()):
        assert "nan" not in text.lower()
