"""TensorBoard curves, where TensorBoard is installed, and a clear word where it is not."""

import sys
from pathlib import Path

import pytest

from fedsurf.cli.tracking import TensorBoard
from fedsurf.surf.training import StepRecord, ValidationRecord


def test_a_missing_tensorboard_is_named_with_the_command_that_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'fedsurf\[tracking\]'"):
        TensorBoard(tmp_path / "curves")
    assert not (tmp_path / "curves").exists()


def test_curves_are_written_into_the_folder(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    board = TensorBoard(tmp_path / "curves")
    assert not (tmp_path / "curves").exists(), "the folder of a run must stay new until it starts"
    board.on_start(0, 2)
    board.on_step(StepRecord(1, 0.5, 0.1, 0.0))
    board.on_validation(ValidationRecord(1, 0.5, 0.6, 0.6, [0.1], [0.1], [0.0]), "some rule")
    (events,) = (tmp_path / "curves").iterdir()
    assert b"multiplier/layer 1" in events.read_bytes()
