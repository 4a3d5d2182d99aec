"""SURF's descending constraints on unrolled optimizers: the gradient norm falls from layer to layer.

E[‖∇f(W_l)‖ − (1 − ε) ‖∇f(W_{l−1})‖] ≤ 0   for every layer l

For problems whose gradients differ in scale, the same on a logarithmic scale:
E[log ‖∇f(W_l)‖ − log ‖∇f(W_{l−1})‖ − log(1 − ε)] ≤ 0.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import cooper
import torch
from torch import Tensor, nn

from fedsurf.algorithms.algorithm import Algorithm, State
from fedsurf.common.checks import check_fraction, check_option
from fedsurf.common.randomness import generator as seeded
from fedsurf.common.streams import Streams
from fedsurf.models import Model, SoftmaxHead
from fedsurf.network import Network
from fedsurf.surf.config import DescentConfig, Form, GradientOf, Norm
from fedsurf.tasks.config import AgentWeighting
from fedsurf.tasks.task import Examples, Task

MIN_NORM = 1e-8
"""Smallest gradient norm on a logarithmic scale; smaller ones count as this."""


class Unrolled(Algorithm, Protocol):
    """An algorithm with a fixed number of steps, its layers."""

    @property
    def steps(self) -> int:
        """Number of layers."""


class UnrolledOptimizer(Protocol):
    """The object that SURF trains: learned parameters θ, and the algorithm whose layers they are."""

    @property
    def constraints(self) -> int:
        """Number of descending constraints: one for each layer, or for each part of the depth."""

    def on(self, model: Model, rounds: int | None = None) -> Unrolled:
        """Return the algorithm whose steps are the layers, for a model and a number of rounds."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return θ."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Return θ with names."""


def gradient_norm(
    model: Model,
    weights: Tensor,
    examples: Examples,
    share: Tensor,
    gradient_of: GradientOf = "stacked",
    norm: Norm = "frobenius",
) -> Tensor:
    """Return ‖∇f(W)‖, a scalar.

    f(W) = Σ_i a_i f_i(w_i) with the agents' shares a_i (1/n in the paper), so row i of the stacked
    gradient is a_i ∇f_i(w_i), and its Frobenius norm √(Σ_i a_i² ‖∇f_i(w_i)‖²); the root mean square
    is √(Σ_i a_i ‖∇f_i(w_i)‖²). `weights` are the agents' rows, `[agents, parameters]`.
    """
    check_option(gradient_of, GradientOf, "gradient_of")
    check_option(norm, Norm, "norm")
    if norm == "root-mean-square" and gradient_of == "average":
        raise ValueError(
            f"norm: got {norm!r} with gradient_of 'average', but it must be 'frobenius'"
        )
    if gradient_of == "stacked":
        scale = share if norm == "frobenius" else share.sqrt()
        gradient = scale[:, None] * model.gradient(weights, examples)
    else:
        average = (share @ weights)[None]
        if _weighted_by_examples(share, examples):
            gradient = model.gradient(average, examples.pooled())
        else:
            gradient = share @ model.gradient(average.expand_as(weights), examples)
    length: Tensor = torch.linalg.vector_norm(gradient)  # its derivative at 0 is 0, not NaN
    return length


def can_batch_norms(
    model: Model, examples: Examples, share: Tensor, gradient_of: GradientOf
) -> bool:
    """Whether `batched_norms` can replace `gradient_norm`."""
    averages = isinstance(model, SoftmaxHead) and gradient_of == "average"
    return averages and _weighted_by_examples(share, examples)


def batched_norms(model: Model, averages: Sequence[Tensor], examples: Examples) -> Tensor:
    """Return `gradient_norm` at several average weights, each `[parameters]`."""
    gradients = model.gradient(torch.stack(list(averages)), examples.pooled())
    lengths: Tensor = torch.linalg.vector_norm(gradients, dim=1)
    return lengths


def _weighted_by_examples(share: Tensor, examples: Examples) -> bool:
    """Whether agents are weighted by examples, so that f is the loss over all examples."""
    counts = examples.counts.to(share.dtype)
    return torch.allclose(share, counts / counts.sum(), atol=0)


def unroll(
    optimizer: Algorithm,
    layers: int,
    task: Task,
    network: Network,
    descent: DescentConfig,
    *,
    gradient_batch_size: int,
    weighting: AgentWeighting,
    seed: int,
    path: tuple[str | int, ...],
) -> tuple[Tensor, Tensor]:
    """Run `layers` steps of an optimizer on a task, measuring the gradient norm after each.

    Returns the agents' last weights, `[agents, parameters]`, and ‖∇f(W_0)‖ … ‖∇f(W_L)‖,
    `[layers + 1]`. The mini-batches of the gradients are independent of those that the layers see,
    so that the estimates are unbiased.
    """
    streams = Streams(seed, network.ids, *path)
    model, share = optimizer.model, task.agent_weights(weighting)
    batched = descent.gradient_examples == "all" and can_batch_norms(
        model, task.train, share, descent.gradient_of
    )
    measured: list[Tensor] = []  # norms, or the average weights at which they are taken at the end

    def measure(state: State) -> None:
        rows, examples = state.agent_weights(network), task.train
        if batched:
            # Averaged now, so that the backward pass reaches it while the weights are in the cache.
            measured.append(share @ rows)
            return
        if descent.gradient_examples == "mini-batch":
            drawn = network.agent_rows(streams.at("gradient", state.steps))
            examples = examples.draw(gradient_batch_size, drawn, "gradient_batch_size")
        measured.append(
            gradient_norm(model, rows, examples, share, descent.gradient_of, descent.norm)
        )

    network.reset(seeded(seed, "network", *path))
    state = optimizer.init(task, network, streams.at("start"))
    measure(state)
    for layer in range(layers):
        state = optimizer.step(state, task, network, streams.at("step", layer))
        measure(state)
    norms = batched_norms(model, measured, task.train) if batched else torch.stack(measured)
    return state.agent_weights(network), norms


def slack(norms: Tensor, epsilon: float, form: Form = "difference") -> Tensor:
    """Return ‖∇f(W_l)‖ − (1 − ε)‖∇f(W_{l−1})‖ for l = 1 … L, positive where violated.

    `norms` are the gradient norms at W_0 … W_L along the first dimension. As a log-ratio it is
    log ‖∇f(W_l)‖ − log ‖∇f(W_{l−1})‖ − log(1 − ε).

    Examples
    --------
    >>> import torch
    >>> from fedsurf.surf import slack
    >>> slack(torch.tensor([2.0, 1.0, 1.5]), epsilon=0.5)
    tensor([0., 1.])
    """
    check_option(form, Form, "form")
    check_fraction(epsilon, "epsilon")
    if form == "difference":
        return norms[1:] - (1 - epsilon) * norms[:-1]
    logs = norms.clamp(min=MIN_NORM).log()
    return logs[1:] - logs[:-1] - math.log1p(-epsilon)


def slack_per_constraint(slacks: Tensor, constraints: int) -> Tensor:
    """Return the slack of each constraint: the mean over the layers in its part of the depth.

    With as many layers as constraints, each layer is one. With fewer layers, the constraints without
    a layer have the slack 0, which is neither violated nor satisfied.
    """
    layers = len(slacks)
    if layers == constraints:
        return slacks
    part = torch.arange(layers, device=slacks.device) * constraints // layers
    count = torch.bincount(part, minlength=constraints)
    total = slacks.new_zeros(constraints).index_add(0, part, slacks)
    return total / count.clamp(min=1)


class DescendingProblem(cooper.ConstrainedMinimizationProblem):
    """A loss under descending constraints, with their multipliers, as cooper solves it.

    `penalty` is the coefficient of the augmented Lagrangian; 0 for the plain one. Multipliers have the type
    and the device of `like`.
    """

    def __init__(
        self, constraints: int, like: Tensor, *, constrained: bool, penalty: float
    ) -> None:
        super().__init__()
        self.constrained = constrained
        formulation: type[cooper.formulations.Formulation] = cooper.formulations.Lagrangian
        coefficient = None
        if penalty:
            formulation = cooper.formulations.AugmentedLagrangian
            strength = torch.tensor(penalty, dtype=like.dtype, device=like.device)
            coefficient = cooper.penalty_coefficients.DensePenaltyCoefficient(strength)
        self.multiplier = cooper.multipliers.DenseMultiplier(
            constraints, device=like.device, dtype=like.dtype
        )
        self.descending = cooper.Constraint(
            constraint_type=cooper.ConstraintType.INEQUALITY,
            formulation_type=formulation,
            multiplier=self.multiplier,
            penalty_coefficient=coefficient,
        )

    def compute_cmp_state(self, loss: Tensor, slacks: Tensor) -> cooper.CMPState:
        """Return the loss and the constraints' violations."""
        constraint = cooper.ConstraintState(
            violation=slacks,
            contributes_to_primal_update=self.constrained,
            contributes_to_dual_update=self.constrained,
        )
        return cooper.CMPState(loss=loss, observed_constraints={self.descending: constraint})
