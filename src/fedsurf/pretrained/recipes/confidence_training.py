"""Training of an optimizer's confidence, after meta-training.

The optimizer solves problems of the distribution of its meta-training. After some of its layers, the
losses of some agents' heads on all test examples are computed for many factors of their logits.
`Confidence` then learns to choose, from what these agents know, factors with small losses.
"""

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from fedsurf.common.progress import OpenBar, silent
from fedsurf.common.randomness import generator as seeded
from fedsurf.common.streams import Streams
from fedsurf.models import cross_entropy
from fedsurf.pretrained.config import ConfidenceConfig
from fedsurf.pretrained.recipes.wide_problems import WideProblems
from fedsurf.unrolled.transferable.confidence import MAX_LOG_FACTOR, MEASURED_INPUTS, Confidence
from fedsurf.unrolled.transferable.newton import by_feature
from fedsurf.unrolled.transferable.optimizer import Transferable, TransferableAlgorithm
from fedsurf.unrolled.transferable.summaries import loss_of_guessing

FACTOR_COUNT = 41
"""Number of factors for which losses are computed."""
OTHER_LAYERS = 2
"""Number of layers of a run after which heads are observed, in addition to the last one."""
MAX_AGENTS = 4
"""Number of agents whose heads are observed."""


@dataclass(frozen=True)
class Observations:
    """Observed heads of a problem."""

    known: Tensor
    """Inputs that their agents know, `[heads, INPUTS]`."""
    losses: Tensor
    """Their losses relative to guessing, for each factor of their logits, `[heads, FACTOR_COUNT]`."""


def train_confidence(
    optimizer: Transferable,
    problems: WideProblems,
    config: ConfidenceConfig,
    open_bar: OpenBar = silent,
) -> None:
    """Train the confidence of an optimizer in place; its other parameters stay the same."""
    if optimizer.confidence is None:
        raise ValueError("optimizer: got one without confidence, but it must have one to train")
    problems = problems.with_rare_classes(config.rare_share)
    found = []
    with open_bar("learning confidence", config.problems) as advance:
        for number in range(config.problems):
            found.append(observe(optimizer, problems, number))
            advance()
    fit(optimizer.confidence, found, config, seeded(problems.seed, "jitter"))


@torch.no_grad()
def observe(optimizer: Transferable, problems: WideProblems, number: int) -> Observations:
    """Solve a problem, and return observations of its heads."""
    random = seeded(problems.seed, "confidence", number)
    problem = problems.draw(random)
    task, network = problem.task, problem.network
    algorithm = cast(TransferableAlgorithm, problem.algorithm(optimizer))
    algorithm = replace(algorithm, ease_rare=True)  # as for probabilities
    others = torch.randint(1, algorithm.steps + 1, (OTHER_LAYERS,), generator=random)
    layers = {algorithm.steps, *others.tolist()}
    pool = task.test.pooled()
    known, losses = [], []
    streams = Streams(problems.seed, network.ids, "confidence", number)
    state = algorithm.init(task, network, streams.at("start"))
    for layer in range(1, algorithm.steps + 1):
        state = algorithm.step(state, task, network, streams.at("step", layer))
        if layer in layers:
            rows = algorithm.inputs(state, network)
            chosen = torch.randperm(len(rows), generator=random)[:MAX_AGENTS]
            heads = by_feature(state.head[chosen], task.features)
            logits = algorithm.model.logits(heads, pool.x)
            known.append(rows[chosen])
            losses.append(losses_by_factor(logits, pool.y))
    return Observations(torch.cat(known), torch.cat(losses) / loss_of_guessing(task.classes))


def fit(
    confidence: Confidence,
    found: list[Observations],
    config: ConfidenceConfig,
    generator: torch.Generator,
) -> None:
    """Fit a confidence to observations; every problem has the same weight."""
    known = torch.cat([one.known for one in found])
    losses = torch.cat([one.losses for one in found])
    weight = torch.cat([torch.full_like(one.losses[:, 0], 1 / len(one.losses)) for one in found])
    finite = losses.isfinite().all(1)
    known, losses, weight = known[finite], losses[finite], weight[finite] / len(found)
    spread = torch.zeros_like(known[0])
    if len(known) > 1:
        spread = config.jitter * known.std(0)
        spread[:MEASURED_INPUTS] = 0
    adam = torch.optim.AdamW(
        confidence.parameters(), config.learning_rate, weight_decay=config.weight_decay
    )
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(adam, config.steps)
    for _ in range(config.steps):
        near = torch.addcmul(known, spread, torch.randn(known.shape, generator=generator))
        loss = (weight * interpolated(losses, confidence(near)[:, 0])).sum()
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        falling.step()


def logarithms() -> Tensor:
    """Return the logarithms of the factors, `[FACTOR_COUNT]`."""
    return torch.linspace(-MAX_LOG_FACTOR, MAX_LOG_FACTOR, FACTOR_COUNT)


def losses_by_factor(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of heads for each factor of their logits, `[heads, FACTOR_COUNT]`.

    `logits` are `[heads, examples, classes]`, `labels` `[1, examples]`.
    """
    labels = labels.expand(len(logits), -1)
    factors = logarithms().exp()
    return torch.stack([cross_entropy(logits * one, labels).mean(1) for one in factors], 1)


def interpolated(losses: Tensor, logarithm: Tensor) -> Tensor:
    """Return the losses at factors between those of `losses[heads, FACTOR_COUNT]`, `[heads]`."""
    place = (logarithm + MAX_LOG_FACTOR) * ((FACTOR_COUNT - 1) / (2 * MAX_LOG_FACTOR))
    below = place.detach().floor().long().clamp(0, FACTOR_COUNT - 2)[:, None]
    left, right = losses.gather(1, below), losses.gather(1, below + 1)
    return torch.lerp(left, right, place[:, None] - below)[:, 0]
