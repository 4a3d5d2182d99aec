"""How long a reproduction will take, from timing a little of it on this machine."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from fedsurf.algorithms.centralised import TUNING_TOLERANCE, Centralised
from fedsurf.evaluation.config import ExperimentConfig
from fedsurf.evaluation.experiment import Experiment
from fedsurf.evaluation.methods import method_named
from fedsurf.evaluation.run import run
from fedsurf.paper.sizes import Size
from fedsurf.paper.stages import Audited, Learned, Rival, Stage, Train, Yardsticks
from fedsurf.paper.theory import Certify, Descend
from fedsurf.paper.workshop import Workshop
from fedsurf.surf.problems import FixedProblems
from fedsurf.surf.training import MetaTraining

STEPS = 2
"""Meta-training steps that are timed, after one to warm up."""
LOCAL = {"dgd": 1.0, "dsgd": 1.0}
"""Gradients in a round of a method, where not as many as its local steps."""
LOOKS = 45
"""Rounds of 200 that are recorded of a classical method."""


@dataclass(frozen=True)
class Pace:
    """What this machine takes, in seconds.

    Attributes
    ----------
    step : float
        A step of meta-training over a graph.
    server_step : float
        The same through a server.
    gradient : float
        A round of DGD on a task.
    look : float
        Recording what a round achieved.
    centralised : float
        Centralised training on a task.
    """

    step: float
    server_step: float
    gradient: float
    look: float
    centralised: float


def measure(workshop: Workshop, stages: Sequence[Stage]) -> Pace:
    """Time a little of everything that the stages need."""
    size = workshop.size
    trains = [stage.config for stage in stages if isinstance(stage, Train)]
    graph = [config for config in trains if config.network.graph.kind != "star"]
    server = [config for config in trains if config.network.graph.kind == "star"]
    step = time_step(workshop, graph[0]) if graph else 0.0
    served = time_step(workshop, server[0]) if server else 0.0
    config = (trains or [size.regular])[0]
    study = workshop.study(size.study_of(config))
    task, network = study.test_tasks(study.config.seeds[0])[0], study.network(0)
    dgd = method_named("dgd").make(study.model, study.start, {})
    few, many = 2, 12
    run(dgd, task, network, 1)
    start = perf_counter()
    run(dgd, task, network, many, record=(many,))
    plain = perf_counter()
    run(dgd, task, network, many)
    end = perf_counter()
    gradient = (plain - start) / (many + few)
    look = max(0.0, (end - plain) - (plain - start)) / many
    start = perf_counter()
    Centralised(1e-2, tolerance=TUNING_TOLERANCE).accuracy(task)
    return Pace(step, served, gradient, look, perf_counter() - start)


def time_step(workshop: Workshop, config: ExperimentConfig) -> float:
    """Return the seconds of a meta-training step, from timing a few."""
    experiment = Experiment(config, workshop.features(config.data))
    surf = config.surf
    problems = FixedProblems(experiment.tasks, experiment.network, surf.tasks, config.seed)
    training = MetaTraining(experiment.optimizer, problems, surf, seed=config.seed)
    training.step()
    start = perf_counter()
    for _ in range(STEPS):
        training.step()
    seconds = (perf_counter() - start) / STEPS
    # It holds itself, by its hooks: at the paper's size that would be 6 GiB beside the next.
    del training, experiment
    gc.collect()
    return seconds


def seconds_of(stage: Stage, size: Size, pace: Pace) -> float:
    """Return about how long a stage takes."""
    if isinstance(stage, Train):
        surf = stage.config.surf
        step = pace.server_step if stage.config.network.graph.kind == "star" else pace.step
        validations = surf.steps // surf.validate_every * surf.validation_tasks
        return step * (surf.steps + 0.7 * validations)
    layers = size.regular.optimizer.layers
    if isinstance(stage, Rival):
        rounds, budget = stage.study.rounds, size.budget_of(stage.study)
        settings = method_named(stage.method).defaults
        local = LOCAL.get(stage.method, float(settings.get("local_steps") or 1))
        run_ = rounds * local * pace.gradient
        looks = min(LOOKS, rounds) * pace.look
        tuning = budget.trials * budget.tasks * (budget.rounds * local * pace.gradient)
        return tuning + 2 * size.tasks * (run_ + looks)
    one = layers * (pace.look + 3 * pace.gradient)
    if isinstance(stage, Audited):
        # About a dozen interventions; centralised training five times, and its tuning thrice.
        return size.audit_tasks * (12 * one + 5 * pace.centralised) + 3 * 27 * pace.centralised
    if isinstance(stage, Yardsticks):
        ceiling = (27 + 3 * size.tasks) * pace.centralised if stage.centralised else 0.0
        return size.tasks * 2 * one + ceiling
    if isinstance(stage, Learned | Certify | Descend):
        return size.tasks * one
    return 0.0


def total(stages: Sequence[Stage], size: Size, pace: Pace, jobs: int) -> float:
    """Return about how long all stages take in so many processes."""
    times = [seconds_of(stage, size, pace) for stage in stages]
    return max(sum(times) / jobs, max(times, default=0.0))


def spoken(seconds: float) -> str:
    """Say a time roughly."""
    if seconds < 10:
        return f"{seconds:.1f} seconds"
    if seconds < 90:
        return f"{round(seconds):d} seconds"
    if seconds < 90 * 60:
        return f"{round(seconds / 60):d} minutes"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 86400:.1f} days"
