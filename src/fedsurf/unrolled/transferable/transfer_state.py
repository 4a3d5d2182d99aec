"""What the transferable layer carries from round to round."""

from dataclasses import dataclass

from torch import Tensor

from fedsurf.algorithms.algorithm import State
from fedsurf.unrolled.transferable.cohorts import Cohorts
from fedsurf.unrolled.transferable.local_fit import Outlook


@dataclass(frozen=True, kw_only=True)
class TransferState(State):
    """What the optimizer carries. `weights` are for readers: steps go on from `head`.

    Attributes
    ----------
    head : Tensor
        W class by class (as `local_fit.by_feature` takes it), `[nodes, parameters]`.
    previous : Tensor
        W one round ago, class by class, `[nodes, parameters]`.
    fitted : Tensor
        V of the round before, class by class; through a server, the W that it sends.
    sums, progress : Tensor
        What each node heard of the data and of progress (`signals`), `[nodes, …]`.
    sureness : Tensor
        What each node heard of how sure heads are, `[nodes, SURENESS]`; without columns where the
        optimizer has no confidence.
    moments : Tensor
        What each node heard of the examples' sum and of the sketch (`moments`),
        `[nodes, features · (k + 1)]`.
    varying : Tensor
        How many features vary, as far as each node heard (`moments.varying`), `[nodes]`.
    own, own_moments : Tensor
        Each agent's own contribution to `sums` and to `moments`, `[agents, …]`.
    sketch : Tensor
        Each agent's sketch of its own examples from where it saw them first, `[agents, k, features]`;
        used where there are more features than examples.
    cohorts : Cohorts
        Its view of them.
    outlooks : tuple of Outlook
        Each cohort's view along the axes that its agents know; through a server, where they keep nothing
        of what they hear, none.
    reports : int
        How many messages a server received so far.
    rounds : int
        Rounds so far.
    spreads : Tensor
        What each agent over a graph, or a server, heard of the features' means and spreads
        (`calibration`), `[agents or 1, 1 + 3 · features]`; without columns where nobody standardises.
    own_spreads : Tensor
        What each agent tells a server of its own features, `[agents, 1 + 2 · features]`; likewise.
    told : Tensor
        Which agents know the units that a server has found, bool `[agents]`.
    """

    head: Tensor
    previous: Tensor
    fitted: Tensor
    sums: Tensor
    progress: Tensor
    sureness: Tensor
    moments: Tensor
    varying: Tensor
    own: Tensor
    own_moments: Tensor
    sketch: Tensor
    cohorts: Cohorts
    outlooks: tuple[Outlook, ...]
    reports: int
    rounds: int
    spreads: Tensor
    own_spreads: Tensor
    told: Tensor
