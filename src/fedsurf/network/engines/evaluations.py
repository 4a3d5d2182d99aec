"""What processes tell each other apart from the rounds: values for evaluations, and texts before training."""

from abc import abstractmethod
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedsurf.common.devices import CPU
from fedsurf.common.text import listed
from fedsurf.network.engines.arrivals import Arrivals
from fedsurf.network.engines.messages import Kind, Slot
from fedsurf.network.engines.peer import Peer, Values
from fedsurf.network.engines.process import ProcessNetwork

MAX_TEXT_BYTES = 2**20
"""Size of the longest text that a process may send to the others before training."""


class AnsweringNetwork(ProcessNetwork):
    """The rows of one process, whose evaluations neighbours answer and hand on; see `PeerNetwork`."""

    deadline: float
    patience: float
    names: list[str]
    missing: list[tuple[int, str, str]]
    _peer: Peer
    _arrivals: Arrivals
    _used: bool

    @abstractmethod
    def _slot(self, kind: Kind) -> Slot:
        """Return the place of the next message of a kind."""

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of `values[rows, …]` over the rows of all processes that answer, `[…]`."""
        own = values.sum(0)
        found = self._answers(own.reshape(1, -1), dict.fromkeys(range(self._processes), 1))
        rows = [found[one] for one in sorted(found)] or [torch.zeros_like(own.reshape(1, -1))]
        return torch.stack(rows).sum(0).reshape(own.shape)

    def collect(self, values: Tensor) -> Tensor:
        """Return `values[agents, …]` of all agents in the order of their ids, zero for missing ones."""
        agents = self._owners[int(self.server) :]
        flat = values.flatten(1)
        rows = {one: int((agents == one).sum()) for one in range(self._processes)}
        every = flat.new_zeros(len(agents), flat.shape[1])
        for one, found in self._answers(flat, rows).items():
            every[agents == one] = found
        return every.reshape(-1, *values.shape[1:])

    def publish(self, value: Tensor) -> Tensor:
        """Return the server's `value[servers, …]` for every agent that lives here; NaN if it is not finite."""
        server, shape = int(self._owners[0]), value.shape[1:]
        rows = {one: int(one == server) for one in range(self._processes)}
        found = self._answers(value.flatten(1), rows).get(server)
        if found is None:
            if server not in self._arrivals.alive:
                raise ConnectionError(f"{self.names[server]}: the server is gone")
            found = value.new_full((1, shape.numel()), torch.nan)
        return found.reshape(1, *shape).expand(len(self.ids) - self.servers, *shape)

    def gather_text(self, text: str) -> dict[str, str]:
        """Return the text of every process by its name; raise unless all answer."""
        own = torch.tensor(list(text.encode()), dtype=torch.float32, device=CPU)[None]
        once = dict.fromkeys(range(self._processes), 1)
        length = torch.tensor([[own.shape[1]]], dtype=torch.float64, device=CPU)
        lengths = {
            one: int(found) for one, found in self._answers(length, once, self.patience).items()
        }
        longest = max(lengths.values())
        if not own.shape[1] <= longest <= MAX_TEXT_BYTES:
            raise ConnectionError(
                f"got a text of {longest} bytes, but at most {MAX_TEXT_BYTES} travel: shorten the names"
            )
        found = self._answers(functional.pad(own, (0, longest - own.shape[1])), once, self.patience)
        silent = [name for number, name in enumerate(self.names) if number not in found]
        with self._arrivals.changed:
            late = self._arrivals.left_behind(1)
        if late:
            raise ConnectionError(
                "the others are training already, and only a site that was with them can come back, with its "
                "saved state (--resume)"
            )
        if silent:
            raise ConnectionError(f"{listed(silent)}: no answer, so training does not start")
        # Nobody goes on before all have everything: those who went on hand no answers on.
        self._answers(length, once, self.patience)
        texts = (
            bytes(found[one][0, : lengths[one]].long().clamp(0, 255).tolist())
            for one in range(self._processes)
        )
        return {n: t.decode(errors="replace") for n, t in zip(self.names, texts, strict=True)}

    def _answers(
        self, own: Tensor, rows: Mapping[int, int], seconds: float | None = None
    ) -> dict[int, Tensor]:
        """Return the answers of all processes that answer, by process; `rows` are their numbers of rows.

        What is not finite is left out in every process alike, since the others would refuse it.
        """
        self._used = True
        slot = self._slot(Kind.ANSWER)
        kind = np.float32 if own.dtype == torch.float32 else np.float64
        values = numbers_of(own if own.isfinite().all() else own[:0], kind)
        server = int(self._owners[0]) if self.server else None
        # Neighbours of one that is late come a deadline later themselves.
        seconds = 3 * self.deadline if seconds is None else seconds
        found = self._peer.ask(slot, values, seconds, server=server, patience=self.patience)
        answers = {}
        for one, count in rows.items():
            if one not in found:
                why = "no answer"
            elif found[one].values.shape == (count, own.shape[1]):
                answers[one] = own if one == self.process else tensor_of(found[one].values, own)
                continue
            else:
                why = "an answer of another shape" if len(found[one].values) else "not finite"
            self.missing.append((slot.round, self.names[one], why))
        return answers


def numbers_of(values: Tensor, kind: type[np.floating]) -> Values:
    """Return values as they travel."""
    numbers: Values = values.detach().cpu().numpy().astype(kind)
    return numbers


def tensor_of(values: Values, like: Tensor) -> Tensor:
    """Return values that travelled as a tensor of the type and on the device of another."""
    return torch.from_numpy(values.copy()).to(like)
