"""`fedsurf tune`: settings of classical methods, found with equal budgets."""

from pathlib import Path
from typing import Annotated

import tyro

from fedsurf.cli.choices import AnyStudy
from fedsurf.common.text import percent
from fedsurf.common.writing import check_file
from fedsurf.evaluation.config import TuneConfig


def tune(
    config: Annotated[AnyStudy, tyro.conf.arg(name="")],
    file: Path,
    methods: tuple[str, ...] = ("all",),
    budget: TuneConfig = TuneConfig(),  # noqa: B008 - frozen
    device: str = "cpu",
    json: bool = False,
) -> None:
    """Tune classical methods, each with the same number of trials on the same validation tasks.

    Methods that are in the file are kept, unless they are named: adding a method tunes only that
    method.

    Args:
        config: The study to start from.
        file: File for the settings; `fedsurf compare --tuned` reads it.
        methods: Names of methods; all stands for all that run on the network.
        budget: The budget of each method.
        device: Where to compute: auto, cpu, cuda, cuda:1 or mps.
        json: Print all trials as JSON instead of a table of the best settings.
    """
    from fedsurf.cli.console import err, new_table, out, print_json
    from fedsurf.cli.progress import opener
    from fedsurf.common.threads import limit_threads
    from fedsurf.evaluation import tuning
    from fedsurf.evaluation.study import Study

    check_file(file)
    limit_threads(0)
    study = Study(config, device=device)
    found = tuning.tune(study, file, methods=methods, budget=budget, progress=opener(err)).methods
    if json:
        print_json({name: tuned.to_dict() for name, tuned in found.items()})
        return
    table = new_table(
        "Settings with the highest score on validation tasks",
        ("method", "trials", "score %", "settings"),
        text=("method", "settings"),
        wrap=("settings",),
    )
    for name, tuned in found.items():
        settings = ", ".join(f"{key} {_plain(value)}" for key, value in tuned.best.items())
        table.add_row(name, str(len(tuned.trials)), percent(tuned.trials[0].score), settings)
    out.print(table)


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
