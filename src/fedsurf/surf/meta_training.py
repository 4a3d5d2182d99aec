"""SURF: primal-dual meta-training of an unrolled optimizer (Algorithm 1 of the paper).

    min_θ max_{λ ≥ 0}  Ê f(Φ(D; θ)) + Σ_l λ_l Ê[‖∇f(W_l)‖ − (1 − ε) ‖∇f(W_{l−1})‖]

Each step draws one task, unrolls the optimizer on its training examples, takes the loss of the last
layer on its test examples, and updates θ by Adam and λ by projected ascent, at the same time.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import cooper
import torch
from torch import Tensor, nn

from fedsurf.algorithms.algorithm import Algorithm
from fedsurf.models import Model
from fedsurf.randomness import generator as seeded
from fedsurf.statistics import standard_error, within_error
from fedsurf.surf.calibrated_losses import pooled_losses
from fedsurf.surf.descent import DescentConfig, slack
from fedsurf.surf.factored_adam import FactoredAdam
from fedsurf.surf.problems import Problem, Problems
from fedsurf.surf.unrolling import unroll
from fedsurf.tasks.examples import Examples
from fedsurf.tasks.task import AgentWeighting

SelectBy = Literal["loss", "accuracy", "last"]


class Unrolled(Algorithm, Protocol):
    """An algorithm with a certain number of steps, its layers."""

    @property
    def steps(self) -> int:
        """The number of layers."""
        ...


class UnrolledOptimizer(Protocol):
    """Learned parameters θ, and the algorithm whose layers they are."""

    @property
    def constraints(self) -> int:
        """The number of descending constraints: one for each layer, or for each part of the depth."""
        ...

    def on(self, model: Model, rounds: int | None = None) -> "Unrolled":
        """Return the algorithm whose steps are the layers, for a model and a number of rounds."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return θ."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Return θ with names."""
        ...


@dataclass(frozen=True)
class SurfConfig:
    """How an unrolled optimizer is meta-trained; the paper's values by default."""

    steps: int = 3000
    """Meta-training steps; each takes one task."""
    tasks: int = 600
    """The number of different meta-training tasks, the paper's Q; the pretraining commands draw a new
    problem in every step instead, and do not look at this."""
    learning_rate: float = 1e-2
    """Adam's learning rate μ_θ."""
    final_learning_rate: float | None = None
    """If given, the learning rate falls to this along half a cosine; otherwise it stays."""
    second_moment_decay: float = field(default=0.999, metadata={"added_later": True})
    """Adam's β2; smaller forgets outliers sooner."""
    dual_rate: float = 1e-2
    """The multipliers' learning rate μ_λ."""
    penalty: float = 0.0
    """Coefficient c of the augmented Lagrangian, which adds c/2 · slack² for each constraint with
    λ + c · slack > 0 and leaves the others out. 0 is the paper's plain Lagrangian, whose multipliers
    and layers swing around the solution; the penalty damps that, so that the constraints hold when
    meta-training ends."""
    descent: DescentConfig = field(default_factory=DescentConfig)
    """The descending constraints."""
    gradient_batch_size: int = 10
    """Examples of each agent in the mini-batches on which the constraints' gradients are taken."""
    loss_examples: int | None = None
    """If given, so many test examples of each agent, drawn anew in each step, make the loss;
    otherwise all of them."""
    loss_on: Literal["own", "pooled"] = field(default="own", metadata={"added_later": True})
    """own: each agent's loss is on its own test examples (the paper's); pooled: on those of the whole
    federation, so that an agent that serves only its own classes is no better for it."""
    calibrated_share: float = field(default=0.0, metadata={"added_later": True})
    """Only with pooled losses: this share of the loss is that of each agent's logits times the factor
    that makes it lowest. It sees whether the right class leads, not how sure the agent is of it, as
    accuracy does; the other share is the plain loss."""
    calibration_examples: int = field(default=512, metadata={"added_later": True})
    """From about so many test examples that factor is found; of more, each second, third, … is taken."""
    relative_loss: bool = field(default=False, metadata={"added_later": True})
    """Divide each problem's loss by that of guessing, log C, so that problems with many classes do
    not count for more."""
    clip: float | None = field(default=None, metadata={"added_later": True})
    """If given, the gradient of a step is scaled down to this length where it is longer."""
    skip_above: float | None = field(default=None, metadata={"added_later": True})
    """If given, a problem whose loss is above this, or no number, is left out: among problems of very
    different kinds, one outlier must not undo what was learned."""
    averaging: float = field(default=0.0, metadata={"added_later": True})
    """If above 0, validated and kept is not θ but its exponential average over steps, of which this
    share stays in a step (0.98: about the last 50): a step sees one problem and moves θ at random."""
    weighting: AgentWeighting = "uniform"
    """An agent's weight in f: 1/n (the paper's), or its share of the training examples."""
    validate_every: int = 250
    """Steps between validations, after each of which the state is saved."""
    validation_tasks: int = 10
    """Tasks of a validation."""
    select_by: SelectBy = field(default="loss", metadata={"added_later": True})
    """What makes a validation the best, among those whose constraints hold: its loss; its pooled
    accuracy, which a few problems with a large loss do not decide; or that it is the last, where
    averages and a falling learning rate leave less to chance than a choice by few tasks would."""


@dataclass(frozen=True)
class StepRecord:
    """What one step of meta-training saw."""

    step: int
    loss: float
    worst_slack: float
    largest_multiplier: float


@dataclass(frozen=True)
class ValidationRecord:
    """What a validation saw, means over its tasks."""

    step: int
    loss: float
    accuracy: float
    pooled_accuracy: float
    slack: list[float]
    """The mean slack of each layer; positive where the gradient norm did not fall enough."""
    slack_error: list[float]
    """Its standard error."""
    multipliers: list[float]

    @property
    def feasible(self) -> bool:
        """Whether every constraint holds within two standard errors."""
        return all(self.holding)

    @property
    def holding(self) -> list[bool]:
        """Which constraints hold within two standard errors."""
        held: list[bool] = within_error(
            torch.tensor(self.slack), torch.tensor(self.slack_error)
        ).tolist()
        return held

    @property
    def violation(self) -> float:
        """The largest mean slack, at least 0."""
        return max(0.0, *self.slack)


class DivergedError(ArithmeticError):
    """Meta-training met a loss or a gradient that is no number."""


class _Problem(cooper.ConstrainedMinimizationProblem):
    """The constrained problem (SURF) as cooper sees it."""

    def __init__(
        self, layers: int, dtype: torch.dtype, *, constrained: bool, penalty: float
    ) -> None:
        super().__init__()
        self.constrained = constrained
        formulation: type[cooper.formulations.Formulation] = cooper.formulations.Lagrangian
        coefficient = None
        if penalty:
            formulation = cooper.formulations.AugmentedLagrangian
            coefficient = cooper.penalty_coefficients.DensePenaltyCoefficient(
                torch.tensor(penalty, dtype=dtype)
            )
        self.multiplier = cooper.multipliers.DenseMultiplier(num_constraints=layers, dtype=dtype)
        self.descending = cooper.Constraint(
            constraint_type=cooper.ConstraintType.INEQUALITY,
            formulation_type=formulation,
            multiplier=self.multiplier,
            penalty_coefficient=coefficient,
        )

    def compute_cmp_state(self, loss: Tensor, slacks: Tensor) -> cooper.CMPState:
        constraint = cooper.ConstraintState(
            violation=slacks,
            contributes_to_primal_update=self.constrained,
            contributes_to_dual_update=self.constrained,
        )
        return cooper.CMPState(loss=loss, observed_constraints={self.descending: constraint})


class MetaTraining:
    """The primal-dual loop, one step at a time. Everything random is a function of seed and step.

    Parameters
    ----------
    optimizer : UnrolledOptimizer
        What is trained, in place.
    problems : Problems
        Where the problems of meta-training and validation come from.
    config : SurfConfig
        The settings.
    seed : int
        The seed.
    """

    def __init__(
        self,
        optimizer: UnrolledOptimizer,
        problems: Problems,
        config: SurfConfig,
        *,
        seed: int = 0,
    ) -> None:
        counts = ("steps", "tasks", "validate_every", "validation_tasks", "calibration_examples")
        for name in counts:
            if getattr(config, name) < 1:
                raise ValueError(f"{name}: got {getattr(config, name)}, but it must be at least 1")
        if not 0 <= config.calibrated_share <= 1 or (
            config.calibrated_share > 0 and config.loss_on != "pooled"
        ):
            raise ValueError(
                f"calibrated_share: got {config.calibrated_share} with loss_on {config.loss_on!r}, "
                "but it must be between 0 and 1, and above 0 with 'pooled' only"
            )
        for name in ("learning_rate", "final_learning_rate", "dual_rate", "penalty"):
            rate = getattr(config, name)
            if rate is not None and not 0 <= rate < math.inf:
                raise ValueError(f"{name}: got {rate}, but it must be a finite number, at least 0")
        if not 0 <= config.second_moment_decay < 1:
            raise ValueError(
                f"second_moment_decay: got {config.second_moment_decay}, but it must be at least 0 "
                "and below 1"
            )
        for name in ("clip", "skip_above"):
            limit = getattr(config, name)
            if limit is not None and not limit > 0:
                raise ValueError(f"{name}: got {limit}, but it must be positive, or none")
        self.optimizer, self.problems = optimizer, problems
        self.config, self.seed = config, seed
        self.step_count = 0
        self._problem = _Problem(
            optimizer.constraints,
            next(optimizer.parameters()).dtype,
            constrained=config.descent.constrained,
            penalty=config.penalty,
        )
        if not 0 <= config.averaging < 1:
            raise ValueError(
                f"averaging: got {config.averaging}, but it must be at least 0 and below 1"
            )
        self._averages: dict[str, Tensor] = {}
        if config.averaging:
            self._averages = {
                name: value.detach().clone() for name, value in optimizer.named_parameters()
            }
        self._adam = FactoredAdam(
            optimizer.parameters(),
            lr=config.learning_rate,
            betas=(0.9, config.second_moment_decay),
        )
        if config.clip is not None:
            self._adam.register_step_pre_hook(self._clip)
        ascent = torch.optim.SGD(
            self._problem.dual_parameters(), lr=config.dual_rate, maximize=True
        )
        self._primal_dual = cooper.optim.SimultaneousOptimizer(self._problem, self._adam, ascent)

    @property
    def multipliers(self) -> Tensor:
        """The multipliers λ, `[layers]`."""
        values: Tensor = self._problem.multiplier.weight.detach()
        return values

    def step(self) -> StepRecord:
        """Take one primal-dual step on one problem."""
        config, number = self.config, self.step_count
        problem = self.problems.training(number)
        algorithm, weights, slacks = self.unroll(problem, "train", number)
        test = problem.task.test
        if config.loss_examples is not None:
            choice = seeded(self.seed, "loss", number)
            test = test.draw(config.loss_examples, choice, "loss_examples")
        loss = self._loss(algorithm.model, weights, problem, test)
        outlier = config.skip_above is not None and not float(loss.detach()) <= config.skip_above
        if not loss.isfinite() and not outlier:
            raise DivergedError(
                f"meta-training diverged: the loss of step {number} is {loss.item()}; "
                f"try a smaller learning_rate than {config.learning_rate}"
            )
        for group in self._adam.param_groups:
            group["lr"] = self._learning_rate()
        if not outlier:
            by_constraint = spread_over(slacks, self.optimizer.constraints)
            # The length of a gradient, for clipping, is that of all its numbers.
            whole = self.config.clip is not None
            with nullcontext() if whole else self._adam.taking_factors():
                self._primal_dual.roll(
                    compute_cmp_state_kwargs={"loss": loss, "slacks": by_constraint}
                )
        self.step_count += 1
        self._average()
        return StepRecord(
            self.step_count,
            loss.item(),
            slacks.detach().max().item(),
            self.multipliers.max().item(),
        )

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Have the average of θ in the optimizer for a while, where there is one."""
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
        task, descent = problem.task, self.config.descent
        algorithm = problem.algorithm(self.optimizer)
        weights, norms = unroll(
            algorithm,
            algorithm.steps,
            task,
            problem.network,
            descent,
            gradient_batch_size=self.config.gradient_batch_size,
            weighting=self.config.weighting,
            seed=self.seed,
            path=(purpose, number),
        )
        return algorithm, weights, slack(norms, descent.epsilon, descent.form)

    def _loss(self, model: Model, weights: Tensor, problem: Problem, test: Examples) -> Tensor:
        config, task = self.config, problem.task
        share = task.agent_weights(config.weighting)
        if config.loss_on == "pooled":
            losses = pooled_losses(
                model, weights, test, config.calibrated_share, config.calibration_examples
            )
        else:
            losses = model.loss(weights, test)
        loss = share @ losses
        if config.relative_loss:
            loss = loss / math.log(max(2, task.classes))
        return loss

    @torch.no_grad()
    def _put(self, values: dict[str, Tensor]) -> None:
        for name, value in self.optimizer.named_parameters():
            if name in values:
                value.copy_(values[name])

    @torch.no_grad()
    def _average(self) -> None:
        # In the beginning, θ as it was drawn must not stay for long.
        share = min(self.config.averaging, (1 + self.step_count) / (10 + self.step_count))
        for name, value in self.optimizer.named_parameters():
            if name in self._averages:
                self._averages[name].lerp_(value, 1 - share)

    def _clip(self, *_: Any) -> None:
        parameters = list(self.optimizer.parameters())
        length = torch.nn.utils.clip_grad_norm_(parameters, self.config.clip or math.inf)
        if not length.isfinite():  # an outlier, although its loss is a number
            for value in parameters:
                value.grad = torch.zeros_like(value)

    @torch.no_grad()
    def validate(self) -> ValidationRecord:
        """Try the optimizer on the validation tasks, the same ones each time."""
        rows, slacks = [], []
        for number in range(self.config.validation_tasks):
            problem = self.problems.validation(number)
            algorithm, weights, slack_values = self.unroll(problem, "validation", number)
            model, test = algorithm.model, problem.task.test
            agents = problem.task.agent_weights(self.config.weighting)
            rows.append(
                torch.stack(
                    [
                        self._loss(model, weights, problem, test),
                        agents @ model.accuracy(weights, test),
                        agents @ model.pooled_accuracy(weights, test),
                    ]
                )
            )
            slacks.append(spread_over(slack_values, self.optimizer.constraints))
        loss, accuracy, pooled = torch.stack(rows).mean(0).tolist()
        stacked = torch.stack(slacks)
        if not (math.isfinite(loss) and stacked.isfinite().all()):
            # A comparison with NaN is always false: such a record could pass for the best.
            raise DivergedError(
                f"meta-training diverged: the validation after step {self.step_count} has the loss "
                f"{loss}; try a smaller learning_rate than {self.config.learning_rate}"
            )
        return ValidationRecord(
            self.step_count,
            loss,
            accuracy,
            pooled,
            stacked.mean(0).tolist(),
            standard_error(stacked).tolist(),
            self.multipliers.tolist(),
        )

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Return everything that the next step depends on, beside configuration and seed.

        Groups of named tensors, to be written to and read from files of their own. The tensors are
        the live ones: copying into them restores the state.
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
        config = self.config
        if config.final_learning_rate is None:
            return config.learning_rate
        share = torch.tensor(min(1.0, self.step_count / config.steps))
        fall = float(0.5 * (1 + torch.cos(torch.pi * share)))
        span = config.learning_rate - config.final_learning_rate
        return config.final_learning_rate + span * fall


def spread_over(slacks: Tensor, constraints: int) -> Tensor:
    """Assign the slack of L layers to constraints: each has the mean over its part of the depth.

    With as many layers as constraints, each layer is one. With fewer, the constraints without a layer
    of their own have the slack 0, which is neither violated nor satisfied.
    """
    layers = len(slacks)
    if layers == constraints:
        return slacks
    part = torch.arange(layers) * constraints // layers
    count = torch.zeros(constraints, dtype=slacks.dtype).index_add(
        0, part, torch.ones_like(slacks.detach())
    )
    total = torch.zeros(constraints, dtype=slacks.dtype).index_add(0, part, slacks)
    return total / count.clamp(min=1)
