"""Meta-training against a primal-dual step written by hand, and its edge cases."""

import gc
import math
from dataclasses import replace

import naive
import numpy as np
import pytest
import torch
from random_data import real_examples, seeded

from fedsurf.common.randomness import generator
from fedsurf.common.streams import Streams
from fedsurf.models import SoftmaxHead
from fedsurf.network import GraphConfig, NetworkConfig, make_network
from fedsurf.surf import DescentConfig, FixedProblems, MetaTraining, SurfConfig
from fedsurf.surf.loop import RunFolder, meta_train
from fedsurf.surf.training import DivergedError, Problem
from fedsurf.tasks.config import TaskConfig
from fedsurf.tasks.distribution import MetaTasks, TaskDistribution
from fedsurf.unrolled import UDGD, UDGDConfig

FEATURES, CLASSES = 3, 3
TASK = TaskConfig(agents=4, train_examples=6, test_examples=4)
OPTIMIZER = UDGDConfig(layers=3, filter_order=1, batch_size=2, activation="tanh")
SURF = SurfConfig(steps=20, tasks=5, gradient_batch_size=2, validate_every=5, validation_tasks=3)
STAR = NetworkConfig(GraphConfig("star"), reporting=2)


def source(seed, config, classes=CLASSES, dtype=torch.float64):
    """Classes around different means."""
    random = seeded(seed)
    y = torch.arange(classes).repeat(200)
    x = torch.randn(len(y), FEATURES, generator=random, dtype=dtype)
    return TaskDistribution(x + 2 * torch.eye(3, dtype=dtype)[y], y, classes, config)


class Setup:
    """Everything that meta-training needs, small and in double precision."""

    def __init__(
        self,
        surf=SURF,
        task=TASK,
        optimizer=OPTIMIZER,
        network=NetworkConfig(GraphConfig("ring")),  # noqa: B008 - frozen
        classes=CLASSES,
        seed=7,
        dtype=torch.float64,
    ):
        self.config = surf
        pools = [source(number, task, classes, dtype) for number in range(3)]
        self.tasks = MetaTasks(*pools)
        self.network = make_network(network, task.agents, generator(seed, "graph"))
        head = SoftmaxHead(FEATURES, classes)
        self.optimizer = UDGD(head, optimizer, generator(seed, "parameters")).to(dtype)
        self.problems = FixedProblems(self.tasks, self.network, surf.tasks, seed)
        self.training = MetaTraining(self.optimizer, self.problems, surf, seed=seed)
        self.seed = seed

    def parameters(self):
        return [value.detach().clone() for value in self.optimizer.parameters()]


def by_hand(setup, steps):
    """Algorithm 1 with Adam and the projection written out; yields θ, λ, loss and slacks."""
    config = setup.config
    theta = list(setup.optimizer.parameters())
    first, second = ([torch.zeros_like(value) for value in theta] for _ in range(2))
    multipliers = torch.zeros(setup.optimizer.steps, dtype=torch.float64)
    for number in range(steps):
        choice = generator(setup.seed, "train", number)
        task_number = int(torch.randint(config.tasks, (), generator=choice))
        task = setup.tasks.train.draw(generator(setup.seed, "train-task", task_number))
        problem = Problem(task, setup.network)
        _, weights, slacks = setup.training.unroll(problem, "train", number)
        test = task.test
        if config.loss_examples is not None:
            streams = Streams(setup.seed, range(test.agents), "loss", number)
            test = test.draw(config.loss_examples, streams)
        counts = [len(own) for own in real_examples(task.train)]
        if config.weighting == "uniform":
            counts = [1] * len(counts)
        loss = 0.0
        for agent, count in enumerate(counts):
            own = slice(None) if config.loss_on == "pooled" else slice(agent, agent + 1)
            x, y = test.x[own].flatten(0, 1), test.y[own].flatten()
            table = weights[agent].reshape(FEATURES + 1, CLASSES)
            mean = torch.nn.functional.cross_entropy(x @ table[:-1] + table[-1], y)
            loss = loss + count / sum(counts) * mean
        if config.relative_loss:
            loss = loss / math.log(CLASSES)
        lagrangian = loss
        if config.descent.constrained and config.penalty == 0:
            lagrangian = loss + (multipliers * slacks).sum()
        elif config.descent.constrained:
            for multiplier, value in zip(multipliers, slacks, strict=True):
                if multiplier + config.penalty * value > 0:
                    lagrangian = lagrangian + multiplier * value + config.penalty / 2 * value**2
        slopes = torch.autograd.grad(lagrangian, theta)
        if config.clip is not None:
            length = math.sqrt(sum(float((slope**2).sum()) for slope in slopes))
            slopes = [slope * min(1.0, config.clip / length) for slope in slopes]
        rate = config.learning_rate
        if config.final_learning_rate is not None:
            fall = (1 + math.cos(math.pi * number / config.steps)) / 2
            rate = config.final_learning_rate + (rate - config.final_learning_rate) * fall
        with torch.no_grad():
            for value, slope, m, v in zip(theta, slopes, first, second, strict=True):
                m.mul_(0.9).add_(0.1 * slope)
                decay = config.second_moment_decay
                v.mul_(decay).add_((1 - decay) * slope**2)
                step = (m / (1 - 0.9 ** (number + 1))) / (
                    (v / (1 - decay ** (number + 1))).sqrt() + 1e-8
                )
                value.sub_(rate * step)
            if config.descent.constrained:
                multipliers = (multipliers + config.dual_rate * slacks.detach()).clamp(min=0)
        yield theta, multipliers, loss.item(), slacks.detach()


@pytest.mark.parametrize(
    ("surf", "others"),
    [
        ({}, {}),
        ({"descent": DescentConfig(constrained=False)}, {}),
        ({"descent": DescentConfig(epsilon=0.3), "dual_rate": 1.0}, {}),
        ({"descent": DescentConfig(gradient_of="average", gradient_examples="all")}, {}),
        ({"descent": DescentConfig(norm="root-mean-square")}, {}),
        ({"final_learning_rate": 1e-4, "loss_examples": 2}, {}),
        ({"weighting": "examples"}, {"task": replace(TASK, fewest_train_examples=2)}),
        ({"dual_rate": 0.5}, {"network": STAR}),
        ({"penalty": 3.0}, {}),
        ({"penalty": 3.0, "descent": DescentConfig(constrained=False)}, {}),
        ({"loss_on": "pooled", "relative_loss": True}, {}),
        ({"clip": 0.2, "second_moment_decay": 0.9}, {}),
        ({"descent": DescentConfig(form="log-ratio"), "dual_rate": 0.5, "penalty": 0.3}, {}),
    ],
    ids=[
        "paper",
        "unconstrained",
        "tight",
        "average",
        "mean-square",
        "cosine",
        "unequal",
        "star",
        "augmented",
        "unused penalty",
        "pooled",
        "clipped",
        "log-ratio",
    ],
)
def test_a_step_equals_a_primal_dual_step_written_by_hand(surf, others):
    config = replace(SURF, **surf)
    trained, twin = Setup(config, **others), Setup(config, **others)
    violated = 0
    for theta, multipliers, loss, slacks in by_hand(twin, 20):
        record = trained.training.step()
        assert record.loss == pytest.approx(loss, abs=1e-6)
        assert record.worst_slack == pytest.approx(float(slacks.max()), abs=1e-6)
        assert record.largest_multiplier == pytest.approx(float(multipliers.max()), abs=1e-6)
        torch.testing.assert_close(
            trained.training.multipliers.double(), multipliers, rtol=0, atol=1e-6
        )
        for found, expected in zip(trained.parameters(), theta, strict=True):
            torch.testing.assert_close(found, expected.detach(), rtol=0, atol=1e-6)
        violated += bool((slacks > 0).any())
    assert violated > 0
    assert record.step == trained.training.step_count == 20


def test_multipliers_stay_non_negative_and_rise_exactly_where_constraints_are_violated():
    setup = Setup(replace(SURF, learning_rate=0.0, dual_rate=1.0))
    rises = falls = 0
    before = setup.training.multipliers.clone()
    assert torch.equal(before, torch.zeros(3))
    for number in range(20):
        choice = generator(7, "train", number)
        chosen = int(torch.randint(5, (), generator=choice))
        task = setup.tasks.train.draw(generator(7, "train-task", chosen))
        _, _, slacks = setup.training.unroll(Problem(task, setup.network), "train", number)
        setup.training.step()
        after = setup.training.multipliers.clone()
        assert (after >= 0).all()
        assert torch.equal(after > before, slacks > 0)
        rises += int((after > before).sum())
        falls += int((after < before).sum())
        before = after
    assert min(rises, falls) > 3


def test_without_constraints_the_multipliers_stay_0():
    setup = Setup(replace(SURF, descent=DescentConfig(constrained=False), dual_rate=10.0))
    worst = [setup.training.step().worst_slack for _ in range(10)]
    assert max(worst) > 0
    assert torch.equal(setup.training.multipliers, torch.zeros(3))


@pytest.mark.parametrize("network", [NetworkConfig(GraphConfig("ring")), STAR])
def test_derivatives_reach_the_parameters_of_all_layers(network):
    setup = Setup(network=network)
    before = setup.parameters()
    setup.training.step()
    for name, moment in setup.training.state()["first_moments"].items():
        assert moment.abs().max() > 0, name
    for old, new in zip(before, setup.parameters(), strict=True):
        assert not torch.equal(old, new)


def test_meta_training_learns():
    setup = Setup(replace(SURF, steps=150), dtype=torch.float32)
    before = setup.training.validate()
    for _ in range(150):
        setup.training.step()
    after = setup.training.validate()
    assert after.loss < 0.7 * before.loss
    assert after.accuracy > before.accuracy + 0.2
    assert after.step == 150


def test_the_same_seed_gives_the_same_bits_and_another_seed_others():
    def run(seed):
        setup = Setup(seed=seed, network=STAR, dtype=torch.float32)
        for _ in range(5):
            setup.training.step()
        return torch.cat(
            [value.flatten() for value in setup.parameters()]
        ), setup.training.validate()

    first, again, other = run(1), run(1), run(2)
    assert torch.equal(first[0], again[0])
    assert first[1] == again[1]
    assert not torch.equal(first[0], other[0])


def test_global_generators_are_not_used():
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    setup = Setup(network=STAR)
    for _ in range(3):
        setup.training.step()
    setup.training.validate()
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert (np.random.get_state()[1] == numpy_before).all()  # noqa: NPY002


class Remembering(TaskDistribution):
    """Remember the drawn tasks."""

    def __init__(self, inner):
        super().__init__(inner._x, torch.arange(CLASSES).repeat(200), CLASSES, TASK)
        self.drawn = []

    def draw(self, generator):
        task = super().draw(generator)
        self.drawn.append(tuple(task.train.x.flatten().tolist()))
        return task


def test_training_uses_the_configured_number_of_different_tasks():
    setup = Setup(replace(SURF, tasks=3, steps=30))
    train = Remembering(setup.tasks.train)
    setup.training.problems = replace(setup.problems, tasks=replace(setup.tasks, train=train))
    for _ in range(30):
        setup.training.step()
    assert len(train.drawn) == 30
    assert len(set(train.drawn)) == 3


def test_a_validation_equals_a_loop_over_its_tasks():
    surf = replace(SURF, weighting="examples")
    setup = Setup(surf, replace(TASK, fewest_train_examples=2))
    for _ in range(3):
        setup.training.step()
    before = setup.parameters()
    record = setup.training.validate()
    losses, accuracies, pooled, slacks = [], [], [], []
    for number in range(3):
        task = setup.tasks.validation.draw(generator(7, "validation-task", number))
        problem = Problem(task, setup.network)
        _, weights, slack_values = setup.training.unroll(problem, "validation", number)
        rows, test = weights.tolist(), real_examples(task.test)
        counts = [len(own) for own in real_examples(task.train)]
        everything = [pair for own in test for pair in own]

        def mean(values, counts=counts):
            total = sum(counts)
            return sum(count / total * v for count, v in zip(counts, values, strict=True))

        losses.append(mean([naive.loss(r, own, 3) for r, own in zip(rows, test, strict=True)]))
        accuracies.append(
            mean([naive.accuracy(r, own, 3) for r, own in zip(rows, test, strict=True)])
        )
        pooled.append(mean([naive.accuracy(r, everything, 3) for r in rows]))
        slacks.append(slack_values.tolist())
    assert record.step == 3
    assert record.loss == pytest.approx(sum(losses) / 3)
    assert record.accuracy == pytest.approx(sum(accuracies) / 3)
    assert record.pooled_accuracy == pytest.approx(sum(pooled) / 3)
    columns = np.array(slacks)
    assert record.slack == pytest.approx(columns.mean(0).tolist())
    assert record.slack_error == pytest.approx((columns.std(0, ddof=1) / 3**0.5).tolist())
    assert record.multipliers == setup.training.multipliers.tolist()
    for old, new in zip(before, setup.parameters(), strict=True):
        assert torch.equal(old, new)
    assert setup.training.validate() == record


def test_weighting_by_examples_matters_where_sizes_differ():
    task = replace(TASK, fewest_train_examples=2)
    uniform, examples = (
        Setup(replace(SURF, weighting=weighting), task).training.step().loss
        for weighting in ("uniform", "examples")
    )
    assert uniform != pytest.approx(examples, rel=1e-3)


@pytest.mark.parametrize("constrained", [True, False])
def test_with_a_single_class_nothing_is_learned_and_everything_is_finite(constrained):
    setup = Setup(replace(SURF, descent=DescentConfig(constrained)), classes=1)
    before = setup.parameters()
    for _ in range(3):
        record = setup.training.step()
        assert record.loss == 0
        assert record.worst_slack == 0
    for old, new in zip(before, setup.parameters(), strict=True):
        assert torch.equal(old, new)
    validation = setup.training.validate()
    assert validation.accuracy == 1
    assert validation.feasible


@pytest.mark.parametrize("collecting", [True, False])
def test_a_step_restores_garbage_collection_also_after_an_error(collecting):
    seen = []

    class Watching:
        def __init__(self, inner):
            self.inner = inner

        def training(self, number):
            seen.append(gc.isenabled())
            if number:
                raise RuntimeError("no second problem")
            return self.inner.training(number)

    training = Setup().training
    training.problems = Watching(training.problems)
    before = gc.isenabled()
    try:
        (gc.enable if collecting else gc.disable)()
        training.step()
        assert gc.isenabled() == collecting
        with pytest.raises(RuntimeError, match="no second problem"):
            training.step()
        assert gc.isenabled() == collecting
    finally:
        (gc.enable if before else gc.disable)()
    assert seen == [False, False]


def test_divergence_raises_an_error_that_names_the_learning_rate():
    setup = Setup(
        replace(SURF, learning_rate=1e30),
        optimizer=replace(OPTIMIZER, activation="identity"),
        dtype=torch.float32,
    )
    with pytest.raises(
        DivergedError, match=r"diverged: .*step \d.* smaller learning_rate than 1e\+30"
    ):
        _take(setup.training, 10)


def _take(training, steps):
    for _ in range(steps):
        training.step()


def test_validating_a_diverged_optimizer_raises():
    setup = Setup()
    with torch.no_grad():
        setup.optimizer.layers[1].perceptron.offset[0] = float("nan")
    with pytest.raises(DivergedError, match=r"diverged: .*validation.*step 0"):
        setup.training.validate()


@pytest.mark.parametrize("field", ["steps", "tasks", "validate_every", "validation_tasks"])
def test_counts_below_1_raise_errors_that_name_the_field(field):
    with pytest.raises(ValueError, match=rf"^{field}: got 0"):
        Setup(replace(SURF, **{field: 0}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss_on": "all"}, r"^loss_on: got 'all', but it must be 'own' or 'pooled'"),
        ({"select_by": "best"}, r"^select_by: got 'best', .* 'accuracy' or 'last'"),
        (
            {"descent": DescentConfig(gradient_examples="batch")},
            r"^gradient_examples: got 'batch', but it must be 'mini-batch' or 'all'",
        ),
    ],
)
def test_unknown_options_raise(changes, message):
    with pytest.raises(ValueError, match=message):
        Setup(replace(SURF, **changes))


def test_a_fractional_number_of_steps_raises():
    with pytest.raises(TypeError, match=r"^steps: got 2\.5, but it must be a whole number"):
        Setup(replace(SURF, steps=2.5))


def test_too_large_mini_batches_raise_errors_that_name_the_field():
    with pytest.raises(ValueError, match=r"^gradient_batch_size: got 7, .* between 1 and 6"):
        Setup(replace(SURF, gradient_batch_size=7)).training.step()
    with pytest.raises(ValueError, match=r"^loss_examples: got 5, .* between 1 and 4"):
        Setup(replace(SURF, loss_examples=5)).training.step()


@pytest.mark.parametrize("averaging", [0.0, 0.5])
@pytest.mark.parametrize("steps", [0, 3])
def test_a_state_copied_into_another_training_continues_to_the_same_bits(steps, averaging):
    config = replace(SURF, averaging=averaging)
    one, two = (Setup(config, network=STAR, dtype=torch.float32) for _ in range(2))
    with torch.no_grad():
        for value in two.optimizer.parameters():
            value.zero_()
    for _ in range(steps):
        one.training.step()
    for group, tensors in two.training.state().items():
        source_group = one.training.state()[group]
        assert set(source_group) == set(tensors)
        for name, tensor in tensors.items():
            tensor.copy_(source_group[name])
    two.training.step_count = one.training.step_count
    for _ in range(3):
        assert one.training.step() == two.training.step()
    for first, second in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(first, second)
    assert torch.equal(one.training.multipliers, two.training.multipliers)
    with one.training.averaged(), two.training.averaged():
        for first, second in zip(one.parameters(), two.parameters(), strict=True):
            assert torch.equal(first, second)


def test_averages_equal_a_loop_and_do_not_change_the_steps():
    plain, averaged = Setup(), Setup(replace(SURF, averaging=0.3))
    expected = [value.detach().clone() for value in averaged.parameters()]
    for step in range(1, 6):
        assert plain.training.step() == averaged.training.step()
        share = min(0.3, (1 + step) / (10 + step))
        expected = [
            share * mean + (1 - share) * value.detach()
            for mean, value in zip(expected, averaged.parameters(), strict=True)
        ]
    before = [value.detach().clone() for value in plain.parameters()]
    with averaged.training.averaged():
        for mean, value in zip(expected, averaged.parameters(), strict=True):
            torch.testing.assert_close(value.detach(), mean, rtol=1e-12, atol=1e-14)
    with plain.training.averaged():
        pass
    for setup in (plain, averaged):
        for value, was in zip(setup.parameters(), before, strict=True):
            assert torch.equal(value.detach(), was)


def test_the_average_is_validated_and_kept(tmp_path):
    setup = Setup(replace(SURF, averaging=0.9, steps=4, validate_every=4, select_by="last"))
    best = meta_train(setup.training, RunFolder(tmp_path), {})
    kept = [value.detach().clone() for value in setup.parameters()]
    again = setup.training.validate()
    assert best["validation"]["loss"] == again.loss
    raw = Setup(replace(SURF, steps=4, validate_every=4))
    meta_train(raw.training, RunFolder(tmp_path / "raw"), {})
    assert not all(map(torch.equal, kept, (value.detach() for value in raw.parameters())))


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize(
    ("changes", "seed", "difference"),
    [
        ({"learning_rate": 0.5}, 7, r"surf\.learning_rate \(0\.01 there, 0\.5 here\)"),
        ({"descent": DescentConfig(epsilon=0.2)}, 7, r"surf\.descent\.epsilon \(0\.01 there, 0\.2"),
        ({}, 8, r"seed \(7 there, 8 here\)"),
    ],
)
def test_resuming_with_other_settings_raises(tmp_path, stopped, changes, seed, difference):
    surf = replace(SURF, steps=np.int64(2), validate_every=1)
    training = Setup(surf).training
    if stopped:
        training.step()
        RunFolder(tmp_path).write_state(training, [training.validate()])
    else:
        meta_train(training, RunFolder(tmp_path), {})
    other = Setup(replace(surf, **changes), seed=seed).training
    with pytest.raises(
        ValueError, match=f"holds a run with other settings, which differ in {difference}"
    ):
        meta_train(other, RunFolder(tmp_path), {})
    assert other.step_count == 0
    same = Setup(surf).training
    assert meta_train(same, RunFolder(tmp_path), {})["validation"]["step"] in (1, 2)


def test_relative_losses_are_divided_by_the_loss_of_guessing():
    own, pooled, relative = (
        Setup(replace(SURF, **changes)).training.step().loss
        for changes in ({}, {"loss_on": "pooled"}, {"loss_on": "pooled", "relative_loss": True})
    )
    assert own != pytest.approx(pooled, rel=1e-3)
    assert relative == pytest.approx(pooled / math.log(CLASSES))


def test_long_gradients_are_clipped_and_short_ones_are_not():
    def lengths(clip):
        setup = Setup(replace(SURF, clip=clip, learning_rate=0.0))
        found, before = [], 0
        for _ in range(5):
            setup.training.step()
            moments = setup.training.state()["first_moments"].values()
            after = torch.cat([moment.flatten() for moment in moments])
            found.append(float((after - 0.9 * before).norm() / 0.1))
            before = after
        return found

    free = lengths(None)
    limit = sorted(free)[2]
    assert lengths(limit) == pytest.approx([min(one, limit) for one in free], rel=1e-4)
    assert lengths(1e6) == pytest.approx(free, rel=1e-9)


def test_an_outlier_is_skipped_and_counts_as_a_step():
    losses = [record.loss for record in (Setup().training.step(),)]
    setup = Setup(replace(SURF, skip_above=losses[0] / 2, dual_rate=1.0))
    before = {
        group: {name: value.clone() for name, value in values.items()}
        for group, values in setup.training.state().items()
    }
    record = setup.training.step()
    assert record.loss == pytest.approx(losses[0])
    assert (record.step, setup.training.step_count) == (1, 1)
    for group, values in setup.training.state().items():
        for name, value in values.items():
            assert torch.equal(value, before[group][name]), (group, name)
    kept = Setup(replace(SURF, skip_above=losses[0] * 2))
    before = kept.parameters()
    kept.training.step()
    assert not torch.equal(before[0], kept.parameters()[0])


def test_with_skip_above_a_nan_loss_is_an_outlier():
    def broken(**changes):
        setup = Setup(replace(SURF, **changes))
        with torch.no_grad():
            setup.optimizer.layers[1].perceptron.offset[0] = float("nan")
        return setup

    with pytest.raises(DivergedError, match=r"the loss of step 0 is nan"):
        broken().training.step()
    setup = broken(skip_above=10.0)
    record = setup.training.step()
    assert math.isnan(record.loss)
    assert setup.training.step_count == 1


def test_with_clip_an_infinite_gradient_is_skipped():
    """Of two runs, one has an infinite derivative in a step, which must count as zero."""
    setup, twin = Setup(replace(SURF, clip=1.0)), Setup(replace(SURF, clip=1.0))
    setup.training.step()
    twin.training.step()
    values = list(setup.optimizer.parameters())
    hook = values[0].register_hook(lambda slope: slope * math.inf)
    setup.training.step()
    hook.remove()
    assert all(value.isfinite().all() for value in values)
    for value, moment in setup.training.state()["first_moments"].items():
        before = twin.training.state()["first_moments"][value]
        torch.testing.assert_close(moment, 0.9 * before)
    setup.training.step()
    assert all(value.isfinite().all() for value in values)


def test_fixed_problems_are_a_given_number_of_tasks_over_one_network():
    setup = Setup(network=STAR)
    problems = FixedProblems(setup.tasks, setup.network, 3, seed=5)
    drawn = [problems.training(number) for number in range(20)]
    assert all(problem.network is setup.network for problem in drawn)
    assert all(problem.rounds is None for problem in drawn)
    assert len({tuple(problem.task.train.x.flatten().tolist()) for problem in drawn}) == 3
    again = problems.training(4).task
    assert torch.equal(again.train.x, drawn[4].task.train.x)
    one, two = problems.validation(0).task, problems.validation(1).task
    assert torch.equal(one.train.x, problems.validation(0).task.train.x)
    assert not torch.equal(one.train.x, two.train.x)
    other = replace(problems, seed=6).validation(0).task
    assert not torch.equal(one.train.x, other.train.x)


@pytest.mark.parametrize("name", ["learning_rate", "dual_rate", "penalty"])
@pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf])
def test_a_negative_or_infinite_rate_raises(name, rate):
    with pytest.raises(ValueError, match=rf"^{name}: got {rate}, but .* at least 0$"):
        Setup(replace(SURF, **{name: rate}))


class Custom:
    """A source of tasks that is not a TaskDistribution."""

    def draw(self, generator):
        return source(0, TASK).draw(generator)


def test_any_object_with_draw_can_be_a_distribution():
    setup = Setup()
    problems = FixedProblems(MetaTasks(Custom(), Custom(), Custom()), setup.network, 5, seed=7)
    training = MetaTraining(Setup().optimizer, problems, SURF, seed=7)
    assert training.step() == setup.training.step()
