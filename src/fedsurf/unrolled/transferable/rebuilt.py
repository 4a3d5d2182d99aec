"""Products of a state and the examples that a run needs again and again: rebuilt, and remembered.

A state holds tensors and numbers only, so that it can be saved and sent. Examples from each agent's centre and
their products with the curvature's axes follow from the state and the task. They are computed again where
they are not known, as after loading a state, and give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from fedsurf.common.devices import CPU
from fedsurf.tasks.groups import group_agents, join_groups
from fedsurf.tasks.task import Examples
from fedsurf.unrolled.transferable.local import Groups, LocalExamples, sketches

Value = TypeVar("Value")


class Memory:
    """The last value of each function of tensors, returned again while these are the same objects."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[object, ...], object]] = {}

    def get(self, name: str, key: tuple[object, ...], make: Callable[[], Value]) -> Value:
        """Return the value that `make` returned for these objects, or call it now."""
        known = self._known.get(name)
        if known is not None and all(a is b for a, b in zip(known[0], key, strict=True)):
            return known[1]  # type: ignore[return-value]
        value = make()
        self.put(name, key, value)
        return value

    def put(self, name: str, key: tuple[object, ...], value: object) -> None:
        """Remember a value for these objects."""
        self._known[name] = key, value

    def forget(self, *names: str) -> None:
        """Free the memory of some values."""
        for name in names:
            self._known.pop(name, None)


class View(NamedTuple):
    """Examples as their agents see them at first, before centres move."""

    groups: Groups
    """The agents of each group, numbered among those of the view."""
    examples: tuple[LocalExamples, ...]
    """The examples of each group from `base`."""
    sketch: Tensor
    """Each agent's sketch of them, `[agents, k, features]`."""

    @property
    def base(self) -> Tensor:
        """The origin of each agent's examples, raw, `[agents, features]`."""
        return join_groups([own.base for own in self.examples], self.groups)

    @staticmethod
    def of(
        examples: Examples,
        classes: int,
        directions: Tensor,
        units: tuple[Tensor | None, Tensor],
        rows: Tensor | None = None,
    ) -> View:
        """Centre the examples of all agents, or of some `rows`, at a base, and divide them by units.

        `units` are both, `[agents or rows, features]`: the base None for each agent's mean, and units
        without columns for 1.
        """
        groups, parts = parts_of(examples, rows)
        base, unit = units
        made = tuple(
            LocalExamples.of(
                part,
                classes,
                None if base is None else base[agents],
                unit[agents] if unit.shape[1] else None,
            )
            for part, agents in zip(parts, groups, strict=True)
        )
        return View(groups, made, sketches(made, groups, directions))


def parts_of(examples: Examples, rows: Tensor | None) -> tuple[Groups, list[Examples]]:
    """Return groups of similar size and their examples; `rows` are numbered anew in their order."""
    groups = group_agents(examples)
    if len(groups) == 1:
        chosen = examples if rows is None else examples.of(rows)
        return (torch.arange(chosen.agents, device=CPU),), [chosen]
    if rows is None:
        return groups, [examples.trimmed(agents) for agents in groups]
    found = [torch.isin(rows, agents).nonzero().flatten() for agents in groups]
    members = tuple(here for here in found if len(here))
    if not members:  # a process none of whose agents is called
        return (rows,), [examples.trimmed(groups[-1][:1]).of(rows)]
    return members, [examples.trimmed(rows[here]) for here in members]
