"""Scores of runs, against numbers worked out by hand."""

import re

import pytest
import torch
from studies import DGD, SMALL

from fedsurf.evaluation.methods import Entrant
from fedsurf.evaluation.run import Trajectories
from fedsurf.evaluation.scores import score
from fedsurf.evaluation.study import Study


def runs_of(accuracy: torch.Tensor, rounds: list[int]) -> Trajectories:
    taken, nothing = torch.tensor(rounds).expand(len(accuracy), -1), torch.zeros_like(accuracy)
    counts = taken, 100 * taken, 448 * taken
    return Trajectories("m", *counts, nothing, nothing, accuracy, nothing, nothing)


def test_a_score_has_accuracy_by_rounds_and_the_cost_of_shares_of_the_ceiling() -> None:
    accuracy = torch.tensor([[0.1, 0.5, 0.93, 0.96], [0.1, 0.91, 0.95, 1.0], [0.1, 0.2, 0.3, 0.4]])
    row = score(runs_of(accuracy, [0, 1, 2, 3]), torch.ones(3, dtype=torch.float64), 10, (2, 3, 5))
    assert list(row.accuracy) == [2, 3]
    assert row.accuracy[2][0] == pytest.approx((0.93 + 0.95 + 0.3) / 3)
    assert row.gap[0] == pytest.approx(1 - (0.96 + 1 + 0.4) / 3)
    by_share = {one.share: one for one in row.reached}
    assert (by_share[0.9].rounds, by_share[0.9].floats, by_share[0.9].bytes) == (2, 20, 89.6)
    assert (row.floats, row.bytes) == (30, 134.4)
    assert by_share[0.95].rounds == 3
    assert (by_share[0.99].rounds, by_share[0.99].tasks) == (None, pytest.approx(1 / 3))


@pytest.mark.parametrize(("there", "median"), [(1, None), (2, 10.0), (3, 10.0)])
def test_a_share_counts_as_reached_if_half_of_the_tasks_reach_it(
    there: int, median: float | None
) -> None:
    accuracy = torch.full((4, 3), 0.1)
    accuracy[:there, 1:] = 0.95
    found = score(runs_of(accuracy, [0, 10, 20]), torch.ones(4), 4).reached[0]
    assert (found.share, found.tasks, found.rounds) == (0.9, there / 4, median)
    assert found.floats == (None if median is None else 100 * median / 4)


@pytest.mark.parametrize("shape", [(1,), (3,), (), (2, 1)])
def test_a_ceiling_of_another_number_of_tasks_is_refused(shape: tuple[int, ...]) -> None:
    wanted = rf"^ceiling: got shape {re.escape(str(list(shape)))}, .* 2 tasks: it must be \[2\]$"
    with pytest.raises(ValueError, match=wanted):
        score(runs_of(torch.zeros(2, 4), [0, 1, 2, 3]), torch.ones(shape), 8, [5])


def test_a_run_that_diverges_is_reported_and_scores_0() -> None:
    study = Study(SMALL)
    wild = study.run(Entrant("wild", "dgd", {"step_size": 1e38, "batch_size": None}))
    row = score(wild, study.ceiling(), 30, [6])
    assert row.diverged == wild.diverged
    assert len(row.diverged) == 2
    assert row.accuracy[6][0] == 0.0
    assert study.run(DGD).diverged == [None, None]
