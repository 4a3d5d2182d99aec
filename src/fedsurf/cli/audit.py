"""`fedsurf audit`: whether an optimizer learned to learn, as a table, a figure and files."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import tyro

from fedsurf.common.writing import check_folder


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
    device: str = "cpu",
    json: bool = False,
) -> None:
    """Tell whether an optimizer learned to learn, or learned a classifier.

    Runs it on the same meta-test tasks untouched, with the agents' data blanked, with labels renamed,
    on other classes, graphs and numbers of agents, compared with chance and centralised training.

    Args:
        run: A folder that `fedsurf train` made, the name of a pretrained optimizer (softmax-head), or
            a .safetensors file of one.
        study: The study on whose tasks it is audited, as `fedsurf compare` names them. By default the
            data, tasks and network of the run, or digits for a pretrained optimizer.
        other: Another data source, for classes that were not in meta-training.
        agents: Other numbers of agents to try; half and twice as many by default.
        rounds: Rounds of a pretrained optimizer; 20 by default.
        tasks: The number of meta-test tasks, at least 2.
        seed: Draws tasks, graphs and starts; by default the run's, or 0.
        figure: Draw a bar chart into this file (.png, .svg or .pdf).
        folder: Write audit.json and audit.csv into this folder.
        device: Where to compute: auto, cpu, cuda, cuda:1 or mps.
        json: Print the numbers as JSON instead of a table.
    """
    from fedsurf.analysis.audit import audit as run_audit
    from fedsurf.analysis.charts import audit_figure
    from fedsurf.analysis.subject import Subject
    from fedsurf.cli import console
    from fedsurf.cli.progress import opener
    from fedsurf.cli.tables import audit_table
    from fedsurf.common.threads import limit_threads
    from fedsurf.evaluation import plots
    from fedsurf.evaluation.study import Study

    if figure is not None:
        plots.check_figure(figure)
    if folder is not None:
        check_folder(folder)
    subject = Subject.of(run, rounds)
    limit_threads(subject.parameters)
    config = subject.study if study is None else subject.on_study(study)
    config = replace(config, tasks=tasks, seeds=config.seeds if seed is None else (seed,))
    found = run_audit(
        subject,
        Study(config, device=device),
        other=other,
        agents=agents,
        progress=opener(console.err),
    )
    if folder is not None:
        found.write(folder)
    if figure is not None:
        plots.save(audit_figure(found), figure)
        console.note(f"figure: {figure}")
    if json:
        console.print_json(found.to_dict())
        return
    console.out.print(audit_table(found))
    for row in found.rows:
        if row.note:
            console.out.print(f"{row.title}: {row.note}")
    console.out.print(found.sentence, style="bold")
