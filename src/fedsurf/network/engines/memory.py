"""Processes in memory: threads whose parts of a network only exchange messages, for tests of algorithms."""

import queue
import threading
from collections.abc import Callable
from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor

from fedsurf.network.engines.part import Part
from fedsurf.network.network import Network

Result = TypeVar("Result")

PATIENCE = 60.0
"""Seconds after which a process that waits for a message gives up."""


class Mailboxes:
    """The transport of one of several threads: a queue for each pair of them."""

    def __init__(self, process: int, boxes: dict[tuple[int, int], "queue.Queue[Tensor]"]) -> None:
        self.process, self._boxes = process, boxes

    def send(self, to: int, value: Tensor) -> None:
        """Put a copy into the box of another thread."""
        self._boxes[self.process, to].put(value.clone())

    def receive(self, sender: int) -> Tensor:
        """Take the next tensor of another thread, or fail after `PATIENCE` seconds."""
        return self._boxes[sender, self.process].get(timeout=PATIENCE)


def run_parts(whole: Network, owners: Tensor, work: Callable[[Part], Result]) -> list[Result]:
    """Let a thread for each process do `work` with its part of the network; return what they return.

    `owners[nodes]` are the processes' numbers, from 0 on. Gradients are off.

    Examples
    --------
    >>> import networkx as nx
    >>> import torch
    >>> from fedsurf import Network
    >>> ring = Network(nx.cycle_graph(4), "metropolis")
    >>> parts = run_parts(ring, torch.tensor([0, 0, 1, 1]), lambda part: part.mix(part.ids[:, None].float()))
    >>> torch.allclose(torch.cat(parts), ring.mix(torch.arange(4.0)[:, None]))
    True
    """
    count = int(owners.max()) + 1
    pairs = [(one, other) for one in range(count) for other in range(count)]
    boxes: dict[tuple[int, int], queue.Queue[Tensor]] = {pair: queue.Queue() for pair in pairs}
    results: dict[int, Result] = {}
    errors: list[Exception] = []

    def live(process: int) -> None:
        part = Part(deepcopy(whole), owners, Mailboxes(process, boxes))
        try:
            with torch.no_grad():
                results[process] = work(part)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=live, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((e for e in errors if not isinstance(e, queue.Empty)), errors[0])
    return [results[number] for number in range(count)]
