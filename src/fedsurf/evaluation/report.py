"""A study's files: results as JSON and CSV, every recorded round as CSV, the figure."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedsurf.common.configuration import to_dict
from fedsurf.common.statistics import finite, standard_error
from fedsurf.common.writing import write_json, write_rows
from fedsurf.evaluation.plots import save, study_figure
from fedsurf.evaluation.run import Trajectories
from fedsurf.evaluation.scores import Score
from fedsurf.evaluation.study import Entrant, Study


def write_report(
    folder: Path,
    study: Study,
    entrants: Sequence[Entrant],
    results: Sequence[Trajectories],
    scores: Sequence[Score],
    ceiling: Tensor,
    *,
    tuned: dict[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Write everything that a study found into a folder; return what results.json holds.

    `tuned` says where settings come from, `notes` what keeps the comparison from being fair.
    """
    report = {
        "study": to_dict(study.config),
        "tuned": tuned,
        "notes": list(notes),
        "centralised": {
            "mean": float(ceiling.mean()),
            "error": finite(standard_error(ceiling)),
        },
        "entrants": [
            {
                "method": entrant.method,
                "settings": dict(entrant.settings),
                "run": None if entrant.run is None else str(entrant.run),
                "pretrained": None if entrant.pretrained is None else str(entrant.pretrained),
                "batch_size": entrant.batch_size,
                **score.to_dict(),
            }
            for entrant, score in zip(entrants, scores, strict=True)
        ],
    }
    write_json(folder / "results.json", report)
    counts = sorted({count for score in scores for count in score.accuracy})
    write_rows(folder / "results.csv", [_row(score, counts) for score in scores])
    write_rows(
        folder / "trajectories.csv",
        [
            _moment(runs.name, row, study.config.task.agents)
            for runs in results
            for row in runs.summary()
        ],
    )
    figure = study_figure(results, ceiling, study.config.task.agents)
    for ending in ("png", "svg"):
        save(figure, folder / f"figure.{ending}")
    return report


def _row(score: Score, counts: Sequence[int]) -> dict[str, Any]:
    """Return an entrant's row of results.csv; accuracy is None at counts that its run did not reach."""
    row: dict[str, Any] = {"method": score.label}
    for rounds in counts:
        mean, error = score.accuracy.get(rounds, (None, None))
        row |= {f"accuracy_{rounds}": mean, f"accuracy_{rounds}_error": error}
    row |= {"last_round": score.end[0], "accuracy_end": score.end[1]}
    row |= {"accuracy_end_error": score.end[2], "spread": score.spread}
    row |= {"gap": score.gap[0], "gap_error": score.gap[1]}
    row |= {"floats_per_agent": score.floats}
    for reached in score.reached:
        share = round(100 * reached.share)
        row |= {f"rounds_to_{share}": reached.rounds, f"floats_to_{share}": reached.floats}
    return row | {"diverged": len(score.diverged)}


def _moment(method: str, row: dict[str, float | None], agents: int) -> dict[str, Any]:
    """Return a recorded round as trajectories.csv has it, with floats counted as in results.csv."""
    floats = row["floats"]
    per_agent = {"floats_per_agent": None if floats is None else floats / agents}
    rest = {name: value for name, value in row.items() if name not in ("step", "rounds", "floats")}
    return {"method": method, "rounds": row["rounds"], **per_agent, **rest}
