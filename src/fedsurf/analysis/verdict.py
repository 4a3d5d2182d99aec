"""The verdict of an audit: a rule by which an optimizer learned to learn, or learned a classifier."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedsurf.common.statistics import standard_error, within_error

MEMORY = 0.25
"""An optimizer that keeps more than this share of its accuracy above chance without data remembers."""
KEPT = 0.5
"""An optimizer that keeps less than this share of it with renamed labels has learned the labels."""
TRACE = 0.1
"""The share that may be left without data, or lost with renamed labels, of one that learned to learn."""

Kind = Literal[
    "learned to learn", "learned a classifier", "learned both", "learned nothing", "undecided"
]


@dataclass(frozen=True)
class Verdict:
    """What an optimizer has learned.

    Attributes
    ----------
    kind : str
        One of five, as `judge` says.
    skill : float
        Its accuracy above chance, untouched.
    kept : mapping
        The share of it that was left with features blanked, labels shuffled and labels renamed.
    """

    kind: Kind
    skill: float
    kept: Mapping[str, float]

    def sentence(self, name: str) -> str:
        """Say it in one sentence."""
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

    Let skill be the untouched accuracy above chance. All comparisons are of differences paired by
    task, and something is more than something else only if it is by more than two standard errors.

    - *learned nothing*: skill is not above 0.
    - *learned a classifier*: without data (features blanked or labels shuffled) more than a quarter
      of the skill is left (`MEMORY`), or with the labels renamed less than half of it (`KEPT`).
    - *learned both*: else, if without data more than a tenth of it is left, or with the labels renamed
      more than a tenth is lost (`TRACE`).
    - *learned to learn*: else, if without data less than a quarter is left and with the labels renamed
      more than half.
    - *undecided*: else. The errors are too large; take more tasks.
    """
    skill = (untouched - chance).double()
    renaming = (renamed - chance).double()
    without = [(values - chance).double() for values in (blanked, shuffled)]
    if not _above(skill):
        kind: Kind = "learned nothing"
    elif any(_above(left - MEMORY * skill) for left in without) or _above(KEPT * skill - renaming):
        kind = "learned a classifier"
    elif any(_above(left - TRACE * skill) for left in without) or _above(
        (1 - TRACE) * skill - renaming
    ):
        kind = "learned both"
    elif all(_above(MEMORY * skill - left) for left in without) and _above(renaming - KEPT * skill):
        kind = "learned to learn"
    else:
        kind = "undecided"
    mean = float(skill.mean())
    kept = {
        name: float(left.mean()) / mean if mean else 0.0
        for name, left in zip(("blanked", "shuffled", "renamed"), [*without, renaming], strict=True)
    }
    return Verdict(kind, mean, kept)


def _above(values: Tensor) -> bool:
    """Whether the mean is more than two standard errors above 0."""
    return not bool(within_error(values.mean(), standard_error(values)))
