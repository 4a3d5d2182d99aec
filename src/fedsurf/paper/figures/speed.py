"""Convergence rate: U-DGD compared with classical methods, over graphs and through a server."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from fedsurf.common.text import counted
from fedsurf.evaluation.config import ExperimentConfig
from fedsurf.evaluation.methods import method_named
from fedsurf.paper.artefacts import SURF_T, Artifact, ArtifactStore
from fedsurf.paper.claims import Claim, Measured, above, above_all, at_least, at_most, best_of
from fedsurf.paper.figures.drawing import Panel, draw
from fedsurf.paper.figures.figure import (
    UNTUNED_KINDS,
    Curve,
    CurveKind,
    FigureResult,
    Level,
    PaperFigure,
    Source,
    curve_of,
    surf_t,
)
from fedsurf.paper.makers import rounds_of
from fedsurf.paper.sizes import GRAPH_METHODS, PAPER_SETTINGS, SERVER_METHODS, SETTING_SOURCES, Size

MIN_CENTRALISED_SHARE = 0.97
"""Share of the centralised accuracy above which an accuracy counts as almost the same."""
MAX_SLOW_SHARE = 0.85
"""Share of the centralised accuracy below which an accuracy counts as almost 80 %."""

ACCURACY_LABEL = "test accuracy, all agents' examples (%)"


def sources_of(size: Size, config: ExperimentConfig) -> list[Source]:
    """Return the origins of the curves of U-DGD, SURF-T and the classical methods, these twice."""
    study, budget = size.study_of(config), size.budget_of(size.study_of(config))
    sources = [
        Source("U-DGD", "the paper's", Artifact("run", config, study)),
        surf_t(study, rounds_of(config)),
    ]
    server = config.network.graph.kind == "star"
    for name in SERVER_METHODS if server else GRAPH_METHODS:
        title, given = method_named(name).title, name in PAPER_SETTINGS
        tried, tasks = budget.trials + given, counted(budget.tasks, "validation task")
        untuned: CurveKind = "the paper's settings" if given else "textbook settings"
        note = SETTING_SOURCES.get(name, "textbook values: the paper gives no settings")
        sources += [
            Source(
                title,
                "tuned",
                Artifact("method", study=study, method=name, tuned=True),
                f"the best of {counted(tried, 'setting')} on {tasks}",
            ),
            Source(title, untuned, Artifact("method", study=study, method=name), note),
        ]
    return sources


def centralised(size: Size, config: ExperimentConfig) -> Artifact:
    """Return the artefact of centralised training on an optimizer's meta-test tasks."""
    return Artifact("centralised", study=size.study_of(config))


def artifacts_of(size: Size, config: ExperimentConfig) -> list[Artifact]:
    """Return the artefacts behind all curves of an optimizer."""
    sources = sources_of(size, config)
    return [*(source.artifact for source in sources), centralised(size, config)]


def curves_of(
    store: ArtifactStore, config: ExperimentConfig, panel: str = ""
) -> tuple[list[Curve], Level]:
    """Return the curves of all methods, U-DGD's first, and the level of centralised training."""
    ceiling = store.read(centralised(store.size, config)).tensors["accuracy"]
    sources = sources_of(store.size, config)
    curves = [curve_of(store, source, "rounds", panel, ceiling) for source in sources]
    return curves, Level("centralised", ceiling, panel)


def reached(
    curves: Sequence[Curve], kinds: Sequence[CurveKind], value: str, rounds: float | None = None
) -> dict[str, Tensor]:
    """Return the values of methods of these kinds at their end, or after some rounds."""
    return {curve.label: curve.at(value, rounds) for curve in curves if curve.kind in kinds}


def beats_all(id_: str, paper: str, curves: Sequence[Curve], rounds: int, note: str = "") -> Claim:
    """Judge that the first curve ends above every classical method after `rounds` rounds."""
    mine, panel = curves[0], curves[0].panel
    own_rounds = int(mine.x[-1])
    label = ", ".join(filter(None, [mine.label, panel, f"{own_rounds} rounds"]))
    left: Measured = (label, mine.at("pooled_accuracy"))
    tuned = reached(curves, ["tuned"], "pooled_accuracy", rounds)
    untuned = reached(curves, UNTUNED_KINDS, "pooled_accuracy", rounds)
    own, theirs = mine.at("accuracy"), reached(curves, ["tuned"], "accuracy", rounds)
    name, best = best_of(theirs)
    verdict = "holds" if above(own, best) else "does not hold"
    notes = [
        f"On the agents' own test examples, the paper's metric, it {verdict}: {_percent(own)} compared "
        f"with {_percent(best)} ({name}).",
        _transferable(curves),
        note,
    ]
    return Claim(
        id_,
        paper,
        f"U-DGD's accuracy on the whole federation's test examples after {own_rounds} rounds"
        f"{f', at {panel},' if panel else ''} is above that of the best tuned method after {rounds}, by "
        "more than two standard errors of the difference, task by task.",
        *above_all(left, tuned, "tuned"),
        note=" ".join(filter(None, notes)),
    ).with_untuned(above_all(left, untuned, "the paper's settings"))


def _graph_figure(
    name: str, title: str, graph: str, chosen: Callable[[Size], ExperimentConfig]
) -> PaperFigure:
    def make(store: ArtifactStore) -> FigureResult:
        size = store.size
        curves, level = curves_of(store, chosen(size))
        claim = beats_all(
            name,
            "U-DGD exhibits a faster convergence rate as it takes only 20 communication rounds to "
            "achieve performance higher than that achieved by the others in 200 communication rounds.",
            curves,
            size.rounds,
        )
        panel = Panel("pooled_accuracy", ACCURACY_LABEL, curves, [level])
        caption = (
            f"Accuracy over communication rounds, {graph}. Mean over {size.tasks} meta-test tasks, "
            "bands of one standard error; dashed: with the paper's settings."
        )
        return FigureResult([claim], draw([panel]), caption, curves, [level])

    return PaperFigure(
        name,
        title,
        f"Agents on {graph}; U-DGD compared with DGD, DSGD and DFedAvgM.",
        lambda size: {"U-DGD": chosen(size)},
        lambda size: artifacts_of(size, chosen(size)),
        make,
    )


def _make_star(store: ArtifactStore) -> FigureResult:
    size, config = store.size, store.size.star
    curves, level = curves_of(store, config)
    rounds, early = rounds_of(config), size.star_early
    relative = curves[0].at("relative_accuracy")
    tuned = reached(curves, ["tuned"], "relative_accuracy", early)
    untuned = reached(curves, UNTUNED_KINDS, "relative_accuracy", early)
    limit = (f"{100 * MIN_CENTRALISED_SHARE:g} % of centralised", MIN_CENTRALISED_SHARE)
    near = Claim(
        "speed-star-centralised",
        "SURF almost achieves the same performance attained by central training in 10 communication "
        "rounds.",
        f"U-DGD's accuracy after {rounds} rounds is at least {limit[0]} training on the same task, on "
        "average.",
        *at_least((f"U-DGD, {rounds} rounds, of centralised", relative), limit),
    )
    limit = (f"{100 * MAX_SLOW_SHARE:g} % of centralised", MAX_SLOW_SHARE)
    (name, best), (plain_name, plain_best) = best_of(tuned), best_of(untuned)
    untuned_number, _, holds_untuned = at_most(
        (f"{plain_name}, textbook settings", plain_best), limit
    )
    slow = Claim(
        "speed-star-others",
        "The other benchmarks need 25 rounds to reach almost 80 % of the centralized performance.",
        f"The best tuned method after {early} rounds is at most at {100 * MAX_SLOW_SHARE:g} % of centralised "
        "accuracy, on average.",
        *at_most((f"{name}, tuned, {early} rounds", best), limit),
        untuned=untuned_number,
        holds_untuned=holds_untuned,
    )
    mine: Measured = (f"U-DGD, {rounds} rounds", relative)
    fastest = Claim(
        "speed-star-fastest",
        "U-DGD has a notably faster convergence than all the benchmarks.",
        f"U-DGD after {rounds} rounds is above the best tuned method after {early}, relative to "
        "centralised training, by more than two standard errors of the difference, task by task.",
        *above_all(mine, tuned, "tuned"),
        note=_transferable(curves, "relative_accuracy"),
    ).with_untuned(above_all(mine, untuned, "textbook settings"))
    panels = [
        Panel("pooled_accuracy", ACCURACY_LABEL, curves, [level]),
        Panel("relative_accuracy", "relative to centralised (%)", curves),
    ]
    caption = (
        f"Accuracy over communication rounds through a server, {config.network.reporting} of "
        f"{config.task.agents} agents reporting in each. Mean over {size.tasks} meta-test tasks, bands of "
        "one standard error; dashed: textbook settings, as the paper gives none."
    )
    return FigureResult([near, slow, fastest], draw(panels), caption, curves, [level])


def _transferable(curves: Sequence[Curve], value: str = "pooled_accuracy") -> str:
    curve = next((curve for curve in curves if curve.label == SURF_T), None)
    return f"{SURF_T} after {curve.x[-1]:g} rounds: {_percent(curve.at(value))}." if curve else ""


def _percent(values: Tensor) -> str:
    return f"{100 * float(values.mean()):.1f} %"


SPEED = (
    _graph_figure(
        "speed-regular",
        "Convergence rate over a 3-regular graph",
        "a 3-regular graph",
        lambda size: size.regular,
    ),
    _graph_figure(
        "speed-random",
        "Convergence rate over a random graph",
        "an Erdős–Rényi graph",
        lambda size: replace(size.regular, network=size.random),
    ),
    PaperFigure(
        "speed-star",
        "Convergence rate through a server",
        "A star whose centre is a server; U-DGD compared with FedAvg, SCAFFOLD, MOON, FedProx and "
        "FedDyn, and with centralised training.",
        lambda size: {"U-DGD": size.star},
        lambda size: artifacts_of(size, size.star),
        _make_star,
    ),
)
