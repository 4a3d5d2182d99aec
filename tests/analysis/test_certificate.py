"""Certificates: measurements against naive loops, and trajectories whose bounds are known."""

import json
import math
import random
from contextlib import contextmanager

import experiments
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from fedsurf import Experiment, certify
from fedsurf.analysis.certificate import Bound, certificate_of
from fedsurf.analysis.charts import certificate_figure
from fedsurf.evaluation.evaluate import measure_descent
from fedsurf.surf import DescentConfig

SEEDS = st.integers(0, 10_000)
EPSILONS = st.floats(0.05, 0.6)


def drawn_norms(seed, tasks=6, layers=4, scale=1.0):
    """Gradient norms that fall by about a fifth at each layer, with noise."""
    draw = random.Random(seed)  # noqa: S311
    rows = []
    for _ in range(tasks):
        row = [scale * draw.uniform(1, 3)]
        for _ in range(layers):
            row.append(row[-1] * draw.uniform(0.5, 1.1))
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def geometric(factor, starts, layers=5):
    return torch.tensor(
        [[start * factor**layer for layer in range(layers + 1)] for start in starts],
        dtype=torch.float64,
    )


def average(values):
    values = list(values)
    return sum(values) / len(values)


def certificate(seed, epsilon=0.2, scale=1.0):
    norms, training = drawn_norms(seed), drawn_norms(seed + 1, tasks=5)
    return certificate_of(scale * norms, scale * training, DescentConfig(epsilon=epsilon))


class TestBounds:
    @given(*[st.floats(0.01, 0.9), st.floats(0, 5), st.floats(0, 0.95), st.floats(0, 10)])
    def test_bounds_equal_the_formulas_of_the_theorems(self, epsilon, zeta, delta, largest):
        bound = Bound(epsilon, zeta, delta, largest, (3.0, 2.0, 1.0))
        radius = zeta / epsilon + delta / (1 - delta) * largest / epsilon
        assert bound.radius == pytest.approx(radius)
        value = 3.0
        for found in bound.values:
            assert found == pytest.approx(value + radius)
            value *= (1 - delta) * (1 - epsilon)

    @pytest.mark.parametrize(
        ("failure", "largest", "expected"),
        [(0, 2, ""), (0.05, 2, "start"), (0.05, 1.2, "largest"), (1, 2, "infinite")],
    )
    def test_a_bound_that_gives_no_information_is_vacuous(self, failure, largest, expected):
        assert Bound(0.1, 0.0, failure, largest, (1.0, 0.5)).vacuous == expected


class TestMeasurements:
    @given(SEEDS, EPSILONS)
    def test_every_number_equals_a_loop(self, seed, epsilon):
        norms, training = drawn_norms(seed), drawn_norms(seed + 1, tasks=5)
        found = certificate_of(norms, training, DescentConfig(epsilon=epsilon))
        rows, others = norms.tolist(), training.tolist()

        def slacks(of, layer):
            return [row[layer] - (1 - epsilon) * row[layer - 1] for row in of]

        zeta = max(
            abs(average(slacks(rows, layer)) - average(slacks(others, layer)))
            for layer in range(1, 5)
        )
        for number, layer in found.layers.iterrows():
            column = [row[number] for row in rows]
            assert layer.norm == pytest.approx(average(column))
            assert layer.largest_norm == max(*column, *(row[number] for row in others))
            deviation = math.sqrt(sum((norm - average(column)) ** 2 for norm in column) / 5)
            assert layer.norm_spread == pytest.approx(deviation)
            half = stats.t.ppf(0.975, 5) * deviation / math.sqrt(6)
            assert layer.norm_high == pytest.approx(average(column) + half)
            if number == 0:
                assert layer[["slack", "failed", "before_where_held"]].isna().all()
                continue
            own, trained = slacks(rows, number), average(slacks(others, number))
            assert layer.slack == pytest.approx(average(own))
            deviation = math.sqrt(sum((value - average(own)) ** 2 for value in own) / 5)
            half = stats.t.ppf(0.975, 5) * deviation / math.sqrt(6)
            assert layer.slack_low == pytest.approx(average(own) - half)
            # One-sided at 1 − 5 % / 4 layers, so that all four hold at once.
            half = stats.t.ppf(1 - 0.05 / 4, 5) * deviation / math.sqrt(6)
            assert layer.slack_limit == pytest.approx(average(own) + half)
            assert layer.training_slack == pytest.approx(trained)
            assert layer.sample_error == pytest.approx(abs(average(own) - trained))
            assert layer.violated == average(value > 0 for value in own)
            assert layer.failed == average(value > zeta for value in own)
            held = [row[number - 1] for row, value in zip(rows, own, strict=True) if value <= zeta]
            before = average(row[number - 1] for row in rows)
            expected = average(held) / before if held else math.nan
            assert layer.before_where_held == pytest.approx(expected, nan_ok=True)
        assert found.per_run.sample_error == pytest.approx(zeta)
        assert found.per_run.failure == found.layers["failed"].max()
        assert found.per_run.largest_norm == max(map(max, rows + others))
        assert found.in_mean.sample_error == max(0, found.layers["slack_limit"].max())
        assert found.in_mean.failure == 0

    @given(SEEDS, EPSILONS)
    def test_the_bound_per_run_holds_wherever_the_proofs_step_does(self, seed, epsilon):
        found = certificate(seed, epsilon)
        assume((found.layers["before_where_held"][1:] <= 1).all())
        assert found.per_run.holds

    @given(SEEDS, EPSILONS)
    def test_the_bound_in_the_mean_always_holds(self, seed, epsilon):
        assert certificate(seed, epsilon).in_mean.holds

    @given(SEEDS, st.floats(1e-6, 1e6))
    def test_scaling_the_norms_scales_the_bounds(self, seed, scale):
        one, other = certificate(seed), certificate(seed, scale=scale)
        assume(one.per_run.failure == other.per_run.failure)
        assert other.per_run.vacuous == one.per_run.vacuous
        assert other.per_run.values == pytest.approx([scale * v for v in one.per_run.values])
        assert other.fall.factor == pytest.approx(one.fall.factor)


class TestKnownTrajectories:
    def test_norms_that_satisfy_the_constraints_exactly_meet_the_bound_at_every_layer(self):
        norms = geometric(0.9, [1.0, 2.0, 3.0])
        found = certificate_of(norms, geometric(0.9, [1.5, 2.5]), DescentConfig(epsilon=0.1))
        assert found.per_run.failure == 0
        assert found.per_run.radius == pytest.approx(0, abs=1e-12)
        assert not found.layers["violated"][1:].any()
        assert found.per_run.values == pytest.approx([2 * 0.9**layer for layer in range(6)])
        assert found.per_run.norms == pytest.approx(found.per_run.values)
        assert found.per_run.holds
        assert "holds at every layer and is informative" in found.sentence
        assert found.fall.factor == pytest.approx(0.9)
        assert found.fall.low == pytest.approx(found.fall.high)
        assert found.fall.r_squared == pytest.approx(1)

    def test_norms_that_always_violate_them_have_no_finite_bound(self):
        norms = geometric(1.5, [1.0, 2.0, 3.0])
        found = certificate_of(norms, norms, DescentConfig(epsilon=0.1))
        assert found.per_run.failure == 1
        assert found.per_run.vacuous == "infinite"
        assert found.in_mean.vacuous == "largest"
        assert "but is vacuous" in found.sentence
        content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        assert content["per_run"]["radius"] is None
        assert content["layers"][1]["per_run_bound"] is None

    def test_one_violation_among_many_tasks_makes_a_small_epsilon_vacuous(self):
        norms = geometric(0.5, [1.0] * 40, layers=2)
        norms[0, 2] = norms[0, 1]
        found = certificate_of(norms, norms, DescentConfig(epsilon=0.02)).per_run
        assert found.failure == 1 / 40
        assert found.vacuous == "largest"  # 1 / 39 / 0.02 is above 1
        assert not certificate_of(norms, norms, DescentConfig(epsilon=0.2)).per_run.vacuous

    def test_failures_after_small_norms_show_that_the_proofs_assumption_is_wrong(self):
        norms = torch.tensor([[1.0, 0.5]] * 9 + [[0.0, 1.0]])
        found = certificate_of(norms, norms, DescentConfig(epsilon=0.5))
        assert found.layers["before_where_held"][1] == pytest.approx(1 / 0.9)

    def test_norms_of_an_optimizer_that_diverged_are_refused(self):
        with pytest.raises(ValueError, match="training_norms: got infinity or NaN"):
            certificate_of(torch.ones(3, 3), torch.full((3, 3), math.nan), DescentConfig())


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    experiment = Experiment(experiments.CONFIG, experiments.features())
    experiment.train(tmp_path_factory.mktemp("certificate") / "run")
    return experiment


class TestOfARun:
    def test_norms_on_test_tasks_are_those_of_evaluate(self, experiment):
        found = certify(experiment, tasks=5, confidence=0.9)
        norms = measure_descent(experiment, experiment.test_tasks(5)).norms.double()
        assert found.layers["norm"].tolist() == pytest.approx(norms.mean(0).tolist())
        assert (found.subject, found.tasks, found.confidence) == ("U-DGD", 5, 0.9)
        assert found.training_tasks == 4, "as many as meta-training had"
        assert found.per_run.epsilon == 0.01
        assert found.gradient == (
            "Frobenius norm of all agents' gradients, each at its own weights, on mini-batches"
        )

    def test_the_same_arguments_give_the_same_numbers(self, experiment):
        one = certify(experiment, tasks=3)
        assert certify(experiment, tasks=3).layers.equals(one.layers)
        every = certify(experiment, tasks=3, gradient_examples="all")
        assert every.layers["norm"][1] != one.layers["norm"][1]
        assert every.gradient.endswith("on all training examples")

    def test_progress_advances_with_every_task(self, experiment):
        opened, advanced = [], []

        @contextmanager
        def open_bar(title, total):
            opened.append((title, total))
            yield lambda: advanced.append(title)

        certify(experiment, tasks=3, training_tasks=2, progress=open_bar)
        assert opened == [("U-DGD: gradient norms", 5)]
        assert len(advanced) == 5

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"tasks": 1}, "tasks: got 1, but it must be at least 2"),
            ({"training_tasks": 1}, "training_tasks: got 1, but it must be between 2 and 4"),
            ({"training_tasks": 5}, "training_tasks: got 5, but it must be between 2 and 4"),
            ({"confidence": 95}, "confidence: got 95"),
        ],
    )
    def test_invalid_arguments_are_named(self, experiment, arguments, message):
        with pytest.raises(ValueError, match=message):
            certify(experiment, **{"tasks": 2, **arguments})


@pytest.mark.parametrize("factor", [0.5, 1.5])
def test_the_figure_shows_the_norms_and_every_finite_bound(factor):
    norms = geometric(factor, [1.0, 2.0, 3.0])
    found = certificate_of(norms, norms, DescentConfig(epsilon=0.1))
    axis = certificate_figure(found).axes[0]
    assert axis.get_yscale() == "log"
    lines = {line.get_label().split(",")[0].split(":")[0]: line for line in axis.lines}
    assert list(lines["measured"].get_ydata()) == list(found.per_run.norms)
    assert ("first theorem" in lines) == (factor < 1)
    assert len(axis.lines) == (5 if factor < 1 else 3)
