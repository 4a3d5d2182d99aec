"""Less damping of Newton-like steps for rare classes.

The softmax's curvature for a class is the mean of p (1 − p), which for a share c of the labels is at most
about c (1 − c): for a class of one in a hundred and one other class a twenty-fifth of what it is for two
classes of one size. Meta-training, whose classes are of about one size, learned a damping that is beside
theirs; it holds a rare class back, which then stays more likely than it is. So the damping of a class is
multiplied by

    min(1, (c (1 − c) / u)²),    u = (1 − 1/C) / C, the same for classes of one size.

Of the powers 1 and 2 this is the one that came closer to centralised training. It changes nothing where
classes are of one size.
"""

from torch import Tensor

LEAST = 0.02
"""What is left of the damping, however rare a class."""


def eased(share: Tensor) -> Tensor:
    """Return what multiplies the damping of each class, for its share of the labels; of the same shape.

    Parameters
    ----------
    share : Tensor
        Of the federation's labels, as each agent heard of them, `[agents, classes]`.
    """
    classes = share.shape[1]
    if classes == 1:
        return share.new_ones(share.shape)
    even = (1 - 1 / classes) / classes
    return (share * (1 - share) / even).square().clamp(LEAST, 1.0)
