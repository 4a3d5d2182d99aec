"""What agents do in a round before they send: set the knobs, fit the head, look how it fits."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsurf.unrolled.transferable.confidence import own_sureness
from fedsurf.unrolled.transferable.controller import LENGTHS, Controller
from fedsurf.unrolled.transferable.local_fit import LocalFit, Outlook, Step
from fedsurf.unrolled.transferable.rarity import eased
from fedsurf.unrolled.transferable.summaries import PRIOR, Heard, own_progress


@dataclass(frozen=True)
class Worked:
    """What came of it.

    Attributes
    ----------
    fitted : Tensor
        V, class by class, `[agents, parameters]`.
    mixing : Tensor
        What the controller asks mixing to be like (`memory`), `[agents, MIXING]`.
    progress : Tensor
        How the head fits, `[agents, classes + PROGRESS]`.
    sureness : Tensor
        How sure the head is that the agent heard, `[agents, SURENESS]`; without columns if nobody asks.
    """

    fitted: Tensor
    mixing: Tensor
    progress: Tensor
    sureness: Tensor


@dataclass(frozen=True)
class LocalWork:
    """How agents work.

    Attributes
    ----------
    controller : Controller
        Sets the knobs.
    steps : int
        Newton-like steps in a round.
    batch_size : int or None
        How many of its examples, drawn anew, an agent fits its head to; all where None.
    ease_rare : bool
        Whether steps of rare classes are damped less.
    asks_sureness : bool
        Whether they look how sure heads are.
    """

    controller: Controller
    steps: int
    batch_size: int | None
    ease_rare: bool
    asks_sureness: bool

    def __call__(
        self,
        when: Tensor,
        outlook: Outlook,
        head: Tensor,
        heard: Heard,
        heard_share: Tensor,
        generator: torch.Generator,
    ) -> Worked:
        """Fit the agents' heads.

        Parameters
        ----------
        when : Tensor
            The schedule of the round, `[SCHEDULE]`.
        outlook : Outlook
            The agents' examples.
        head : Tensor
            W, class by class, `[agents, parameters]`.
        heard : Heard
            What they know of the federation.
        heard_share : Tensor
            The share of the agents whose messages reach each, or the server, in a round, `[agents, 1]`.
        generator : torch.Generator
            Draws mini-batches, if any.
        """
        own, classes = outlook.view, outlook.view.labels.shape[1]
        count = own.count[:, 0]
        share = (own.labels.sum(2) + PRIOR * heard.classes) / (count + PRIOR)
        unusual = share.log() - heard.classes.log()
        if self.batch_size is not None:
            outlook = outlook.batch(self.batch_size, generator)
        fit, view = LocalFit(outlook, head), outlook.view
        lengths, mixing, context = self.controller.knobs(
            when, heard.signals, view.count[:, 0] / count, heard_share
        )
        before = fit.probabilities()
        sureness = before.new_empty(len(before), 0)
        if self.asks_sureness:
            sureness = own_sureness(fit.logits, before, view.labels)
        error = classes * (before - view.labels).abs().sum(2) / view.count[:, 0]
        relative = (count / heard.examples[:, None].clamp(min=0.1)).log().expand_as(share)
        about = [
            unusual,
            (classes * share - 1).clamp(max=4),
            (classes * heard.classes).log(),
            (error - 1).clamp(max=4),
            relative.clamp(-3, 3),
        ]
        gate, weight = self.controller.gates(torch.stack(about, 2), context)
        values = lengths.clamp(-12, 3).exp()[:, :, None, None].unbind(1)
        named = dict(zip(LENGTHS, values, strict=True))
        if self.ease_rare:
            less = eased(heard.classes, (share * unusual).sum(1))[:, :, None]
            named |= {name: less * named[name] for name in ("damping", "floor")}
        step = Step(
            gate=gate,
            offset=weight * unusual[:, :, None],
            bend=heard.bends[:, :, None],
            scale=heard.scale[:, None, None],
            **named,
        )
        fit.take(step)
        after = fit.probabilities()
        for _ in range(self.steps - 1):
            fit.take(step)
        progress = own_progress(before, after, view, share, heard.classes)
        return Worked(fit.head(), mixing, progress, sureness)
