"""The certificate: bounds and statistics against naive loops, and trajectories whose bound is known."""

import json
import math
import random
from dataclasses import replace

import experiments
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from fedsurf import Experiment, certify
from fedsurf.analysis.bounds import Constants, vacuity
from fedsurf.analysis.certificate import Certificate, certificate_of
from fedsurf.analysis.plots_certificate import certificate_figure
from fedsurf.common.statistics import gap_limit, mean_interval, share_limit, upper_limit
from fedsurf.evaluation.evaluate import measure_descent
from fedsurf.evaluation.plots import save
from fedsurf.surf import DescentConfig, gradient_norm

SEEDS = st.integers(0, 10_000)
CONSTANTS = st.builds(
    Constants, st.floats(0.01, 0.9), st.floats(0, 5), st.floats(0, 0.95), st.floats(0, 10)
)


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


class TestBounds:
    @given(CONSTANTS, st.floats(0, 10), st.integers(0, 12))
    def test_the_recursive_bound_is_the_proofs_inequality_applied_layer_by_layer(
        self, constants, start, layer
    ):
        value = start
        for _ in range(layer):
            value = (
                (1 - constants.failure) * (1 - constants.epsilon) * value
                + (1 - constants.failure) * constants.sample_error
                + constants.failure * constants.largest_norm
            )
        assert constants.recursive_bound(start, layer) == pytest.approx(value, rel=1e-9, abs=1e-12)

    @given(CONSTANTS, st.floats(0, 10), st.integers(0, 12))
    def test_the_second_theorem_is_the_formula_and_never_below_the_recursion(
        self, constants, start, layer
    ):
        value = start
        for _ in range(layer):
            value *= (1 - constants.failure) * (1 - constants.epsilon)
        odds = constants.failure / (1 - constants.failure)
        value += constants.sample_error / constants.epsilon
        value += odds * constants.largest_norm / constants.epsilon
        assert constants.rate_bound(start, layer) == pytest.approx(value, rel=1e-9, abs=1e-12)
        assert constants.recursive_bound(start, layer) <= value * (1 + 1e-9) + 1e-12

    def test_known_values(self):
        constants = Constants(epsilon=0.5, sample_error=1, failure=0.5, largest_norm=2)
        assert constants.radius == 6  # (1 + 0.5 · 2 / 0.5) / 0.5
        assert constants.rate_bound(8, 2) == 6.5
        assert constants.recursive_bound(8, 1) == 3.5  # 8 / 4 + 0.5 + 1
        exact = Constants(epsilon=0.1, sample_error=0, failure=0, largest_norm=7)
        assert exact.radius == 0
        assert exact.rate_bound(2, 3) == exact.recursive_bound(2, 3) == pytest.approx(2 * 0.729)

    def test_where_every_constraint_fails_only_m_is_left(self):
        constants = Constants(epsilon=0.1, sample_error=0.2, failure=1, largest_norm=3)
        assert constants.radius == constants.rate_bound(1, 4) == math.inf
        assert constants.recursive_bound(1, 1) == constants.recursive_bound(1, 9) == 3

    def test_the_needed_failure_is_where_the_radius_meets_the_start(self):
        constants = Constants(epsilon=0.1, sample_error=0.05, failure=0.5, largest_norm=3)
        needed = constants.failure_needed(2)
        assert replace(constants, failure=needed).radius == pytest.approx(2)
        assert replace(constants, sample_error=0.3).failure_needed(2) == 0

    @pytest.mark.parametrize(
        ("bound", "expected"), [(0.9, ""), (1, "start"), (2, "largest"), (math.inf, "infinite")]
    )
    def test_a_bound_is_vacuous_where_it_says_what_is_known(self, bound, expected):
        assert vacuity(bound, start=1, largest=2) == expected

    @pytest.mark.parametrize(
        ("name", "value"),
        [("epsilon", 1), ("failure", 1.1), ("sample_error", -1), ("largest_norm", math.inf)],
    )
    def test_an_impossible_constant_is_named(self, name, value):
        with pytest.raises(ValueError, match=f"{name}: got {value}"):
            replace(Constants(0.1, 0, 0, 1), **{name: value})


class TestIntervals:
    def test_a_mean_has_the_t_interval(self):
        values = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
        mean, low, high = mean_interval(values, 0.95)
        assert mean == 2
        half = pytest.approx(4.302652729911275 / math.sqrt(3))
        assert float(high - mean) == half
        assert float(mean - low) == half
        assert upper_limit(values, 0.975) == pytest.approx(float(high))

    @given(SEEDS)
    def test_a_gap_has_welchs_interval(self, seed):
        left, right = drawn_norms(seed, 4), drawn_norms(seed + 1, 7)
        found = gap_limit(left, right, 0.9)
        for at in range(left.shape[1]):
            test = stats.ttest_ind(left[:, at].numpy(), right[:, at].numpy(), equal_var=False)
            low, high = test.confidence_interval(0.9)
            assert float(found[at]) == pytest.approx(max(abs(low), abs(high)), rel=1e-9)

    @given(st.integers(1, 30), st.data())
    def test_at_its_limit_a_share_would_have_had_more_hits_with_the_confidence(self, count, data):
        hits = data.draw(st.integers(0, count - 1))
        limit = share_limit(hits, count, 0.95)
        few = sum(
            math.comb(count, k) * limit**k * (1 - limit) ** (count - k) for k in range(hits + 1)
        )
        assert few == pytest.approx(0.05)
        assert share_limit(count, count, 0.95) == 1

    def test_no_hits_in_thirty(self):
        assert share_limit(0, 30, 0.95) == pytest.approx(1 - 0.05 ** (1 / 30))

    @pytest.mark.parametrize("confidence", [0, 1, 1.5, math.nan])
    def test_a_level_is_between_0_and_1(self, confidence):
        with pytest.raises(ValueError, match="confidence: got"):
            mean_interval(torch.ones(3), confidence)


class TestNumbers:
    @given(SEEDS, st.floats(0.05, 0.6))
    def test_every_number_equals_a_loop(self, seed, epsilon):
        norms, training = drawn_norms(seed), drawn_norms(seed + 1, tasks=5)
        found = certificate_of(norms, training, DescentConfig(epsilon=epsilon))
        rows, others = norms.tolist(), training.tolist()

        def slacks(of, layer):
            return [row[layer] - (1 - epsilon) * row[layer - 1] for row in of]

        gaps = [
            abs(average(slacks(rows, layer)) - average(slacks(others, layer)))
            for layer in range(1, 5)
        ]
        zeta = max(gaps)
        shares = []
        for number, layer in enumerate(found.layers):
            column = [row[number] for row in rows]
            assert layer.layer == number
            assert layer.norm == pytest.approx(average(column))
            best = average(min(row[: number + 1]) for row in rows)
            assert layer.best_norm == pytest.approx(best)
            assert layer.largest_norm == max(*column, *(row[number] for row in others))
            deviation = math.sqrt(sum((one - average(column)) ** 2 for one in column) / 5)
            assert layer.norm_spread == pytest.approx(deviation)
            half = stats.t.ppf(0.975, 5) * deviation / math.sqrt(6)
            assert layer.norm_high == pytest.approx(average(column) + half)
            one = layer.constraint
            if number == 0:
                assert one is None
                continue
            own = slacks(rows, number)
            assert one.slack == pytest.approx(average(own))
            deviation = math.sqrt(sum((value - average(own)) ** 2 for value in own) / 5)
            half = stats.t.ppf(0.975, 5) * deviation / math.sqrt(6)
            assert one.slack_low == pytest.approx(average(own) - half)
            # One-sided at 1 − 5 % / 4 layers, so that all four hold at once.
            half = stats.t.ppf(1 - 0.05 / 4, 5) * deviation / math.sqrt(6)
            assert one.slack_limit == pytest.approx(average(own) + half)
            assert one.training_slack == pytest.approx(average(slacks(others, number)))
            assert one.sample_error == pytest.approx(gaps[number - 1])
            assert one.violated == average(value > 0 for value in own)
            assert one.failed == average(value > zeta for value in own)
            assert one.failed_limit == pytest.approx(
                share_limit(sum(value > zeta for value in own), 6, 1 - 0.05 / 4)
            )
            held = [row[number - 1] for row, value in zip(rows, own, strict=True) if value <= zeta]
            before = average(row[number - 1] for row in rows)
            if held:
                assert one.before_where_held == pytest.approx(average(held) / before)
            else:
                assert one.before_where_held is None
            shares.append(one.failed)
        largest = max(map(max, rows + others))
        assert found.per_run.constants.sample_error == pytest.approx(zeta)
        assert found.per_run.constants.failure == max(shares)
        assert found.per_run.constants.largest_norm == largest
        limits = [layer.constraint.slack_limit for layer in found.layers[1:]]
        assert found.in_mean.constants == Constants(epsilon, max(0, *limits), 0, largest)

    @given(SEEDS, st.floats(0.05, 0.6))
    def test_the_bound_holds_wherever_the_proofs_step_does(self, seed, epsilon):
        norms = drawn_norms(seed)
        found = certificate_of(norms, drawn_norms(seed + 1), DescentConfig(epsilon=epsilon))
        ratios = [layer.constraint.before_where_held for layer in found.layers[1:]]
        assume(all(ratio is not None and ratio <= 1 for ratio in ratios))
        assert found.per_run.holds
        constants = found.per_run.constants
        if constants.sample_error <= epsilon * constants.largest_norm:
            for layer, bound in zip(found.layers, found.per_run.recursive_bound, strict=True):
                assert layer.norm <= bound * (1 + 1e-9)

    @given(SEEDS, st.floats(0.05, 0.6))
    def test_read_in_the_mean_the_bound_always_holds(self, seed, epsilon):
        found = certificate_of(
            drawn_norms(seed), drawn_norms(seed + 1), DescentConfig(epsilon=epsilon)
        )
        assert found.in_mean.holds
        for layer, bound in zip(found.layers, found.in_mean.recursive_bound, strict=True):
            assert layer.norm <= bound * (1 + 1e-9)

    @given(SEEDS)
    def test_the_cautious_bound_is_the_larger_one(self, seed):
        norms = drawn_norms(seed)
        found = certificate_of(norms, drawn_norms(seed + 1), DescentConfig(epsilon=0.2))
        assert found.cautious.constants.sample_error > found.per_run.constants.sample_error
        assert found.cautious.constants.failure >= found.per_run.constants.failure
        assert found.cautious.radius >= found.per_run.radius

    @given(SEEDS, st.floats(1e-6, 1e6))
    def test_scaling_the_norms_scales_the_bounds(self, seed, scale):
        norms, training, descent = drawn_norms(seed), drawn_norms(seed + 1), DescentConfig(
            epsilon=0.2
        )  # fmt: skip
        one = certificate_of(norms, training, descent)
        other = certificate_of(scale * norms, scale * training, descent)
        assume(one.per_run.constants.failure == other.per_run.constants.failure)
        assert other.per_run.vacuous == one.per_run.vacuous
        for small, large in zip(one.per_run.rate_bound, other.per_run.rate_bound, strict=True):
            assert large == pytest.approx(scale * small)
        assert other.fall.factor == pytest.approx(one.fall.factor)


class TestKnownTrajectories:
    def test_one_that_satisfies_the_constraints_exactly_meets_its_bound_at_every_layer(self):
        norms = geometric(0.9, [1.0, 2.0, 3.0])
        found = certificate_of(norms, geometric(0.9, [1.5, 2.5]), DescentConfig(epsilon=0.1))
        assert found.per_run.constants.failure == 0
        assert found.per_run.radius == pytest.approx(0, abs=1e-12)
        assert [layer.constraint.violated for layer in found.layers[1:]] == [0] * 5
        for layer, bound in zip(found.layers, found.per_run.rate_bound, strict=True):
            assert layer.norm == pytest.approx(bound)
            assert bound == pytest.approx(2 * 0.9**layer.layer)
        assert found.holds
        assert not found.vacuous
        assert "holds at every layer and says something" in found.sentence
        assert found.fall.factor == pytest.approx(0.9)
        assert found.fall.low == pytest.approx(found.fall.high)
        assert found.fall.r_squared == pytest.approx(1)

    def test_one_that_falls_faster_stays_below_its_bound(self):
        norms = geometric(0.5, [1.0, 2.0, 3.0])
        found = certificate_of(norms, norms, DescentConfig(epsilon=0.1))
        for layer, bound in zip(found.layers[1:], found.per_run.rate_bound[1:], strict=True):
            assert layer.norm < bound
        assert found.per_run.constants.sample_error == 0
        assert not found.vacuous
        status = {check.name: check.status for check in found.checks}
        assert status[
            "whether a constraint fails does not depend on the gradient norm before it"
        ] == ("holds")

    def test_one_that_always_violates_them_has_no_finite_bound(self):
        norms = geometric(1.5, [1.0, 2.0, 3.0])
        found = certificate_of(norms, norms, DescentConfig(epsilon=0.1))
        assert found.per_run.constants.failure == 1
        assert found.per_run.radius == math.inf
        assert found.per_run.vacuous == "infinite"
        assert found.in_mean.vacuous == "largest"
        assert found.vacuous
        assert "but it is vacuous" in found.sentence
        assert found.fall.factor == pytest.approx(1.5)
        content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        assert content["per_run"]["radius"] is None
        assert content["vacuous"] is True

    def test_one_violation_among_many_tasks_makes_a_small_epsilon_vacuous(self):
        norms = geometric(0.5, [1.0] * 40, layers=2)
        norms[0, 2] = norms[0, 1]
        found = certificate_of(norms, norms, DescentConfig(epsilon=0.02))
        assert found.per_run.constants.failure == 1 / 40
        assert found.per_run.vacuous == "largest"  # 1 / 39 / 0.02 is above 1
        assert found.failure_needed == pytest.approx(0.02 / 1.02)
        assert found.failure_needed < 1 / 40
        assert not certificate_of(norms, norms, DescentConfig(epsilon=0.2)).vacuous

    def test_where_failures_follow_small_norms_the_proofs_step_is_said_to_fail(self):
        # Nine tasks fall from 1 to 0.5; the tenth begins at 0 and jumps to 1. So the mean is 0.55,
        # and the proof's inequality says 0.9 · 0.5 · 0.9 + 0.1 = 0.505.
        norms = torch.tensor([[1.0, 0.5]] * 9 + [[0.0, 1.0]], dtype=torch.float64)
        found = certificate_of(norms, norms, DescentConfig(epsilon=0.5))
        assert found.per_run.recursive_bound[1] == pytest.approx(0.505)
        assert found.layers[1].norm == pytest.approx(0.55)
        assert found.layers[1].constraint.before_where_held == pytest.approx(1 / 0.9)
        check = next(one for one in found.checks if one.name.startswith("whether a constraint"))
        assert check.status == "fails"
        assert found.holds  # the simplified bound is wide enough

    def test_what_the_constraints_were_is_said(self):
        norms = geometric(0.5, [1.0, 2.0])
        training = geometric(1.5, [1.0, 1.1, 1.05, 0.95])

        def solved(training, **changes):
            found = certificate_of(norms, training, DescentConfig(epsilon=0.1, **changes))
            return next(one for one in found.checks if "solves" in one.name)

        assert solved(norms).status == "unknown"
        assert solved(training).status == "fails"
        assert "0 of 5 layers, and above 0 beyond its error at 5" in solved(training).note
        assert solved(norms, constrained=False).status == "fails"
        assert "log-ratio" in solved(norms, form="log-ratio").note

    @pytest.mark.parametrize(
        ("norms", "message"),
        [
            (torch.ones(1, 3), r"norms: got shape \[1, 3\]"),
            (torch.ones(3, 1), r"norms: got shape \[3, 1\]"),
            (torch.full((3, 3), math.nan), "no numbers on 3 of 3 tasks"),
            (torch.ones(3, 4), "training_norms: got 2 layers, but norms have 3"),
        ],
    )
    def test_norms_that_make_no_certificate_are_refused(self, norms, message):
        with pytest.raises(ValueError, match=message):
            certificate_of(norms, torch.ones(2, 3), DescentConfig())


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    experiment = Experiment(experiments.CONFIG, experiments.features())
    experiment.train(tmp_path_factory.mktemp("certificate") / "run")
    return experiment


class TestOfARun:
    def test_it_is_about_the_norms_of_evaluation(self, experiment):
        found = certify(experiment, tasks=5, confidence=0.9)
        norms = measure_descent(experiment, experiment.test_tasks(5)).norms.double()
        assert [layer.norm for layer in found.layers] == pytest.approx(norms.mean(0).tolist())
        assert isinstance(found, Certificate)
        assert (found.subject, found.tasks, found.confidence) == ("U-DGD", 5, 0.9)
        assert found.training_tasks == 4  # as many as meta-training had
        assert found.per_run.constants.epsilon == 0.01
        assert found.gradient == (
            "Frobenius norm of all agents' gradients, each at its own weights, on mini-batches"
        )

    def test_it_is_the_same_again_and_another_on_other_examples_or_tasks(self, experiment):
        one = certify(experiment, tasks=3)
        assert certify(experiment, tasks=3) == one
        assert certify(experiment, tasks=4).layers != one.layers
        every = certify(experiment, tasks=3, gradient_examples="all")
        assert every.layers[1].norm != one.layers[1].norm
        assert every.gradient.endswith("on all training examples")

    def test_progress_is_told_of_every_task(self, experiment):
        opened = []

        class Bar:
            def __init__(self, title, total):
                opened.append([title, total, 0])

            def __enter__(self):
                return self.advance

            def __exit__(self, *_):
                pass

            def advance(self):
                opened[-1][2] += 1

        certify(experiment, tasks=3, training_tasks=2, progress=Bar)
        assert opened == [["U-DGD: gradient norms", 5, 5]]

    @pytest.mark.parametrize(
        ("gradient_of", "norm"),
        [("stacked", "frobenius"), ("stacked", "root-mean-square"), ("average", "frobenius")],
    )
    def test_no_weights_have_a_larger_gradient_than_the_largest_possible(
        self, experiment, gradient_of, norm
    ):
        descent = replace(experiment.config.surf.descent, gradient_of=gradient_of, norm=norm)
        surf = replace(experiment.config.surf, descent=descent)
        changed = Experiment(replace(experiment.config, surf=surf), experiments.features())
        limit = certify(changed, tasks=2, training_tasks=2).largest_possible
        task, generator = changed.test_tasks(1)[0], torch.Generator().manual_seed(0)
        share, largest = task.agent_weights("uniform"), 0.0
        for _ in range(200):
            weights = 30 * torch.randn(
                task.train.agents, changed.model.parameters, generator=generator
            )
            found = gradient_norm(changed.model, weights, task.train, share, gradient_of, norm)
            largest = max(largest, float(found))
        assert 0.2 * limit < largest <= limit

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"tasks": 1}, "tasks: got 1, but a certificate takes at least 2"),
            ({"training_tasks": 1}, "training_tasks: got 1, but it must be from 2 to 4"),
            ({"training_tasks": 5}, "training_tasks: got 5, but it must be from 2 to 4"),
            ({"confidence": 95}, "confidence: got 95"),
        ],
    )
    def test_wrong_arguments_are_named(self, experiment, arguments, message):
        with pytest.raises(ValueError, match=message):
            certify(experiment, **{"tasks": 2, **arguments})


class TestFigure:
    @pytest.mark.parametrize("factor", [0.5, 1.5])
    def test_it_shows_what_was_measured_and_every_finite_bound(self, factor, tmp_path):
        norms = geometric(factor, [1.0, 2.0, 3.0])
        found = certificate_of(norms, norms, DescentConfig(epsilon=0.1))
        figure = certificate_figure(found)
        axis = figure.axes[0]
        assert axis.get_yscale() == "log"
        lines = {line.get_label().split(",")[0].split(":")[0]: line for line in axis.lines}
        assert list(lines["measured"].get_ydata()) == [layer.norm for layer in found.layers]
        assert ("first theorem" in lines) == (factor < 1)
        assert len(axis.lines) == (5 if factor < 1 else 3)
        for ending in ("png", "svg"):
            save(figure, tmp_path / f"figure.{ending}")
            assert (tmp_path / f"figure.{ending}").stat().st_size > 1000
