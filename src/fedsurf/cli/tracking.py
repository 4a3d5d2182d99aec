"""Optional TensorBoard curves of meta-training (`pip install 'fedsurf[tracking]'`)."""

from pathlib import Path
from typing import Any

from fedsurf.surf.training import StepRecord, ValidationRecord


class TensorBoard:
    """An observer that writes TensorBoard event files into a folder."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ModuleNotFoundError(
                "tensorboard: not installed; get it with: pip install 'fedsurf[tracking]'"
            ) from error
        self._folder = folder
        self._kind: Any = SummaryWriter
        self._writer: Any = None

    def on_start(self, done: int, total: int) -> None:
        """Open the event file, now that the run has its folder."""
        del done, total
        self._writer = self._kind(str(self._folder))

    def on_step(self, record: StepRecord) -> None:
        """Draw the training loss, the worst slack and the largest multiplier."""
        self._add("train/loss", record.loss, record.step)
        self._add("train/worst slack", record.worst_slack, record.step)
        self._add("train/largest multiplier", record.largest_multiplier, record.step)

    def on_validation(self, record: ValidationRecord, best_by: str | None) -> None:
        """Draw the validation's numbers, the slack and multiplier of every layer."""
        self._add("validation/loss", record.loss, record.step)
        self._add("validation/accuracy", record.accuracy, record.step)
        self._add("validation/pooled accuracy", record.pooled_accuracy, record.step)
        self._add("validation/is best", float(best_by is not None), record.step)
        for layer, (slack, multiplier) in enumerate(
            zip(record.slack, record.multipliers, strict=True), 1
        ):
            self._add(f"slack/layer {layer}", slack, record.step)
            self._add(f"multiplier/layer {layer}", multiplier, record.step)
        self._writer.flush()

    def _add(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)
