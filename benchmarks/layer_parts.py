"""The contribution of each part of the pretrained optimizer's layer: meta-training with and without it.

Each variant of the layer is meta-trained with the recipe of `fedsurf pretrain`, in fewer steps, over graphs
only and without the factor of confidence; with the same seed, all of them see the same
problems and start with the same parameters (except that the plain gradient step starts longer). Then they
run for 20 and for 10 rounds on the same validation tasks of data that none was trained on. The table
has the pooled accuracy of the whole layer in percent and, for each variant, its difference to that in points,
averaged over data sets: mean ± standard error over seeds. The last column counts where a difference is below 0
by more than two standard errors.

    python benchmarks/layer_parts.py [--steps 400] [--seeds 0 1 2] [--data digits mnist] [--folder parts]

The recipe has 3,000 steps, after which a part may contribute more. With a folder, finished runs are not
computed again.
"""

import argparse
import hashlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedsurf import STUDIES, Model, Streams, Study, generator
from fedsurf.common.configuration import to_dict
from fedsurf.common.files import read_json
from fedsurf.common.statistics import finite, standard_error
from fedsurf.common.threads import limit_threads
from fedsurf.common.writing import check_file, check_folder, json_text, write_json
from fedsurf.evaluation.run import run_all
from fedsurf.evaluation.study import RESULTS_VERSION
from fedsurf.network import Network
from fedsurf.pretrained.config import PretrainConfig
from fedsurf.pretrained.recipes.wide_problems import WideProblems
from fedsurf.surf import MetaTraining
from fedsurf.tasks.features import fingerprint
from fedsurf.tasks.task import Task
from fedsurf.unrolled.config import TransferableConfig
from fedsurf.unrolled.transferable.controller import LENGTHS, MIXING, Controller
from fedsurf.unrolled.transferable.graph import TransferState
from fedsurf.unrolled.transferable.newton import LocalUpdate
from fedsurf.unrolled.transferable.optimizer import LOCAL_STEPS, Transferable, TransferableAlgorithm
from fedsurf.unrolled.transferable.summaries import curvature

WHOLE = "whole"
ROUNDS = (20, 10)
LABELS = {"class-imbalanced": "class-imbalanced", "dirichlet": "Dirichlet 0.3"}
"""Partitions, and what the table calls them."""
COLUMNS = [(rounds, labels) for rounds in ROUNDS for labels in LABELS]
TINY, HUGE = -12.0, 3.0
"""The logarithms between which the layer keeps its lengths."""


@dataclass(frozen=True)
class Lack:
    """The parts that a variant of the layer lacks; none by default.

    Attributes
    ----------
    title : str
        Name of the variant in the table.
    mixing : tuple of str
        Names of κ, a, b and e that are set to 0.
    lengths : mapping
        Logarithms of the lengths that are not learned.
    starts : mapping
        Starting values of lengths that differ from the whole layer's.
    gate : bool
        The gate is 1.
    offset : bool
        Logits have no offset.
    summaries : bool
        The controller gets 0 instead of the summaries of the problem. The gates still see the classes of
        the agent.
    local_steps : int
        Steps of a fit.
    moments : bool
        Steps use the second moment (or its sketch, in the same directions) of the agent's own examples
        instead of all agents'. The centre of the features and their mean square stay shared.
    """

    title: str
    mixing: tuple[str, ...] = ()
    lengths: Mapping[str, float] = field(default_factory=dict)
    starts: Mapping[str, float] = field(default_factory=dict)
    gate: bool = False
    offset: bool = False
    summaries: bool = False
    local_steps: int = LOCAL_STEPS
    moments: bool = False


MEMORY = ("keep", "stay", "memory")
VARIANTS = {
    WHOLE: Lack("the whole layer, %"),
    "memory": Lack("without memory (a = b = e = 0)", mixing=MEMORY),
    "kappa": Lack("without κ", mixing=("correction",)),
    "kappa-memory": Lack("without κ and memory: averaging", mixing=("correction", *MEMORY)),
    "gate": Lack("without the gate", gate=True),
    "offset": Lack("without the offset of the logits", offset=True),
    # The plain step starts as long as the whole layer's is along a direction of average spread; what is left
    # of the Newton step is about 1e-6 of that.
    "preconditioner": Lack(
        "without the preconditioner: a plain gradient step",
        lengths={"newton": TINY, "damping": HUGE},
        starts={"gradient": -1.5},
    ),
    "summaries": Lack("without summaries of the problem", summaries=True),
    "second-step": Lack("one local step in a round, not two", local_steps=1),
    "shared-moment": Lack("with the second moment of the own examples only", moments=True),
}


class PartialController(Controller):
    """A controller without some parts; it shares the parameters of the whole one."""

    def __init__(self, whole: Controller, lack: Lack) -> None:
        nn.Module.__init__(self)
        self.lack = lack
        for name, layer in whole.named_children():
            self.add_module(name, layer)
        with torch.no_grad():
            for name, start in lack.starts.items():
                self.round_out.bias[list(LENGTHS).index(name)] = start

    def controls(
        self, when: Tensor, description: Tensor, examples: Tensor, agents: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the outputs of the whole controller, except for the parts that are left out."""
        if self.lack.summaries:
            description = torch.zeros_like(description)
        lengths, mixing, context = super().controls(when, description, examples, agents)
        lengths = pinned(lengths, LENGTHS, self.lack.lengths)
        mixing = pinned(mixing, MIXING, dict.fromkeys(self.lack.mixing, 0.0))
        return lengths, mixing, context

    def gates(self, about: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of the whole controller, except for the parts that are left out."""
        gate, weight = super().gates(about, context)
        gate = torch.ones_like(gate) if self.lack.gate else gate
        return gate, torch.zeros_like(weight) if self.lack.offset else weight


def pinned(values: Tensor, names: Sequence[str], pins: Mapping[str, float]) -> Tensor:
    """Replace the columns of some names by numbers."""
    if not pins:
        return values
    fixed = torch.tensor([name in pins for name in names])
    return torch.where(fixed, values.new_tensor([pins.get(name, 0.0) for name in names]), values)


class PartialAlgorithm(TransferableAlgorithm):
    """The layer without what its optimizer lacks, where that is not the controller's."""

    optimizer: "Partial"

    def local_update(self, network: Network, when: Tensor) -> partial[LocalUpdate]:
        """Return the local work of a round."""
        whole = super().local_update(network, when)
        return partial(whole, steps=self.optimizer.lack.local_steps)

    def round(
        self, state: TransferState, task: Task, network: Network, streams: Streams
    ) -> TransferState:
        """Take one round."""
        state = super().round(state, task, network, streams)
        if not self.optimizer.lack.moments:
            return state
        directions = self.directions(network, state.head)
        axes, values, rest = curvature(state.own_sums, state.own_moments, directions, state.varying)
        return replace(state, axes=axes, values=values, rest=rest)


class Partial(Transferable):
    """A transferable optimizer over graphs that lacks something."""

    def __init__(self, lack: Lack, seed: int) -> None:
        super().__init__(TransferableConfig(), generator(seed, "parameters"))
        self.lack = lack
        self.graph = PartialController(self.graph, lack)

    def on(self, model: Model, *settings: Any, **named: Any) -> PartialAlgorithm:
        """Return the algorithm that trains `model`."""
        whole = super().on(model, *settings, **named)
        return PartialAlgorithm(*(getattr(whole, one.name) for one in fields(whole) if one.init))


@dataclass(frozen=True)
class Settings:
    """Everything that a result depends on except variant and seed."""

    steps: int
    tasks: int
    data: tuple[str, ...]
    features: Path | None


@lru_cache(maxsize=1)
def problems_of(seed: int) -> WideProblems:
    """Return the problems of meta-training, whose views of images take a while."""
    return WideProblems(replace(PretrainConfig().problems, server_share=0.0), seed)


@lru_cache(maxsize=1)
def studies_of(settings: Settings) -> dict[tuple[str, str], Study]:
    """Return a study for each data set and each partition."""
    found = {}
    for name in settings.data:
        config, features = STUDIES[name].config, None
        if settings.features is not None and name == "cifar10":
            source = replace(config.data, source=str(settings.features), backbone="pca")
            config = replace(config, data=source)
        for labels in LABELS:
            task = replace(config.task, partition=labels, alpha=0.3)
            study = Study(replace(config, task=task), features=features)
            found[name, labels] = study
            features = study.features
    return found


def digest_of(settings: Settings) -> str:
    """Return a checksum of what results depend on."""
    data = {name: fingerprint(study.features) for (name, _), study in studies_of(settings).items()}
    recipe = PretrainConfig()
    content = {
        "steps": settings.steps,
        "tasks": settings.tasks,
        "data": data,
        "variants": {name: {**asdict(lack), "title": None} for name, lack in VARIANTS.items()},
        "surf": to_dict(recipe.surf),
        "problems": to_dict(recipe.problems),
        "layer": RESULTS_VERSION,
    }
    return hashlib.sha256(json_text(content).encode()).hexdigest()[:12]


def trained(variant: str, seed: int, problems: WideProblems, steps: int) -> MetaTraining:
    """Meta-train a variant."""
    surf = replace(PretrainConfig().surf, steps=steps)
    training = MetaTraining(Partial(VARIANTS[variant], seed), problems, surf, seed=seed)
    for _ in range(steps):
        training.step()
    return training


@torch.no_grad()
def tested(optimizer: Transferable, study: Study, rounds: int, tasks: int) -> list[float]:
    """Return the pooled accuracy on each validation task; a diverged run counts as 0."""
    algorithm = optimizer.on(study.model, rounds)
    steps = algorithm.steps
    network = study.network(0)
    runs = run_all(algorithm, study.tuning_tasks(tasks), network, steps, record=(steps,))
    return runs.pooled_accuracy[:, -1].double().nan_to_num(0.0).tolist()


Result = dict[str, Any]


def measured(variant: str, seed: int, settings: Settings) -> Result:
    """Meta-train a variant and test it."""
    limit_threads(0)
    began = time.process_time()
    training = trained(variant, seed, problems_of(seed), settings.steps)
    with training.averaged():
        accuracy = [
            {
                "data": name,
                "labels": labels,
                "rounds": rounds,
                "tasks": tested(training.optimizer, study, rounds, settings.tasks),
            }
            for (name, labels), study in studies_of(settings).items()
            for rounds in ROUNDS
        ]
    seconds = time.process_time() - began
    return {"variant": variant, "seed": seed, "accuracy": accuracy, "seconds": seconds}


def results(
    wanted: Sequence[tuple[str, int]], settings: Settings, jobs: int, folder: Path | None
) -> Iterator[Result]:
    """Yield the result of each variant and seed, those in the folder first, the others as they come."""
    missing = []
    files: dict[tuple[str, int], Path] = {}
    if folder is not None:
        digest = digest_of(settings)
        files = {one: folder / f"{one[0]}-seed{one[1]}-{digest}.json" for one in wanted}
    for one in wanted:
        if one in files and files[one].is_file():
            yield read_json(files[one])
        else:
            missing.append(one)
    for found in computed(missing, settings, jobs):
        one = found["variant"], found["seed"]
        if one in files:
            write_json(files[one], found)
        yield found


def computed(missing: Sequence[tuple[str, int]], settings: Settings, jobs: int) -> Iterator[Result]:
    if jobs == 1:
        yield from (measured(variant, seed, settings) for variant, seed in missing)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        runs = [pool.submit(measured, variant, seed, settings) for variant, seed in missing]
        try:
            for run in as_completed(runs):
                yield run.result()
        finally:
            pool.shutdown(cancel_futures=True)


def points(result: Result) -> Tensor:
    """Return the accuracies of `COLUMNS` in percent, averaged over tasks and data sets."""
    means = []
    for column in COLUMNS:
        of_data = [
            torch.tensor(one["tasks"], dtype=torch.float64).mean()
            for one in result["accuracy"]
            if (one["rounds"], one["labels"]) == column
        ]
        means.append(100 * torch.stack(of_data).mean())
    return torch.stack(means)


def cell(values: Tensor, sign: str = "") -> str:
    """Show a mean over seeds with its standard error, if there is one."""
    mean, error = values.mean(), standard_error(values)
    shown = f"{mean:{sign}.2f}"
    return f"{shown} ± {error:.2f}" if error.isfinite() else shown


def worse(difference: Tensor) -> Tensor:
    """Tell in which columns the differences `[seeds, columns]` are below 0 by more than two standard errors."""
    return difference.mean(0) < -2 * standard_error(difference)


def table(found: Mapping[str, Tensor]) -> str:
    """Return the table, of accuracies `[seeds, columns]` of each variant."""
    headings = [f"{rounds} rounds, {LABELS[labels]}" for rounds, labels in COLUMNS]
    lines = [
        f"| layer | {' | '.join(headings)} | worse in |",
        f"| --- |{' ---: |' * (len(headings) + 1)}",
    ]
    for variant, values in found.items():
        if variant == WHOLE:
            cells = [cell(column) for column in values.T]
            last = ""
        else:
            difference = values - found[WHOLE]
            cells = [cell(column, "+") for column in difference.T]
            last = f"{int(worse(difference).sum())} of {len(COLUMNS)}"
        lines.append(f"| {VARIANTS[variant].title} | {' | '.join(cells)} | {last} |")
    return "\n".join(lines)


def summary(found: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Return the table as plain values, for JSON."""
    rows = []
    for variant, values in found.items():
        shown = values if variant == WHOLE else values - found[WHOLE]
        columns = [
            {
                "rounds": rounds,
                "labels": labels,
                "mean": float(column.mean()),
                "error": finite(standard_error(column)),
                "seeds": column.tolist(),
            }
            for (rounds, labels), column in zip(COLUMNS, shown.T, strict=True)
        ]
        rows.append({"variant": variant, "difference": variant != WHOLE, "columns": columns})
    return rows


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    on_graphs = [name for name, one in STUDIES.items() if one.config.network.graph.kind != "star"]
    on_graphs = [name for name in on_graphs if not name.endswith("-dirichlet")]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20, help="steps of each meta-training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="of meta-training")
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=VARIANTS,
        default=list(VARIANTS),
        metavar="VARIANT",
        help="some of: " + ", ".join(VARIANTS) + "; the whole layer is always there",
    )
    parser.add_argument("--tasks", type=int, default=3, help="validation tasks of each data set")
    parser.add_argument(
        "--data",
        nargs="+",
        choices=on_graphs,
        default=["digits", "synthetic-spectra"],
        metavar="STUDY",
        help="some of: " + ", ".join(on_graphs),
    )
    parser.add_argument("--features", type=Path, help="an .npz file for the study cifar10")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--folder", type=Path, help="where results are kept, as they come")
    parser.add_argument("--json", type=Path, help="a file for the numbers, for programs")
    options = parser.parse_args(words)
    for name in ("steps", "tasks", "jobs"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: got {getattr(options, name)}, but it must be at least 1")
    for name in ("seeds", "variants", "data"):
        given = getattr(options, name)
        if len(set(given)) < len(given):
            shown = " ".join(map(str, given))
            parser.error(f"--{name}: got {shown}, but each must be another one")
    if min(options.seeds) < 0:
        parser.error(f"--seeds: got {min(options.seeds)}, but it must be at least 0")
    if options.features is not None and "cifar10" not in options.data:
        parser.error(
            "--features: got a file, but the study cifar10, which takes it, is not in --data"
        )
    if options.features is not None and not options.features.is_file():
        parser.error(f"--features: got {str(options.features)!r}, but there is no such file")
    try:
        if options.folder is not None:
            check_folder(options.folder, "--folder")
        if options.json is not None:
            check_file(options.json, "--json")
    except ValueError as error:
        parser.error(str(error))
    return options


def main() -> None:
    options = arguments()
    limit_threads(0)
    settings = Settings(options.steps, options.tasks, tuple(options.data), options.features)
    try:
        studies_of(settings)
    except (OSError, ValueError) as error:
        sys.exit(f"--data: {error}")
    names = [name for name in VARIANTS if name == WHOLE or name in options.variants]
    wanted = [(name, seed) for seed in options.seeds for name in names]
    found: dict[tuple[str, int], Result] = {}
    for result in results(wanted, settings, options.jobs, options.folder):
        variant, seed = result["variant"], result["seed"]
        found[variant, seed] = result
        print(
            f"{len(found)} of {len(wanted)}: {variant}, seed {seed}, {result['seconds']:.0f} s",
            file=sys.stderr,
            flush=True,
        )
    scores = {
        name: torch.stack([points(found[name, seed]) for seed in options.seeds]) for name in names
    }
    print(
        f"{options.steps} steps of meta-training, seeds {' '.join(map(str, options.seeds))}; "
        f"{options.tasks} validation tasks each of {', '.join(options.data)}\n"
    )
    print(table(scores))
    if options.json is not None:
        content = {
            **vars(options),
            "features": options.features and str(options.features),
            "folder": options.folder and str(options.folder),
            "json": str(options.json),
            "rows": summary(scores),
            "runs": [found[one] for one in wanted],
        }
        write_json(options.json, content)


if __name__ == "__main__":
    main()
