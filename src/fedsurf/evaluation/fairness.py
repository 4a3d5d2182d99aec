"""The start of a comparison that is fair to all who take part, and what is said where it is not fair."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedsurf.evaluation.config import StudyConfig
from fedsurf.evaluation.study import Entrant


def with_fair_start(config: StudyConfig, *, pretrained: bool, runs: bool) -> StudyConfig:
    """Return the study with a start for all who take part, unless it has one.

    A pretrained optimizer starts at W = 0, so all others do; but a run is tied to the start of its
    meta-training.
    """
    if config.initial_deviation is None and pretrained and not runs:
        return replace(config, initial_deviation=0.0)
    return config


def start_note(config: StudyConfig, entrants: Sequence[Entrant]) -> str | None:
    """Say so if not all entrants start at the same weights; None if they do."""
    deviation = config.deviation
    others = [one for one in entrants if one.pretrained is None]
    if deviation == 0 or not others or len(others) == len(entrants):
        return None
    tied = any(one.run is not None for one in others)
    remedy = (
        "the runs were meta-trained for theirs"
        if tied
        else "with --initial-deviation 0 all start at W = 0"
    )
    return f"Not the same start: SURF-T starts at W = 0, the others at W_0 ~ N(0, {deviation:g}²); {remedy}."


def settings_note(tuned: Path | None, otherwise: Sequence[str]) -> str | None:
    """Say so if the settings of the classical methods were tuned on another study than this one.

    Parameters
    ----------
    tuned : Path or None
        The file that they are from; None for the one that comes with the package.
    otherwise : sequence of str
        In what that study is another one, as `tuned_otherwise` tells it.
    """
    if not otherwise:
        return None
    source = "that come with fedsurf" if tuned is None else f"of {tuned}"
    return (
        f"The settings {source} were tuned on another study: {', '.join(otherwise)}. "
        "`fedsurf tune` finds settings for this one."
    )
