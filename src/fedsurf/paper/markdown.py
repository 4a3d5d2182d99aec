"""The report as Markdown, with its pictures beside it: for a repository."""

from collections.abc import Sequence

from fedsurf.paper.summary import Summary
from fedsurf.paper.wording import (
    AUDIT_HEADINGS,
    RIVAL_HEADINGS,
    audit_rows,
    count_text,
    deviations,
    holds_text,
    number_text,
    percent,
    rival_rows,
    start_text,
    work_text,
)


def markdown_report(summary: Summary) -> str:
    """Return the whole report; its pictures are named FIGURE.png."""
    lines = ["# The paper's figures, reproduced", ""]
    lines += [f"Size: {summary.size.name} ({summary.size.description}).", ""]
    lines += [f"**{count_text(summary.claims)}**", ""]
    lines += [
        "Every classical method runs twice: tuned, with the same number of trials for each, and with the "
        "paper's settings. A claim is judged against the tuned ones. Numbers are means over meta-test tasks "
        "± their standard error, and one is above another only if it is by more than two standard errors. "
        f"{start_text(summary.size.regular.optimizer.initial_deviation)}",
        "",
    ]
    rows = [
        [
            f"[{one.title}](#{_anchor(one.title)})",
            claim.paper,
            f"{claim.left.label}: {number_text(claim.left, claim.unit)}",
            f"{claim.right.label}: {number_text(claim.right, claim.unit)}",
            f"**{holds_text(claim.holds)}**",
            holds_text(claim.holds_untuned),
        ]
        for one in summary.made
        for claim in one.claims
    ]
    headings = ("figure", "the paper says", "here", "against", "claim", "with the paper's settings")
    lines += _table(headings, rows)
    for one in summary.made:
        lines += [f"## {one.title}", "", one.about, "", f"![{one.title}]({one.name}.png)", ""]
        lines += [one.caption, ""]
        for claim in one.claims:
            lines += [f"- **{holds_text(claim.holds)}**: {claim.paper} {claim.criterion}"]
            numbers = [claim.left, claim.right, *([claim.untuned] if claim.untuned else [])]
            for number in numbers:
                lines.append(f"  - {number.label}: {number_text(number, claim.unit)}")
            if claim.note:
                lines.append(f"  - {claim.note}")
        lines.append("")
        for label, audit in one.audits.items():
            lines.append(f"- Audit, {label}: {audit['sentence']}")
        lines.append("")
        rivals = rival_rows(one)
        if rivals:
            lines += _table(RIVAL_HEADINGS, rivals)
    lines += _rest(summary)
    return "\n".join(lines).rstrip() + "\n"


def _rest(summary: Summary) -> list[str]:
    lines = ["## Meta-training", ""]
    if summary.curves is not None:
        lines += [f"![Learning curves]({summary.curves.stem}.png)", ""]
    rows = [
        [
            one.name,
            f"{one.parameters:,}",
            f"{one.step:,} of {one.config.surf.steps:,}",
            "–" if one.seconds is None else f"{one.seconds:.3g}",
            "–" if one.best is None else percent(one.best["pooled_accuracy"]),
            "; ".join(deviations(one.config)) or "in nothing",
        ]
        for one in summary.trained
    ]
    headings = (
        "optimizer",
        "parameters",
        "steps",
        "s a step",
        "validation %",
        "differs from the paper's in",
    )
    lines += _table(headings, rows)
    lines += ["## Audits", ""]
    for label, audit in summary.audits.items():
        lines += [
            f"### {label}",
            "",
            audit["sentence"],
            "",
            *_table(AUDIT_HEADINGS, audit_rows(audit)),
        ]
    lines += ["## Settings and versions", ""]
    lines += [f"- {one}" for one in summary.data]
    lines += [f"- {', '.join(f'{k} {v}' for k, v in one.items())}" for one in summary.made_with]
    lines += [f"- {work_text(summary.stages)}", ""]
    return lines


def _anchor(title: str) -> str:
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(headings), line(["---"] * len(headings)), *map(line, rows), ""]
