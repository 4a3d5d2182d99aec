"""Claims are judged by numbers: what holds, what does not, and what is too close to tell."""

import json
import math

import pytest
import torch

from fedsurf.paper.ablation import gains, judge
from fedsurf.paper.asynchrony import judge as judge_asynchrony
from fedsurf.paper.claims import (
    Claim,
    Number,
    above,
    above_all,
    at_least,
    at_most,
    drop,
    least,
    same,
    smaller,
)
from fedsurf.paper.finding import Curve
from fedsurf.paper.heterogeneity import slower_degradation
from fedsurf.paper.speed import beats_all
from fedsurf.paper.theory import judge as judge_theory


def around(mean, spread=0.01, tasks=8):
    """Values of that mean whose standard deviation is about the spread."""
    return mean + spread * torch.linspace(-1.5, 1.5, tasks, dtype=torch.float64)


def standard_error(values):
    """By a loop."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))


def test_a_number_is_a_mean_with_its_standard_error():
    values = torch.tensor([0.1, 0.4, 0.2], dtype=torch.float64)
    number = Number.of("it", values)
    assert number.mean == pytest.approx(0.7 / 3)
    assert number.error == pytest.approx(standard_error([0.1, 0.4, 0.2]))
    assert Number.of("it", values[:1]).error is None


def test_above_is_judged_task_by_task():
    hard_and_easy = torch.tensor([0.3, 0.9, 0.5, 0.7])
    better = hard_and_easy + torch.tensor([0.011, 0.009, 0.010, 0.012])
    assert above(better, hard_and_easy)  # although tasks differ by far more than that
    assert not above(hard_and_easy, better)
    noisy = hard_and_easy + torch.tensor([0.2, -0.18, 0.1, -0.08])
    assert not above(noisy, hard_and_easy)  # its mean is higher, but not by two errors


def test_above_by_one_task_takes_the_sign():
    assert above(torch.tensor([0.6]), torch.tensor([0.5]))
    assert not above(torch.tensor([0.5]), torch.tensor([0.5]))


def test_a_claim_against_all_is_against_the_best_tuned_one():
    claim = above_all(
        "id", "paper", "how", ("U-DGD", around(0.8)),
        {"weak": around(0.5), "strong": around(0.9)},
        {"weak": around(0.4), "strong": around(0.7)},
    )  # fmt: skip
    assert not claim.holds
    assert claim.right.label == "strong, tuned"
    assert claim.right.mean == pytest.approx(0.9)
    assert claim.holds_untuned
    assert claim.untuned.label == "strong, the paper's settings"
    assert above_all("id", "", "", ("U-DGD", around(0.95)), {"strong": around(0.9)}).holds


def test_bounds_are_for_the_mean():
    assert at_least("", "", "", ("it", around(0.97)), ("bound", 0.969)).holds
    assert not at_least("", "", "", ("it", around(0.96)), ("bound", 0.97)).holds
    assert at_most("", "", "", ("it", around(0.8)), ("bound", 0.85)).holds
    assert not at_most("", "", "", ("it", around(0.9)), ("bound", 0.85)).holds


def test_the_same_is_within_a_margin_or_within_error():
    assert same("", "", "", ("a", around(0.90)), ("b", around(0.915)), 0.02).holds
    assert not same("", "", "", ("a", around(0.90)), ("b", around(0.95)), 0.02).holds
    noise = torch.tensor([0.3, -0.3, 0.2, -0.1])
    assert same("", "", "", ("a", 0.5 + noise), ("b", torch.full((4,), 0.45)), 0.02).holds
    one = torch.tensor([0.9])
    assert not same("", "", "", ("a", one), ("b", one - 0.1), 0.02).holds


def test_drops_between_different_tasks_add_their_errors():
    before, after = around(0.9, 0.02), around(0.8, 0.05)
    lost = drop("it", before, after)
    assert lost.mean == pytest.approx(0.1)
    naive = math.hypot(standard_error(before.tolist()), standard_error(after.tolist()))
    assert lost.error == pytest.approx(naive)
    assert smaller(Number("a", 0.0, 0.01), Number("b", 0.05, 0.01))
    assert not smaller(Number("a", 0.0, 0.03), Number("b", 0.05, 0.03))
    assert least([Number("a", 0.2), Number("b", 0.1)]).label == "b"


def test_claims_survive_json():
    claim = Claim("id", "p", "c", Number("a", 0.5, 0.1), Number("b", math.inf), True, "note")
    assert Claim.from_dict(json.loads(json.dumps(claim.to_dict(), allow_nan=False))) == claim


def test_a_layers_gain_is_its_share_of_the_whole():
    accuracy = torch.tensor([[0.1, 0.2, 0.5, 0.9], [0.5, 0.4, 0.5, 0.5]])
    shares = gains(accuracy)
    torch.testing.assert_close(shares[0], torch.tensor([1 / 8, 3 / 8, 4 / 8]))
    assert shares[1].tolist() == [0, 0, 0]


def layers(*means):
    return torch.stack([around(mean, 0.002) for mean in means], 1)


def test_the_ablation_as_the_paper_has_it():
    gradual = layers(0.1, 0.3, 0.5, 0.7, 0.95)
    jumping = layers(0.1, 0.1, 0.05, 0.0, 0.96)
    assert [claim.holds for claim in judge(gradual, jumping)] == [True, True, True]


def test_the_ablation_as_it_need_not_be():
    gradual = layers(0.1, 0.3, 0.5, 0.7, 0.95)
    jumping = layers(0.1, 0.1, 0.05, 0.0, 0.9)
    assert [claim.holds for claim in judge(jumping, gradual)] == [False, False, False]


def stale(label, means):
    values = {"accuracy": layers(*means), "loss": layers(*(1 - mean for mean in means))}
    return Curve(label, "the paper's", "stale_agents", [0, 10, 50], values)


def test_a_curve_at_a_place_is_what_was_measured_last_at_or_before_it():
    curve = Curve("it", "tuned", "rounds", [0, 10, 50], {"loss": torch.tensor([[3.0, 2.0, 1.0]])})
    found = [float(curve.at("loss", x)) for x in (0, 9.9, 10, 49, 50, 200, None)]
    assert found == [3, 3, 2, 2, 1, 1, 1]


def test_asynchrony_compares_what_is_lost_not_what_is_left():
    from fedsurf.paper.ablation import WITH, WITHOUT

    with_ = stale(WITH, (0.80, 0.80, 0.75))
    without = stale(WITHOUT, (0.95, 0.90, 0.92))
    at_10, at_50 = judge_asynchrony(with_, without, (10, 50))
    assert (at_10.holds, at_50.holds) == (True, False)
    assert at_50.left.mean == pytest.approx(0.05)
    assert at_50.right.mean == pytest.approx(0.03)


def rounds(label, kind, panel, end, own=None):
    values = {"pooled_accuracy": layers(0.1, end), "accuracy": layers(0.1, own or end)}
    return Curve(label, kind, "rounds", [0, 20 if kind == "the paper's" else 200], values, panel)


def test_speed_is_judged_by_the_federations_examples_and_tells_of_the_agents_own():
    mine = rounds("U-DGD", "the paper's", "", 0.80, own=0.9)
    rivals = [
        rounds("DGD", "tuned", "", 0.85, own=0.85),
        rounds("DGD", "the paper's settings", "", 0.5),
    ]
    claim = beats_all("id", "paper", [mine, *rivals], mine, 200)
    assert not claim.holds
    assert claim.holds_untuned
    assert "90.0 % against 85.0 % (DGD), it holds" in claim.note


def test_degradation_is_that_of_the_rival_that_degrades_least():
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


def test_the_theory_is_judged_by_its_certificate():
    bound, exponential = judge_theory(certified([1.0, 0.5]))
    assert (bound.holds, exponential.holds) == (True, True)
    assert bound.left.error == pytest.approx(0.05)
    assert bound.right.mean == math.inf
    assert "vacuous" in bound.note
    assert not judge_theory(certified([1.0, 0.5], holds=False))[0].holds
    assert not judge_theory(certified([1.0, 0.5], high=1.01))[1].holds
    assert not judge_theory(certified([1.0, 0.5], r_squared=0.5))[1].holds
