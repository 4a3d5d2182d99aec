"""What an audit found: an accuracy for each intervention, and a verdict."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from fedsurf.analysis.verdict import Verdict
from fedsurf.common.configuration import to_dict
from fedsurf.common.statistics import finite, standard_error
from fedsurf.evaluation.config import StudyConfig

Expected = Literal["", "chance", "same", "near"]


@dataclass(frozen=True)
class Row:
    """An intervention, and what it did.

    Attributes
    ----------
    name, title : str
        What programs and tables call it.
    expected : {"", "chance", "same", "near"}
        What becomes of one that learned to learn. It falls to chance, is the same, or is near to
        centralised training, in so far as it was.
    accuracy : Tensor or None
        Pooled accuracy on each task, `[tasks]`; None where the intervention was not possible.
    chance, centralised : Tensor or None
        Accuracy on the same tasks without features, and with everything in one place.
    change : Tensor or None
        Accuracy minus the untouched one, task by task; None where the tasks are others.
    note : str
        What else there is to say, such as why it was not possible.
    """

    name: str
    title: str
    expected: Expected = ""
    accuracy: Tensor | None = None
    chance: Tensor | None = None
    centralised: Tensor | None = None
    change: Tensor | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return means over tasks and their standard errors, for JSON and CSV."""
        content: dict[str, Any] = {"name": self.name, "title": self.title}
        content["expected"] = self.expected
        for name in ("accuracy", "change", "chance", "centralised"):
            values = getattr(self, name)
            content[name] = None if values is None else float(values.mean())
            content[f"{name}_error"] = None if values is None else finite(standard_error(values))
        return {**content, "note": self.note}


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Attributes
    ----------
    subject : str
        The optimizer.
    study : StudyConfig
        On what it was audited.
    rows : list of Row
        The untouched optimizer first, then one for each intervention.
    verdict : Verdict
        What it has learned.
    """

    subject: str
    study: StudyConfig
    rows: list[Row]
    verdict: Verdict

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        return self.verdict.sentence(self.subject)

    def row(self, name: str) -> Row:
        """Return the row of that name."""
        for row in self.rows:
            if row.name == name:
                return row
        raise ValueError(
            f"name: got {name!r}, but it must be one of {', '.join(row.name for row in self.rows)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, for JSON."""
        return {
            "subject": self.subject,
            "tasks": self.study.tasks,
            "verdict": self.verdict.kind,
            "sentence": self.sentence,
            "skill": self.verdict.skill,
            "kept": dict(self.verdict.kept),
            "rows": [row.to_dict() for row in self.rows],
            "study": to_dict(self.study),
        }
