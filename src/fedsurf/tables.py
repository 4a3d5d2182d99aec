"""Tables for the terminal."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from torch import Tensor

from fedsurf.comparison import Comparison
from fedsurf.statistics import standard_error
from fedsurf.tasks.sources import Entry


def methods_table(comparison: Comparison) -> Table:
    """Show what each method achieved at the end of its rounds."""
    tasks = len(comparison.centralised)
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"Accuracy on {tasks} meta-test tasks (mean ± standard error over tasks)",
        caption="own: on each agent's own test examples; pooled: on those of the whole federation",
    )
    table.add_column("method")
    for heading in ("rounds", "floats per link", "own %", "pooled %"):
        table.add_column(heading, justify="right")
    names = [comparison.unrolled.name]
    names += [f"DGD, step {size:g} (tuned)" for size in comparison.step_sizes]
    for name, runs in zip(names, [comparison.unrolled, *comparison.classical], strict=True):
        table.add_row(
            name,
            str(int(runs.rounds[0, -1])),
            f"{float(runs.floats[:, -1].double().mean()) / max(1, comparison.links):,.0f}",
            _percent(100 * runs.accuracy[:, -1]),
            _percent(100 * runs.pooled_accuracy[:, -1]),
        )
    table.add_row("centralised (ceiling)", "-", "-", "-", _percent(100 * comparison.centralised))
    return table


def layers_table(comparison: Comparison, *, constrained: bool, epsilon: float) -> Table:
    """Show what each layer of the unrolled optimizer achieved, and whether it descended."""
    held = int(comparison.descent.holds.sum())
    count = len(comparison.descent.holds)
    imposed = "imposed" if constrained else "not imposed"
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{comparison.unrolled.name}, layer by layer (constraints {imposed}, ε = {epsilon:g})",
        caption=(
            f"{held} of {count} descending constraints hold on meta-test within two standard errors; "
            "a slack above 0 is a violation"
        ),
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
            slack, error = f"{descent.mean[layer - 1]:+.4f}", f"{descent.error[layer - 1]:.4f}"
            holds = "yes" if descent.holds[layer - 1] else "NO"
        table.add_row(
            str(layer),
            str(int(runs.rounds[0, layer])),
            f"{runs.loss[:, layer].mean():.3f}",
            f"{100 * runs.accuracy[:, layer].mean():.1f}",
            f"{100 * runs.pooled_accuracy[:, layer].mean():.1f}",
            f"{descent.norms[:, layer].mean():.4f}",
            slack,
            error,
            holds,
        )
    return table


def sources_table(entries: Sequence[Entry]) -> Table:
    """Show which data there is."""
    table = Table(box=box.SIMPLE_HEAD, title="Data sources")
    for heading in ("name", "what it is", "examples", "licence", "status"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "name")
    for entry in entries:
        table.add_row(entry.name, entry.about, entry.examples, entry.licence, entry.status)
    return table


def _percent(values: Tensor) -> str:
    error = float(standard_error(values))
    return f"{float(values.mean()):.1f}" + (f" ± {error:.1f}" if len(values) > 1 else "")
