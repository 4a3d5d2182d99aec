"""`fedsurf fit` and `fedsurf predict`: a classifier from a file, and labels from a classifier."""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
import tyro
from rich import box
from rich.table import Table

from fedsurf.cli.console import err, out, print_json
from fedsurf.cli.progress import opener
from fedsurf.common.text import counted, listed
from fedsurf.common.threads import limit_threads
from fedsurf.common.writing import (
    TEMPORARY_PATTERN,
    check_file,
    check_folder,
    filled_folder,
    lock_folder,
    write_json,
    write_rows,
)
from fedsurf.estimator.baselines import alone_accuracy, centralised_accuracy, heads_accuracy
from fedsurf.estimator.columns import spelled_as, words_for_none
from fedsurf.estimator.saved import FILE, SavedClassifier
from fedsurf.estimator.tables_io import Labelled, read_features, read_labelled
from fedsurf.evaluation import plots
from fedsurf.network import Calling, GraphKind
from fedsurf.unrolled.config import MAX_LEARNED_ROUNDS, MAX_ROUNDS, layer_count

if TYPE_CHECKING:
    from fedsurf.estimator.classifier import FederatedClassifier

FEW_ROWS = 20
"""With no more rows than this, as many classes as rows are nothing strange."""
JUDGED = ("test_accuracy", "agents_test_accuracy", "alone", "centralised")
"""What is judged on examples that were held out."""


def fit(
    data: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DATA")],
    folder: Path | None = None,
    label: str | None = None,
    agent: str | None = None,
    drop: tuple[str, ...] = (),
    agents: int | None = None,
    graph: GraphKind = "regular",
    degree: int = 3,
    probability: float | None = None,
    reporting: int | None = None,
    calling: Calling = "in-turn",
    rounds: int = 20,
    standardize: Literal["auto", "yes", "no"] = "auto",
    batch_size: int | None = None,
    test_share: float = 0.2,
    optimizer: str = "softmax-head",
    seed: int = 0,
    json: bool = False,
) -> None:
    """Train a classifier on your data, as agents would who do not share it.

    Shows accuracy by round, beside that of every agent alone and of all data in one place. Writes
    head.safetensors (for `fedsurf predict`), linear.safetensors (the state dict of an nn.Linear),
    trajectory.csv, config.json and figure.png into the folder.

    Args:
        data: A .csv file whose first line names the columns, a .parquet file, or an .npz file with
            the arrays x and y, or train_x, train_y, test_x and test_y, and perhaps agents.
        folder: Where the files go: new, or of an earlier `fedsurf fit`. By default it is called after
            the data and is in the current folder: wine-model for wine.csv.
        label: The column of labels; by default the one called label, y or target, or else the last.
        agent: The column (or array) that says whose each row is; by default the one called agent or
            agents. Without any, rows are dealt to agents at random.
        drop: Columns that are no features.
        agents: How many agents rows are dealt to; by default 10, fewer if the rows are few.
        graph: Who talks to whom; star is through a server.
        degree: Neighbours of each agent (regular, small-world).
        probability: Chance of a link (erdos-renyi; by default 0.1 or 2 ln(n)/n, whichever is larger),
            or of rewiring one (small-world; by default 0.1).
        reporting: How many agents the server calls in a round (star); all by default.
        calling: Whom the server calls (star): in turn, every agent once before any is called again, or
            at random in each round, by which some may never be heard. Other graphs have no use for it.
        rounds: Rounds of communication, 1 to 200. The optimizer learned with up to 40.
        standardize: Whether the agents standardise the features; with auto they leave features alone that
            seem to have one unit.
        batch_size: How many of its rows, drawn anew in every round, an agent works with; all by
            default, which is more accurate.
        test_share: The share of each class that is held out to judge by; 0 for none. An .npz file
            with test_x is divided already.
        optimizer: The pretrained optimizer: its name, or a .safetensors file.
        seed: Deals the rows, draws the graph, whom a server calls and mini-batches.
        json: Print the numbers as JSON instead of a table.
    """
    limit_threads(0)
    named = folder is not None
    folder = Path(f"{data.stem}-model") if folder is None else folder
    _check_folder(folder)
    with lock_folder(folder):  # from the start: who comes later need not do the work in vain
        labelled = read_labelled(data, label=label, agent=agent, drop=drop, test_share=test_share)
        if agents is not None and labelled.agents is not None:
            raise ValueError(
                f"agents: got {agents}, but {data} says whose each row is: drop that column, or leave that "
                "array out"
            )
        if agents is not None and not 1 <= agents <= len(labelled.y):
            raise ValueError(
                f"agents: got {agents}, but it must be between 1 and {len(labelled.y)}, the number of "
                "training examples"
            )
        if len(np.unique(labelled.y)) < 2:
            raise ValueError(
                f"{data}: label {labelled.label or 'y'!r}: got one class only ({labelled.y[0]}), "
                "but there must be at least two"
            )
        settings: dict[str, Any] = {
            "optimizer": optimizer,
            "n_agents": agents,
            "graph": graph,
            "degree": degree,
            "probability": probability,
            "reporting": reporting,
            "calling": calling,
            "rounds": rounds,
            "standardize": {"auto": "auto", "yes": True, "no": False}[standardize],
            "batch_size": batch_size,
            "random_state": seed,
        }
        if not named:
            _note_replaced(folder)
        _note_many_classes(labelled)
        _note_words_for_none(labelled)
        _note_left_out(labelled)
        _note_many_rounds(rounds)
        from fedsurf.estimator.classifier import FederatedClassifier

        model = FederatedClassifier(**settings, n_jobs=torch.get_num_threads())
        with opener(err)("training", layer_count(rounds)) as advance, _quiet():
            model.fit(labelled.x, labelled.y, labelled.agents, on_layer=advance)
        trajectory = rows_of(model, labelled)
        with _quiet():
            accuracies = judged(model, labelled)
        result = {
            "agents": len(model.agents_),
            "examples": len(labelled.y),
            "test_examples": len(labelled.test_y),
            "features": model.n_features_in_,
            "classes": model.classes_.tolist(),
            "rounds": model.n_rounds_,
            "floats": model.floats_,
            "accuracy": trajectory[-1]["accuracy"],
            **accuracies,
        }
        config = {
            "data": data.name,
            "label": labelled.label,
            "agent": labelled.agent,
            "drop": list(drop),
            "test_share": test_share,
            **settings,
        }
        head = SavedClassifier(
            model.coef_,
            model.intercept_,
            model.classes_.tolist(),
            None if labelled.features is None else list(labelled.features),
            labelled.label,
            config,
        )
        with filled_folder(folder) as temporary:
            write_rows(temporary / "trajectory.csv", trajectory)
            plots.save(plots.fit_figure(trajectory, result), temporary / "figure.png")
            write_json(temporary / "config.json", {**config, "result": result})
            head.write(temporary)
    if json:
        found = {"folder": str(folder), "label": labelled.label, "agent": labelled.agent}
        print_json({**found, **result, "trajectory": trajectory})
        return
    out.print(rounds_table(trajectory, result, labelled.label))
    if len(labelled.test_y):
        out.print(accuracy_table(result))
    following = f"Next: fedsurf predict {quote(str(folder))} {quote(str(data))}"
    out.print(following, highlight=False, soft_wrap=True)


def predict(
    model: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODEL")],
    data: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DATA")],
    file: Path | None = None,
    json: bool = False,
) -> None:
    """Label data with a classifier that `fedsurf fit` trained.

    Writes a table with the label of each row and the probability of each class; if the data have
    labels, says how many are right.

    Args:
        model: The folder of `fedsurf fit`, or its head.safetensors.
        data: A .csv or .parquet file with columns of the same names, in any order, or an .npz file
            with the array x.
        file: Write the table into this .csv file; by default it goes to standard output.
        json: Print JSON instead; unknown_labels counts labels that are none of the classifier's.
    """
    if file is not None:
        _check_table(file, data)
    head = SavedClassifier.read(model)
    x, y = read_features(data, head.features, head.weight.shape[1], head.label)
    chances = head.probabilities(x)
    labels = [head.classes[place] for place in chances.argmax(1)]
    accuracy: float | None = None
    strange: int | None = None
    hits: list[bool] = []
    if y is not None:
        right = spelled_as(head.classes, y.tolist())
        hits = [str(one) == two for one, two in zip(labels, right, strict=True) if two is not None]
        accuracy = float(np.mean(hits))
        classes = {None, *map(str, head.classes)}
        strange = sum(one not in classes for one in right)
    names = [f"probability_{name}" for name in head.classes]
    columns = ["label", *names]
    rows = (
        {"label": label, **{name: f"{one:.6g}" for name, one in zip(names, chance, strict=True)}}
        for label, chance in zip(labels, chances.tolist(), strict=True)
    )
    if file is not None:
        write_rows(file, rows, columns)
    if json:
        summary = {
            "examples": len(labels),
            "accuracy": accuracy,
            "unknown_labels": strange,
            "classes": head.classes,
        }
        table = {"labels": labels, "probabilities": chances.tolist()}
        print_json({**summary, **({"file": str(file)} if file else table)})
        return
    if file is None:
        write_rows(sys.stdout, rows, columns)
    said = ""
    if accuracy is not None:
        judged_by = "them" if len(hits) == len(labels) else f"the {len(hits)} with a known label"
        said = f", {100 * accuracy:.1f} % of {judged_by} right"
        if strange:
            has = "has" if strange == 1 else "have"
            said += f" ({strange} {has} a label that is none of the head's classes)"
    where = "" if file is None else f"; they are in {file}"
    err.print(f"{counted(len(labels), 'label')}{said}{where}", highlight=False, soft_wrap=True)


def rows_of(model: "FederatedClassifier", labelled: Labelled) -> list[dict[str, float | None]]:
    """Return what was seen after every layer, with the accuracy on what was held out."""
    seen = {name: values.tolist() for name, values in model.trajectory_.items()}
    tests: list[float | None] = [None] * len(seen["rounds"])
    if len(labelled.test_y):
        staged = model.staged_predict(labelled.test_x)
        tests = [float(np.mean(found == labelled.test_y)) for found in staged]
    columns = {**seen, "test_accuracy": tests}
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def judged(model: "FederatedClassifier", labelled: Labelled) -> dict[str, float | None]:
    """Return accuracies on what was held out: of the agents together, alone, and of one place."""
    x, y, test_x, test_y = labelled.x, labelled.y, labelled.test_x, labelled.test_y
    if not len(test_y):
        return dict.fromkeys(JUDGED)
    heads = np.concatenate([model.agent_coef_, model.agent_intercept_[:, :, None]], 2)
    works: tuple[Callable[[], float], ...] = (
        lambda: float(model.score(test_x, test_y)),
        lambda: heads_accuracy(torch.tensor(heads), model.classes_, test_x, test_y),
        lambda: alone_accuracy(x, y, model.owner_, test_x, test_y),
        lambda: centralised_accuracy(x, y, test_x, test_y),
    )
    found: dict[str, float | None] = {}
    with opener(err)("judging", len(works)) as advance:
        for name, work in zip(JUDGED, works, strict=True):
            found[name] = work()
            advance()
    return found


def rounds_table(
    trajectory: list[dict[str, Any]], result: Mapping[str, Any], label: str | None
) -> Table:
    """Show accuracy by round, and of what the classes are: the label may be a column nobody named."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=(
            f"{counted(result['agents'], 'agent')}, {counted(result['examples'], 'training example')}, "
            f"{counted(result['features'], 'feature')}, {len(result['classes'])} classes"
            f"{'' if label is None else f' of {label!r}'}"
        ),
        caption="the average of the agents' heads, on all training and on all test examples",
    )
    for heading in ("rounds", "floats per agent", "loss", "training %", "test %", "disagreement"):
        table.add_column(heading, justify="right")
    for row in trajectory:
        table.add_row(
            str(row["rounds"]),
            f"{row['floats'] / result['agents']:,.0f}",
            f"{row['loss']:.3f}",
            _percent(row["accuracy"]),
            _percent(row["test_accuracy"]),
            f"{row['disagreement']:.3g}",
        )
    return table


def accuracy_table(result: Mapping[str, Any]) -> Table:
    """Show what federation bought, on what was held out."""
    table = Table(
        box=box.SIMPLE_HEAD, title=f"On {counted(result['test_examples'], 'test example')}"
    )
    table.add_column("trained by")
    table.add_column("test %", justify="right")
    for name, key in (
        ("every agent alone, average", "alone"),
        ("the agents together, average of each one's head", "agents_test_accuracy"),
        ("the agents together, consensus", "test_accuracy"),
        ("all data in one place (scikit-learn)", "centralised"),
    ):
        table.add_row(name, _percent(result[key]))
    return table


def _note_replaced(folder: Path) -> None:
    """Say so if a folder that nobody named holds a classifier: it may be that of other data."""
    if (folder / FILE).exists():
        err.print(
            f"{folder}: replaces the classifier of an earlier fit; --folder takes another place",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def _note_many_classes(labelled: Labelled) -> None:
    """Say so if the label looks like a number to be estimated."""
    classes, rows = len(np.unique(labelled.y)), len(labelled.y)
    if rows > FEW_ROWS and classes > rows / 2:
        err.print(
            f"label {labelled.label or 'y'!r}: {classes} classes in {rows} training examples; is it a "
            "number to be estimated, and not a class?",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def _note_words_for_none(labelled: Labelled) -> None:
    """Say so if a class or an agent is called as programs call what has no value."""
    for what, values in (("a class", labelled.y), ("an agent", labelled.agents)):
        words = [] if values is None else words_for_none(values)
        if words:
            err.print(
                f"{listed(words)} is taken for the name of {what}; "
                "where it says that there is none, leave those rows out",
                highlight=False,
                soft_wrap=True,
            )


def _note_left_out(labelled: Labelled) -> None:
    """Say so if agents are missing since the test part took all their rows."""
    if labelled.left_out and labelled.agents is not None:
        every = labelled.left_out + len(np.unique(labelled.agents))
        take, their = ("takes", "its") if labelled.left_out == 1 else ("take", "their")
        err.print(
            f"{labelled.left_out} of {every} agents {take} no part, as all {their} rows are held out as "
            "test examples; --test-share 0 holds none out",
            highlight=False,
            soft_wrap=True,
        )


def _note_many_rounds(rounds: int) -> None:
    """Say so if there are more rounds than the optimizer learned with."""
    if MAX_LEARNED_ROUNDS < rounds <= MAX_ROUNDS:
        err.print(
            f"rounds: {rounds} are more than the {MAX_LEARNED_ROUNDS} that the optimizer was "
            "meta-trained with; the result may be worse than with fewer",
            highlight=False,
            soft_wrap=True,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back warnings that name lines of code, of many classes and of many rounds: notes say the same."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "rounds: got", UserWarning)
        warnings.filterwarnings("ignore", "The number of unique classes is greater", UserWarning)
        yield


def _check_folder(folder: Path) -> None:
    check_folder(folder)
    files = [file for file in folder.glob("*") if not file.match(TEMPORARY_PATTERN)]
    if files and not (folder / FILE).exists():
        raise ValueError(
            f"folder: got {str(folder)!r}, which holds other files, but it must be new or of an "
            "earlier `fedsurf fit`"
        )


def _check_table(file: Path, data: Path) -> None:
    if file.suffix.lower() != ".csv":
        raise ValueError(f"file: got {str(file)!r}, but it must be a .csv file by its name")
    if file.resolve() == data.resolve():
        raise ValueError(f"file: got {str(file)!r}, but that is the data, which would be lost")
    check_file(file)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"
