"""Learning how sure heads should be: the second part of pretraining, after everything else.

The optimizer solves problems of the distribution of its meta-training. After some of its layers, the loss of
some agents' heads on all test examples is written down for each of many factors of their logits.
`Confidence` then learns to choose factors, from what these agents knew, that make these losses small.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from fedsurf.common.checks import check_count, check_not_negative, check_positive, check_share
from fedsurf.common.files import FileError, read_all_tensors
from fedsurf.common.progress import OpenBar, silent
from fedsurf.common.randomness import generator as seeded
from fedsurf.common.writing import write_tensors
from fedsurf.models import cross_entropy
from fedsurf.pretrained.recipes.problems import WideProblems
from fedsurf.unrolled.transferable.confidence import LARGEST, MEASURED, Confidence
from fedsurf.unrolled.transferable.local_fit import by_feature
from fedsurf.unrolled.transferable.optimizer import Transferable
from fedsurf.unrolled.transferable.summaries import loss_of_guessing
from fedsurf.unrolled.transferable.transferable_algorithm import TransferableAlgorithm

FACTORS = 41
"""At how many factors losses are written down."""
OTHER_LAYERS = 2
"""After how many layers of a run that is done, beside the last one."""
AGENTS = 4
"""Of how many agents."""
KEPT_EVERY = 100
"""After how many problems what was seen is written to a file, if at all."""


@dataclass(frozen=True)
class ConfidenceConfig:
    """How an optimizer learns how sure heads should be."""

    problems: int = 3000
    """How many problems it solves for that."""
    rare_share: float = 0.3
    """Share of these, beside what meta-training had, some of whose classes are rare."""
    steps: int = 1500
    """Steps of Adam, each on all that was seen."""
    learning_rate: float = 1e-2
    """Of the first step; it falls to zero."""
    weight_decay: float = 0.1
    """Of each step, as a share of its learning rate."""
    jitter: float = 0.4
    """What is drawn anew in every step and added to what agents had not measured, as a share of its spread.

    Without it the perceptron trusts small differences, and is too sure on data unlike any that it saw.
    """

    def check(self) -> None:
        """Raise for settings that cannot be."""
        check_count(self.problems, "problems")
        check_share(self.rare_share, "rare_share")
        check_count(self.steps, "steps")
        check_positive(self.learning_rate, "learning_rate")
        check_not_negative(self.weight_decay, "weight_decay")
        check_not_negative(self.jitter, "jitter")


@dataclass(frozen=True)
class Seen:
    """What was seen of the heads of a problem.

    Attributes
    ----------
    known : Tensor
        What their agents knew, `[heads, INPUTS]`.
    losses : Tensor
        Their losses in units of guessing, for each factor of their logits, `[heads, FACTORS]`.
    """

    known: Tensor
    losses: Tensor


def learn_confidence(
    optimizer: Transferable,
    problems: WideProblems,
    config: ConfidenceConfig,
    open_bar: OpenBar = silent,
    kept: Path | None = None,
) -> None:
    """Let an optimizer learn its confidence, in place; nothing else of it changes.

    Parameters
    ----------
    optimizer : Transferable
        One with a `confidence` that has not learned yet.
    problems : WideProblems
        Where the problems come from; the same ones for the same seed.
    config : ConfidenceConfig
        How.
    open_bar : OpenBar
        Opens a progress bar with a title and a total.
    kept : Path or None
        The file that keeps what was seen, and from which it goes on, to the same bits, where it is there
        already: from a call with the same optimizer, problems and configuration. None to keep nothing.
    """
    if optimizer.confidence is None:
        raise ValueError("optimizer: got one without confidence, but it must have one to learn")
    config.check()
    problems = problems.with_rare_classes(config.rare_share)
    seen = read_seen(kept)[: config.problems] if kept is not None and kept.exists() else []
    with open_bar("learning confidence", config.problems) as advance:
        for _ in seen:
            advance()
        for number in range(len(seen), config.problems):
            seen.append(see(optimizer, problems, number))
            if kept is not None and len(seen) % KEPT_EVERY == 0:
                write_seen(kept, seen)
            advance()
    fit(optimizer.confidence, seen, config, seeded(problems.seed, "jitter"))


@torch.no_grad()
def see(optimizer: Transferable, problems: WideProblems, number: int) -> Seen:
    """Let an optimizer solve a problem, and write down how sure its heads should have been."""
    random = seeded(problems.seed, "confidence", number)
    problem = problems.draw(random)
    task, network = problem.task, problem.network
    algorithm = cast(TransferableAlgorithm, problem.algorithm(optimizer))
    algorithm = replace(algorithm, ease_rare=True)  # as those use it who want probabilities
    others = torch.randint(1, algorithm.steps + 1, (OTHER_LAYERS,), generator=random)
    layers = {algorithm.steps, *others.tolist()}
    pool = task.test.pooled()
    known, losses = [], []
    state = algorithm.init(task, network, random)
    for layer in range(1, algorithm.steps + 1):
        state = algorithm.step(state, task, network, random)
        if layer in layers:
            rows = algorithm.known(state, network)
            chosen = torch.randperm(len(rows), generator=random)[:AGENTS]
            heads = by_feature(state.head[chosen], task.features)  # as sure as they are
            logits = algorithm.model.logits(heads, pool.x)
            known.append(rows[chosen])
            losses.append(losses_by_factor(logits, pool.y))
    return Seen(torch.cat(known), torch.cat(losses) / loss_of_guessing(task.classes))


def write_seen(file: Path, seen: list[Seen]) -> None:
    """Keep what was seen of the first problems."""
    tensors = {
        "known": torch.cat([one.known for one in seen]),
        "losses": torch.cat([one.losses for one in seen]),
        "heads": torch.tensor([len(one.losses) for one in seen]),
    }
    write_tensors(file, tensors, {})


def read_seen(file: Path) -> list[Seen]:
    """Read what `write_seen` kept, a part for each problem."""
    kept = read_all_tensors(file)
    try:
        heads = kept["heads"].tolist()
        known, losses = (torch.split(kept[name], heads) for name in ("known", "losses"))
    except (KeyError, RuntimeError, TypeError) as error:
        raise FileError(
            f"{file}: damaged, it does not hold what was seen of problems ({error})"
        ) from error
    return [Seen(*one) for one in zip(known, losses, strict=True)]


def fit(
    confidence: Confidence,
    seen: list[Seen],
    config: ConfidenceConfig,
    generator: torch.Generator,
) -> None:
    """Fit the perceptron to what was seen: every problem counts the same, whatever its heads."""
    known = torch.cat([one.known for one in seen])
    losses = torch.cat([one.losses for one in seen])
    weight = torch.cat(
        [one.losses.new_full((len(one.losses),), 1 / len(one.losses)) for one in seen]
    )
    finite = losses.isfinite().all(1)
    known, losses, weight = known[finite], losses[finite], weight[finite] / len(seen)
    spread = torch.zeros_like(known[0])
    if len(known) > 1:
        spread = config.jitter * known.std(0)
        spread[:MEASURED] = 0
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
    """Return the logarithms of the factors, `[FACTORS]`."""
    return torch.linspace(-LARGEST, LARGEST, FACTORS)


def losses_by_factor(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of heads for each factor of their logits, `[heads, FACTORS]`.

    `logits` are `[heads, examples, classes]`, `labels` `[1, examples]`.
    """
    labels = labels.expand(len(logits), -1)
    factors = logarithms().exp()
    return torch.stack([cross_entropy(logits * one, labels).mean(1) for one in factors], 1)


def interpolated(losses: Tensor, logarithm: Tensor) -> Tensor:
    """Return the losses at factors between those of `losses[heads, FACTORS]`, `[heads]`."""
    place = (logarithm + LARGEST) * ((FACTORS - 1) / (2 * LARGEST))
    below = place.detach().floor().long().clamp(0, FACTORS - 2)[:, None]
    left, right = losses.gather(1, below), losses.gather(1, below + 1)
    return torch.lerp(left, right, place[:, None] - below)[:, 0]
