"""Judgements of claims: what holds, what does not, and what is too close to tell."""

import json
import math

import pytest
import torch

from fedsurf.common.configuration import to_dict
from fedsurf.common.writing import json_text
from fedsurf.paper.claims import (
    Claim,
    Number,
    above,
    above_all,
    at_least,
    at_most,
    count_text,
    drop,
    same,
    smaller,
)
from fedsurf.paper.figures import ablation, asynchrony, theory
from fedsurf.paper.figures.figure import Curve
from fedsurf.paper.figures.heterogeneity import slower_degradation
from fedsurf.paper.figures.speed import beats_all


def around(mean, spread=0.01, tasks=8):
    """Values of this mean whose standard deviation is about the spread."""
    return mean + spread * torch.linspace(-1.5, 1.5, tasks, dtype=torch.float64)


def standard_error(values):
    """The standard error of the mean, by a loop."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))


def test_a_number_is_a_mean_with_its_standard_error():
    values = torch.tensor([0.1, 0.4, 0.2], dtype=torch.float64)
    number = Number.of("it", values)
    assert number.mean == pytest.approx(0.7 / 3)
    assert number.error == pytest.approx(standard_error([0.1, 0.4, 0.2]))
    assert Number.of("it", values[:1]).error is None


def test_numbers_are_shown_with_their_errors():
    assert Number("", 0.8312, 0.0034).text("%") == "83.1 ± 0.3 %"
    assert Number("", 0.97).text("%") == "97.0 %"
    assert Number("", math.inf).text("") == "∞"


def test_above_is_judged_task_by_task():
    hard_and_easy = torch.tensor([0.3, 0.9, 0.5, 0.7])
    better = hard_and_easy + torch.tensor([0.011, 0.009, 0.010, 0.012])
    assert above(better, hard_and_easy)  # although tasks differ by far more
    assert not above(hard_and_easy, better)
    noisy = hard_and_easy + torch.tensor([0.2, -0.18, 0.1, -0.08])
    assert not above(noisy, hard_and_easy)  # its mean is higher, but not by two errors


def test_above_on_one_task_is_judged_by_the_sign():
    assert above(torch.tensor([0.6]), torch.tensor([0.5]))
    assert not above(torch.tensor([0.5]), torch.tensor([0.5]))


def test_values_are_compared_with_the_best_method():
    mine, weak, strong = ("U-DGD", around(0.8)), around(0.5), around(0.9)
    left, right, holds = above_all(mine, {"weak": weak, "strong": strong}, "tuned")
    assert (left.label, right.label, holds) == ("U-DGD", "strong, tuned", False)
    assert right.mean == pytest.approx(0.9)
    claim = Claim("id", "paper", "how", left, right, holds)
    claim = claim.with_untuned(above_all(mine, {"weak": weak}, "the paper's settings"))
    assert not claim.holds
    assert claim.holds_untuned
    assert claim.untuned.label == "weak, the paper's settings"
    assert above_all(("U-DGD", around(0.95)), {"strong": strong}, "tuned")[2]


def test_bounds_are_for_the_mean():
    assert at_least(("it", around(0.97)), ("bound", 0.969))[2]
    assert not at_least(("it", around(0.96)), ("bound", 0.97))[2]
    assert at_most(("it", around(0.8)), ("bound", 0.85))[2]
    assert not at_most(("it", around(0.9)), ("bound", 0.85))[2]


def test_the_same_is_within_a_margin_or_within_error():
    assert same(("a", around(0.90)), ("b", around(0.915)))[2]
    assert not same(("a", around(0.90)), ("b", around(0.95)))[2]
    noise = torch.tensor([0.3, -0.3, 0.2, -0.1])
    assert same(("a", 0.5 + noise), ("b", torch.full((4,), 0.45)))[2]
    one = torch.tensor([0.9])
    assert not same(("a", one), ("b", one - 0.1))[2]


def test_drops_between_different_tasks_add_their_errors():
    before, after = around(0.9, 0.02), around(0.8, 0.05)
    lost = drop("it", before, after)
    assert lost.mean == pytest.approx(0.1)
    naive = math.hypot(standard_error(before.tolist()), standard_error(after.tolist()))
    assert lost.error == pytest.approx(naive)
    assert smaller(Number("a", 0.0, 0.01), Number("b", 0.05, 0.01))
    assert not smaller(Number("a", 0.0, 0.03), Number("b", 0.05, 0.03))


def test_claims_survive_json():
    claim = Claim("id", "p", "c", Number("a", 0.5, 0.1), Number("b", math.inf), True, note="note")
    assert Claim.from_dict(json.loads(json_text(to_dict(claim)))) == claim


def test_claims_are_counted_with_tuned_and_untuned_methods():
    number = Number("a", 0.5)
    claims = [
        Claim("a", "", "", number, number, True),
        Claim("b", "", "", number, number, False, holds_untuned=True),
    ]
    assert count_text(claims).startswith("1 of 2 claims of the paper hold here")
    assert "Of the 1 about classical methods, 0 hold compared with tuned ones and 1" in count_text(
        claims
    )
    assert count_text([]) == "No figure is finished yet."


def test_the_gain_of_a_layer_is_its_share_of_the_whole():
    accuracy = torch.tensor([[0.1, 0.2, 0.5, 0.9], [0.5, 0.4, 0.5, 0.5]])
    shares = ablation.gains(accuracy)
    torch.testing.assert_close(shares[0], torch.tensor([1 / 8, 3 / 8, 4 / 8]))
    assert shares[1].tolist() == [0, 0, 0]


def layers(*means):
    return torch.stack([around(mean, 0.002) for mean in means], 1)


def test_gradual_with_and_jumping_without_constraints_holds():
    gradual = layers(0.1, 0.3, 0.5, 0.7, 0.95)
    jumping = layers(0.1, 0.1, 0.05, 0.0, 0.96)
    assert [claim.holds for claim in ablation.judge(gradual, jumping)] == [True, True, True]


def test_jumping_with_and_gradual_without_constraints_does_not_hold():
    gradual = layers(0.1, 0.3, 0.5, 0.7, 0.95)
    jumping = layers(0.1, 0.1, 0.05, 0.0, 0.9)
    assert [claim.holds for claim in ablation.judge(jumping, gradual)] == [False, False, False]


def stale(label, means):
    values = {"accuracy": layers(*means), "loss": layers(*(1 - mean for mean in means))}
    return Curve(label, "the paper's", "stale_agents", [0, 10, 50], values)


def test_a_curve_at_a_place_has_the_last_values_at_or_before_it():
    curve = Curve("it", "tuned", "rounds", [0, 10, 50], {"loss": torch.tensor([[3.0, 2.0, 1.0]])})
    found = [float(curve.at("loss", x)) for x in (0, 9.9, 10, 49, 50, 200, None)]
    assert found == [3, 3, 2, 2, 1, 1, 1]


def test_asynchrony_compares_drops_not_levels():
    with_ = stale(ablation.WITH, (0.80, 0.80, 0.75))
    without = stale(ablation.WITHOUT, (0.95, 0.90, 0.92))
    at_10, at_50 = asynchrony.judge(with_, without, (10, 50))
    assert (at_10.holds, at_50.holds) == (True, False)
    assert at_50.left.mean == pytest.approx(0.05)
    assert at_50.right.mean == pytest.approx(0.03)


def rounds(label, kind, panel, end, own=None):
    values = {"pooled_accuracy": layers(0.1, end), "accuracy": layers(0.1, own or end)}
    return Curve(label, kind, "rounds", [0, 20 if kind == "the paper's" else 200], values, panel)


def test_speed_is_judged_by_the_examples_of_the_federation_and_notes_the_agents_own():
    mine = rounds("U-DGD", "the paper's", "", 0.80, own=0.9)
    classical = [
        rounds("DGD", "tuned", "", 0.85, own=0.85),
        rounds("DGD", "the paper's settings", "", 0.5),
    ]
    claim = beats_all("id", "paper", [mine, *classical], 200)
    assert not claim.holds
    assert claim.holds_untuned
    assert "it holds: 90.0 % compared with 85.0 % (DGD)" in claim.note


def test_degradation_is_compared_with_the_method_that_degrades_least():
    def curves(drops):
        return [
            rounds(label, kind, panel, 0.9 - lost * (panel == "b"))
            for (label, kind), lost in drops.items()
            for panel in ("a", "b")
        ]

    drops = {
        ("U-DGD", "the paper's"): 0.02,
        ("DGD", "tuned"): 0.1,
        ("DSGD", "tuned"): 0.05,
        ("DGD", "the paper's settings"): 0.01,
        ("DSGD", "the paper's settings"): 0.2,
    }
    claim = slower_degradation(curves(drops), "a", "b")
    assert claim.holds
    assert claim.right.label == "DSGD, tuned"
    assert claim.right.mean == pytest.approx(0.05)
    assert not claim.holds_untuned
    drops["U-DGD", "the paper's"] = 0.06
    assert not slower_degradation(curves(drops), "a", "b").holds


def certified(norms, *, holds=True, high=0.9, r_squared=0.99):
    return {
        "layers": [{"layer": n, "norm": norm, "norm_spread": 0.1} for n, norm in enumerate(norms)],
        "per_run": {"values": [2.0, None], "holds": holds},
        "fall": {"factor": 0.8, "low": 0.7, "high": high, "r_squared": r_squared},
        "tasks": 4,
        "confidence": 0.95,
        "sentence": "It is vacuous.",
    }


def test_the_theory_is_judged_by_the_certificate():
    bound, exponential = theory.judge(certified([1.0, 0.5]))
    assert (bound.holds, exponential.holds) == (True, True)
    assert bound.left.error == pytest.approx(0.05)
    assert bound.right.mean == math.inf
    assert "vacuous" in bound.note
    assert not theory.judge(certified([1.0, 0.5], holds=False))[0].holds
    assert not theory.judge(certified([1.0, 0.5], high=1.01))[1].holds
    assert not theory.judge(certified([1.0, 0.5], r_squared=0.5))[1].holds
