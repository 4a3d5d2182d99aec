"""The least duration of a reproduction, estimated from timing a little of it on this machine."""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from fedsurf.evaluation.config import ExperimentConfig
from fedsurf.evaluation.experiment import Experiment
from fedsurf.evaluation.methods import method_named
from fedsurf.evaluation.run import run
from fedsurf.paper.artefacts import Artifact
from fedsurf.paper.makers import features_of, study_of
from fedsurf.paper.sizes import Size
from fedsurf.surf.training import FixedProblems, MetaTraining

TIMED_STEPS = 2
"""Meta-training steps that are timed, after one to warm up."""
MAX_RECORDS = 45
"""Records of a classical method in 200 rounds."""
VALIDATION_COST = 0.7
"""Duration of a validation task in meta-training steps."""


@dataclass(frozen=True)
class Pace:
    """Seconds of the work that takes longest."""

    steps: Mapping[bool, float]
    """A meta-training step, without and with a server."""
    gradient: float
    """A round of DGD on a task."""
    record: float
    """Measuring accuracy and loss after a round."""


def total_seconds(size: Size, artifacts: Sequence[Artifact], pace: Pace, jobs: int) -> float:
    """Return the seconds that artefacts take in `jobs` processes, each in one of them."""
    times = [seconds_of(artifact, size, pace) for artifact in artifacts]
    return max(sum(times) / jobs, max(times, default=0.0))


def measure(size: Size, artifacts: Sequence[Artifact]) -> Pace:
    """Time a few steps of meta-training and of DGD."""
    configs = [artifact.trained for artifact in artifacts if artifact.kind == "optimizer"]
    by_server = {config.network.graph.kind == "star": config for config in configs}
    steps = {server: time_step(config) for server, config in by_server.items()}
    study = study_of(size.study_of(configs[0] if configs else size.regular))
    task, network = study.test_tasks(study.config.seeds[0])[0], study.network(0)
    dgd = method_named("dgd").make(study.model, study.environment.start, {})
    rounds = 12
    run(dgd, task, network, 1)
    start = perf_counter()
    run(dgd, task, network, rounds, record=(rounds,))
    plain = perf_counter()
    run(dgd, task, network, rounds)
    recorded = perf_counter()
    gradient = (plain - start) / rounds
    record = max(0.0, (recorded - plain) / rounds - gradient)
    return Pace(steps, gradient, record)


def time_step(config: ExperimentConfig) -> float:
    """Return the seconds of a meta-training step."""
    experiment = Experiment(config, features_of(config.data))
    problems = FixedProblems(experiment.tasks, experiment.network, config.surf.tasks, config.seed)
    training = MetaTraining(experiment.optimizer, problems, config.surf, seed=config.seed)
    training.step()
    start = perf_counter()
    for _ in range(TIMED_STEPS):
        training.step()
    seconds = (perf_counter() - start) / TIMED_STEPS
    # Its hooks refer to it: at the paper's size, 6 GiB would stay until the next collection.
    del training, experiment
    gc.collect()
    return seconds


def seconds_of(artifact: Artifact, size: Size, pace: Pace) -> float:
    """Return about how long an artefact takes; 0 for kinds that take little time."""
    if artifact.kind == "optimizer":
        surf = artifact.trained.surf
        step = pace.steps[artifact.trained.network.graph.kind == "star"]
        validations = surf.steps // surf.validate_every * surf.validation_tasks
        return step * (surf.steps + VALIDATION_COST * validations)
    if artifact.kind in ("tuning", "method"):
        settings = method_named(artifact.method).defaults
        local = pace.gradient * float(settings.get("local_steps") or 1)
        if artifact.kind == "tuning":
            budget = size.budget_of(artifact.tasks)
            return budget.trials * budget.tasks * budget.rounds * local
        rounds = artifact.tasks.rounds
        return size.tasks * (rounds * local + min(MAX_RECORDS, rounds) * pace.record)
    return 0.0


def duration_text(seconds: float) -> str:
    """Return a duration in words, rounded."""
    if seconds < 90:
        return f"{seconds:.{1 if seconds < 10 else 0}f} seconds"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} minutes"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 86400:.1f} days"
