"""What a server and an agent have in common: they count alike which message of a round is which."""

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedsurf.common.devices import CPU
from fedsurf.network.engines.flower.parcels import Item, Single, packed, place_of
from fedsurf.network.engines.messages import Kind, Slot
from fedsurf.network.engines.process import ProcessNetwork
from fedsurf.network.network import Called
from fedsurf.network.operators import NOTHING_LOST, LostMessages
from fedsurf.network.star import StarNetwork
from fedsurf.network.wire import Form


class Side(ProcessNetwork):
    """The server's row, or the row of one agent, of a star.

    Parameters
    ----------
    star : StarNetwork
        The whole network, made alike at the server and at all agents.
    process : int
        0 for the server, and an agent's number + 1 for the agent.
    kind : {"float32", "float64"}
        Type of the numbers of rounds on their way, if they are not rounded (the star's `wire`).
    """

    def __init__(self, star: StarNetwork, process: int, kind: Single) -> None:
        super().__init__(star, torch.arange(star.nodes, device=CPU), process)
        self._kind = kind
        self._run, self._used, self._parts = 0, False, Counter[Kind]()

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Begin a new run, with the counts at 0; the same generator at all sides."""
        super().reset(generator)
        # Only what follows messages is another run, whoever resets how often before.
        self._run, self._used = self._run + self._used, False
        self._parts.clear()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state` of the same network."""
        super().restore(state)
        self._parts.clear()

    def position(self) -> dict[str, int]:
        """Return what tells the places of the next items, apart from the network's state."""
        parts = {kind.name.lower(): self._parts[kind] for kind in Kind}
        return {"run": self._run, "used": int(self._used), **parts}

    def go_to(self, position: Mapping[str, int]) -> None:
        """Go on from a `position`, after `restore`."""
        self._run, self._used = position["run"], bool(position["used"])
        self._parts = Counter({kind: position[kind.name.lower()] for kind in Kind})

    def exchange(
        self, values: Sequence[Tensor], sent: Sequence[Tensor], lost: LostMessages, floats: int
    ) -> list[Tensor]:
        """Exchange the messages of one round, and return the rows of S·part that live here."""
        mixed = super().exchange(values, sent, lost, floats)
        self._parts.clear()
        return mixed

    def call(self, lost: LostMessages = NOTHING_LOST) -> Called:
        """Begin a round of the server; all sides know whom it calls."""
        called = super().call(lost)
        self._used = True
        self._parts.clear()
        return called

    def _packed(self, values: Tensor, form: Form) -> Item:
        """Return the numbers of a round as they travel."""
        return packed(values, self._kind, form)

    def _place(self, kind: Kind) -> str:
        """Return the place of the next item of a kind."""
        self._used = True
        self._parts[kind] += 1
        return place_of(kind, Slot(self._run, self.rounds, self._parts[kind] - 1))
