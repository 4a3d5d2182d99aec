"""Configuration of meta-training and its constraints; importable without torch, for command lines."""

from dataclasses import dataclass, field
from typing import Literal

from fedsurf.tasks.config import AgentWeighting

GradientOf = Literal["stacked", "average"]
Norm = Literal["frobenius", "root-mean-square"]
GradientExamples = Literal["mini-batch", "all"]
Form = Literal["difference", "log-ratio"]
LossOn = Literal["own", "pooled"]
SelectBy = Literal["loss", "accuracy", "last"]


@dataclass(frozen=True)
class DescentConfig:
    """The descending constraints; the paper's by default.

    Examples
    --------
    >>> DescentConfig(epsilon=0.1, norm="root-mean-square").gradient_examples
    'mini-batch'
    """

    #: Impose the constraints. Without them only the last layer's loss is minimised (the ablation).
    constrained: bool = True
    #: ε: the share by which the gradient norm must fall at each layer.
    epsilon: float = 0.01
    #: stacked: the norm of all agents' local gradients, each at its own weights (the paper's);
    #: average: the norm of the gradient of f at the average weights, which measures whether the
    #: federation as a whole descends, not whether each agent fits its own data.
    gradient_of: GradientOf = "stacked"
    #: frobenius: the norm of the rows (1/n) ∇f_i(w_i) (the paper's), which shrinks with the square
    #: root of the number of agents, and the multipliers' steps with it; root-mean-square: the norm
    #: of an average agent's gradient, so that one dual rate serves networks of any size. Only for
    #: stacked.
    norm: Norm = "frobenius"
    #: The examples on which gradients are taken: a fresh mini-batch for each layer (the paper's
    #: stochastic gradients), or all training examples of every agent.
    gradient_examples: GradientExamples = "mini-batch"
    #: difference: of the norms (the paper's); log-ratio: of their logarithms, which gives problems
    #: with small and large gradients the same weight.
    form: Form = "difference"


@dataclass(frozen=True)
class SurfConfig:
    """Meta-training of an unrolled optimizer; the paper's values by default.

    Examples
    --------
    >>> SurfConfig(steps=500, descent=DescentConfig(epsilon=0.1)).learning_rate
    0.01
    """

    #: Meta-training steps; each takes one task.
    steps: int = 3000
    #: Number of different meta-training tasks, the paper's Q. The pretraining commands draw a new
    #: problem in every step instead and ignore this.
    tasks: int = 600
    #: Adam's learning rate μ_θ.
    learning_rate: float = 1e-2
    #: If given, the learning rate falls to this along half a cosine; otherwise it is constant.
    final_learning_rate: float | None = None
    #: Adam's β2; a smaller value forgets outliers sooner.
    second_moment_decay: float = 0.999
    #: Learning rate μ_λ of the multipliers.
    dual_rate: float = 1e-2
    #: Coefficient c of the augmented Lagrangian, which adds c/2 · slack² for each constraint with
    #: λ + c · slack > 0 and ignores the others. 0 is the paper's plain Lagrangian, whose
    #: multipliers and layers oscillate around the solution; the penalty damps that, so that the
    #: constraints hold when meta-training ends.
    penalty: float = 0.0
    #: The descending constraints.
    descent: DescentConfig = field(default_factory=DescentConfig)
    #: Examples of each agent in the mini-batches on which the constraints' gradients are taken.
    gradient_batch_size: int = 10
    #: If given, the loss is taken on this many test examples of each agent, drawn again in
    #: each step; otherwise on all of them.
    loss_examples: int | None = None
    #: own: each agent's loss is on its own test examples (the paper's); pooled: on those of the
    #: whole federation, so that an agent gains nothing by serving only its own classes.
    loss_on: LossOn = "own"
    #: Only with pooled losses: this share of the loss is taken after scaling each agent's logits by
    #: the factor that minimises its loss. Like accuracy, the calibrated loss depends on which class
    #: leads, not on how confident the agent is; the rest is the plain loss.
    calibrated_share: float = 0.0
    #: Approximate number of test examples from which that factor is fitted.
    calibration_examples: int = 512
    #: Divide each problem's loss by log C, the loss of guessing, so that problems with many classes
    #: do not weigh more.
    relative_loss: bool = False
    #: If given, the largest norm of a step's gradient; longer gradients are scaled down to it.
    clip: float | None = None
    #: If given, skip problems whose loss is above this, or NaN: among problems of very different
    #: kinds, one outlier must not undo what was learned.
    skip_above: float | None = None
    #: If above 0, validate and keep an exponential average of θ over steps with this decay (0.98:
    #: about the last 50 steps), because a step sees one problem and moves θ at random.
    averaging: float = 0.0
    #: Weight of an agent in f: 1/n (the paper's), or its share of the training examples.
    weighting: AgentWeighting = "uniform"
    #: Steps between validations, after each of which the state is saved.
    validate_every: int = 250
    #: Tasks of a validation.
    validation_tasks: int = 10
    #: Criterion of the best validation, among those whose constraints hold: lowest loss; highest
    #: pooled accuracy, which a few problems with a large loss do not decide; or the last one, for
    #: runs in which averages and a falling learning rate are more reliable than a choice by few
    #: tasks.
    select_by: SelectBy = "loss"
