"""Meta-training against a primal-dual step written by hand, and its behaviour at the edges."""

import math
from dataclasses import replace

import naive
import numpy as np
import pytest
import torch
from drawn import real_examples, seeded

from fedsurf.models import SoftmaxHead
from fedsurf.network import GraphConfig, NetworkConfig, make_network
from fedsurf.randomness import generator
from fedsurf.surf import (
    DescentConfig,
    DivergedError,
    FixedProblems,
    MetaTraining,
    Problem,
    SurfConfig,
)
from fedsurf.tasks.distribution import MetaTasks, TaskConfig, TaskDistribution
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
            test = test.draw(config.loss_examples, generator(setup.seed, "loss", number))
        counts = [len(own) for own in real_examples(task.train)]
        if config.weighting == "uniform":
            counts = [1] * len(counts)
        losses = torch.nn.functional.cross_entropy(
            setup.optimizer.model.logits(weights, test.x).flatten(0, 1),
            test.y.flatten(),
            reduction="none",
        ).reshape(test.y.shape)
        loss = sum(
            count / sum(counts) * losses[agent].sum() / test.y.shape[1]
            for agent, count in enumerate(counts)
        )
        lagrangian = loss
        if config.descent.constrained and config.penalty == 0:
            lagrangian = loss + (multipliers * slacks).sum()
        elif config.descent.constrained:
            for multiplier, value in zip(multipliers, slacks, strict=True):
                if multiplier + config.penalty * value > 0:
                    lagrangian = lagrangian + multiplier * value + config.penalty / 2 * value**2
        slopes = torch.autograd.grad(lagrangian, theta)
        rate = config.learning_rate
        if config.final_learning_rate is not None:
            fall = (1 + math.cos(math.pi * number / config.steps)) / 2
            rate = config.final_learning_rate + (rate - config.final_learning_rate) * fall
        with torch.no_grad():
            for value, slope, m, v in zip(theta, slopes, first, second, strict=True):
                m.mul_(0.9).add_(0.1 * slope)
                v.mul_(0.999).add_(0.001 * slope**2)
                step = (m / (1 - 0.9 ** (number + 1))) / (
                    (v / (1 - 0.999 ** (number + 1))).sqrt() + 1e-8
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
    ],
)
def test_a_step_equals_a_projected_primal_dual_step_written_by_hand(surf, others):
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


def test_multipliers_are_never_negative_and_rise_exactly_where_constraints_are_violated():
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
    for name, value in setup.optimizer.named_parameters():
        assert value.grad is not None, name
        assert value.grad.abs().max() > 0, name
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


def test_no_global_generator_is_touched():
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    setup = Setup(network=STAR)
    for _ in range(3):
        setup.training.step()
    setup.training.validate()
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert (np.random.get_state()[1] == numpy_before).all()  # noqa: NPY002


class Remembering(TaskDistribution):
    """Remembers the tasks that were drawn."""

    def __init__(self, inner):
        super().__init__(inner._x, torch.arange(CLASSES).repeat(200), CLASSES, TASK)
        self.drawn = []

    def draw(self, generator):
        task = super().draw(generator)
        self.drawn.append(tuple(task.train.x.flatten().tolist()))
        return task


def test_only_so_many_different_tasks_are_trained_on():
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
def test_with_a_single_class_nothing_is_learned_and_nothing_is_no_number(constrained):
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


def test_divergence_is_an_error_that_names_the_learning_rate():
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


def test_a_validation_of_a_diverged_optimizer_is_an_error_too():
    setup = Setup()
    with torch.no_grad():
        setup.optimizer.layers[1].perceptron.offset[0] = float("nan")
    with pytest.raises(DivergedError, match=r"diverged: .*validation.*step 0"):
        setup.training.validate()


@pytest.mark.parametrize("field", ["steps", "tasks", "validate_every", "validation_tasks"])
def test_impossible_settings_are_errors_that_name_the_field(field):
    with pytest.raises(ValueError, match=rf"^{field}: got 0"):
        Setup(replace(SURF, **{field: 0}))


def test_a_negative_penalty_is_refused():
    with pytest.raises(ValueError, match=r"^penalty: got -1"):
        Setup(replace(SURF, penalty=-1.0))


def test_mini_batches_that_are_too_large_are_errors_that_name_the_setting():
    with pytest.raises(ValueError, match=r"^gradient_batch_size: got 7, .* between 1 and 6"):
        Setup(replace(SURF, gradient_batch_size=7)).training.step()
    with pytest.raises(ValueError, match=r"^loss_examples: got 5, .* between 1 and 4"):
        Setup(replace(SURF, loss_examples=5)).training.step()


@pytest.mark.parametrize("steps", [0, 3])
def test_a_state_that_is_copied_into_another_training_goes_on_to_the_same_bits(steps):
    one, two = Setup(network=STAR, dtype=torch.float32), Setup(network=STAR, dtype=torch.float32)
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
