"""The paper's ablation: the same optimizer, meta-trained with and without the descending constraints."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fedsurf.common.progress import OpenBar, silent
from fedsurf.common.writing import write_json
from fedsurf.evaluation.config import ExperimentConfig
from fedsurf.evaluation.evaluate import Evaluation, evaluate
from fedsurf.evaluation.experiment import Experiment
from fedsurf.surf.loop import Observer
from fedsurf.tasks.features import Features

RUNS = {"with-constraints": True, "without-constraints": False}
"""The folders of the two runs, and whether the constraints are imposed."""


def ablation(
    config: ExperimentConfig,
    folder: Path,
    *,
    tasks: int = 30,
    rounds: Sequence[int] = (20,),
    features: Features | None = None,
    observers: Sequence[Observer] = (),
    on_note: Callable[[str], None] = lambda _: None,
    progress: OpenBar = silent,
) -> dict[Path, Evaluation]:
    """Meta-train an optimizer with and without the descending constraints, and evaluate both.

    Finished runs in the folder are used again, interrupted ones are resumed. Returns the evaluation of
    each run folder, that with constraints first; it is also written there, as evaluation.json. `rounds`
    are those of DGD. `on_note` gets a line of text before each meta-training.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import fedsurf
    >>> config = fedsurf.preset("smoke")
    >>> config = replace(config, surf=replace(config.surf, steps=1, validation_tasks=1))
    >>> with TemporaryDirectory() as folder:
    ...     found = ablation(config, Path(folder), tasks=2, rounds=())
    >>> [evaluation.constraints.constrained for evaluation in found.values()]
    [True, False]
    """
    experiments = {}
    for name, constrained in RUNS.items():
        on_note(f"Meta-training {name.replace('-', ' ')}")
        descent = replace(config.surf.descent, constrained=constrained)
        changed = replace(config, surf=replace(config.surf, descent=descent))
        run = folder / name
        experiments[run] = Experiment(changed, features)
        resume = run.exists() and any(run.iterdir())
        experiments[run].train(run, resume=resume, observers=observers)
    found = {}
    for run, experiment in experiments.items():
        found[run] = evaluate(experiment, tasks=tasks, rounds=rounds, progress=progress)
        write_json(run / "evaluation.json", found[run].to_dict())
    return found
