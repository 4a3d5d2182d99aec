"""Convergence rate: U-DGD beside the classical methods, over graphs and through a server."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from fedsurf.evaluation.config import ExperimentConfig
from fedsurf.paper.claims import Claim, above, above_all, at_least, at_most, best_of
from fedsurf.paper.drawing import Panel, draw
from fedsurf.paper.finding import Curve, Finding, Level, over_rounds
from fedsurf.paper.plan import Plan
from fedsurf.paper.rivals import GRAPH_METHODS, SERVER_METHODS
from fedsurf.paper.sizes import Size
from fedsurf.paper.stages import Audited, Learned, Rival, Stage, Train, Yardsticks
from fedsurf.paper.workshop import SURF_T, Workshop

ABOUT_CENTRALISED = 0.97
"""The share of the centralised accuracy from which on it is about the same."""
ABOUT_80 = 0.85
"""The share of it up to which it is about 80 %."""

ACCURACY = "test accuracy, all agents' examples (%)"

Chosen = Callable[[Size], ExperimentConfig]


def rounds_of(config: ExperimentConfig) -> int:
    """Return the communication rounds of an optimizer."""
    return config.optimizer.layers * config.optimizer.filter_order


def stages_of(
    size: Size, config: ExperimentConfig, name: str, methods: Sequence[str]
) -> list[Stage]:
    """Return the work behind an optimizer, its audit, and its rivals."""
    study, train = size.study_of(config), Train(config, name)
    return [
        train,
        *(Rival(study, method, name) for method in methods),
        Learned(study, train, name),
        Yardsticks(study, rounds_of(config), name),
        Audited(train),
    ]


def curves_of(
    workshop: Workshop, config: ExperimentConfig, methods: Sequence[str], panel: str = ""
) -> tuple[list[Curve], Level]:
    """Return the curves of U-DGD, of SURF-T and of the rivals, and centralised training."""
    study = workshop.size.study_of(config)
    ceiling = workshop.ceiling(study)
    entries = [
        workshop.learned(study, config),
        workshop.pretrained(study, rounds_of(config)),
        *(entry for method in methods for entry in workshop.rival(study, method)),
    ]
    curves = [over_rounds(entry, panel, ceiling) for entry in entries]
    return curves, Level("centralised", ceiling, panel)


def reached(
    curves: Sequence[Curve], kind: str, value: str, rounds: float | None = None
) -> dict[str, Tensor]:
    """Return what the methods of a kind reached on each task, at their end or after some rounds."""
    return {curve.label: curve.at(value, rounds) for curve in curves if curve.kind == kind}


def beats_all(
    id: str,  # noqa: A002 - the field's name
    paper: str,
    curves: Sequence[Curve],
    mine: Curve,
    rounds: int,
) -> Claim:
    """Judge that an optimizer at its end is above every classical method after many rounds."""
    own_rounds = int(mine.x[-1])
    claim = above_all(
        id,
        paper,
        f"After {own_rounds} rounds U-DGD's accuracy on the whole federation's test examples is above "
        f"that of the best tuned method after {rounds}, by more than two standard errors of the "
        "difference, task by task.",
        (f"{mine.label}, {own_rounds} rounds", mine.at("pooled_accuracy")),
        reached(curves, "tuned", "pooled_accuracy", rounds),
        reached(curves, "the paper's settings", "pooled_accuracy", rounds),
    )
    own, theirs = mine.at("accuracy"), reached(curves, "tuned", "accuracy", rounds)
    name, best = best_of(theirs)
    verdict = "holds" if above(own, best) else "does not hold"
    return claim.noting(
        f"On the agents' own test examples, the paper's metric: {_percent(own)} against "
        f"{_percent(best)} ({name}), it {verdict}.",
        *_transferable(curves),
    )


def graph_plan(name: str, title: str, graph: str, chosen: Chosen) -> Plan:
    """Return the experiment over a graph."""

    def stages(size: Size) -> Sequence[Stage]:
        return stages_of(size, chosen(size), name.removeprefix("speed-"), GRAPH_METHODS)

    def make(workshop: Workshop) -> Finding:
        size, config = workshop.size, chosen(workshop.size)
        curves, level = curves_of(workshop, config, GRAPH_METHODS)
        claim = beats_all(
            name,
            f"U-DGD takes only {rounds_of(config)} communication rounds to perform better than the "
            f"others do in {size.rounds} ({graph}).",
            curves,
            curves[0],
            size.rounds,
        )
        panel = Panel(
            "", "communication rounds", ACCURACY, "pooled_accuracy", curves, [level],
            x_scale="rounds",
        )  # fmt: skip
        return Finding(
            curves,
            [level],
            [claim],
            draw([panel]),
            {"U-DGD": config},
            f"Accuracy over communication rounds, {graph}. Mean over {size.tasks} meta-test tasks, "
            "bands of one standard error; dashed: with the paper's settings.",
        )

    return Plan(
        name,
        title,
        f"CIFAR-10 features, agents on {graph}; U-DGD beside DGD, DSGD and DFedAvgM.",
        stages,
        make,
    )


def _make_star(workshop: Workshop) -> Finding:
    size, config = workshop.size, workshop.size.star
    curves, level = curves_of(workshop, config, SERVER_METHODS)
    mine, rounds, early = curves[0], rounds_of(config), size.star_early
    relative = mine.at("relative_accuracy")
    tuned = reached(curves, "tuned", "relative_accuracy", early)
    untuned = reached(curves, "textbook settings", "relative_accuracy", early)
    fastest = above_all(
        "speed-star-fastest",
        "U-DGD has a notably faster convergence than all the benchmarks.",
        f"U-DGD after {rounds} rounds is above the best tuned method after {early}, relative to "
        "centralised training, by more than two standard errors of the difference, task by task.",
        (f"U-DGD, {rounds} rounds", relative),
        tuned,
        untuned,
        "textbook settings",
    ).noting(*_transferable(curves, "relative_accuracy"))
    near = at_least(
        "speed-star-centralised",
        f"SURF almost achieves the performance of centralised training in {rounds} rounds.",
        f"U-DGD's accuracy after {rounds} rounds is at least {100 * ABOUT_CENTRALISED:g} % of that of "
        "centralised training on the same task, on average.",
        (f"U-DGD, {rounds} rounds, of centralised", relative),
        (f"{100 * ABOUT_CENTRALISED:g} % of centralised", ABOUT_CENTRALISED),
    )
    name, best = best_of(tuned)
    slow = at_most(
        "speed-star-others",
        f"The other benchmarks need {early} rounds to reach almost 80 % of the centralised performance.",
        f"The best tuned method after {early} rounds is at no more than {100 * ABOUT_80:g} % of "
        "centralised accuracy, on average.",
        (f"{name}, tuned, {early} rounds", best),
        (f"{100 * ABOUT_80:g} % of centralised", ABOUT_80),
    )
    name, best = best_of(untuned)
    without = at_most("", "", "", (f"{name}, textbook settings", best), ("", ABOUT_80))
    slow = replace(slow, untuned=without.left, holds_untuned=without.holds)
    x_label = "communication rounds"
    panels = [
        Panel("", x_label, ACCURACY, "pooled_accuracy", curves, [level], x_scale="rounds"),
        Panel("", x_label, "relative to centralised (%)", "relative_accuracy", curves,
              x_scale="rounds"),
    ]  # fmt: skip
    return Finding(
        curves,
        [level],
        [near, slow, fastest],
        draw(panels),
        {"U-DGD": config},
        f"Accuracy over communication rounds through a server, {config.network.reporting} of "
        f"{config.task.agents} agents reporting in each. Mean over {size.tasks} meta-test tasks, bands "
        "of one standard error; dashed: textbook settings, as the paper gives none.",
    )


def _transferable(curves: Sequence[Curve], value: str = "pooled_accuracy") -> list[str]:
    return [
        f"{SURF_T} after {curve.x[-1]:g} rounds: {_percent(curve.at(value))}."
        for curve in curves
        if curve.label == SURF_T
    ]


def _percent(values: Tensor) -> str:
    return f"{100 * float(values.mean()):.1f} %"


SPEED = (
    graph_plan(
        "speed-regular",
        "Convergence rate over a 3-regular graph",
        "a 3-regular graph",
        lambda size: size.regular,
    ),
    graph_plan(
        "speed-random",
        "Convergence rate over a random graph",
        "an Erdős–Rényi graph",
        lambda size: size.with_network(size.random),
    ),
    Plan(
        "speed-star",
        "Convergence rate through a server",
        "CIFAR-10 features, a star whose centre is a server; U-DGD beside FedAvg, SCAFFOLD, MOON, "
        "FedProx and FedDyn, and relative to centralised training.",
        lambda size: stages_of(size, size.star, "star", SERVER_METHODS),
        _make_star,
    ),
)
