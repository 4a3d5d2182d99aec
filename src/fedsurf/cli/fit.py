"""`fedsurf fit` and `fedsurf predict`: a classifier from a file, and labels from a classifier."""

import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from fedsurf.cli.console import err, new_table, note, out, print_json, say
from fedsurf.common.text import counted, percent, printable
from fedsurf.common.writing import check_file, lock_folder, write_rows
from fedsurf.network.config import Calling, GraphKind, Wire

if TYPE_CHECKING:
    from fedsurf.estimator.fit import FitResult, Predictions


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
    wire: Wire = "float32",
    rounds: int = 20,
    standardize: Literal["auto", "yes", "no"] = "auto",
    batch_size: int | None = None,
    test_share: float = 0.2,
    optimizer: str = "softmax-head",
    seed: int = 0,
    device: str = "cpu",
    json: bool = False,
) -> None:
    """Train a classifier on a table, as agents would who do not share their data.

    Shows accuracy by round, compared with that of every agent alone and of all data in one place. Writes
    head.safetensors (for `fedsurf predict`), linear.safetensors (the state dict of an nn.Linear),
    trajectory.csv, config.json and figure.png into the folder.

    Args:
        data: A .csv file whose first line names the columns, a .parquet file, or an .npz file with
            the arrays x and y, or train_x, train_y, test_x and test_y, and perhaps agents.
        folder: Folder of the results: new, or of an earlier `fedsurf fit`; by default wine-model, in the
            current folder, for wine.csv.
        label: Column of labels; by default the one called label, y or target, or else the last.
        agent: Column (or array) of the agent of each row; by default the one called agent or agents.
            Without it, rows are dealt to agents at random.
        drop: Columns that are not features.
        agents: Number of agents that rows are dealt to; by default 10, fewer if there are few rows.
        graph: Which agents communicate; star is through a server.
        degree: Neighbours of each agent (regular, small-world).
        probability: Probability of a link (erdos-renyi; by default 0.1 or 2 ln(n)/n, whichever is
            larger), or of rewiring one (small-world; by default 0.1).
        reporting: Number of agents that the server calls in a round (star); by default all.
        calling: How the server calls agents (star): in turn, every agent once before any is called
            again, or at random in each round.
        wire: Numbers of messages as they travel; float16 and int8 are rounded, and take fewer bytes.
        rounds: Rounds of communication, 1 to 200. The optimizer learned with up to 40.
        standardize: Standardise the features; auto leaves features alone that seem to share one unit.
        batch_size: Rows that an agent draws in every round; by default all, which is more accurate.
        test_share: Share of each class that is held out for testing; 0 for none. An .npz file with
            test_x is divided already.
        optimizer: Name of a pretrained optimizer, or a .safetensors file.
        seed: Seed of dealing rows, the graph, the server's calls and mini-batches.
        device: Where to compute: auto, cpu, cuda, cuda:1 or mps.
        json: Print the numbers as JSON instead of a table.
    """
    from fedsurf.common.threads import limit_threads

    limit_threads(0)
    import torch

    from fedsurf.cli.progress import opener
    from fedsurf.estimator.fit import check_model_folder, fit_table
    from fedsurf.estimator.saved import FILE

    place = Path(f"{data.stem}-model") if folder is None else folder
    check_model_folder(place)
    if folder is None and (place / FILE).exists():
        note(f"{place}: replaces the classifier of an earlier fit; --folder takes another place")
    with lock_folder(place):  # from the start, so that a second process fails before it works
        result = fit_table(
            data,
            label=label,
            agent=agent,
            drop=drop,
            test_share=test_share,
            progress=opener(err),
            n_jobs=torch.get_num_threads(),
            optimizer=optimizer,
            n_agents=agents,
            graph=graph,
            degree=degree,
            probability=probability,
            reporting=reporting,
            calling=calling,
            wire=wire,
            rounds=rounds,
            standardize={"auto": "auto", "yes": True, "no": False}[standardize],
            batch_size=batch_size,
            random_state=seed,
            device=device,
        )
        result.write(place)
    for line in result.notes:
        note(line)
    if json:
        print_json({"folder": str(place), **result.to_dict()})
        return
    _show(result)
    say(f"Next: fedsurf predict {quote(str(place))} {quote(str(data))}")


def predict(
    model: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODEL")],
    data: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DATA")],
    file: Path | None = None,
    json: bool = False,
) -> None:
    """Label data with a classifier that `fedsurf fit` trained.

    Writes a table with the label of each row and the probability of each class; if the data have
    labels, shows how many are right.

    Args:
        model: The folder of `fedsurf fit`, or its head.safetensors.
        data: A .csv or .parquet file with columns of the same names, in any order, or an .npz file
            with the array x.
        file: Write the table into this .csv file; by default it goes to standard output.
        json: Print JSON instead; unknown_labels counts labels that are not among the classes.
    """
    from fedsurf.estimator.fit import predict_table

    if file is not None:
        if file.suffix.lower() != ".csv":
            raise ValueError(f"file: got {str(file)!r}, but it must be a .csv file by its name")
        if file.resolve() == data.resolve():
            raise ValueError(f"file: got {str(file)!r}, but that is the data, which would be lost")
        check_file(file)
    found = predict_table(model, data)
    if file is not None:
        found.write(file)
    if json:
        print_json({**found.to_dict(table=file is None), **({"file": str(file)} if file else {})})
        return
    if file is None:
        rows = found.rows()
        write_rows(
            sys.stdout, ({printable(k): printable(v) for k, v in row.items()} for row in rows)
        )
    note(_summary(found) + ("" if file is None else f"; they are in {file}"))


def _summary(found: "Predictions") -> str:
    labels = counted(len(found.labels), "label")
    if found.accuracy is None:
        return labels
    every = found.known == len(found.labels)
    among = "them" if every else f"the {found.known} with a known label"
    summary = f"{labels}, {percent(found.accuracy)} % of {among} right"
    if found.unknown_labels:
        has = "has" if found.unknown_labels == 1 else "have"
        summary += f" ({found.unknown_labels} {has} a label that is not among the classes)"
    return summary


def _show(result: "FitResult") -> None:
    """Print accuracy by round, and on test examples: alone, together, and in one place."""
    numbers, label = result.numbers, result.saved.label
    columns = (
        *("rounds", "floats per agent", "kB per agent"),
        *("loss", "training %", "test %", "disagreement"),
    )
    table = new_table(
        f"{counted(numbers['agents'], 'agent')}, {counted(numbers['examples'], 'training example')}, "
        f"{counted(numbers['features'], 'feature')}, {len(numbers['classes'])} classes"
        f"{'' if label is None else f' of {printable(label)!r}'}",
        columns,
        text=(),
        wrap=columns,
        caption="the average of the agents' heads, on all training and on all test examples",
    )
    for row in result.trajectory:
        floats = f"{row['floats'] / numbers['agents']:,.0f}"
        size = f"{row['bytes'] / numbers['agents'] / 1000:,.1f}"
        shares = percent(row["accuracy"]), percent(row["test_accuracy"])
        loss, disagreement = f"{row['loss']:.3f}", f"{row['disagreement']:.3g}"
        table.add_row(str(row["rounds"]), floats, size, loss, *shares, disagreement)
    out.print(table)
    if not numbers["test_examples"]:
        return
    title = f"On {counted(numbers['test_examples'], 'test example')}"
    table = new_table(title, ("trained by", "test %"), text=("trained by",), wrap=("trained by",))
    for name, key in (
        ("every agent alone, average", "alone"),
        ("the agents together, average of each one's head", "agents_test_accuracy"),
        ("the agents together, consensus", "test_accuracy"),
        ("all data in one place (scikit-learn)", "centralised"),
    ):
        table.add_row(name, percent(numbers[key]))
    out.print(table)
