"""`fedsurf audit`: find the optimizer, audit it, show the table, the figure and the files."""

from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import tyro
from matplotlib.figure import Figure
from rich import box
from rich.table import Table
from torch import Tensor

from fedsurf import pretrained
from fedsurf.analysis.audited import Audit
from fedsurf.analysis.auditing import Subject
from fedsurf.analysis.auditing import audit as run_audit
from fedsurf.cli.console import err, out, print_json
from fedsurf.cli.progress import opener
from fedsurf.common.statistics import standard_error
from fedsurf.common.threads import limit_threads
from fedsurf.common.writing import check_folder, write_json, write_rows
from fedsurf.evaluation import plots
from fedsurf.evaluation.config import StudyConfig
from fedsurf.evaluation.experiment import Experiment
from fedsurf.evaluation.presets import STUDIES
from fedsurf.evaluation.study import Study
from fedsurf.tasks.sources import check_source

ROUNDS = 20
"""Rounds of a pretrained optimizer, where none are given."""


def audit(
    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")],
    study: str | None = None,
    other: str | None = None,
    agents: tuple[int, ...] | None = None,
    rounds: int | None = None,
    tasks: int = 30,
    seed: int | None = None,
    figure: Path | None = None,
    folder: Path | None = None,
    json: bool = False,
) -> None:
    """Tell whether an optimizer learned to learn, or learned a classifier.

    Runs it on the same meta-test tasks untouched, with the agents' data blanked, with labels renamed,
    on other classes, graphs and numbers of agents, beside chance and centralised training.

    Args:
        run: A folder that `fedsurf train` made, the name of a pretrained optimizer (softmax-head), or
            a .safetensors file of one.
        study: The study on whose tasks it is audited, as `fedsurf compare` names them. By default the
            data, tasks and network of the run, or digits for a pretrained optimizer.
        other: Another data source, for classes that were not in meta-training.
        agents: Other numbers of agents to try; half and twice as many by default.
        rounds: Rounds that a pretrained optimizer is given; 20 by default.
        tasks: The number of meta-test tasks, at least 2.
        seed: Draws tasks, graphs and starts; by default the run's, or 0.
        figure: Draw a bar chart into this file (.png, .svg or .pdf).
        folder: Write audit.json and audit.csv into this folder.
        json: Print the numbers as JSON instead of a table.
    """
    if figure is not None:
        plots.check_figure(figure)
    if folder is not None:
        check_folder(folder)
    if other is not None:
        check_source(other, "other")
    subject, config = find(run, study=study, rounds=rounds, seed=seed)
    config = replace(config, tasks=tasks)
    second = None
    if other is not None:
        second = Study(replace(config, data=replace(config.data, source=other, folder=None)))
    found = run_audit(subject, Study(config), other=second, agents=agents, progress=opener(err))
    if folder is not None:
        write_files(found, folder)
    if figure is not None:
        plots.save(audit_figure(found), figure)
        err.print(f"figure: {figure}", highlight=False, soft_wrap=True)
    if json:
        print_json(found.to_dict())
    else:
        out.print(audit_table(found))
        for note in notes(found):
            out.print(note, highlight=False, markup=False)
        out.print(found.sentence, highlight=False, style="bold")


def find(
    run: str, *, study: str | None, rounds: int | None, seed: int | None
) -> tuple[Subject, StudyConfig]:
    """Return the optimizer of that name, and the study on which it is audited."""
    place = Path(run)
    if study is not None and study not in STUDIES:
        raise ValueError(f"study: got {study!r}, but it must be one of {', '.join(STUDIES)}")
    if place.is_dir():
        if rounds is not None:
            raise ValueError(
                f"rounds: got {rounds}, but the optimizer of a run has a number of layers of its own; "
                "only pretrained optimizers take rounds"
            )
        return _of_run(place, study, seed)
    if run not in pretrained.NAMES and place.suffix != ".safetensors":
        raise ValueError(
            f"run: got {run!r}, but it must be the folder of a run, one of "
            f"{', '.join(pretrained.NAMES)}, or a .safetensors file of a pretrained optimizer"
        )
    limit_threads(0)
    optimizer = pretrained.load(run if run in pretrained.NAMES else place)
    config = STUDIES["digits" if study is None else study].config
    config = replace(config, seeds=(0 if seed is None else seed,))
    return Subject.of_pretrained(optimizer, ROUNDS if rounds is None else rounds), config


def _of_run(folder: Path, study: str | None, seed: int | None) -> tuple[Subject, StudyConfig]:
    experiment = Experiment.load(folder)
    limit_threads(sum(value.numel() for value in experiment.optimizer.parameters()))
    own = experiment.config
    seeds = (own.seed if seed is None else seed,)
    config = StudyConfig(
        data=own.data,
        task=own.task,
        network=own.network,
        validation_share=own.validation_share,
        seeds=seeds,
    )
    if study is not None:
        config = STUDIES[study].config
        servers = [one.graph.kind == "star" for one in (config.network, own.network)]
        if servers[0] != servers[1]:
            kinds = ["through a server" if server else "over a graph" for server in servers]
            raise ValueError(
                f"study: got {study!r}, which is {kinds[0]}, but {folder} was trained {kinds[1]}"
            )
        # An optimizer keeps the shift operator that its filters were trained with.
        network = replace(config.network, shift=own.network.shift)
        config = replace(config, network=network, seeds=seeds)
    return Subject.of_run(experiment), config


def audit_table(found: Audit) -> Table:
    """Show what each intervention did."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{found.subject}: pooled accuracy (%) on {found.study.tasks} meta-test tasks",
        caption=(
            "± standard error over tasks; change: paired by task; chance: always answering the most "
            "frequent class of the training examples. With features blanked or labels shuffled nothing "
            "can be learned: a learner falls to chance. Nothing else should hurt it much."
        ),
    )
    table.add_column("intervention", no_wrap=True)
    for heading in ("accuracy", "change", "chance", "centralised"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row, following in zip_longest(found.rows, found.rows[1:]):
        table.add_row(
            row.title,
            _percent(row.accuracy),
            _percent(row.change, sign="+"),
            _mean(row.chance),
            _mean(row.centralised),
            end_section=following is not None and following.expected != row.expected,
        )
    return table


def notes(found: Audit) -> list[str]:
    """Return what there is to say beside the numbers, such as why an intervention was not possible."""
    return [f"{row.title}: {row.note}" for row in found.rows if row.note]


def audit_figure(found: Audit) -> Figure:
    """Draw a bar for each intervention, beside chance and centralised training."""
    rows = [row for row in found.rows if row.accuracy is not None]
    figure = Figure(figsize=(8, 0.9 + 0.32 * len(rows)), layout="constrained")
    axis = figure.subplots()
    axis.spines[["top", "right"]].set_visible(False)
    for place, row in enumerate(rows):
        accuracy, blind = 100 * _given(row.accuracy), row.expected == "chance"
        axis.barh(
            place,
            float(accuracy.mean()),
            xerr=float(standard_error(accuracy)),
            height=0.6,
            color=plots.COLOURS[1 if blind else 0],
            label="with nothing to learn from" if row.name == "blanked" else "",
        )
        for values, colour, label in (
            (row.chance, plots.COLOURS[4], "chance"),
            (row.centralised, "black", "centralised"),
        ):
            level = 100 * float(_given(values).mean())
            axis.vlines(level, place - 0.4, place + 0.4, color=colour, label="" if place else label)
    axis.set_yticks(range(len(rows)), [row.title for row in rows])
    axis.invert_yaxis()
    axis.set_xlim(0, 100)
    axis.set_xlabel("test accuracy, all agents' examples (%)")
    axis.set_title(f"{found.subject} {found.verdict.kind}", fontsize=10)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def write_files(found: Audit, folder: Path) -> None:
    """Write audit.json and audit.csv."""
    write_json(folder / "audit.json", found.to_dict())
    write_rows(folder / "audit.csv", [row.to_dict() for row in found.rows])


def _given(values: Tensor | None) -> Tensor:
    if values is None:
        raise AssertionError("a row with an accuracy has chance and centralised training, too")
    return values


def _mean(values: Tensor | None) -> str:
    return "-" if values is None else f"{100 * float(values.mean()):.1f}"


def _percent(values: Tensor | None, sign: str = "") -> str:
    if values is None:
        return "-"
    error = 100 * float(standard_error(values))
    return f"{100 * float(values.mean()):{sign}.1f} ± {error:.1f}"
