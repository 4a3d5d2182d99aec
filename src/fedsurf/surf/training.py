"""SURF: primal-dual meta-training of an unrolled optimizer (Algorithm 1 of the paper).

    min_θ max_{λ ≥ 0}  Ê f(Φ(D; θ)) + Σ_l λ_l Ê[‖∇f(W_l)‖ − (1 − ε) ‖∇f(W_{l−1})‖]

Each step draws one task, unrolls the optimizer on its training examples, takes the loss of the last
layer on its test examples, and updates θ by Adam and λ by projected ascent, at the same time.
"""

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import cooper
import torch
from torch import Tensor

from fedsurf.common.checks import check_count, check_not_negative, check_option
from fedsurf.common.devices import CPU
from fedsurf.common.randomness import generator as seeded
from fedsurf.common.statistics import standard_error, within_error
from fedsurf.common.streams import Streams
from fedsurf.models import Model, SoftmaxHead
from fedsurf.network import Network
from fedsurf.surf.config import GradientExamples, LossOn, SelectBy, SurfConfig
from fedsurf.surf.constraints import (
    DescendingProblem,
    Unrolled,
    UnrolledOptimizer,
    slack,
    slack_per_constraint,
    unroll,
)
from fedsurf.surf.factored_adam import FactoredAdam
from fedsurf.surf.losses import pooled_losses
from fedsurf.tasks.distribution import MetaTasks
from fedsurf.tasks.task import Examples, Task


@dataclass(frozen=True)
class Problem:
    """A task with its network, number of rounds and model."""

    task: Task
    network: Network
    rounds: int | None = None
    """Communication rounds; None for the optimizer's own."""
    trained: Model | None = None
    """The agents' model; None for a softmax head."""

    @property
    def model(self) -> Model:
        """The agents' model."""
        return self.trained or SoftmaxHead(self.task.features, self.task.classes)

    def algorithm(self, optimizer: UnrolledOptimizer) -> Unrolled:
        """Return the algorithm by which an optimizer solves this problem."""
        return optimizer.on(self.model, self.rounds)


class Problems(Protocol):
    """The source of meta-training's problems."""

    def training(self, number: int) -> Problem:
        """Return the problem of a meta-training step."""

    def validation(self, number: int) -> Problem:
        """Return a problem of validation, the same each time."""


@dataclass(frozen=True)
class FixedProblems:
    """The paper's problems: one network, and a fixed set of tasks from which every step takes one.

    `MetaTraining` has an example.
    """

    tasks: MetaTasks
    network: Network
    count: int
    """Number of different meta-training tasks, the paper's Q."""
    seed: int

    def training(self, number: int) -> Problem:
        """Return one of the meta-training tasks, drawn at random."""
        choice = seeded(self.seed, "train", number)
        task_number = int(torch.randint(self.count, (), generator=choice, device=CPU))
        task = self.tasks.train.draw(seeded(self.seed, "train-task", task_number))
        return Problem(task, self.network)

    def validation(self, number: int) -> Problem:
        """Return a validation task."""
        task = self.tasks.validation.draw(seeded(self.seed, "validation-task", number))
        return Problem(task, self.network)


class DivergedError(ArithmeticError):
    """Meta-training reached a loss that is NaN or infinite."""

    exit_code = 4
    """Exit code of the command line."""


@dataclass(frozen=True)
class StepRecord:
    """Measurements of one meta-training step."""

    step: int
    loss: float
    worst_slack: float
    largest_multiplier: float


@dataclass(frozen=True)
class ValidationRecord:
    """Measurements of a validation, means over its tasks."""

    step: int
    loss: float
    accuracy: float
    pooled_accuracy: float
    slack: list[float]
    """Mean slack of each constraint; positive where the gradient norm did not fall enough."""
    slack_error: list[float]
    """Standard error of the slack."""
    multipliers: list[float]

    @property
    def feasible(self) -> bool:
        """Whether every constraint holds within two standard errors."""
        return all(self.holding)

    @property
    def holding(self) -> list[bool]:
        """Which constraints hold within two standard errors."""
        slack, error = (
            torch.tensor(self.slack, device=CPU),
            torch.tensor(self.slack_error, device=CPU),
        )
        held: list[bool] = within_error(slack, error).tolist()
        return held


class MetaTraining:
    """SURF's primal-dual steps, which train an optimizer in place.

    Everything random is a function of seed and step.

    Examples
    --------
    >>> import fedsurf
    >>> experiment = fedsurf.Experiment(fedsurf.preset("smoke"))
    >>> problems = FixedProblems(experiment.tasks, experiment.network, count=5, seed=0)
    >>> training = MetaTraining(experiment.optimizer, problems, experiment.config.surf)
    >>> record = training.step()
    >>> record.step, training.multipliers.shape
    (1, torch.Size([3]))
    """

    def __init__(
        self, optimizer: UnrolledOptimizer, problems: Problems, config: SurfConfig, *, seed: int = 0
    ) -> None:
        _check(config)
        self.optimizer, self.problems = optimizer, problems
        self.config, self.seed = config, seed
        self.step_count = 0
        parameter = next(optimizer.parameters())
        self._device = parameter.device
        self._problem = DescendingProblem(
            optimizer.constraints,
            parameter,
            constrained=config.descent.constrained,
            penalty=config.penalty,
        )
        self._averages: dict[str, Tensor] = {}
        if config.averaging:
            self._averages = {n: v.detach().clone() for n, v in optimizer.named_parameters()}
        self._adam = FactoredAdam(
            optimizer.parameters(), lr=config.learning_rate, betas=(0.9, config.second_moment_decay)
        )
        if config.clip is not None:
            self._adam.register_step_pre_hook(self._clip)
        multipliers = self._problem.dual_parameters()
        ascent = torch.optim.SGD(multipliers, lr=config.dual_rate, maximize=True)
        self._primal_dual = cooper.optim.SimultaneousOptimizer(self._problem, self._adam, ascent)

    @property
    def multipliers(self) -> Tensor:
        """The multipliers λ, `[layers]`."""
        values: Tensor = self._problem.multiplier.weight.detach()
        return values

    def step(self) -> StepRecord:
        """Take one primal-dual step on one problem."""
        collecting = gc.isenabled()
        gc.disable()  # a step makes thousands of objects, all in use until its end
        try:
            return self._step()
        finally:
            if collecting:
                gc.enable()

    def _step(self) -> StepRecord:
        config, number = self.config, self.step_count
        problem = self._here(self.problems.training(number))
        algorithm, weights, slacks = self.unroll(problem, "train", number)
        test = problem.task.test
        if config.loss_examples is not None:
            streams = Streams(self.seed, range(test.agents), "loss", number)
            test = test.draw(config.loss_examples, streams, "loss_examples")
        loss = self._loss(algorithm.model, weights, problem, test)
        outlier = config.skip_above is not None and not float(loss.detach()) <= config.skip_above
        if not loss.isfinite() and not outlier:
            raise self._diverged(f"the loss of step {number} is {loss.item()}")
        for group in self._adam.param_groups:
            group["lr"] = self._learning_rate()
        if not outlier:
            violations = slack_per_constraint(slacks, self.optimizer.constraints)
            found = {"loss": loss, "slacks": violations}
            # Clipping needs whole gradients to know their norm.
            whole = config.clip is not None
            with nullcontext() if whole else self._adam.taking_factors():
                self._primal_dual.roll(compute_cmp_state_kwargs=found)
        self.step_count += 1
        self._average()
        worst, largest = slacks.detach().max().item(), self.multipliers.max().item()
        return StepRecord(self.step_count, loss.item(), worst, largest)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Put the average of θ, if there is one, into the optimizer within the block."""
        live = dict(self.optimizer.named_parameters())
        kept = {name: live[name].detach().clone() for name in self._averages}
        try:
            self._put(self._averages)
            yield
        finally:
            self._put(kept)

    def unroll(
        self, problem: Problem, purpose: str, number: int
    ) -> tuple[Unrolled, Tensor, Tensor]:
        """Run all layers on a problem; return the algorithm, the agents' W_L and every layer's slack."""
        descent = self.config.descent
        algorithm = problem.algorithm(self.optimizer)
        weights, norms = unroll(
            algorithm,
            algorithm.steps,
            problem.task,
            problem.network,
            descent,
            gradient_batch_size=self.config.gradient_batch_size,
            weighting=self.config.weighting,
            seed=self.seed,
            path=(purpose, number),
        )
        return algorithm, weights, slack(norms, descent.epsilon, descent.form)

    def _here(self, problem: Problem) -> Problem:
        """Return a problem on the device of the optimizer's parameters."""
        return replace(problem, task=problem.task.to(device=self._device))

    def _loss(self, model: Model, weights: Tensor, problem: Problem, test: Examples) -> Tensor:
        config, task = self.config, problem.task
        share = task.agent_weights(config.weighting)
        if config.loss_on == "pooled":
            calibration = config.calibrated_share, config.calibration_examples
            losses = pooled_losses(model, weights, test, *calibration)
        else:
            losses = model.loss(weights, test)
        loss = share @ losses
        return loss / math.log(max(2, task.classes)) if config.relative_loss else loss

    @torch.no_grad()
    def _put(self, values: dict[str, Tensor]) -> None:
        for name, value in self.optimizer.named_parameters():
            if name in values:
                value.copy_(values[name])

    @torch.no_grad()
    def _average(self) -> None:
        # The decay is smaller in early steps, to forget the initial θ soon.
        share = min(self.config.averaging, (1 + self.step_count) / (10 + self.step_count))
        for name, value in self.optimizer.named_parameters():
            if name in self._averages:
                self._averages[name].lerp_(value, 1 - share)

    def _clip(self, *_: Any) -> None:
        parameters = list(self.optimizer.parameters())
        length = torch.nn.utils.clip_grad_norm_(parameters, self.config.clip or math.inf)
        if not length.isfinite():  # an outlier, although its loss is finite
            for value in parameters:
                value.grad = torch.zeros_like(value)

    @torch.no_grad()
    def validate(self) -> ValidationRecord:
        """Run the optimizer on the validation tasks, the same ones each time."""
        rows, slacks = [], []
        for number in range(self.config.validation_tasks):
            problem = self._here(self.problems.validation(number))
            algorithm, weights, slack_values = self.unroll(problem, "validation", number)
            model, test = algorithm.model, problem.task.test
            agents = problem.task.agent_weights(self.config.weighting)
            accuracy = agents @ model.accuracy(weights, test)
            pooled = agents @ model.pooled_accuracy(weights, test)
            rows.append(torch.stack([self._loss(model, weights, problem, test), accuracy, pooled]))
            slacks.append(slack_per_constraint(slack_values, self.optimizer.constraints))
        loss, own_accuracy, pooled_accuracy = torch.stack(rows).mean(0).tolist()
        stacked = torch.stack(slacks)
        if not (math.isfinite(loss) and stacked.isfinite().all()):
            # Comparisons with NaN are always false: such a record could pass for the best.
            raise self._diverged(f"the validation after step {self.step_count} has the loss {loss}")
        return ValidationRecord(
            self.step_count,
            loss,
            own_accuracy,
            pooled_accuracy,
            stacked.mean(0).tolist(),
            standard_error(stacked).tolist(),
            self.multipliers.tolist(),
        )

    def _diverged(self, found: str) -> DivergedError:
        advice = f"try a smaller learning_rate than {self.config.learning_rate}"
        return DivergedError(f"meta-training diverged: {found}; {advice}")

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Return everything that the next step depends on, apart from configuration and seed.

        The state is groups of named tensors, one file each. The tensors are the live ones: copying
        into them restores the state.
        """
        parameters = dict(self.optimizer.named_parameters())
        self._adam.allocate()
        moments = {name: self._adam.state[value] for name, value in parameters.items()}
        return {
            "parameters": {name: value.detach() for name, value in parameters.items()},
            "first_moments": {name: moment["exp_avg"] for name, moment in moments.items()},
            "second_moments": {name: moment["exp_avg_sq"] for name, moment in moments.items()},
            "small": {
                "multipliers": self.multipliers,
                **{f"steps.{name}": moment["step"] for name, moment in moments.items()},
            },
            **({"averages": self._averages} if self._averages else {}),
        }

    def _learning_rate(self) -> float:
        first, last = self.config.learning_rate, self.config.final_learning_rate
        if last is None:
            return first
        share = torch.tensor(min(1.0, self.step_count / self.config.steps), device=CPU)
        return last + (first - last) * float(0.5 * (1 + torch.cos(torch.pi * share)))


def _check(config: SurfConfig) -> None:
    """Validate the fields that users of `fedsurf train` set."""
    for name in ("steps", "tasks", "validate_every", "validation_tasks"):
        check_count(getattr(config, name), name)
    check_option(config.loss_on, LossOn, "loss_on")
    check_option(config.select_by, SelectBy, "select_by")
    check_option(config.descent.gradient_examples, GradientExamples, "gradient_examples")
    for name in ("learning_rate", "dual_rate", "penalty"):
        check_not_negative(getattr(config, name), name)
