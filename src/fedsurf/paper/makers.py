"""The work behind every kind of artefact."""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache

from fedsurf import pretrained
from fedsurf.analysis.audit import audit
from fedsurf.analysis.certificate import certify
from fedsurf.evaluation.config import ExperimentConfig, StudyConfig
from fedsurf.evaluation.evaluate import layer_norms
from fedsurf.evaluation.experiment import Experiment
from fedsurf.evaluation.methods import Entrant, Setting, method_named
from fedsurf.evaluation.run import Trajectory
from fedsurf.evaluation.study import Study
from fedsurf.paper.artefacts import SURF_T, Artifact, ArtifactKind, ArtifactStore, Made
from fedsurf.paper.sizes import PAPER_SETTINGS
from fedsurf.tasks.config import FeatureConfig
from fedsurf.tasks.features import Features, load_features


def paper_settings(method: str) -> dict[str, Setting]:
    """Return the paper's settings of a method, or textbook values where it gives none."""
    return {**method_named(method).defaults, **PAPER_SETTINGS.get(method, {})}


@cache
def features_of(data: FeatureConfig) -> Features:
    """Return the features of a data set, read once in a process."""
    return load_features(data)


def study_of(config: StudyConfig) -> Study:
    """Return a study."""
    return Study(config, features=features_of(config.data))


def rounds_of(config: ExperimentConfig) -> int:
    """Return the communication rounds of an optimizer."""
    return config.optimizer.layers * config.optimizer.filter_order


def _optimizer(store: ArtifactStore, artifact: Artifact) -> Made:
    config = artifact.trained
    with store.observers() as observers:
        experiment = Experiment(config, features_of(config.data))
        experiment.train(store.run_folder(config), resume=True, observers=observers)
    return Made({}, {})


def _load(store: ArtifactStore, artifact: Artifact) -> Experiment:
    config = artifact.trained
    return Experiment.load(store.run_folder(config), features_of(config.data))


def _audit(store: ArtifactStore, artifact: Artifact) -> Made:
    config, size = artifact.trained, store.size
    # An optimizer keeps the shift operator that its filters were trained with.
    study = replace(size.study_of(config), tasks=size.audit_tasks, network=config.network)
    experiment = _load(store, artifact)
    found = audit(experiment, study_of(study), agents=size.audit_agents, progress=store.progress)
    return Made({}, found.to_dict())


def _certificate(store: ArtifactStore, artifact: Artifact) -> Made:
    found = certify(_load(store, artifact), tasks=store.size.tasks, progress=store.progress)
    return Made({}, found.to_dict())


def _norms(store: ArtifactStore, artifact: Artifact) -> Made:
    config = artifact.trained
    study = study_of(store.size.study_of(config))
    algorithm = pretrained.load().on(study.model, rounds_of(config))
    tasks, network = study.test_tasks(config.seed), study.network(config.seed)
    with store.progress(f"gradient norms of {SURF_T}", study.config.tasks) as advance:
        norms = layer_norms(algorithm, tasks, network, config.surf, config.seed, "theory", advance)
    return Made({"norms": norms}, {})


def _run(store: ArtifactStore, artifact: Artifact) -> Made:
    entrant = Entrant("U-DGD", run=store.run_folder(artifact.trained))
    return _enter(store, artifact.tasks, entrant)


def _pretrained(store: ArtifactStore, artifact: Artifact) -> Made:
    entrant = Entrant(SURF_T, pretrained="softmax-head", rounds=artifact.rounds)
    return _enter(store, artifact.tasks, entrant)


def _tuning(store: ArtifactStore, artifact: Artifact) -> Made:
    """Tune a method; the paper's settings are one more trial, as they may be outside of its ranges."""
    method, study = method_named(artifact.method), study_of(artifact.tasks)
    budget = store.size.budget_of(artifact.tasks)
    with store.progress(f"tuning {method.title}", budget.trials + 1) as advance:
        trials = study.tune(method, budget, advance).trials
        if method.name in PAPER_SETTINGS:
            given = replace(method, defaults=paper_settings(method.name))
            trials += study.tune(given, replace(budget, trials=1), advance).trials
    best = max(trials, key=lambda trial: trial.score)
    tried = [{"score": trial.score, "settings": trial.settings} for trial in trials]
    return Made({}, {"settings": best.settings, "trials": tried})


def _method(store: ArtifactStore, artifact: Artifact) -> Made:
    settings = paper_settings(artifact.method)
    if artifact.tuned:
        (tuning,) = artifact.needs
        settings = store.read(tuning).content["settings"]
    entrant = Entrant(method_named(artifact.method).title, artifact.method, settings)
    made = _enter(store, artifact.tasks, entrant)
    return Made(made.tensors, {"settings": settings})


def _centralised(store: ArtifactStore, artifact: Artifact) -> Made:
    config = artifact.tasks
    with store.progress("centralised training", config.tasks) as advance:
        return Made({"accuracy": study_of(config).ceiling(advance)}, {})


def _enter(store: ArtifactStore, config: StudyConfig, entrant: Entrant) -> Made:
    with store.progress(entrant.label, config.tasks) as advance:
        runs = study_of(config).run(entrant, advance)
    return Made({field.name: getattr(runs, field.name) for field in fields(Trajectory)}, {})


MAKERS: dict[ArtifactKind, Callable[[ArtifactStore, Artifact], Made]] = {
    "optimizer": _optimizer,
    "audit": _audit,
    "certificate": _certificate,
    "norms": _norms,
    "run": _run,
    "pretrained": _pretrained,
    "tuning": _tuning,
    "method": _method,
    "centralised": _centralised,
}
"""The function that makes each kind; what the artefact needs is made already."""
