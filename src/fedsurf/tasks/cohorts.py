"""Cohorts: agents of similar size, so that not everyone is padded to the largest of all.

Agents are rows of tensors, in which everyone has as many examples as the largest. Where few agents hold most of
the examples, nearly all of that would be padding. So agents are divided into cohorts, each padded to its own
largest agent; problems of ordinary size are one cohort.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsurf.tasks.examples import Examples

ORDINARY = 4_000_000
"""The numbers in the features of all agents' examples, padding included, up to which they are one cohort."""
PADDING, SHARE = 250_000, 0.25
"""How many numbers of padding a cohort may have in larger problems, and how many for each that is none."""


def divided(examples: Examples) -> tuple[Tensor, ...]:
    """Divide agents into cohorts by the number of their examples; return the numbers of each one's agents."""
    extents, features = examples.extents, examples.features
    if len(extents) * int(extents.max()) * features <= ORDINARY:
        return (torch.arange(len(extents)),)
    sizes, order = extents.sort(descending=True, stable=True)
    begins, padding, held, largest = [], 0, 0, int(sizes[0])
    for place, size in enumerate(sizes.tolist()):
        padding += (largest - size) * features
        held += size * features
        if padding > max(PADDING, SHARE * held):
            begins.append(place)
            padding, held, largest = 0, size * features, size
    return tuple(agents.sort().values for agents in order.tensor_split(begins))


def parts_of(examples: Examples, members: tuple[Tensor, ...]) -> list[Examples]:
    """Give every cohort its examples, padded to its own largest agent."""
    if len(members) == 1:
        return [examples]
    return [examples.trimmed(agents) for agents in members]


def split(values: Tensor, members: tuple[Tensor, ...]) -> list[Tensor]:
    """Give every cohort its rows of `values[agents, …]`."""
    if len(members) == 1:
        return [values]
    return [values[agents] for agents in members]


def join(parts: Sequence[Tensor], members: tuple[Tensor, ...]) -> Tensor:
    """Undo `split`."""
    if len(members) == 1:
        return parts[0]
    return torch.cat(list(parts))[torch.cat(members).argsort()]
