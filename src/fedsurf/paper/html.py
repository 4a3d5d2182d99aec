"""The report as one HTML file that needs nothing else: no network, no script, no other file."""

import re
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from pathlib import Path

from fedsurf.common.text import counted
from fedsurf.paper.claims import Claim
from fedsurf.paper.folder import Made
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

WIDE = 2.4
"""How many times its height a picture's width is that has nothing beside it."""
LONGEST = 12
"""The stages of which the time is shown."""

STYLE = """
:root { --ink: #1d2430; --soft: #5b6676; --line: #dde2ea; --yes: #1f7a4d; --no: #b3382c; --paper: #fff; }
* { box-sizing: border-box; }
body { margin: 0; background: #f4f6f9; color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 24px 60px; }
h1 { font-size: 1.75rem; margin: 0 0 4px; line-height: 1.2; }
h2 { font-size: 1.2rem; margin: 0 0 4px; }
h3 { font-size: 1rem; margin: 18px 0 6px; }
p { margin: 6px 0; }
.soft { color: var(--soft); }
.card { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; padding: 20px 22px;
  margin-top: 18px; }
.beside { display: grid; grid-template-columns: minmax(0, 1.55fr) minmax(0, 1fr); gap: 22px; margin-top: 10px; }
.beside.wide { grid-template-columns: minmax(0, 1fr); }
.beside.wide .claims-of { columns: 2; column-gap: 26px; }
.claim { break-inside: avoid; }
figure { margin: 0; }
figure img { width: 100%; height: auto; display: block; }
figcaption { color: var(--soft); font-size: .85rem; margin-top: 6px; }
.claim { border-left: 4px solid var(--line); padding: 2px 0 2px 12px; margin-bottom: 14px; }
.claim.yes { border-color: var(--yes); } .claim.no { border-color: var(--no); }
.claim p { margin: 3px 0; }
.badge { display: inline-block; font-size: .78rem; font-weight: 600; padding: 1px 8px; border-radius: 9px;
  white-space: nowrap; }
.badge.yes { color: var(--yes); background: #e4f4ec; } .badge.no { color: var(--no); background: #fbe9e7; }
.numbers { font-variant-numeric: tabular-nums; }
.small { font-size: .85rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; font-variant-numeric: tabular-nums; }
table.claims { table-layout: fixed; }
table.claims th:nth-child(1) { width: 15%; } table.claims th:nth-child(2) { width: 29%; }
table.claims th:nth-child(3), table.claims th:nth-child(4) { width: 19%; }
table.claims th:nth-child(5), table.claims th:nth-child(6) { width: 9%; }
th, td { overflow-wrap: break-word; text-align: left; vertical-align: top; padding: 5px 8px;
  border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
td.right, th.right { text-align: right; white-space: nowrap; }
a { color: #0b6fb8; }
.audits { display: grid; grid-template-columns: repeat(auto-fill, minmax(460px, 1fr)); gap: 8px 26px; }
@media (max-width: 800px) { .beside, .audits { grid-template-columns: minmax(0, 1fr); } }
@media print {
  @page { size: A4; margin: 14mm; }
  body { background: none; font-size: 8.5pt; line-height: 1.35; }
  h1 { font-size: 16pt; } h2 { font-size: 12pt; } h3 { font-size: 9.5pt; margin: 10px 0 4px; }
  table { font-size: 7pt; } th, td { padding: 2px 5px; }
  .small, figcaption { font-size: 7.5pt; }
  main { max-width: none; padding: 0; }
  .card { border: 0; border-top: 1px solid var(--line); border-radius: 0; padding: 10px 0; }
  .beside, .beside.wide { display: block; }
  .beside figure { max-width: 140mm; margin: 0 auto 8px; } .beside.wide figure { max-width: none; }
  .beside .claims-of { columns: 2; column-gap: 18px; }
  .audits { grid-template-columns: 1fr 1fr; }
  figure, .claim, tr, .audit { break-inside: avoid; }
  h2, h3, .about { break-after: avoid; }
  .badge { border: 1px solid; background: none !important; font-size: 7pt; padding: 0 5px; }
  .scroll { overflow: visible; }
  a { color: inherit; text-decoration: none; }
}
"""


def html_report(summary: Summary) -> str:
    """Return the whole report."""
    parts = [_head(summary), *(_figure(one, summary) for one in summary.made)]
    parts += [_meta_training(summary), _audits(summary), _settings(summary)]
    body = "\n".join(filter(None, parts))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>fedsurf: the paper's figures, reproduced</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _head(summary: Summary) -> str:
    rows = [
        [
            f'<a href="#{escape(one.name)}">{escape(one.title)}</a>',
            escape(claim.paper),
            f"{escape(claim.left.label)}: {_number(claim, 'left')}",
            f"{escape(claim.right.label)}: {_number(claim, 'right')}",
            _badge(holds=claim.holds, short=True),
            "–" if claim.holds_untuned is None else _badge(holds=claim.holds_untuned, short=True),
        ]
        for one in summary.made
        for claim in one.claims
    ]
    headings = ("figure", "the paper says", "here", "against", "tuned", "untuned")
    commits = sorted({one.get("commit", "") for one in summary.made_with} - {""})
    made = f" Made at commit {escape(', '.join(commits))}." if commits else ""
    return (
        '<header class="card" style="margin-top:0">'
        "<h1>The paper's figures, reproduced</h1>"
        '<p class="soft">Stochastic Unrolled Federated Learning: U-DGD, meta-trained by SURF, beside '
        f"classical methods. Size: {escape(summary.size.name)} ({escape(summary.size.description)}).{made}"
        f"</p><p><strong>{escape(count_text(summary.claims))}</strong></p>"
        "<p>Every classical method runs twice: tuned, with the same number of trials for each, and with "
        "the paper's settings. A claim is judged against the tuned ones (tuned: does it hold?); the last "
        "column (untuned) says whether it would hold against the paper's settings, or against textbook "
        "settings where the paper gives none. Numbers are means over meta-test tasks ± their standard "
        "error, and one is above another only if it is by more than two standard errors. "
        f"{escape(start_text(summary.size.regular.optimizer.initial_deviation))} Every trained "
        "optimizer is audited: whether it learned to learn, or learned a classifier.</p>"
        f"{_table(headings, rows, name='claims')}</header>"
    )


def _figure(made: Made, summary: Summary) -> str:
    claims = "".join(_claim(claim) for claim in made.claims)
    sentences = "".join(
        f'<p class="small"><strong>Audit, {escape(label)}.</strong> {escape(audit["sentence"])}</p>'
        for label, audit in made.audits.items()
    )
    rivals = rival_rows(made)
    table = ""
    if rivals:
        rows = [[escape(cell) for cell in row] for row in rivals]
        table = f"<h3>Classical methods</h3>{_table(RIVAL_HEADINGS, rows, right=1)}"
    return (
        f'<section class="card" id="{escape(made.name)}"><h2>{escape(made.title)}</h2>'
        f'<p class="soft about">{escape(made.about)}</p>'
        f'<div class="beside{_wide(made.svg)}"><figure>{_picture(made.svg, made.title)}'
        f"<figcaption>{escape(made.caption)}</figcaption></figure>"
        f'<div class="claims-of">{claims}{sentences}</div></div>'
        f'{table}<p class="small soft">fedsurf reproduce {escape(made.name)} --preset '
        f"{escape(summary.size.name)}</p></section>"
    )


def _claim(claim: Claim) -> str:
    untuned = ""
    if claim.untuned is not None:
        untuned = (
            f'<p class="numbers small">{escape(claim.untuned.label)}: {_number(claim, "untuned")} '
            f"{_badge(holds=bool(claim.holds_untuned))}</p>"
        )
    note = f'<p class="small soft">{escape(claim.note)}</p>' if claim.note else ""
    return (
        f'<div class="claim {"yes" if claim.holds else "no"}">'
        f"<p>{_badge(holds=claim.holds)} <strong>{escape(claim.paper)}</strong></p>"
        f'<p class="numbers">{escape(claim.left.label)}: {_number(claim, "left")}<br>'
        f"{escape(claim.right.label)}: {_number(claim, 'right')}</p>{untuned}"
        f'<p class="small soft">{escape(claim.criterion)}</p>{note}</div>'
    )


def _meta_training(summary: Summary) -> str:
    if not summary.trained:
        return ""
    rows = []
    for one in summary.trained:
        best = one.best
        rows.append(
            [
                escape(one.name),
                f"{one.parameters:,}",
                f"{one.step:,} of {one.config.surf.steps:,}",
                "–" if one.seconds is None else f"{one.seconds:.3g}",
                "–" if best is None else percent(best["pooled_accuracy"]),
                "–" if best is None else f"{best['step']:,}",
            ]
        )
    headings = (
        "optimizer",
        "parameters",
        "steps",
        "seconds a step",
        "validation accuracy %",
        "of step",
    )
    picture = ""
    if summary.curves is not None:
        picture = (
            f'<figure style="max-width:820px">{_picture(summary.curves, "Learning curves")}<figcaption>'
            "Accuracy on validation tasks over meta-training.</figcaption></figure>"
        )
    return f'<section class="card"><h2>Meta-training</h2>{picture}{_table(headings, rows, right=5)}</section>'


def _audits(summary: Summary) -> str:
    if not summary.audits:
        return ""
    parts = []
    for label, audit in summary.audits.items():
        rows = [[escape(cell) for cell in row] for row in audit_rows(audit)]
        parts.append(
            f'<div class="audit"><h3>{escape(label)}</h3><p class="small">{escape(audit["sentence"])}</p>'
            f"{_table(AUDIT_HEADINGS, rows, right=4)}</div>"
        )
    return (
        '<section class="card"><h2>Audits</h2><p class="soft">Each optimizer on the same meta-test tasks, '
        "untouched and touched. With features blanked or labels shuffled there is nothing to learn: an "
        "optimizer that learns falls to chance. Renaming labels should change nothing.</p>"
        f'<div class="audits">{"".join(parts)}</div></section>'
    )


def _settings(summary: Summary) -> str:
    data = "".join(f"<li>{escape(one)}</li>" for one in summary.data)
    size, task = summary.size, summary.size.regular.task
    tasks = (
        f"{task.agents} agents with {task.train_examples} training and {task.test_examples} test examples "
        f"each; {size.tasks} meta-test tasks, {size.audit_tasks} in audits; {size.trials} settings of each "
        f"classical method tried on {counted(size.tuning_tasks, 'validation task')}; {size.rounds} rounds "
        f"over graphs, {size.star_rounds} through a server."
    )
    rows = [
        [escape(one.name), escape("; ".join(deviations(one.config)) or "in nothing")]
        for one in summary.trained
    ]
    versions = "".join(
        f"<p class='small'>{escape(', '.join(f'{k} {v}' for k, v in one.items()))}</p>"
        for one in summary.made_with
    )
    times = [
        [escape(one["title"]), f"{one['seconds']:,.0f}"]
        for one in sorted(summary.stages.values(), key=lambda one: -one["seconds"])[:LONGEST]
    ]
    return (
        f'<section class="card"><h2>Settings</h2><ul class="small">{data}</ul><p class="small">{escape(tasks)}'
        "</p><h3>In what meta-training differs from the paper's</h3>"
        f"{_table(('optimizer', 'differs in'), rows)}<h3>Versions</h3>{versions}"
        f"<h3>Time: {work_text(summary.stages)}, the longest:</h3>"
        f"{_table(('stage', 'seconds'), times, right=1)}</section>"
    )


def _wide(svg: Path) -> str:
    """Say whether a picture is too wide to have something beside it."""
    with svg.open(encoding="utf-8") as file:
        size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', file.read(2000))
    return " wide" if size and float(size[1]) > WIDE * float(size[2]) else ""


def _picture(file: Path, about: str) -> str:
    # As data, so that names inside one picture are not mixed up with those of another.
    data = b64encode(file.read_bytes()).decode()
    return f'<img alt="{escape(about)}" src="data:image/svg+xml;base64,{data}">'


def _badge(*, holds: bool, short: bool = False) -> str:
    text = ("yes" if holds else "no") if short else holds_text(holds)
    return f'<span class="badge {"yes" if holds else "no"}">{text}</span>'


def _number(claim: Claim, side: str) -> str:
    return escape(number_text(getattr(claim, side), claim.unit)).replace(" ", "&nbsp;")


def _table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], right: int = 0, name: str = ""
) -> str:
    """Return a table of cells that are HTML already; the last `right` columns are numbers."""
    first, right_class = len(headings) - right, ' class="right"'

    def row(cells: Sequence[str], tag: str) -> str:
        shown = [
            f"<{tag}{right_class if place >= first else ''}>{cell}</{tag}>"
            for place, cell in enumerate(cells)
        ]
        return f"<tr>{''.join(shown)}</tr>"

    head = row([escape(heading) for heading in headings], "th")
    body = "".join(row(cells, "td") for cells in rows)
    return f'<div class="scroll"><table class="{name}"><thead>{head}</thead><tbody>{body}</tbody></table></div>'
