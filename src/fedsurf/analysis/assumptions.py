"""The assumptions of the paper's theorems: which hold here, which do not, and which cannot be known."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedsurf.surf.config import DescentConfig

Status = Literal["holds", "fails", "measured", "unknown"]


@dataclass(frozen=True)
class Check:
    """An assumption of the theorems, and what is known of it here."""

    name: str
    status: Status
    note: str


def check_assumptions(
    descent: DescentConfig,
    *,
    training_slacks: Sequence[float],
    training_limits: Sequence[float],
    before_where_held: Sequence[float | None],
    largest: float,
    largest_possible: float | None,
) -> tuple[Check, ...]:
    """Say of every assumption what is known.

    Parameters
    ----------
    descent : DescentConfig
        The constraints.
    training_slacks, training_limits : sequence of float
        The mean slack of every layer on meta-training tasks, and what it is below with confidence.
    before_where_held : sequence of float or None
        For every layer, the gradient norm before it where its constraint did not fail, relative to the
        mean; None where it failed everywhere.
    largest, largest_possible : float
        The largest gradient norm seen, and the largest that the model allows, if known.
    """
    return (
        _bounded(largest, largest_possible),
        Check(
            "the sample error is at most ζ for all parameters θ",
            "measured",
            "the distance of mean slacks on meta-test and meta-training tasks, at the trained θ only",
        ),
        _solved(descent, training_slacks, training_limits),
        _feasible(training_limits),
        _independent(before_where_held),
        Check(
            "the layers are rich enough to imitate convex combinations of themselves",
            "unknown",
            "it cannot be checked",
        ),
        Check(
            "the distribution of the data has no atoms",
            "unknown",
            "it cannot be checked; tasks are drawn from finitely many examples",
        ),
        Check(
            "the number of layers goes to infinity (first theorem)",
            "fails",
            f"the number of layers is {len(training_slacks)}; the radius is about their limit",
        ),
    )


def _bounded(largest: float, largest_possible: float | None) -> Check:
    allowed = "at other weights it may be larger"
    if largest_possible is not None:
        allowed = (
            f"the model allows no more than {largest_possible:.3g}, which the cautious bound takes"
        )
    return Check(
        "the loss and its gradient norm are bounded",
        "measured",
        f"M is the largest gradient norm seen, {largest:.3g}; {allowed}. Cross-entropy is not bounded, "
        "which matters to the theory of constrained learning behind the theorems, not to their bounds",
    )


def _solved(
    descent: DescentConfig, training_slacks: Sequence[float], training_limits: Sequence[float]
) -> Check:
    name = "the optimizer solves the constrained problem"
    if not descent.constrained:
        return Check(name, "fails", "it was meta-trained without the constraints")
    pairs = list(zip(training_slacks, training_limits, strict=True))
    kept, count = sum(mean <= 0 for mean, _ in pairs), len(pairs)
    beyond = sum(mean > limit - mean for mean, limit in pairs)
    note = f"on meta-training tasks the mean slack is at most 0 at {kept} of {count} layers"
    if kept < count:
        note += f", and above 0 beyond its error at {beyond}"
    if descent.form != "difference":
        note += f"; what was imposed is the {descent.form}, not the difference"
    return Check(
        name,
        "fails" if beyond or descent.form != "difference" else "unknown",
        f"{note}; whether meta-training ended at a stationary point is not known",
    )


def _feasible(training_limits: Sequence[float]) -> Check:
    name = "some optimizer satisfies the constraints strictly"
    if max(training_limits) < 0:
        margin = -max(training_limits)
        return Check(
            name,
            "holds",
            f"this one does on meta-training tasks, by at least {margin:.3g} with confidence; the "
            "margin that the theory asks for is not known",
        )
    return Check(name, "unknown", "this one does not at every layer with confidence; another might")


def _independent(before_where_held: Sequence[float | None]) -> Check:
    name = "whether a constraint fails does not depend on the gradient norm before it"
    known = [ratio for ratio in before_where_held if ratio is not None]
    if len(known) < len(before_where_held):
        return Check(name, "unknown", "the constraint of a layer failed on every task")
    return Check(
        name,
        "holds" if max(known) <= 1 else "fails",
        f"where it did not fail, the norm before it was up to {max(known):.5g} times the mean over all "
        "tasks; the proof takes at most 1 for granted",
    )
