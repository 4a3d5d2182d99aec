"""The verdict of an audit: a rule that tells an optimizer that learned to learn from a classifier."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedsurf.common.statistics import standard_error, within_error

MAX_MEMORY = 0.25
"""Largest share of its skill that a learner keeps without data."""
MIN_KEPT = 0.5
"""Smallest share of its skill that a learner keeps with renamed labels."""
MAX_TRACE = 0.1
"""Largest share that a pure learner keeps without data, or loses with renamed labels."""

Kind = Literal[
    "learned to learn", "learned a classifier", "learned both", "learned nothing", "undecided"
]


@dataclass(frozen=True)
class Verdict:
    """The judgement of what an optimizer has learned."""

    kind: Kind
    """One of five kinds; `judge` has the rule."""
    skill: float
    """Its accuracy above chance, untouched."""
    kept: Mapping[str, float]
    """The share of its skill that is left with features blanked, labels shuffled and labels renamed."""

    def sentence(self, name: str) -> str:
        """Return the verdict on the optimizer of this name in one sentence."""
        if self.kind == "learned nothing":
            return f"{name} learned nothing: on these tasks its accuracy is not above chance."
        opening = {
            "learned to learn": "learned to learn",
            "learned a classifier": "learned a classifier, not how to learn",
            "learned both": "learned to learn, but leans on the classifier of its meta-training",
            "undecided": "cannot be judged by so few tasks",
        }[self.kind]
        blanked, shuffled, renamed = (
            f"{100 * max(0.0, self.kept[key]):.0f} %" for key in ("blanked", "shuffled", "renamed")
        )
        return (
            f"{name} {opening}: of its {100 * self.skill:.1f} points above chance it keeps {blanked} "
            f"with the training features blanked, {shuffled} with the training labels shuffled, "
            f"and {renamed} with the labels renamed."
        )


def judge(
    untouched: Tensor, chance: Tensor, blanked: Tensor, shuffled: Tensor, renamed: Tensor
) -> Verdict:
    """Judge an optimizer by its accuracies on the same tasks, `[tasks]` each.

    Skill is the untouched accuracy above chance. All comparisons are of differences paired by task, and
    count only beyond two standard errors.

    - *learned nothing*: skill is not above 0.
    - *learned a classifier*: without data (features blanked or labels shuffled) more than `MAX_MEMORY`
      of the skill is left, or with renamed labels less than `MIN_KEPT`.
    - *learned both*: else, if without data more than `MAX_TRACE` of it is left, or with renamed labels
      more than that is lost.
    - *learned to learn*: else, if without data less than `MAX_MEMORY` is left and with renamed labels
      more than `MIN_KEPT`.
    - *undecided*: else. The errors are too large; take more tasks.
    """
    skill, renaming, *without = (
        (values - chance).double() for values in (untouched, renamed, blanked, shuffled)
    )

    def remembers(share: float) -> bool:
        return any(_above(left - share * skill) for left in without)

    if not _above(skill):
        kind: Kind = "learned nothing"
    elif remembers(MAX_MEMORY) or _above(MIN_KEPT * skill - renaming):
        kind = "learned a classifier"
    elif remembers(MAX_TRACE) or _above((1 - MAX_TRACE) * skill - renaming):
        kind = "learned both"
    elif all(_above(MAX_MEMORY * skill - left) for left in without) and _above(
        renaming - MIN_KEPT * skill
    ):
        kind = "learned to learn"
    else:
        kind = "undecided"
    mean = float(skill.mean())
    parts = {"blanked": without[0], "shuffled": without[1], "renamed": renaming}
    kept = {name: float(left.mean()) / mean if mean else 0.0 for name, left in parts.items()}
    return Verdict(kind, mean, kept)


def _above(values: Tensor) -> bool:
    """Return whether the mean is more than two standard errors above 0."""
    return not bool(within_error(values.mean(), standard_error(values)))
