"""The transferable layer of agents in cohorts of similar size (`tasks.cohorts`): what they do is the same."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from fedsurf.tasks.cohorts import join, parts_of, split
from fedsurf.tasks.examples import Examples
from fedsurf.unrolled.transferable.curvature import Curvature
from fedsurf.unrolled.transferable.local_fit import Outlook
from fedsurf.unrolled.transferable.local_view import LocalView
from fedsurf.unrolled.transferable.local_work import LocalWork, Worked
from fedsurf.unrolled.transferable.moments import contribution
from fedsurf.unrolled.transferable.summaries import Heard


@dataclass(frozen=True)
class Cohorts:
    """Every agent's own view of its examples, cohort by cohort.

    Attributes
    ----------
    members : tuple of Tensor
        The numbers of each cohort's agents, from 0 on, int64 `[agents of the cohort]`; of one cohort all,
        in their order.
    views : tuple of LocalView
        The views of each cohort's agents.
    """

    members: tuple[Tensor, ...]
    views: tuple[LocalView, ...]

    @staticmethod
    def of(
        examples: Examples,
        classes: int,
        members: tuple[Tensor, ...],
        centre: Tensor | None = None,
        unit: Tensor | None = None,
    ) -> "Cohorts":
        """Look at examples, from each agent's own mean and in raw units where nothing else is given."""
        nothing = [None] * len(members)
        places = nothing if centre is None else split(centre, members)
        units = nothing if unit is None else split(unit, members)
        parts = zip(parts_of(examples, members), places, units, strict=True)
        return Cohorts(members, tuple(LocalView.of(part, classes, *own) for part, *own in parts))

    @property
    def count(self) -> Tensor:
        """The number of each agent's examples, `[agents, 1]`."""
        return self._join([view.count[:, 0] for view in self.views])

    @property
    def centre(self) -> Tensor:
        """Each agent's centre, raw, `[agents, features]`."""
        return self._join([view.centre for view in self.views])

    @property
    def unit(self) -> Tensor | None:
        """The unit of each feature for each agent, raw, `[agents, features]`; None where it is 1."""
        units = [view.unit for view in self.views if view.unit is not None]
        return self._join(units) if units else None

    def about(self, centre: Tensor) -> "Cohorts":
        """Return the same examples as seen from other centres, raw, `[agents, features]`."""
        pairs = zip(self.views, self._split(centre), strict=True)
        return Cohorts(self.members, tuple(view.about(place) for view, place in pairs))

    def of_agents(self, agents: Tensor) -> "Cohorts":
        """Return the views of some agents, numbered by `agents`; these are numbered anew, in their order."""
        if len(self.members) == 1:
            return Cohorts((torch.arange(len(agents)),), (self.views[0].of_agents(agents),))
        members, views = [], []
        for own, view in zip(self.members, self.views, strict=True):
            place = torch.searchsorted(own, agents).clamp(max=len(own) - 1)
            here = (own[place] == agents).nonzero().flatten()
            if len(here):
                members.append(here)
                views.append(view.of_agents(place[here]))
        return Cohorts(tuple(members), tuple(views))

    def sketch(self, directions: Tensor) -> Tensor:
        """Return Ωᵀ Σ x xᵀ of each agent's examples from its centre, `[agents, k, features]`."""
        return self._join([view.sketch(directions) for view in self.views])

    def contribution(
        self, known: Tensor, sketch: Tensor, *, centred: bool
    ) -> tuple[Tensor, Tensor]:
        """Return what agents tell of their data, as `moments.contribution` does."""
        told = [
            contribution(view, known, own, centred=centred)
            for view, own in zip(self.views, self._split(sketch), strict=True)
        ]
        sums, moments = (self._join(parts) for parts in zip(*told, strict=True))
        return sums, moments

    def look(self, curvature: Curvature) -> tuple[Outlook, ...]:
        """Look at the examples along the axes of what all agents know of the curvature."""
        parts = (self._split(getattr(curvature, field.name)) for field in fields(curvature))
        known = (Curvature(*one) for one in zip(*parts, strict=True))
        pairs = zip(self.views, known, strict=True)
        return tuple(Outlook.of(view, one) for view, one in pairs)

    def work(
        self,
        work: LocalWork,
        when: Tensor,
        outlooks: tuple[Outlook, ...],
        head: Tensor,
        heard: Heard,
        heard_share: Tensor,
        generator: torch.Generator,
    ) -> Worked:
        """Let all agents work, each cohort with its outlook; the rest is of all agents, as in `LocalWork`."""
        parts = (self._split(getattr(heard, field.name)) for field in fields(heard))
        known = [Heard(*one) for one in zip(*parts, strict=True)]
        done = [
            work(when, *own, generator)
            for own in zip(
                outlooks, self._split(head), known, self._split(heard_share), strict=True
            )
        ]
        return Worked(
            *(self._join([getattr(one, field.name) for one in done]) for field in fields(Worked))
        )

    def _split(self, values: Tensor) -> list[Tensor]:
        return split(values, self.members)

    def _join(self, parts: Sequence[Tensor]) -> Tensor:
        return join(parts, self.members)
