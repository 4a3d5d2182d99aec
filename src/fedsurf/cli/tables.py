"""Tables of results, for the terminal."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from fedsurf.cli.console import new_table
from fedsurf.common.statistics import finite, standard_error
from fedsurf.common.text import counted, percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.table import Table
    from torch import Tensor

    from fedsurf.analysis.audit import Audit
    from fedsurf.analysis.certificate import Certificate
    from fedsurf.evaluation.compare import Comparison
    from fedsurf.evaluation.evaluate import Evaluation
    from fedsurf.evaluation.scores import Score
    from fedsurf.paper.claims import Claim

MAX_PLAIN_LOSS = 1e6
"""Largest loss that is shown with all digits; larger ones are on their way to divergence."""


def audit_table(found: Audit) -> Table:
    """Return a table of the effects of all interventions."""
    numbers = ("accuracy", "change", "chance", "centralised")
    table = new_table(
        f"{found.subject}: pooled accuracy (%) on {found.study.tasks} meta-test tasks",
        ("intervention", *numbers),
        text=("intervention",),
        caption=(
            "± standard error over tasks; change: paired by task; chance: always answering the most "
            "frequent class of the training examples. With features blanked or labels shuffled nothing "
            "can be learned: a learner falls to chance. Nothing else should hurt it much."
        ),
    )
    for row, following in zip_longest(found.rows, found.rows[1:]):
        table.add_row(
            row.title,
            _with_error(row.accuracy),
            _with_error(row.change, sign="+"),
            _mean(row.chance),
            _mean(row.centralised),
            end_section=following is not None and following.expected != row.expected,
        )
    return table


def certificate_table(found: Certificate) -> Table:
    """Return a table of what was measured at every layer, and the bounds there."""
    table = new_table(
        f"{found.subject} on {found.tasks} meta-test tasks (ε = {found.per_run.epsilon:g})",
        ("layer", "‖∇f‖", "slack", "> 0", "δ", "ζ", "M", "bound", "in the mean"),
        text=(),
        wrap=("‖∇f‖", "slack", "in the mean"),
        caption=(
            f"‖∇f‖: {found.gradient}, mean ± standard deviation over tasks. Slack with its "
            f"{100 * found.confidence:g} % interval: above 0 is a violation, and > 0 the share of tasks "
            "with one. δ: the share above ζ. ζ: distance from the mean slack on "
            f"{found.training_tasks} meta-training tasks. M: the largest norm. Bound: of the second "
            "theorem; in the mean: the same with δ = 0"
        ),
    )
    for layer, row in enumerate(found.layers.itertuples()):
        constraint = (
            f"{row.slack:+.3f} [{row.slack_low:+.3f}, {row.slack_high:+.3f}]",
            f"{percent(row.violated, '.0f')} %",
            f"{percent(row.failed, '.0f')} %",
            f"{row.sample_error:.3f}",
        )
        table.add_row(
            str(layer),
            f"{row.norm:.3g} ± {row.norm_spread:.2g}",
            *(constraint if layer else [""] * 4),
            f"{row.largest_norm:.3g}",
            f"{found.per_run.values[layer]:.3g}",
            f"{found.in_mean.values[layer]:.3g}",
        )
    return table


def bounds_table(found: Certificate) -> Table:
    """Return a table of the constants and the bounds that follow from them."""
    table = new_table(
        f"The bounds of E‖∇f(W_{len(found.layers) - 1})‖, which is {found.per_run.norms[-1]:.3g}",
        ("", "δ", "ζ", "M", "radius", "bound", "holds", "vacuous"),
        text=("",),
        caption=(
            "per run: as in the proof; in the mean: δ = 0, and ζ is the upper confidence limit of the "
            "largest mean slack. Radius: the first theorem's bound; bound: the second theorem's"
        ),
    )
    reasons = {"": "no", "start": "above the start", "largest": "above M", "infinite": "infinite"}
    for name, bound in (("per run", found.per_run), ("in the mean", found.in_mean)):
        constants = [bound.failure, bound.sample_error, bound.largest_norm]
        numbers = [f"{value:.3g}" for value in (*constants, bound.radius, bound.values[-1])]
        table.add_row(name, *numbers, "yes" if bound.holds else "NO", reasons[bound.vacuous])
    return table


def scores_table(found: Comparison) -> Table:
    """Return a table of the accuracy of all entrants by number of rounds."""
    rounds = sorted({count for score in found.scores for count in score.accuracy})
    table = new_table(
        f"Pooled accuracy (%) by number of rounds; {counted(len(found.ceiling), 'task')}",
        ("method", *map(str, rounds), "end", "gap"),
        text=("method",),
        wrap=("method",),
        caption=(
            "± standard error over tasks and seeds; gap: points below centralised training on the "
            "same tasks, at the end"
        ),
    )
    for score in found.scores:
        shown = [score.accuracy.get(count) for count in rounds]
        cells = ["" if pair is None else percent(pair[0]) for pair in shown]
        end = _rounded(score.end[1], score.end[2], 1)
        table.add_row(_named(score.label, score.diverged), *cells, end, _rounded(*score.gap, 2))
    mean, error = found.ceiling.mean().item(), finite(standard_error(found.ceiling))
    table.add_row("centralised (ceiling)", *[""] * len(rounds), _rounded(mean, error, 1), "")
    return table


def reached_table(scores: Sequence[Score]) -> Table:
    """Return a table of the rounds and floats until shares of the centralised accuracy."""
    shares = [f"→{100 * reached.share:.0f}%" for reached in scores[0].reached]
    table = new_table(
        "Rounds and floats (thousands per agent) until a share of the centralised accuracy",
        ("method", *(name for share in shares for name in (share, "floats")), "total", "kB"),
        text=("method",),
        wrap=("method",),
        caption=(
            "medians over tasks; -: not reached on most tasks; total: floats of all rounds; kB: of all "
            "rounds, per agent"
        ),
    )
    for score in scores:
        cells = []
        for one in score.reached:
            cells += ["-" if one.rounds is None else f"{one.rounds:.0f}"]
            cells += ["-" if one.floats is None else f"{one.floats / 1000:,.1f}"]
        totals = [f"{count / 1000:,.0f}" for count in (score.floats, score.bytes)]
        table.add_row(_named(score.label, score.diverged), *cells, *totals)
    return table


def methods_table(found: Evaluation) -> Table:
    """Return a table of the accuracy of each method at its end."""
    table = new_table(
        f"Accuracy on {counted(len(found.centralised), 'meta-test task')} "
        "(mean ± standard error over tasks)",
        ("method", "rounds", "floats", "kB", "own %", "pooled %"),
        text=("method",),
        wrap=("method",),
        caption=(
            "floats, kB: per link; own: on each agent's own test examples; pooled: on those of the whole "
            "federation"
        ),
    )
    names = [found.unrolled.name, *(f"DGD, step {size:g} (tuned)" for size in found.step_sizes)]
    for name, runs in zip(names, [found.unrolled, *found.classical], strict=True):
        table.add_row(
            _named(name, runs.diverged),
            str(int(runs.taken[-1])),
            f"{float(runs.floats[:, -1].double().mean()) / max(1, found.links):,.0f}",
            f"{float(runs.bytes[:, -1].double().mean()) / max(1, found.links) / 1000:,.1f}",
            _with_error(runs.accuracy[:, -1]),
            _with_error(runs.pooled_accuracy[:, -1]),
        )
    table.add_row("centralised (ceiling)", "-", "-", "-", "-", _with_error(found.centralised))
    return table


def layers_table(found: Evaluation) -> Table:
    """Return a table of the unrolled optimizer's layers and descending constraints."""
    runs, descent, constraints = found.unrolled, found.descent, found.constraints
    held, several = int(descent.holds.sum()), len(descent.slack) > 1
    holding = (
        f"{held} of {len(descent.holds)} descending constraints hold on meta-test within two "
        "standard errors"
        if several
        else "one task has no standard error, so no constraint is judged"
    )
    imposed = "imposed" if constraints.constrained else "not imposed"
    table = new_table(
        f"{runs.name}, layer by layer (constraints {imposed}, ε = {constraints.epsilon:g})",
        ("layer", "rounds", "loss", "own %", "pooled %", "‖∇f‖", "slack", "± s.e.", "holds"),
        text=(),
        caption=f"{holding}; a slack above 0 is a violation",
    )
    for layer, rounds in enumerate(runs.taken.tolist()):
        slack = error = holds = ""
        if layer:
            slack, error, holds = _number(descent.mean[layer - 1], "+.4f"), "-", "-"
        if layer and several and descent.mean[layer - 1].isfinite():
            error = f"{descent.error[layer - 1]:.4f}"
            holds = "yes" if descent.holds[layer - 1] else "NO"
        table.add_row(
            str(layer),
            str(rounds),
            _number(runs.loss[:, layer].mean(), ".3f"),
            _mean(runs.accuracy[:, layer]),
            _mean(runs.pooled_accuracy[:, layer]),
            _number(descent.norms[:, layer].mean(), ".4f"),
            slack,
            error,
            holds,
        )
    return table


def claims_table(claims: dict[str, list[Claim]]) -> Table:
    """Return a table of the paper's claims, by figure, and of whether they hold."""
    table = new_table(
        "The paper's claims",
        ("claim", "here", "against", "holds", "untuned"),
        text=("claim", "holds", "untuned"),
        caption=(
            "± standard error over meta-test tasks; holds: compared with tuned methods; untuned: with the "
            "paper's settings. The report names each number."
        ),
    )
    answers = {True: "yes", False: "NO", None: ""}
    for claim in (claim for found in claims.values() for claim in found):
        table.add_row(
            claim.id,
            claim.left.text(claim.unit),
            claim.right.text(claim.unit),
            answers[claim.holds],
            answers[claim.holds_untuned],
        )
    return table


def _mean(values: Tensor | None, style: str = ".1f") -> str:
    """Return the mean in percent; the accuracy of a run that diverged is 0."""
    return percent(None if values is None else float(values.nan_to_num(0.0).mean()), style)


def _with_error(values: Tensor | None, sign: str = "") -> str:
    """Return the mean in percent and its standard error; the accuracy of a run that diverged is 0."""
    if values is None or len(values) < 2:
        return _mean(values, f"{sign}.1f")
    error = float(standard_error(values.nan_to_num(0.0)))
    return f"{_mean(values, f'{sign}.1f')} ± {percent(error)}"


def _rounded(mean: float, error: float | None, digits: int) -> str:
    shown = percent(mean, f".{digits}f")
    return shown if error is None else f"{shown} ±{percent(error, f'.{digits}f')}"


def _named(name: str, diverged: Iterable[int | None]) -> str:
    steps = [step for step in diverged if step is not None]
    return f"{name} (diverged at {min(steps)})" if steps else name


def _number(value: Tensor, style: str) -> str:
    """Return a number, "-" if it is not finite, and its first digits if it is very large."""
    if not value.isfinite():
        return "-"
    return f"{value:{style}}" if value.abs() < MAX_PLAIN_LOSS else f"{value:.1e}"
