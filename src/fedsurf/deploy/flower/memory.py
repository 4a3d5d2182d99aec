"""An agent's disk: what it received and did not use yet, and its state after the last complete step.

Flower starts the agent's program anew for every message, and a node may be restarted at any time. A file
is complete or not there; `progress.json` names those that belong together.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import torch

from fedsurf.algorithms import State, load_state, save_state
from fedsurf.common.checks import check_whole
from fedsurf.common.files import FileError, read_all_tensors, read_json, read_metadata
from fedsurf.common.writing import write_json, write_tensors
from fedsurf.network.engines.flower.agent import AgentSide
from fedsurf.network.engines.flower.parcels import Item

LOG, PROGRESS = "received.safetensors", "progress.json"


class Memory:
    """The files of one agent in one run.

    Parameters
    ----------
    folder : Path
        Theirs, which exists.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from fedsurf.network.engines.flower.parcels import packed_text
    >>> with TemporaryDirectory() as folder:
    ...     Memory(Path(folder)).keep({"answer-0-0-0": packed_text("yes")})
    ...     Memory(Path(folder)).received
    {'answer-0-0-0': Item(kind='text', shape=(1, 3), raw=b'yes')}
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.received = _read_items(folder / LOG)
        self.stage, self.position, self.finished = 0, dict[str, int](), False
        if (folder / PROGRESS).exists():
            self._read_progress(read_json(folder / PROGRESS))
        self.given = _read_items(self._file("given"))

    def keep(self, items: Mapping[str, Item]) -> None:
        """Add items that arrived, before anything is done with them."""
        if items and not self.finished:
            self.received |= items
            _write_items(self.folder / LOG, self.received)

    def save(self, stage: int, state: State, network: AgentSide, used: Collection[str]) -> None:
        """Save the state after a stage, and forget the items that were used for it."""
        older = self._file("state"), self._file("given")
        self.stage, self.position = stage, network.position()
        save_state(self._file("state"), state, network)
        self.given = {place: network.given[place] for place in network.given_since}
        network.given_since.clear()
        _write_items(self._file("given"), self.given)
        self._write_progress()
        for file in older:
            file.unlink(missing_ok=True)
        if used:
            self.received = {p: item for p, item in self.received.items() if p not in used}
            _write_items(self.folder / LOG, self.received)

    def load(self, like: State, network: AgentSide) -> State:
        """Return the saved state, or `like`, which is that before the first step, if there is none."""
        if not self.stage:
            return like
        state = load_state(self._file("state"), like, network)
        network.go_to(self.position)
        return state

    def finish(self) -> None:
        """Forget all but that the run is over."""
        self.finished, self.received = True, {}
        self._write_progress()
        for file in (self.folder / LOG, self._file("state"), self._file("given")):
            file.unlink(missing_ok=True)

    def remove_older(self) -> None:
        """Remove the folders of earlier runs that finished."""
        for folder in self.folder.parent.glob("run-*"):
            another = folder != self.folder and (folder / PROGRESS).exists()
            if another and Memory(folder).finished:
                shutil.rmtree(folder)

    def _file(self, kind: str) -> Path:
        return self.folder / f"{kind}-{self.stage}.safetensors"

    def _write_progress(self) -> None:
        content = {"stage": self.stage, "position": self.position, "finished": self.finished}
        write_json(self.folder / PROGRESS, content)

    def _read_progress(self, content: object) -> None:
        try:
            found = dict(content)  # type: ignore[call-overload]
            self.stage, self.position = found["stage"], dict(found["position"])
            self.finished = bool(found["finished"])
            for number in (self.stage, *self.position.values()):
                check_whole(number, "progress")
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(f"{self.folder / PROGRESS}: damaged ({error})") from error


def _write_items(path: Path, items: Mapping[str, Item]) -> None:
    raw = {
        place: torch.from_numpy(np.frombuffer(item.raw, np.uint8).copy())
        for place, item in items.items()
    }
    write_tensors(path, raw, {place: [item.kind, *item.shape] for place, item in items.items()})


def _read_items(path: Path) -> dict[str, Item]:
    if not path.exists():
        return {}
    described, raw = read_metadata(path), read_all_tensors(path)
    return {
        place: Item(kind, tuple(shape), raw[place].numpy().tobytes())
        for place, (kind, *shape) in described.items()
    }
