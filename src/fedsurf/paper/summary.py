"""All that a report tells."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsurf.paper.claims import Claim
from fedsurf.paper.folder import Made
from fedsurf.paper.optimizers import Trained
from fedsurf.paper.sizes import Size


@dataclass(frozen=True)
class Summary:
    """All that a report tells.

    Attributes
    ----------
    about : dict
        The size and the data, as the folder has them.
    size : Size
        The size.
    made : list of Made
        The figures.
    trained : list of Trained
        The optimizers, finished or not.
    stages : dict
        The finished stages, with the seconds that they took.
    curves : Path or None
        The picture of the learning curves, as SVG.
    audits : dict
        The audit of each optimizer.
    """

    about: dict[str, Any]
    size: Size
    made: list[Made]
    trained: list[Trained]
    stages: dict[str, dict[str, Any]]
    curves: Path | None
    audits: dict[str, dict[str, Any]]

    @property
    def claims(self) -> list[Claim]:
        """All claims."""
        return [claim for one in self.made for claim in one.claims]

    @property
    def made_with(self) -> list[dict[str, str]]:
        """The versions that made the figures, each once."""
        found: list[dict[str, str]] = []
        for one in self.made:
            versions = one.config["made_with"]
            if versions not in found:
                found.append(versions)
        return found

    @property
    def data(self) -> list[str]:
        """The data in words."""
        words = []
        for name, one in self.about["data"].items():
            components = one["components"]
            shown = "" if components is None else f", {components} principal components"
            checksum = f" (SHA-256 {one['checksum']}…)" if "checksum" in one else ""
            words.append(f"{name}: {Path(one['source']).name}{checksum}, {one['backbone']}{shown}")
        return words
