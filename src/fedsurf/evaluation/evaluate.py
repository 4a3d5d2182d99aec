"""Evaluation of a meta-trained optimizer on meta-test tasks, compared with DGD and centralised training.

All methods get the same tasks, the same W_0, the same network and the same metric. DGD's step is tuned
on validation tasks, for each number of rounds that it is given.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedsurf.algorithms.algorithm import device_of
from fedsurf.algorithms.centralised import Centralised
from fedsurf.common.checks import check_count, check_kind
from fedsurf.common.progress import OpenBar, silent
from fedsurf.common.statistics import finite, standard_error, within_error
from fedsurf.common.text import counted
from fedsurf.evaluation.config import StudyConfig, TuneConfig
from fedsurf.evaluation.experiment import Experiment
from fedsurf.evaluation.methods import Entrant, method_named
from fedsurf.evaluation.run import Trajectories
from fedsurf.evaluation.study import Study
from fedsurf.network import Network
from fedsurf.surf import DescentConfig, SurfConfig, unroll
from fedsurf.surf.constraints import Unrolled, slack
from fedsurf.tasks.task import Task

STEP_SIZES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Candidate steps of DGD; of steps that are equally good, tuning takes the smallest."""


@dataclass(frozen=True)
class Descent:
    """The gradient norm from layer to layer over meta-test tasks, and the descending constraints."""

    norms: Tensor
    """‖∇f(W_l)‖, in the norm of the constraints, `[tasks, layers + 1]`."""
    slack: Tensor
    """The slack of every constraint, positive where violated, `[tasks, layers]`."""

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
        """Which constraints hold within two standard errors, bool `[layers]`; without, for one task."""
        return within_error(self.mean, self.error)


@dataclass(frozen=True)
class Evaluation:
    """The results of the methods on the same meta-test tasks; `evaluate` has an example."""

    unrolled: Trajectories
    """The meta-trained optimizer, layer by layer."""
    classical: list[Trajectories]
    """DGD, with each number of rounds that it was tuned for."""
    step_sizes: list[float]
    """DGD's tuned steps."""
    centralised: Tensor
    """Accuracy of centralised training on each task's pooled test examples, `[tasks]`."""
    centralised_strength: float
    """Its tuned penalty."""
    descent: Descent
    """The optimizer's gradient norms and the slack of its constraints."""
    constraints: DescentConfig
    """The descending constraints of its meta-training."""
    links: int
    """The number of directed links of the network."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, for JSON.

        A layer's `gradient_norm` is that of all training examples, its `constraint_norm` the one in
        the constraints. With one task, `constraint_holds` is None.
        """
        layers = self.unrolled.summary()
        descent = self.descent
        norm, norm_error = descent.norms.mean(0), standard_error(descent.norms)
        for layer, row in enumerate(layers):
            row.update(
                constraint_norm=finite(norm[layer]), constraint_norm_error=finite(norm_error[layer])
            )
        for row, mean, error, holds in zip(
            layers[1:], descent.mean, descent.error, descent.holds.tolist(), strict=True
        ):
            row.update(slack=finite(mean), slack_error=finite(error))
            row["constraint_holds"] = holds if error.isfinite() else None
        return {
            "tasks": len(self.centralised),
            "links": self.links,
            "unrolled": {"name": self.unrolled.name, "layers": layers},
            "classical": [
                {
                    "name": runs.name,
                    "step_size": size,
                    # A step of DGD takes one round.
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
) -> Evaluation:
    """Run the experiment's optimizer, DGD and centralised training on the same meta-test tasks.

    DGD runs once for each number of `rounds`, with a step that is tuned for it on `tuning_tasks`
    validation tasks; none for no DGD. `progress` opens bars with a title and a total.

    Examples
    --------
    >>> import fedsurf
    >>> experiment = fedsurf.Experiment(fedsurf.preset("smoke"))  # not trained
    >>> found = fedsurf.evaluate(experiment, tasks=2, rounds=[5], tuning_tasks=1)
    >>> found.unrolled.accuracy.shape, len(found.step_sizes)
    (torch.Size([2, 4]), 1)
    """
    check_kind(experiment, Experiment, "experiment", "an Experiment")
    check_kind(rounds, Iterable, "rounds", "a list of whole numbers")
    for count in rounds:
        check_count(count, "rounds")
    config, optimizer = experiment.config, experiment.optimizer
    study = _study_of(experiment, tasks)
    with progress(f"{optimizer.name} on {counted(tasks, 'meta-test task')}", tasks) as advance:
        unrolled = study.run_algorithm(optimizer, optimizer.steps, config.network, on_task=advance)
    classical, sizes = [], []
    dgd, batches = method_named("dgd"), {"batch_size": config.optimizer.batch_size}
    for count in rounds:
        with progress(f"DGD, {counted(count, 'round')}, tuned", tasks + len(STEP_SIZES)) as advance:
            grid = [{"step_size": size, **batches} for size in STEP_SIZES]
            budget = TuneConfig(len(STEP_SIZES), tuning_tasks, count)
            best = study.tune(dgd, budget, advance, settings=grid).best
            longer = Study(replace(study.config, rounds=count), environment=study.environment)
            classical.append(longer.run(Entrant("DGD", "dgd", best), advance))
            sizes.append(float(str(best["step_size"])))
    with progress("centralised training", tasks) as advance:
        centralised = Centralised.tuned(study.tuning_tasks(tuning_tasks))
        ceiling = study.ceiling(advance, centralised).float()
    descent = measure_descent(experiment, study.test_tasks(config.seed))
    return Evaluation(
        unrolled,
        classical,
        sizes,
        ceiling,
        centralised.strength,
        descent,
        config.surf.descent,
        experiment.network.links.shape[1],
    )


def _study_of(experiment: Experiment, tasks: int) -> Study:
    """Return a study in the environment of an experiment, for classical methods on its tasks."""
    network = experiment.config.network
    if network.shift == "laplacian":  # does not average, as DGD must
        network = replace(network, shift="metropolis")
    study = replace(StudyConfig.of(experiment.config), network=network, tasks=tasks)
    return Study(study, environment=experiment.environment)


def measure_descent(experiment: Experiment, tasks: Sequence[Task]) -> Descent:
    """Measure the slack of the descending constraints of meta-training on other tasks."""
    surf, seed = experiment.config.surf, experiment.config.seed
    norms = layer_norms(experiment.optimizer, tasks, experiment.network, surf, seed, "descent")
    return Descent(norms, slack(norms.T, surf.descent.epsilon, surf.descent.form).T)


@torch.no_grad()
def layer_norms(
    algorithm: Unrolled,
    tasks: Iterable[Task],
    network: Network,
    surf: SurfConfig,
    seed: int,
    purpose: str,
    on_task: Callable[[], None] = lambda: None,
) -> Tensor:
    """Measure gradient norms as the descending constraints of `surf` do, on the CPU, `[tasks, layers + 1]`."""
    norms = []
    for number, task in enumerate(tasks):
        _, found = unroll(
            algorithm,
            algorithm.steps,
            task.to(device=device_of(algorithm)),
            network,
            surf.descent,
            gradient_batch_size=surf.gradient_batch_size,
            weighting=surf.weighting,
            seed=seed,
            path=(purpose, number),
        )
        norms.append(found)
        on_task()
    return torch.stack(norms).cpu()
