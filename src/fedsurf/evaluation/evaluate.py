"""A meta-trained optimizer on meta-test tasks, beside DGD and centralised training.

Every method gets the same tasks, the same W_0, the same network and the same metric. DGD's step is
tuned, for each number of rounds that it is given, on tasks of the validation pool.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedsurf.algorithms import DGD, Start
from fedsurf.algorithms.centralised import Centralised
from fedsurf.common.checks import check_kind, check_whole
from fedsurf.common.progress import OpenBar, silent
from fedsurf.common.statistics import finite, standard_error, within_error
from fedsurf.common.text import counted
from fedsurf.evaluation.experiment import Experiment
from fedsurf.evaluation.run import Trajectories, recorded_steps, run_all
from fedsurf.network import Network
from fedsurf.surf import unroll
from fedsurf.surf.constraints import slack
from fedsurf.tasks.task import Task

STEP_SIZES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""DGD's candidate steps."""


@dataclass(frozen=True)
class Descent:
    """Whether the gradient norm fell from layer to layer, over meta-test tasks.

    Attributes
    ----------
    norms : Tensor
        ‖∇f(W_l)‖, as the constraints take it, `[tasks, layers + 1]`.
    slack : Tensor
        The slack of every constraint, positive where violated, `[tasks, layers]`.
    """

    norms: Tensor
    slack: Tensor

    @property
    def mean(self) -> Tensor:
        """The mean slack of every layer."""
        return self.slack.mean(0)

    @property
    def error(self) -> Tensor:
        """Its standard error."""
        return standard_error(self.slack)

    @property
    def holds(self) -> Tensor:
        """Which constraints hold within two standard errors, bool `[layers]`.

        With one task there is no error: then, those whose slack is not above 0 on it.
        """
        return within_error(self.mean, self.error)


@dataclass(frozen=True)
class Comparison:
    """What the methods achieved on the same meta-test tasks.

    Attributes
    ----------
    unrolled : Trajectories
        The meta-trained optimizer, layer by layer.
    classical : list of Trajectories
        DGD, with each number of rounds that it was tuned for.
    step_sizes : list of float
        The steps that tuning chose for them.
    centralised : Tensor
        Accuracy of centralised training on each task's pooled test examples, `[tasks]`.
    centralised_strength : float
        The penalty that tuning chose for it.
    descent : Descent
        The optimizer's descending constraints.
    links : int
        The number of directed links of the network.
    """

    unrolled: Trajectories
    classical: list[Trajectories]
    step_sizes: list[float]
    centralised: Tensor
    centralised_strength: float
    descent: Descent
    links: int

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, for JSON.

        Beside `gradient_norm`, on all training examples, each layer has the `constraint_norm` whose
        fall the slack measures. With one task nothing is said about whether a constraint holds.
        """
        layers = self.unrolled.summary()
        norms = self.descent.norms
        for row, mean, error in zip(
            layers, map(finite, norms.mean(0)), map(finite, standard_error(norms)), strict=True
        ):
            row.update(constraint_norm=mean, constraint_norm_error=error)
        for row, mean, error, holds in zip(
            layers[1:],
            map(finite, self.descent.mean),
            map(finite, self.descent.error),
            self.descent.holds.tolist(),
            strict=True,
        ):
            told = None if error is None else holds
            row.update(slack=mean, slack_error=error, constraint_holds=told)
        return {
            "tasks": len(self.centralised),
            "links": self.links,
            "unrolled": {"name": self.unrolled.name, "layers": layers},
            "classical": [
                {
                    "name": runs.name,
                    "step_size": size,
                    # Not every step is recorded; a step of DGD takes a round.
                    "rounds": runs.summary(steps=runs.taken.tolist()),
                }
                for runs, size in zip(self.classical, self.step_sizes, strict=True)
            ],
            "centralised": {
                "pooled_accuracy": float(self.centralised.mean()),
                "pooled_accuracy_error": finite(standard_error(self.centralised)),
                "strength": self.centralised_strength,
            },
        }


def evaluate(
    experiment: Experiment,
    *,
    tasks: int = 30,
    rounds: Sequence[int] = (20, 200),
    tuning_tasks: int = 3,
    progress: OpenBar = silent,
) -> Comparison:
    """Run the experiment's optimizer, DGD and centralised training on the same meta-test tasks.

    Parameters
    ----------
    experiment : Experiment
        A trained one, e.g. of `Experiment.load`.
    tasks : int
        The number of meta-test tasks.
    rounds : sequence of int
        The numbers of rounds that DGD is given, its step tuned for each; none for no DGD.
    tuning_tasks : int
        The number of validation tasks on which DGD and centralised training are tuned.
    progress : callable
        Opens a progress bar with a title and a total.
    """
    check_kind(experiment, Experiment, "experiment", "an Experiment")
    check_kind(rounds, Iterable, "rounds", "a list of whole numbers")
    for count in rounds:
        check_whole(count, "rounds")
        if count < 1:
            raise ValueError(f"rounds: got {count}, but DGD takes at least 1")
    test, tuning = experiment.test_tasks(tasks), experiment.tuning_tasks(tuning_tasks)
    seed, weighting = experiment.config.seed, experiment.config.surf.weighting
    optimizer, network = experiment.optimizer, experiment.network
    averaging = _averaging_network(experiment)
    with progress(f"{optimizer.name} on {counted(tasks, 'meta-test task')}", tasks) as advance:
        unrolled = run_all(
            optimizer,
            test,
            network,
            optimizer.steps,
            seed=seed,
            weighting=weighting,
            on_task=advance,
        )
    descent = measure_descent(experiment, test)
    classical, sizes = [], []
    for count in rounds:
        with progress(f"DGD, {counted(count, 'round')}, tuned", tasks + len(STEP_SIZES)) as advance:
            size = tune_dgd(experiment, tuning, count, advance)
            method = _dgd(experiment, size)
            runs = run_all(
                method,
                test,
                averaging,
                count,
                seed=seed,
                weighting=weighting,
                record=recorded_steps(count),
                on_task=advance,
            )
        classical.append(runs)
        sizes.append(size)
    with progress("centralised training", tasks) as advance:
        ceiling = Centralised.tuned(tuning)
        accuracies = []
        for task in test:
            accuracies.append(ceiling.accuracy(task))
            advance()
    return Comparison(
        unrolled,
        classical,
        sizes,
        torch.tensor(accuracies),
        ceiling.strength,
        descent,
        network.links.shape[1],
    )


@torch.no_grad()
def measure_descent(experiment: Experiment, tasks: Sequence[Task]) -> Descent:
    """Measure the slack of the descending constraints, as they were imposed, on other tasks."""
    surf = experiment.config.surf
    norms = torch.stack(
        [
            unroll(
                experiment.optimizer,
                experiment.optimizer.steps,
                task,
                experiment.network,
                surf.descent,
                gradient_batch_size=surf.gradient_batch_size,
                weighting=surf.weighting,
                seed=experiment.config.seed,
                path=("descent", number),
            )[1]
            for number, task in enumerate(tasks)
        ]
    )
    return Descent(norms, slack(norms.T, surf.descent.epsilon, surf.descent.form).T)


def tune_dgd(
    experiment: Experiment, tasks: Sequence[Task], rounds: int, advance: Callable[[], None]
) -> float:
    """Return the step with which DGD's pooled accuracy after `rounds` rounds is best."""
    best, best_accuracy = STEP_SIZES[0], -1.0
    network = _averaging_network(experiment)
    for size in STEP_SIZES:
        runs = run_all(
            _dgd(experiment, size),
            tasks,
            network,
            rounds,
            seed=experiment.config.seed,
            weighting=experiment.config.surf.weighting,
            record=(rounds,),
        )
        accuracy = float(runs.pooled_accuracy[:, -1].nan_to_num(0.0).mean())
        if accuracy > best_accuracy:
            best, best_accuracy = size, accuracy
        advance()
    return best


def _averaging_network(experiment: Experiment) -> Network:
    """Return the run's network; where its S does not average, as DGD's must, with one that does."""
    config = experiment.config
    if config.network.shift != "laplacian":
        return experiment.network
    averaging = replace(config, network=replace(config.network, shift="metropolis"))
    return Experiment(averaging).network


def _dgd(experiment: Experiment, step_size: float) -> DGD:
    config = experiment.config.optimizer
    start = Start(config.initial_mean, config.initial_deviation)
    return DGD(experiment.model, step_size, batch_size=config.batch_size, start=start)
