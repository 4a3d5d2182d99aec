"""`fedsurf tune`: settings of classical methods, found with the same budget for each."""

from pathlib import Path
from typing import Annotated

import tyro

from fedsurf.cli import tables
from fedsurf.cli.choices import AnyStudy
from fedsurf.cli.console import err, out, print_json
from fedsurf.cli.progress import opener
from fedsurf.common.threads import limit_threads
from fedsurf.common.writing import check_file
from fedsurf.evaluation.config import TuneConfig
from fedsurf.evaluation.study import Study
from fedsurf.evaluation.tuning import (
    check_tuned_for,
    check_tuned_on,
    read_tuned,
    write_tuned,
)
from fedsurf.tasks.features import fingerprint


def tune(
    config: Annotated[AnyStudy, tyro.conf.arg(name="")],
    file: Path,
    methods: tuple[str, ...] = ("all",),
    budget: TuneConfig = TuneConfig(),  # noqa: B008 - frozen
    json: bool = False,
) -> None:
    """Tune classical methods, each with the same number of trials on the same validation tasks.

    Methods that are in the file already are kept, unless they are named: adding a method tunes only
    that method.

    Args:
        config: The study to start from.
        file: Where the settings go; `fedsurf compare --tuned` reads it.
        methods: Their names; all stands for all that run on the network.
        budget: What every method gets.
        json: Print the best settings as JSON instead of a table.
    """
    limit_threads(0)
    if not file.is_file():
        check_file(file)
    study = Study(config)
    found = {}
    if file.exists():
        check_tuned_for(file, config, budget)
        found = read_tuned(file)
    wanted = [m for m in study.methods(methods) if m.name not in found or m.name in methods]
    if wanted:
        check_file(file)
    data = fingerprint(study.features)
    if file.exists():
        check_tuned_on(file, data)
    bar = opener(err)
    for method in wanted:
        with bar(f"tuning {method.name}", budget.trials) as advance:
            found[method.name] = study.tune(method, budget, advance)
        if file.exists():  # another process may have tuned another method meanwhile
            check_tuned_for(file, config, budget)
            check_tuned_on(file, data)
            found = {**read_tuned(file), method.name: found[method.name]}
        write_tuned(file, found, config, budget, data)
    if json:
        print_json({name: one.to_dict() for name, one in found.items()})
    else:
        out.print(tables.tuned_table(found.values()))
