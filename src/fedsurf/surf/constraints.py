"""SURF's descending constraints: the gradient norm falls from each layer to the next.

E[‖∇f(W_l)‖ − (1 − ε) ‖∇f(W_{l−1})‖] ≤ 0   for every layer l

For problems whose gradients have different sizes, the same on a logarithmic scale:
E[log ‖∇f(W_l)‖ − log ‖∇f(W_{l−1})‖ − log(1 − ε)] ≤ 0.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedsurf.models import Model, SoftmaxHead
from fedsurf.surf.config import Form, GradientOf, Norm
from fedsurf.tasks.examples import Examples

SMALLEST = 1e-8
"""Gradient norms below this count as this on a logarithmic scale."""


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
    if norm != "frobenius" and (norm != "root-mean-square" or gradient_of == "average"):
        raise ValueError(
            f"norm: got {norm!r} with gradient_of {gradient_of!r}, but it must be 'frobenius', "
            "or 'root-mean-square' with 'stacked'"
        )
    if gradient_of == "stacked":
        scale = share if norm == "frobenius" else share.sqrt()
        gradient = scale[:, None] * model.gradient(weights, examples)
    elif gradient_of == "average":
        average = (share @ weights)[None]
        if _by_examples(share, examples):
            gradient = model.gradient(average, examples.pooled())
        else:
            gradient = share @ model.gradient(average.expand_as(weights), examples)
    else:
        raise ValueError(f"gradient_of: got {gradient_of!r}, but it must be 'stacked' or 'average'")
    length: Tensor = torch.linalg.vector_norm(gradient)  # its derivative at 0 is 0, not NaN
    return length


def taken_at_once(model: Model, examples: Examples, share: Tensor, gradient_of: GradientOf) -> bool:
    """Whether `gradient_norms` can be used: for average softmax heads, where agents count by examples."""
    return (
        isinstance(model, SoftmaxHead)
        and gradient_of == "average"
        and _by_examples(share, examples)
    )


def gradient_norms(model: Model, averages: Sequence[Tensor], examples: Examples) -> Tensor:
    """Return ‖∇f(W_0)‖ … ‖∇f(W_L)‖ at the average weights, all on the same examples, `[L + 1]`.

    These are what `gradient_norm` returns of each, where they can be `taken_at_once`. `averages` are those of
    the agents' weights by their shares, each `[parameters]`.
    """
    gradients = model.gradient(torch.stack(list(averages)), examples.pooled())
    lengths: Tensor = torch.linalg.vector_norm(gradients, dim=1)
    return lengths


def _by_examples(share: Tensor, examples: Examples) -> bool:
    """Whether agents count by their examples: then f is the loss of one agent that holds them all."""
    counts = examples.counts.to(share.dtype)
    return torch.allclose(share, counts / counts.sum(), atol=0)


def slack(norms: Tensor, epsilon: float, form: Form = "difference") -> Tensor:
    """Return ‖∇f(W_l)‖ − (1 − ε)‖∇f(W_{l−1})‖ for l = 1 … L, positive where violated.

    `norms` are the gradient norms at W_0 … W_L along the first dimension. As a log-ratio it is
    log ‖∇f(W_l)‖ − log ‖∇f(W_{l−1})‖ − log(1 − ε).
    """
    if not 0 < epsilon < 1:
        raise ValueError(f"epsilon: got {epsilon}, but it must be between 0 and 1")
    if form == "difference":
        return norms[1:] - (1 - epsilon) * norms[:-1]
    if form == "log-ratio":
        logs = norms.clamp(min=SMALLEST).log()
        return logs[1:] - logs[:-1] - math.log1p(-epsilon)
    raise ValueError(f"form: got {form!r}, but it must be 'difference' or 'log-ratio'")
