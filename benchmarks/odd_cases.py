"""The pretrained optimizer and DFedAvgM on extreme federations.

Every case of `odd_federations` is drawn several times. On each draw the pretrained optimizer
(SURF-T) runs for 20 rounds, tuned DFedAvgM for 20 and for 200 rounds, and
centralised training to optimality; all start at zero. DFedAvgM is tuned for each case and each number
of rounds, with the same number of trials on one more draw, which is not among those of the table;
the penalty of centralised training on the same draw. The table has the pooled accuracy in percent,
mean ± standard error over draws, where a diverged run counts as 0; and the paired
differences to DFedAvgM with 20 and with 200 rounds. SURF-T is no worse where a difference is
not below 0 by more than two standard errors.

With `--scaling whole`, all methods use raw features. With `--scaling features`, SURF-T's agents
standardise them by statistics that they exchange, and DFedAvgM gets features standardised by all training
examples, at no cost; the same with `--scaling auto`, where SURF-T's agents decide whether to
standardise. Centralised training, the ceiling, always gets standardised features.

    python benchmarks/odd_cases.py [--cases "2 agents" "4 features"] [--tasks 5] [--trials 8]
"""

import argparse
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from odd_federations import ODD_CASES
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler
from torch import Tensor

import fedsurf
from fedsurf import SoftmaxHead, Start, generator
from fedsurf.algorithms.algorithm import Algorithm
from fedsurf.algorithms.centralised import Centralised
from fedsurf.cli.console import print_json
from fedsurf.common.statistics import finite, standard_error, within_error
from fedsurf.common.threads import limit_threads
from fedsurf.evaluation.config import TuneConfig
from fedsurf.evaluation.methods import method_named
from fedsurf.evaluation.run import Trajectories, run
from fedsurf.evaluation.tuning import candidates, settings_that_fit, try_settings
from fedsurf.network import Network
from fedsurf.pretrained import digest
from fedsurf.tasks.task import Examples, Task
from fedsurf.unrolled.config import Scaling

LONGER = 10
"""Factor of the longer runs' rounds of DFedAvgM to the rounds of SURF-T."""

RIVALS = ("dfedavgm", "dfedavgm_long")
"""DFedAvgM with the same number of rounds as SURF-T, and with more."""

Draw = tuple[Task, Network]


@dataclass(frozen=True)
class Column:
    """One method on all draws of a case: accuracies `[draws]`, and the number of diverged runs."""

    accuracy: Tensor
    broken: int = 0
    settings: dict[str, Any] | None = None

    @staticmethod
    def of(runs: Trajectories, settings: dict[str, Any] | None = None) -> "Column":
        """Take the last record of each run."""
        broken = sum(at is not None for at in runs.diverged)
        return Column(runs.pooled_accuracy[:, -1].double().nan_to_num(0.0), broken, settings)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return {**summary(self.accuracy), "broken": self.broken, "settings": self.settings}

    def cell(self) -> str:
        """Return the cell of the table."""
        noted = f" ({self.broken} of {len(self.accuracy)} runs diverged)" if self.broken else ""
        return percent(self.accuracy) + noted


@dataclass(frozen=True)
class Row:
    """One case: the columns by name, and the processor time that it took."""

    case: str
    columns: dict[str, Column]
    seconds: float

    def difference(self, rival: str) -> Tensor:
        """SURF-T against another column, `[draws]`."""
        return self.columns["surf"].accuracy - self.columns[rival].accuracy

    def no_worse(self, rival: str) -> bool:
        """Whether that is not below 0 by more than two standard errors."""
        difference = self.difference(rival)
        return bool(within_error(-difference.mean(), standard_error(difference)))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        columns = {name: column.to_dict() for name, column in self.columns.items()}
        differences = {
            rival: {**summary(self.difference(rival)), "no_worse": self.no_worse(rival)}
            for rival in RIVALS
        }
        return {"case": self.case, **columns, "differences": differences, "seconds": self.seconds}

    def cells(self) -> list[str]:
        """Return the row of the table."""
        cells = [self.case, *(column.cell() for column in self.columns.values())]
        for rival in RIVALS:
            verdict = "yes" if self.no_worse(rival) else "no"
            cells.append(f"{percent(self.difference(rival), sign='+')}: {verdict}")
        return cells


def summary(values: Tensor) -> dict[str, Any]:
    mean, error = finite(values.mean()), finite(standard_error(values))
    return {"mean": mean, "error": error, "draws": values.tolist()}


def percent(values: Tensor, sign: str = "") -> str:
    return f"{100 * values.mean():{sign}.1f} ± {100 * standard_error(values):.1f}"


def standardised(task: Task) -> Task:
    """Give every feature the mean 0 and the variance 1 in all training examples together."""
    scaler = StandardScaler().fit(task.train.pooled().x[0].numpy())
    centre, unit = torch.from_numpy(scaler.mean_), torch.from_numpy(scaler.scale_)

    def seen(part: Examples) -> Examples:
        x = (part.x - centre) / unit
        return replace(part, x=x if part.mask is None else x * part.mask[:, :, None])

    return Task(seen(task.train), seen(task.test), task.classes)


def run_on(algorithm: Algorithm, draws: Sequence[Draw], steps: int) -> Trajectories:
    """Run an algorithm on every task over its own network, and record only the end."""
    runs = [
        run(algorithm, task, network, steps, path=(number,), record=(0, steps))
        for number, (task, network) in enumerate(draws)
    ]
    return Trajectories.stack(algorithm.name, runs)


def dfedavgm(model: SoftmaxHead, draws: Sequence[Draw], other: Draw, budget: TuneConfig) -> Column:
    """Tune DFedAvgM on another draw, and run it on these."""
    method, start = method_named("dfedavgm"), Start(0.0, 0.0)
    moments = (max(1, budget.rounds // 10), budget.rounds)
    tried = candidates(method, budget)
    best = try_settings(method, tried, model, start, [other[0]], other[1], moments).best
    settings = settings_that_fit(method, best, [task for task, _ in draws])
    return Column.of(
        run_on(method.make(model, start, settings), draws, budget.rounds), dict(settings)
    )


def ceiling(tasks: Sequence[Task], other: Task) -> Column:
    """Tune centralised training on another task, and train on these."""
    with warnings.catch_warnings():
        # It stops after 2,000 iterations where hardly any penalty is left; tuning sees how good it is.
        warnings.simplefilter("ignore", ConvergenceWarning)
        best = Centralised.tuned([standardised(other)])
        accuracy = [best.accuracy(standardised(task)) for task in tasks]
    return Column(torch.tensor(accuracy).double(), settings={"strength": best.strength})


def compare(case: str, *, tasks: int, trials: int, rounds: int, scaling: Scaling) -> Row:
    """Run everything on draws of a case."""
    began = time.process_time()
    draws = [ODD_CASES[case](generator(0, "odd", case, number)) for number in range(tasks)]
    other = ODD_CASES[case](generator(0, "odd", case, "tuning"))
    model = SoftmaxHead(other[0].features, other[0].classes)
    surf = fedsurf.load().on(model, rounds=rounds, scaling=scaling)
    columns = {"surf": Column.of(run_on(surf, draws, surf.steps))}
    given, given_other = draws, other
    if scaling != "whole":
        given = [(standardised(task), network) for task, network in draws]
        given_other = (standardised(other[0]), other[1])
    for name, count in zip(RIVALS, (rounds, LONGER * rounds), strict=True):
        budget = TuneConfig(trials, tasks=1, rounds=count)
        columns[name] = dfedavgm(model, given, given_other, budget)
    columns["centralised"] = ceiling([task for task, _ in draws], other[0])
    return Row(case, columns, time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=5, help="draws of each case")
    parser.add_argument("--trials", type=int, default=8, help="settings of DFedAvgM that are tried")
    parser.add_argument(
        "--cases",
        nargs="+",
        choices=ODD_CASES,
        default=list(ODD_CASES),
        metavar="CASE",
        help="some of: " + "; ".join(ODD_CASES),
    )
    parser.add_argument("--rounds", type=int, default=20, help="communication rounds of SURF-T")
    parser.add_argument("--scaling", choices=("whole", "features", "auto"), default="whole")
    parser.add_argument("--json", action="store_true", help="print numbers for programs")
    options = parser.parse_args()
    if options.tasks < 1:
        parser.error(f"--tasks: got {options.tasks}, but it must be at least 1")
    limit_threads(0)
    long = LONGER * options.rounds
    if not options.json:
        print(
            f"pretrained optimizer {digest()[:8]}, scaling {options.scaling}, {options.tasks} draws, "
            f"{options.trials} trials; threads: {torch.get_num_threads()}\n"
        )
        headings = [
            "case",
            f"SURF-T, {options.rounds}",
            f"DFedAvgM, {options.rounds}",
            f"DFedAvgM, {long}",
            "centralised",
            f"no worse than DFedAvgM, {options.rounds}",
            f"no worse than DFedAvgM, {long}",
        ]
        print(f"| {' | '.join(headings)} |\n|{' --- |' * len(headings)}")
    rows = []
    for case in options.cases:
        row = compare(
            case,
            tasks=options.tasks,
            trials=options.trials,
            rounds=options.rounds,
            scaling=options.scaling,
        )
        rows.append(row)
        if not options.json:
            print(f"| {' | '.join(row.cells())} |", flush=True)
    if options.json:
        content = {**vars(options), "optimizer": digest(), "rows": [row.to_dict() for row in rows]}
        print_json(content)
        return
    total = options.tasks * len(rows)
    surf, short, longer = (
        sum(row.columns[name].broken for row in rows) for name in ("surf", *RIVALS)
    )
    same, more = (sum(row.no_worse(rival) for row in rows) for rival in RIVALS)
    print(
        f"\nSURF-T is no worse than DFedAvgM with the same rounds in {same} of {len(rows)} cases, "
        f"and with {LONGER} times as many in {more}.\n"
        f"Diverged: SURF-T in {surf} of {total} runs, "
        f"DFedAvgM in {short} of {total} and in {longer} of {total}.\n"
        f"{sum(row.seconds for row in rows):.0f} s of processor time"
    )


if __name__ == "__main__":
    main()
