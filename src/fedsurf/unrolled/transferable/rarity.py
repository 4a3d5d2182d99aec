"""Less damping of Newton-like steps for rare classes.

The softmax's curvature for a class is the mean of p (1 − p), which for a share c of the labels is at most
about c (1 − c): for a class of one in a hundred and one other class a twenty-fifth of what it is for two
classes of one size. Meta-training, whose classes are of about one size, learned a damping that is beside
theirs; it holds a rare class back, which then stays more likely than it is. So the damping of a class is
multiplied by

    min(1, (c (1 − c) / u)²)^t,    u = (1 − 1/C) / C, the same for classes of one size.

Of the powers 1 and 2 this is the one that came closer to centralised training.

c is what an agent heard so far, and a class that only agents far away hold seems rare until it hears of
them. That is where agents hold different classes, so an agent whose own labels are unlike those that it
heard of does not trust them: t = exp(−4 KL), of its own distribution from the one that it heard. Without
it (t = 1), digits on a ring of agents that hold one class each lost 7 to 20 points, though no class is rare.
Where classes are of one size and agents hold all of them, nothing changes.
"""

from torch import Tensor

LEAST = 0.02
"""What is left of the damping, however rare a class."""
DISTRUST = 4.0
"""How fast an agent ceases to ease with the divergence of its labels; 2 to 6 did about as well."""


def eased(share: Tensor, divergence: Tensor) -> Tensor:
    """Return what multiplies the damping of each class, `[agents, classes]`.

    Parameters
    ----------
    share : Tensor
        The classes' shares of the federation's labels, as each agent heard of them, `[agents, classes]`.
    divergence : Tensor
        KL of its own labels from these, `[agents]`.
    """
    classes = share.shape[1]
    if classes == 1:
        return share.new_ones(share.shape)
    even = (1 - 1 / classes) / classes
    less = (share * (1 - share) / even).square().clamp(LEAST, 1.0)
    trust = (-DISTRUST * divergence).exp().clamp(max=1.0)
    return less ** trust[:, None]
