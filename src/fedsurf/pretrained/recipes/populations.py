"""Populations from which the examples of pretraining problems are drawn.

A population draws any number of examples with given labels. `RealPopulation` takes real images under
one of several random views; `SyntheticPopulation` imitates the last layer of a deep network: non-linear,
correlated, heavy-tailed features, with classes that resemble each other in groups.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_HEAD_PARAMETERS = 4000
"""Parameters of the largest head; larger heads take longer and teach no more."""


def uniform(low: float, high: float, generator: torch.Generator) -> float:
    """Draw a number between two others."""
    return low + (high - low) * float(torch.rand((), generator=generator))


def log_uniform(low: float, high: float, generator: torch.Generator) -> float:
    """Draw a number between two others, uniform on a logarithmic scale."""
    return math.exp(uniform(math.log(low), math.log(high), generator))


def chance(probability: float, generator: torch.Generator) -> bool:
    """Draw True with a probability."""
    return float(torch.rand((), generator=generator)) < probability


@dataclass(frozen=True)
class RealPopulation:
    """Real examples of some classes, with renamed labels and a random spectrum."""

    x: Tensor
    """Features of a pool of examples on their principal axes, `[pool, features]`."""
    members: list[Tensor]
    """The examples of each class."""
    weights: Tensor
    """Factors of the axes, a random spectrum, `[features]`."""

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.members)

    @staticmethod
    def of(view: Tensor, labels: Tensor, generator: torch.Generator) -> "RealPopulation":
        """Draw classes, axes and a spectrum, from images on their principal axes `[images, features]`."""
        features = round(log_uniform(8, view.shape[1], generator))
        x = view[:, :features]
        everything = int(labels.max()) + 1
        chosen = torch.randperm(everything, generator=generator)
        if chance(0.4, generator):
            chosen = chosen[: int(torch.randint(2, everything + 1, (), generator=generator))]
        members = [(labels == label).nonzero().flatten() for label in chosen.tolist()]
        # More and finer classes: each is divided by the signs of random directions.
        bits = int(torch.randint(0, 3, (), generator=generator)) if chance(0.5, generator) else 0
        for _ in range(bits):
            direction = torch.randn(features, generator=generator)
            members = [part for own in members for part in _halves(own, x[own] @ direction)]
        most = min(50, MAX_HEAD_PARAMETERS // features)
        order = torch.randperm(len(members), generator=generator)[:most].tolist()
        power = uniform(-0.6, 0.6, generator) if chance(0.5, generator) else 0.0
        spread = x.square().mean(0).clamp(min=1e-8).sqrt()
        return RealPopulation(x, [members[place] for place in order], spread**power)

    def draw(self, labels: Tensor, generator: torch.Generator, *, test: bool) -> Tensor:
        """Draw an example of each label, with replacement; a third of each class is for tests only."""
        places = torch.empty_like(labels)
        for label, own in enumerate(self.members):
            here = labels == label
            cut = max(1, len(own) // 3)
            part = own[:cut] if test else own[cut:]
            places[here] = part[torch.randint(len(part), (int(here.sum()),), generator=generator)]
        return self.x[places] * self.weights


def _halves(own: Tensor, score: Tensor) -> list[Tensor]:
    above = score > score.median()
    return [own[above], own[~above]]


def random_views(
    pixels: Tensor, count: int, width: int, generator: torch.Generator
) -> list[Tensor]:
    """Return random views of images, each on its principal axes: `[images, ≤ width]` each.

    The first view is of the pixels, the others are of random rectified features of patches. `pixels` are
    square images between 0 and 1, `[images, pixels]`.
    """
    return [
        principal(pixels if number == 0 else _rectified(pixels, generator), width)
        for number in range(count)
    ]


def principal(x: Tensor, width: int) -> Tensor:
    """Centre, rotate onto the principal axes, and scale to a mean square of 1."""
    centred = x - x.mean(0)
    _, axes = torch.linalg.eigh(centred.T @ centred / len(x))
    rotated = centred @ axes.flip(1)[:, :width]
    scaled: Tensor = rotated / rotated.square().mean().sqrt()
    return scaled


def _rectified(pixels: Tensor, generator: torch.Generator) -> Tensor:
    side = math.isqrt(pixels.shape[1])
    channels = int(torch.randint(16, 49, (), generator=generator))
    size = int(torch.randint(3, 6, (), generator=generator))
    patches = torch.randn(channels, 1, size, size, generator=generator)
    shift = 0.3 * torch.randn(channels, generator=generator)
    pooled = []
    for part in torch.split(pixels, 4096):
        images = part.reshape(-1, 1, side, side)
        maps = torch.nn.functional.conv2d(images, patches, shift).relu()
        pooled.append(torch.nn.functional.adaptive_avg_pool2d(maps, 3).flatten(1))
    return torch.cat(pooled)


def _some_classes(generator: torch.Generator, two_share: float) -> int:
    return 2 if chance(two_share, generator) else round(log_uniform(2, 100, generator))


def _some_features(generator: torch.Generator, classes: int) -> int:
    return min(round(log_uniform(4, 320, generator)), max(4, MAX_HEAD_PARAMETERS // classes))


@dataclass(frozen=True)
class SyntheticPopulation:
    """Classes as Student-t clouds in a latent space, seen through a random rectified network."""

    means: Tensor
    """The classes' centres, `[classes, latent]`."""
    spreads: Tensor
    """The spread of each class along each latent direction, `[classes, latent]`."""
    freedom: float
    """Degrees of freedom of the tails; infinite for Gaussian ones."""
    layers: list[tuple[Tensor, Tensor]]
    """Weights and shifts of the network."""
    axes: Tensor
    """The axes on which its output is seen, `[width, features]`."""

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.means)

    @staticmethod
    def gaussian(generator: torch.Generator, two_share: float = 0.1) -> "SyntheticPopulation":
        """Draw round Gaussian classes; in a share `two_share` of the cases, two of them."""
        classes = _some_classes(generator, two_share)
        features = _some_features(generator, classes)
        # The distance of the means of two classes, in standard deviations.
        distance = log_uniform(1.5, 10.0, generator)
        means = distance * torch.randn(classes, features, generator=generator)
        means = means / (2 * features) ** 0.5
        spreads = torch.ones(classes, features)
        return SyntheticPopulation(means, spreads, math.inf, [], torch.eye(features))

    @staticmethod
    def random(generator: torch.Generator, two_share: float = 0.1) -> "SyntheticPopulation":
        """Draw classes of random difficulty; in a share `two_share` of the cases, two of them."""
        classes = _some_classes(generator, two_share)
        latent = round(log_uniform(6, 80, generator))
        features = _some_features(generator, classes)
        groups = max(1, round(classes / log_uniform(1, 8, generator)))
        spectrum = (1 + torch.arange(latent)) ** -uniform(0, 1.0, generator)
        centres = torch.randn(groups, latent, generator=generator)
        belongs = torch.randint(groups, (classes,), generator=generator)
        mixture = uniform(0.0, 0.8, generator)
        own = torch.randn(classes, latent, generator=generator)
        means = (mixture**0.5 * centres[belongs] + (1 - mixture) ** 0.5 * own) * spectrum
        # The distance of neighbouring classes, in standard deviations within a class.
        separation = log_uniform(2.0, 10.0, generator)
        noise_power = uniform(0.0, 1.0, generator)
        shape = spectrum**noise_power
        variety = uniform(0, 0.5, generator)
        spreads = shape * (variety * torch.randn(classes, latent, generator=generator)).exp()
        distance = (2 * (means / shape).square().mean()).sqrt() * latent**0.5
        spreads = spreads * distance / separation
        freedom = log_uniform(3, 30, generator) if chance(0.5, generator) else math.inf
        width = features * (1 if chance(0.3, generator) else 3)
        layers, size = [], latent
        for _ in range(int(torch.randint(0, 3, (), generator=generator))):
            weights = torch.randn(size, width, generator=generator) / size**0.5
            shift = uniform(0, 1, generator) * torch.randn(width, generator=generator)
            layers.append((weights, shift))
            size = width
        axes = torch.randn(size, features, generator=generator) / size**0.5
        population = SyntheticPopulation(means, spreads, freedom, layers, torch.eye(size))
        if chance(0.5, generator) and features <= size:
            labels = torch.randint(classes, (1000,), generator=generator)
            sample = population.draw(labels, generator, test=False)
            centred = sample - sample.mean(0)
            axes = torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)[:, :features]
        return SyntheticPopulation(means, spreads, freedom, layers, axes)

    def draw(self, labels: Tensor, generator: torch.Generator, *, test: bool) -> Tensor:  # noqa: ARG002
        """Draw new examples."""
        noise = torch.randn(len(labels), self.means.shape[1], generator=generator)
        if math.isfinite(self.freedom):
            # A chi-square by the normal approximation of Wilson and Hilferty.
            share = 2 / (9 * self.freedom)
            drawn = torch.randn(len(labels), 1, generator=generator)
            noise = noise / (1 - share + share**0.5 * drawn).clamp(min=0.25) ** 1.5
        x = self.means[labels] + self.spreads[labels] * noise
        for weights, shift in self.layers:
            x = x @ weights
            x = (x / x.square().mean().sqrt().clamp(min=1e-6) + shift).relu()
        return x @ self.axes


Population = RealPopulation | SyntheticPopulation
"""Draws examples of a problem's classes, `[examples, features]`."""
