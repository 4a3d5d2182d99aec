"""Tables as a terminal shows them."""

import io

import torch
from rich.console import Console
from rich.table import Table

from fedsurf.scores import ROUNDS, SHARES, Reached, Score
from fedsurf.tables import reached_table, scores_table


def shown(table: Table, width: int = 80) -> str:
    text = io.StringIO()
    Console(file=text, width=width).print(table)
    return text.getvalue()


def test_no_number_of_a_comparison_is_cut_off_in_a_narrow_terminal() -> None:
    score = Score(
        label="SURF-T (my-own-weights), 20 rounds, batches of 10",
        accuracy=dict.fromkeys(ROUNDS, (0.843, 0.012)),
        end=(200, 0.8768, 0.0123),
        spread=0.02,
        gap=(0.1234, 0.0123),
        floats=1_638_400.0,
        reached=[Reached(share, 1.0, 195.0, 1_543_200.0) for share in SHARES],
        diverged=[],
    )
    accuracies = shown(scores_table([score], torch.tensor([0.9, 0.91])))
    costs = shown(reached_table([score]))
    for text, numbers in (
        (accuracies, ["84.3", "87.7 ±1.2", "12.34 ±1.23"]),
        (costs, ["195", "1,543.2", "1,638"]),
    ):
        assert "…" not in text
        assert all(number in text for number in numbers)
