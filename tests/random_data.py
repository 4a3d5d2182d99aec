"""Random examples and tasks for tests, as a function of a seed."""

import torch

from fedsurf.tasks.task import Examples, Task


def seeded(seed):
    """Return a generator with a seed."""
    return torch.Generator().manual_seed(seed)


def weights(seed, agents, parameters, dtype=torch.float64):
    """Draw normal weights, `[agents, parameters]`."""
    return torch.randn(agents, parameters, generator=seeded(seed), dtype=dtype)


def examples(seed, agents=3, size=4, features=3, classes=3, *, masked=False, dtype=torch.float64):
    """Draw normal features and uniform labels; with a mask, each agent has at least one example."""
    random = seeded(seed)
    x = torch.randn(agents, size, features, generator=random, dtype=dtype)
    y = torch.randint(classes, (agents, size), generator=random)
    if not masked:
        return Examples(x, y)
    mask = torch.rand(agents, size, generator=random) < 0.5
    mask[torch.arange(agents), torch.randint(size, (agents,), generator=random)] = True
    return Examples(x.masked_fill(~mask[:, :, None], 0.0), y.masked_fill(~mask, 0), mask)


def task(
    seed, agents=4, train=6, test=5, features=3, classes=3, *, masked=False, dtype=torch.float64
):
    """Draw a task whose classes differ in their means, so that they can be learned."""
    parts = []
    for part, size in enumerate((train, test)):
        drawn = examples(
            2 * seed + part, agents, size, features, classes, masked=masked, dtype=dtype
        )
        means = weights(seed, classes, features, dtype)
        shift = means[drawn.y] if drawn.mask is None else means[drawn.y] * drawn.mask[:, :, None]
        parts.append(Examples(drawn.x + shift, drawn.y, drawn.mask))
    return Task(*parts, classes)


def real_examples(part):
    """Return each agent's real examples as (features, label) pairs of plain numbers."""
    mask = torch.ones_like(part.y, dtype=torch.bool) if part.mask is None else part.mask
    return [
        [(x, y) for x, y, real in zip(xs, ys, reals, strict=True) if real]
        for xs, ys, reals in zip(part.x.tolist(), part.y.tolist(), mask.tolist(), strict=True)
    ]
