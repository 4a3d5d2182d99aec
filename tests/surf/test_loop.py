"""The choice of the best validation."""

from dataclasses import replace

import pytest

from fedsurf.surf.loop import FEASIBLE_RULE, INFEASIBLE_RULE, RULES, choose
from fedsurf.surf.training import ValidationRecord


def record(step, loss, slack, error=0.1):
    return ValidationRecord(step, loss, 0.5, 0.5, [-1.0, slack], [0.1, error], [0.0, 0.0])


def test_constraints_hold_within_two_standard_errors():
    assert record(1, 1.0, -0.5).feasible
    assert record(1, 1.0, 0.2, 0.1).feasible
    assert not record(1, 1.0, 0.21, 0.1).feasible
    assert not record(1, 1.0, 0.001, 0.0).feasible
    assert not replace(record(1, 1.0, 0.0), slack=[float("nan"), 0.0]).feasible


def test_without_constraints_the_lowest_loss_wins():
    records = [record(1, 0.5, -1.0), record(2, 0.3, 9.0), record(3, 0.4, -1.0)]
    assert choose(records, constrained=False) == (records[1], RULES["loss"])


def test_with_constraints_the_lowest_loss_among_the_feasible_wins():
    records = [record(1, 0.5, -1.0), record(2, 0.3, 9.0), record(3, 0.4, 0.1)]
    assert choose(records, constrained=True) == (records[2], f"{RULES['loss']} {FEASIBLE_RULE}")


def test_while_nothing_is_feasible_the_smallest_violation_wins():
    records = [record(1, 0.1, 5.0), record(2, 0.9, 2.0), record(3, 0.2, 3.0)]
    assert choose(records, constrained=True) == (records[1], INFEASIBLE_RULE)


@pytest.mark.parametrize("constrained", [False, True])
def test_of_equal_validations_the_earlier_wins(constrained):
    records = [record(1, 0.5, -1.0), record(2, 0.5, -1.0)]
    chosen, _ = choose(records, constrained=constrained)
    assert chosen is records[0]


def test_selecting_by_accuracy_takes_the_highest_accuracy():
    first, second, third = (
        replace(record(step, loss, slack), pooled_accuracy=accuracy)
        for step, loss, slack, accuracy in ((1, 0.1, -1, 0.5), (2, 0.3, -1, 0.7), (3, 0.2, 9, 0.9))
    )
    chosen, rule = choose([first, second, third], constrained=True, by="accuracy")
    assert chosen is second
    assert rule.startswith("highest pooled validation accuracy among")
    assert choose([first, second, third], constrained=False, by="accuracy")[0] is third


def test_selecting_the_last_takes_the_last_feasible_validation():
    records = [record(1, 0.1, -1.0), record(2, 0.9, -1.0), record(3, 0.2, 3.0)]
    assert choose(records, constrained=True, by="last")[0] is records[1]
    chosen, rule = choose(records, constrained=False, by="last")
    assert chosen is records[2]
    assert rule == "last validation"
