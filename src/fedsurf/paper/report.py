"""The report of a reproduction: one HTML file that needs nothing else, and the same in Markdown.

The texts are in `templates/`; this module reads the folder and formats its numbers.
"""

import shutil
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from fedsurf.common.configuration import differences, from_dict, to_dict
from fedsurf.common.files import read_json, read_json_lines, reading
from fedsurf.common.text import counted
from fedsurf.common.writing import replacing, write_json
from fedsurf.evaluation.config import ExperimentConfig
from fedsurf.evaluation.plots import save
from fedsurf.evaluation.presets import preset
from fedsurf.paper.artefacts import describe, finished_in, read_about, slug, source_name
from fedsurf.paper.claims import Claim, count_text
from fedsurf.paper.figures import FIGURES
from fedsurf.paper.figures.drawing import draw_learning_curves
from fedsurf.paper.figures.figure import UNTUNED_KINDS
from fedsurf.paper.sizes import SIZES, parameters_of
from fedsurf.surf.loop import RunFolder

MAX_TIMES = 12
"""Artefacts whose time is shown, the longest."""
FILE_KIND = "JSON of a reproduction"
"""Name of the files in errors."""
UNSPECIFIED_FIELDS = ("steps", "validate_every", "validation_tasks")
"""Fields of meta-training that the paper does not give."""

Rows = list[list[str]]


@dataclass(frozen=True)
class TrainingState:
    """The state of an optimizer's meta-training, finished or not."""

    config: ExperimentConfig
    log: list[dict[str, Any]]
    """The validations so far."""


def write_report(folder: Path) -> dict[str, list[Claim]]:
    """Write report.html, and report/ with report.md, its pictures and all claims; return the claims.

    The report is about the figures and optimizers that are in the folder, finished or not.
    """
    figures = [figure for name in FIGURES if (figure := read_figure(folder / name)) is not None]
    trained = meta_trainings(folder)
    if not figures and not trained:
        raise ValueError(f"{folder}: got no figure and no optimizer to report on")
    place = folder / "report"
    logs = {describe(state.config): state.log for state in trained if state.log}
    if logs:
        drawing = draw_learning_curves(logs)
        for ending in ("svg", "png"):
            save(drawing, place / f"meta-training.{ending}")
    for figure in figures:
        with replacing(place / f"{figure['name']}.png") as temporary:
            shutil.copyfile(folder / figure["name"] / "figure.png", temporary)
    context = context_of(folder, figures, trained)
    environment = Environment(
        loader=PackageLoader("fedsurf.paper"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"cell": _cell, "picture": _picture}
    for path in (folder / "report.html", place / "report.md"):
        with replacing(path) as temporary:
            text = environment.get_template(path.name).render(context)
            temporary.write_text(text, encoding="utf-8")
    claims = {figure["name"]: figure["claims"] for figure in figures}
    write_json(place / "claims.json", to_dict(claims))
    return claims


def meta_trainings(folder: Path) -> list[TrainingState]:
    """Return the state of all optimizers in a folder, by name."""
    found = []
    for run in sorted(path.parent for path in (folder / "runs").glob("*/config.json")):
        config = RunFolder(run).read_config(ExperimentConfig)
        log = run / "log.jsonl"
        found.append(TrainingState(config, read_json_lines(log) if log.is_file() else []))
    return sorted(found, key=lambda state: describe(state.config))


def context_of(
    folder: Path, figures: Sequence[Mapping[str, Any]], trained: Sequence[TrainingState]
) -> dict[str, Any]:
    """Return the values of the templates: texts and formatted numbers, not yet escaped."""
    about = read_about(folder)
    with reading(folder / "reproduction.json", FILE_KIND):
        size = SIZES[about["preset"]]
        data = [_data_text(name, one) for name, one in about["data"].items()]
    times = finished_in(folder)
    curves = folder / "report" / "meta-training.svg"
    minutes = round(sum(seconds for _, seconds in times) / 60)
    return {
        "size": size,
        "count": count_text([claim for figure in figures for claim in figure["claims"]]),
        "deviation": f"{size.regular.optimizer.initial_deviation:g}",
        "figures": figures,
        "curves": curves if curves.is_file() else None,
        "trained": [_trained_row(state) for state in trained],
        "deviations": _deviation_rows(trained),
        "audits": {name: one for figure in figures for name, one in figure["audits"].items()},
        "data": data,
        "tuning_tasks": counted(size.tuning_tasks, "validation task"),
        "versions": list(dict.fromkeys(figure["versions"] for figure in figures)),
        "work": f"{counted(minutes, 'minute')} of work for {counted(len(times), 'artefact')}",
        "times": [[title, f"{seconds:,.0f}"] for title, seconds in times[:MAX_TIMES]],
    }


def read_figure(folder: Path) -> dict[str, Any] | None:
    """Read the files of a figure as values of the templates; None if it is not finished."""
    if not (folder / "claims.json").is_file():
        return None
    figure: dict[str, Any] = {"name": folder.name, "svg": folder / "figure.svg"}
    with _content_of(folder / "claims.json") as claims:
        figure["claims"] = [Claim.from_dict(claim) for claim in claims]
    with _content_of(folder / "data.json") as data:
        figure |= {"caption": data["caption"], "methods": _method_rows(data["curves"])}
    with _content_of(folder / "config.json") as config:
        optimizers = {
            label: from_dict(ExperimentConfig, optimizer["config"])
            for label, optimizer in config["optimizers"].items()
        }
        sources = dict.fromkeys(_source_text(to_dict(one.data)) for one in optimizers.values())
        figure |= {
            "title": config["title"],
            "about": f"{config['about']} Data: {'; '.join(sources)}.",
            "wide": config["wide"],
            "versions": ", ".join(f"{k} {v}" for k, v in config["made_with"].items()),
        }
    figure |= {"verdicts": {}, "audits": {}}
    for label, optimizer in optimizers.items():
        with _content_of(folder / "audit" / f"{slug(label)}.json") as audit:
            figure["verdicts"][label] = audit["sentence"]
            figure["audits"][describe(optimizer)] = {**audit, "rows": _audit_rows(audit)}
    return figure


def deviations(config: ExperimentConfig) -> list[str]:
    """Return the fields in which an optimizer's meta-training differs from the paper's."""
    kind = config.network.graph.kind
    paper = preset({"erdos-renyi": "paper-random", "star": "paper-star"}.get(kind, "paper-regular"))
    ours, theirs = to_dict(config.surf), to_dict(paper.surf)
    ours |= {name: theirs[name] for name in UNSPECIFIED_FIELDS}
    ours["descent"]["constrained"] = theirs["descent"]["constrained"]
    found = differences(to_dict(paper.optimizer), to_dict(config.optimizer))
    found += differences(theirs, ours)
    return [one.replace(" there,", " in the paper,") for one in found]


def percent(value: float | None, error: float | None = None, sign: str = "") -> str:
    """Return a share in percent, with its standard error."""
    if value is None:
        return "–"
    shown = f"{100 * value:{sign}.1f}"
    return shown if error is None else f"{shown} ± {100 * error:.1f}"


@contextmanager
def _content_of(path: Path) -> Iterator[Any]:
    """Read a JSON file; errors of the block that uses its content become a `FileError` that names it."""
    content = read_json(path)
    with reading(path, FILE_KIND):
        yield content


def _trained_row(state: TrainingState) -> list[str]:
    chosen = [record for record in state.log if record.get("best_by")]
    step = state.log[-1]["step"] if state.log else 0
    return [
        describe(state.config),
        f"{parameters_of(state.config):,}",
        f"{step:,} of {state.config.surf.steps:,}",
        percent(chosen[-1]["pooled_accuracy"]) if chosen else "–",
        f"{chosen[-1]['step']:,}" if chosen else "–",
    ]


def _deviation_rows(trained: Sequence[TrainingState]) -> Rows:
    """Return the deviations from the paper, with the names of all optimizers that have them."""
    names: dict[str, list[str]] = {}
    for state in trained:
        text = "; ".join(deviations(state.config)) or "nothing"
        names.setdefault(text, []).append(describe(state.config))
    return [["; ".join(found), text] for text, found in names.items()]


def _audit_rows(audit: Mapping[str, Any]) -> Rows:
    return [
        [
            row["title"],
            percent(row["accuracy"], row["accuracy_error"]),
            percent(row["change"], row["change_error"], "+"),
            percent(row["chance"]),
            percent(row["centralised"]),
        ]
        for row in audit["rows"]
        if row["accuracy"] is not None
    ]


def _method_rows(curves: Sequence[Mapping[str, Any]]) -> Rows:
    """Return the classical methods of a figure with their settings and final accuracy."""

    def text(value: object) -> str:
        return "all" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    rows = []
    for curve in curves:
        if curve["kind"] in ("tuned", *UNTUNED_KINDS):
            name = ", ".join(filter(None, [curve["label"], curve["panel"]]))
            settings = [f"{k.replace('_', ' ')} {text(v)}" for k, v in curve["settings"].items()]
            end = curve["points"][-1]
            accuracy = percent(end["pooled_accuracy"], end["pooled_accuracy_error"])
            rows.append([name, curve["kind"], ", ".join(settings), curve["note"], accuracy])
    return rows


def _data_text(name: str, data: Mapping[str, Any]) -> str:
    checksum = f" (SHA-256 {data['checksum']}…)" if "checksum" in data else ""
    role = {"cifar10": "CIFAR-10", "mnist": "MNIST"}[name]
    return f"For the paper's {role}: {_source_text(data)}{checksum}."


def _source_text(data: Mapping[str, Any]) -> str:
    components = data["components"]
    shown = "" if components is None else f", {components} principal components"
    backbone = "" if data["backbone"] in ("none", "pca") else f", {data['backbone']}"
    return f"{source_name(data['source'])}{backbone}{shown}"


def _picture(svg: Path) -> str:
    """Return a picture as a data URI, so that its names differ from those in other pictures."""
    return f"data:image/svg+xml;base64,{b64encode(svg.read_bytes()).decode()}"


def _cell(text: str) -> str:
    """Return text for a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("\n", " ")
