"""The settings of meta-training."""

import math
from dataclasses import dataclass, field
from typing import Literal

from fedsurf.common.checks import check_count, check_option
from fedsurf.surf.constraints import DescentConfig, GradientExamples
from fedsurf.tasks.config import AgentWeighting

LossOn = Literal["own", "pooled"]
SelectBy = Literal["loss", "accuracy", "last"]


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
    loss_on: LossOn = field(default="own", metadata={"added_later": True})
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

    def check(self) -> None:
        """Raise ValueError for settings that cannot be."""
        counts = ("steps", "tasks", "validate_every", "validation_tasks", "calibration_examples")
        for name in counts:
            check_count(getattr(self, name), name)
        check_option(self.loss_on, LossOn, "loss_on")
        check_option(self.select_by, SelectBy, "select_by")
        check_option(self.descent.gradient_examples, GradientExamples, "gradient_examples")
        if not 0 <= self.calibrated_share <= 1 or (
            self.calibrated_share > 0 and self.loss_on != "pooled"
        ):
            raise ValueError(
                f"calibrated_share: got {self.calibrated_share} with loss_on {self.loss_on!r}, "
                "but it must be between 0 and 1, and above 0 with 'pooled' only"
            )
        for name in ("learning_rate", "final_learning_rate", "dual_rate", "penalty"):
            rate = getattr(self, name)
            if rate is not None and not 0 <= rate < math.inf:
                raise ValueError(f"{name}: got {rate}, but it must be a finite number, at least 0")
        if not 0 <= self.second_moment_decay < 1:
            raise ValueError(
                f"second_moment_decay: got {self.second_moment_decay}, but it must be at least 0 "
                "and below 1"
            )
        for name in ("clip", "skip_above"):
            limit = getattr(self, name)
            if limit is not None and not 0 < limit < math.inf:
                raise ValueError(
                    f"{name}: got {limit}, but it must be positive and finite, or none"
                )
        if not 0 <= self.averaging < 1:
            raise ValueError(
                f"averaging: got {self.averaging}, but it must be at least 0 and below 1"
            )
