"""Tables for the terminal."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table
from torch import Tensor

from fedsurf.common.statistics import finite, standard_error
from fedsurf.common.text import counted
from fedsurf.evaluation.evaluate import Comparison
from fedsurf.evaluation.scores import SHARES, Score
from fedsurf.evaluation.tuning import Tuned

LARGE = 1e6
"""From here on, a loss is on its way to divergence, and not all of its digits are shown."""


def methods_table(comparison: Comparison) -> Table:
    """Show what each method achieved at the end of its rounds."""
    tasks = len(comparison.centralised)
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"Accuracy on {counted(tasks, 'meta-test task')} (mean ± standard error over tasks)",
        caption="own: on each agent's own test examples; pooled: on those of the whole federation",
    )
    table.add_column("method")
    for heading in ("rounds", "floats per link", "own %", "pooled %"):
        table.add_column(heading, justify="right")
    names = [comparison.unrolled.name]
    names += [f"DGD, step {size:g} (tuned)" for size in comparison.step_sizes]
    for name, runs in zip(names, [comparison.unrolled, *comparison.classical], strict=True):
        table.add_row(
            _named(name, [round_ for round_ in runs.diverged if round_ is not None]),
            str(int(runs.taken[-1])),
            f"{float(runs.floats[:, -1].double().mean()) / max(1, comparison.links):,.0f}",
            _percent(100 * _shares_right(runs.accuracy[:, -1])),
            _percent(100 * _shares_right(runs.pooled_accuracy[:, -1])),
        )
    table.add_row("centralised (ceiling)", "-", "-", "-", _percent(100 * comparison.centralised))
    return table


def layers_table(comparison: Comparison, *, constrained: bool, epsilon: float) -> Table:
    """Show what each layer of the unrolled optimizer achieved, and whether it descended."""
    held = int(comparison.descent.holds.sum())
    count = len(comparison.descent.holds)
    several = len(comparison.descent.slack) > 1
    found = f"{held} of {count} descending constraints hold on meta-test within two standard errors"
    if not several:
        found = (
            "one task has no standard error, so that nothing is said about which constraints hold"
        )
    imposed = "imposed" if constrained else "not imposed"
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        title=f"{comparison.unrolled.name}, layer by layer (constraints {imposed}, ε = {epsilon:g})",
        caption=f"{found}; a slack above 0 is a violation",
    )
    headings = (
        "layer",
        "rounds",
        "loss",
        "own %",
        "pooled %",
        "‖∇f‖",
        "slack",
        "± s.e.",
        "holds",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    runs, descent = comparison.unrolled, comparison.descent
    for layer in range(runs.loss.shape[1]):
        slack = error = holds = ""
        if layer:
            slack, error, holds = _number(descent.mean[layer - 1], "+.4f"), "-", "-"
        if layer and several and descent.mean[layer - 1].isfinite():
            error = f"{descent.error[layer - 1]:.4f}"
            holds = "yes" if descent.holds[layer - 1] else "NO"
        table.add_row(
            str(layer),
            str(int(runs.taken[layer])),
            _number(runs.loss[:, layer].mean(), ".3f"),
            f"{100 * _shares_right(runs.accuracy[:, layer]).mean():.1f}",
            f"{100 * _shares_right(runs.pooled_accuracy[:, layer]).mean():.1f}",
            _number(descent.norms[:, layer].mean(), ".4f"),
            slack,
            error,
            holds,
        )
    return table


def tuned_table(found: Iterable[Tuned]) -> Table:
    """Show the best settings of each method."""
    table = Table(box=box.SIMPLE_HEAD, title="Settings that scored best on validation tasks")
    table.add_column("method", no_wrap=True)
    table.add_column("trials", justify="right")
    table.add_column("score %", justify="right")
    table.add_column("settings")
    for one in found:
        settings = ", ".join(f"{name} {_plain(value)}" for name, value in one.best.items())
        table.add_row(
            one.method, str(len(one.trials)), f"{100 * one.trials[0].score:.1f}", settings
        )
    return table


def scores_table(scores: Sequence[Score], ceiling: Tensor) -> Table:
    """Show how accurate a study's entrants were after so many rounds."""
    rounds = sorted({count for score in scores for count in score.accuracy})
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        title=f"Pooled accuracy (%) after so many rounds; {counted(len(ceiling), 'task')}",
        caption=(
            "± standard error over tasks and seeds; gap: points below centralised training on the "
            "same tasks, at the end"
        ),
    )
    table.add_column("method")
    for heading in (*map(str, rounds), "end", "gap"):
        table.add_column(heading, justify="right", no_wrap=True)
    for score in scores:
        cells = [
            f"{100 * score.accuracy[count][0]:.1f}" if count in score.accuracy else ""
            for count in rounds
        ]
        _, end, error = score.end
        name = _named(score.label, score.diverged)
        table.add_row(name, *cells, _with_error(end, error, 1), _with_error(*score.gap, 2))
    mean, error = ceiling.mean().item(), finite(standard_error(ceiling))
    table.add_row("centralised (ceiling)", *[""] * len(rounds), _with_error(mean, error, 1), "")
    return table


def reached_table(scores: Sequence[Score]) -> Table:
    """Show what it took to reach shares of the centralised accuracy."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title="Rounds and floats (thousands per agent) until a share of the centralised accuracy",
        caption="medians over tasks; - where most tasks did not get there; total: floats of all rounds",
    )
    table.add_column("method")
    for share in SHARES:
        table.add_column(f"→{100 * share:.0f}%", justify="right", no_wrap=True)
        table.add_column("floats", justify="right", no_wrap=True)
    table.add_column("total", justify="right", no_wrap=True)
    for score in scores:
        cells = []
        for one in score.reached:
            cells += ["-" if one.rounds is None else f"{one.rounds:.0f}"]
            cells += ["-" if one.floats is None else f"{one.floats / 1000:,.1f}"]
        name = _named(score.label, score.diverged)
        table.add_row(name, *cells, f"{score.floats / 1000:,.0f}")
    return table


def _with_error(value: float, error: float | None, digits: int) -> str:
    shown = f"{100 * value:.{digits}f}"
    return shown if error is None else f"{shown} ±{100 * error:.{digits}f}"


def _named(label: str, diverged: Sequence[int]) -> str:
    return f"{label} (diverged at {min(diverged)})" if diverged else label


def _shares_right(accuracy: Tensor) -> Tensor:
    """Return accuracies in which a run that diverged is right about nothing."""
    return accuracy.nan_to_num(0.0)


def _number(value: Tensor, style: str) -> str:
    """Say a number; one that diverged as -, and one on the way there by its first digits."""
    if not value.isfinite():
        return "-"
    return f"{value:{style}}" if value.abs() < LARGE else f"{value:.1e}"


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _percent(values: Tensor) -> str:
    error = float(standard_error(values))
    return f"{float(values.mean()):.1f}" + (f" ± {error:.1f}" if len(values) > 1 else "")
