"""Configuration of unrolled optimizers: plain data that command lines read without torch."""

from dataclasses import dataclass
from typing import Literal

from fedsurf.common.checks import check_count, check_whole

Activation = Literal["relu", "tanh", "leaky-relu", "identity"]
Scaling = Literal["whole", "features", "auto"]

ROUNDS_PER_LAYER = 2
"""Communication rounds of a transferable layer; the last layer has 1 if a run's rounds are odd."""
CONSTRAINT_COUNT = 10
"""Descending constraints of a transferable optimizer: one for each tenth of its depth."""
DEFAULT_ROUNDS = 20
"""Rounds of a run of a transferable optimizer."""
MIN_ROUNDS, MAX_ROUNDS = 1, 200
"""Limits of the rounds of a run."""
MAX_LEARNED_ROUNDS = 40
"""Rounds of the longest runs in meta-training. Longer runs may end worse than shorter ones."""


@dataclass(frozen=True)
class UDGDConfig:
    """Shape of a U-DGD optimizer; the defaults are the paper's values."""

    #: Number of unrolled layers, the paper's L.
    layers: int = 10
    #: Communication rounds of a layer, the paper's K.
    filter_order: int = 2
    #: Examples that each agent feeds to a layer.
    batch_size: int = 10
    #: The perceptron's non-linearity σ.
    activation: Activation = "relu"
    #: Mean μ0 of the initial weights.
    initial_mean: float = 0.0
    #: Standard deviation σ0 of the initial weights.
    initial_deviation: float = 1.0


@dataclass(frozen=True)
class TransferableConfig:
    """Shape of a transferable optimizer."""

    #: Hidden units of the perceptron that sets the controls of a round.
    width: int = 24
    #: Hidden units of the perceptron that sets the controls of a class.
    class_width: int = 12
    #: Hidden units of the perceptron that scales the logits; 0 for none.
    confidence_width: int = 0

    def check(self) -> None:
        """Validate the widths."""
        check_count(self.width, "width")
        check_count(self.class_width, "class_width")
        check_count(self.confidence_width, "confidence_width", 0)


@dataclass(frozen=True)
class GradientTransferConfig:
    """Shape of an optimizer for modules."""

    #: Hidden units of the perceptron.
    width: int = 20
    #: Gradient steps of a round.
    local_steps: int = 4

    def check(self) -> None:
        """Validate the width and the number of steps."""
        check_count(self.width, "width")
        why = ": agents send the losses before and after the first"
        check_count(self.local_steps, "local_steps", 2, why)


def check_rounds(rounds: int, argument: str = "rounds") -> None:
    """Validate the number of rounds of a run."""
    check_whole(rounds, argument)
    if not MIN_ROUNDS <= rounds <= MAX_ROUNDS:
        raise ValueError(
            f"{argument}: got {rounds}, but it must be between {MIN_ROUNDS} and {MAX_ROUNDS}"
        )


def check_rounds_left(done: int, rounds: int) -> None:
    """Raise if a run of `rounds` is over."""
    if done >= rounds:
        raise ValueError(
            f"state: got one after {done} rounds, but this run has {rounds} rounds, "
            f"in {layer_count(rounds)} steps"
        )


def check_averaging(shift: str) -> None:
    """Raise unless a network's shift operator averages."""
    if shift == "laplacian":
        raise ValueError(
            "network: got the shift operator 'laplacian', which does not average, but this "
            "optimizer mixes averages: use 'metropolis'"
        )


def layer_count(rounds: int) -> int:
    """Return the number of layers of a run: ⌈rounds / 2⌉."""
    return -(-rounds // ROUNDS_PER_LAYER)
