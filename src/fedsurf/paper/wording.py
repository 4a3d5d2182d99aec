"""How a report says things: numbers with their errors, settings, verdicts."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedsurf.common.configuration import differences, to_dict
from fedsurf.common.text import counted
from fedsurf.evaluation.config import ExperimentConfig
from fedsurf.evaluation.presets import preset
from fedsurf.paper.claims import Claim, Number
from fedsurf.paper.folder import Made
from fedsurf.paper.workshop import UNTUNED


def number_text(number: Number, unit: str) -> str:
    """Say a number with its standard error."""
    if not math.isfinite(number.mean):
        return "∞"
    if unit == "":
        error = "" if number.error is None else f" ± {number.error:.2g}"
        return f"{number.mean:.3g}{error}"
    error = "" if number.error is None else f" ± {100 * number.error:.1f}"
    return f"{100 * number.mean:.1f}{error} {unit}"


def holds_text(holds: bool | None) -> str:
    """Say whether a claim holds."""
    return "–" if holds is None else ("holds" if holds else "does not hold here")


def count_text(claims: Sequence[Claim]) -> str:
    """Say how many claims hold."""
    if not claims:
        return "No figure is finished yet."
    held = sum(claim.holds for claim in claims)
    text = f"{held} of {len(claims)} claims of the paper hold here, against tuned rivals"
    judged = [claim for claim in claims if claim.holds_untuned is not None]
    if judged:
        easier = sum(bool(claim.holds_untuned) for claim in judged)
        tuned = sum(claim.holds for claim in judged)
        text += (
            f". Of the {len(judged)} with classical rivals, {tuned} hold against tuned ones and {easier} "
            "against the paper's settings, or textbook ones where the paper gives none"
        )
    return f"{text}."


def start_text(deviation: float) -> str:
    """Say where SURF-T starts, and where all others do."""
    return (
        f"SURF-T starts at W = 0, U-DGD and the classical methods at W_0 ~ N(0, {deviation:g}²): its "
        "start is not theirs, and no claim is judged by it."
    )


def work_text(stages: Mapping[str, Mapping[str, Any]]) -> str:
    """Say how long the stages took."""
    minutes = round(sum(one["seconds"] for one in stages.values()) / 60)
    return f"{counted(minutes, 'minute')} of work in {counted(len(stages), 'stage')}"


def percent(value: float | None, error: float | None = None, sign: str = "") -> str:
    """Say a share in percent."""
    if value is None:
        return "–"
    shown = f"{100 * value:{sign}.1f}"
    return shown if error is None else f"{shown} ± {100 * error:.1f}"


def settings_text(settings: Mapping[str, Any]) -> str:
    """Say a method's settings."""
    return ", ".join(
        f"{name.replace('_', ' ')} {'all' if value is None else _plain(value)}"
        for name, value in settings.items()
    )


def audit_rows(audit: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of an audit: intervention, accuracy, change, chance, centralised."""
    return [
        [
            row["title"],
            percent(row["accuracy"], row["accuracy_error"]),
            percent(row["change"], row["change_error"], "+"),
            percent(row["chance"]),
            percent(row["centralised"]),
        ]
        for row in audit["rows"]
        if row["accuracy"] is not None
    ]


AUDIT_HEADINGS = ("intervention", "accuracy %", "change", "chance %", "centralised %")


def rival_rows(made: Made) -> list[list[str]]:
    """Return the classical methods of a figure, with their settings and how far they got."""
    rows = []
    for curve in made.data["curves"]:
        if curve["kind"] != "tuned" and curve["kind"] not in UNTUNED:
            continue
        end = curve["points"][-1]
        rows.append(
            [
                f"{curve['label']}{', ' + curve['panel'] if curve['panel'] else ''}",
                curve["kind"],
                settings_text(curve["settings"]),
                curve["note"],
                percent(end["pooled_accuracy"], end["pooled_accuracy_error"]),
            ]
        )
    return rows


RIVAL_HEADINGS = ("method", "settings of", "settings", "where from", "accuracy at the end %")


def deviations(config: ExperimentConfig) -> list[str]:
    """Name in what an optimizer's meta-training differs from the paper's."""
    kind = config.network.graph.kind
    paper = preset({"erdos-renyi": "paper-random", "star": "paper-star"}.get(kind, "paper-regular"))
    found = []
    for part in ("optimizer", "surf"):
        theirs, mine = to_dict(getattr(paper, part)), to_dict(getattr(config, part))
        if part == "surf":
            for name in ("steps", "validate_every", "validation_tasks"):  # of which it says nothing
                mine[name] = theirs[name]
            mine["descent"]["constrained"] = theirs["descent"]["constrained"]
        found += differences(theirs, mine)
    return [one.replace(" there,", " in the paper,") for one in found]


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
