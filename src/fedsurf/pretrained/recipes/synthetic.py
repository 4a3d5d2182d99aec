"""Where the examples of generated problems come from: clouds of labelled points.

A cloud draws any number of examples with given labels. `RealCloud` takes real images, seen through
one of several random views; `BackboneCloud` imitates what a deep network's last layer returns:
non-linear, correlated, heavy-tailed features of classes that resemble each other in groups.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

LARGEST_HEAD = 4000
"""Numbers of the largest head among generated problems: larger ones take long and teach no more."""


class Cloud(Protocol):
    """Draws examples of a problem's classes."""

    @property
    def classes(self) -> int:
        """The number of classes."""
        ...

    def draw(self, labels: Tensor, generator: torch.Generator, *, test: bool) -> Tensor:
        """Draw an example of each label: `[examples, features]`. Tests never repeat what trains."""
        ...


def uniform(low: float, high: float, generator: torch.Generator) -> float:
    """Draw a number between two others."""
    return low + (high - low) * float(torch.rand((), generator=generator))


def log_uniform(low: float, high: float, generator: torch.Generator) -> float:
    """Draw a number between two others, uniform on a logarithmic scale."""
    return math.exp(uniform(math.log(low), math.log(high), generator))


def chance(probability: float, generator: torch.Generator) -> bool:
    """Toss a coin."""
    return float(torch.rand((), generator=generator)) < probability


@dataclass(frozen=True)
class RealCloud:
    """Real examples of some classes, with renamed labels and a random spectrum.

    Attributes
    ----------
    x : Tensor
        Features of a pool of examples on their principal axes, `[pool, features]`.
    members : list of Tensor
        The examples of each class.
    weights : Tensor
        Multiplies each axis: a random spectrum, `[features]`.
    """

    x: Tensor
    members: list[Tensor]
    weights: Tensor

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.members)

    @staticmethod
    def of(view: Tensor, labels: Tensor, generator: torch.Generator) -> "RealCloud":
        """Choose classes, axes and a spectrum.

        Parameters
        ----------
        view : Tensor
            Features of all images on their principal axes, largest first, `[images, features]`.
        labels : Tensor
            Their labels.
        generator : torch.Generator
            Draws everything.
        """
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
        most = min(50, LARGEST_HEAD // features)
        order = torch.randperm(len(members), generator=generator)[:most].tolist()
        power = uniform(-0.6, 0.6, generator) if chance(0.5, generator) else 0.0
        spread = x.square().mean(0).clamp(min=1e-8).sqrt()
        return RealCloud(x, [members[place] for place in order], spread**power)

    def draw(self, labels: Tensor, generator: torch.Generator, *, test: bool) -> Tensor:
        """Draw examples: a third of each class is for tests only."""
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
    """See images in several ways, each on its principal axes: `[images, ≤ width]` each.

    The first view is of the pixels themselves, the others are of random rectified features of
    patches and of all pixels: no two have the same geometry.

    Parameters
    ----------
    pixels : Tensor
        Square images between 0 and 1, `[images, pixels]`.
    count : int
        The number of views.
    width : int
        How many principal axes to keep.
    generator : torch.Generator
        Draws the views.
    """
    return [
        principal(pixels if number == 0 else _rectified(pixels, generator), width)
        for number in range(count)
    ]


def principal(x: Tensor, width: int) -> Tensor:
    """Centre, turn onto the principal axes, and scale to a mean square of 1."""
    centred = x - x.mean(0)
    _, axes = torch.linalg.eigh(centred.T @ centred / len(x))
    turned = centred @ axes.flip(1)[:, :width]
    scaled: Tensor = turned / turned.square().mean().sqrt()
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


@dataclass(frozen=True)
class BackboneCloud:
    """Classes as clouds in a latent space, seen through a random rectified network.

    Attributes
    ----------
    means : Tensor
        The classes' centres, `[classes, latent]`.
    spreads : Tensor
        How far each class spreads along each latent direction, `[classes, latent]`.
    freedom : float
        Degrees of freedom of the Student-t tails; infinite for Gaussian ones.
    layers : list of (Tensor, Tensor)
        Weights and shifts of the network.
    turn : Tensor
        The axes on which its output is seen, `[width, features]`.
    """

    means: Tensor
    spreads: Tensor
    freedom: float
    layers: list[tuple[Tensor, Tensor]]
    turn: Tensor

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.means)

    @staticmethod
    def gaussian(generator: torch.Generator, two_share: float = 0.1) -> "BackboneCloud":
        """Draw the plainest family: round Gaussian classes, as they are; a share has two of them."""
        classes = _some_classes(generator, two_share)
        features = min(round(log_uniform(4, 320, generator)), max(4, LARGEST_HEAD // classes))
        # Means of two classes are about so many deviations apart.
        distance = log_uniform(1.5, 10.0, generator)
        means = distance * torch.randn(classes, features, generator=generator)
        means = means / (2 * features) ** 0.5
        spreads = torch.ones(classes, features)
        return BackboneCloud(means, spreads, math.inf, [], torch.eye(features))

    @staticmethod
    def random(generator: torch.Generator, two_share: float = 0.1) -> "BackboneCloud":
        """Draw a family of classes, its difficulty included; a share has two of them."""
        classes = _some_classes(generator, two_share)
        latent = round(log_uniform(6, 80, generator))
        features = min(round(log_uniform(4, 320, generator)), max(4, LARGEST_HEAD // classes))
        groups = max(1, round(classes / log_uniform(1, 8, generator)))
        spectrum = (1 + torch.arange(latent)) ** -uniform(0, 1.0, generator)
        centres = torch.randn(groups, latent, generator=generator)
        belongs = torch.randint(groups, (classes,), generator=generator)
        mixture = uniform(0.0, 0.8, generator)
        own = torch.randn(classes, latent, generator=generator)
        means = (mixture**0.5 * centres[belongs] + (1 - mixture) ** 0.5 * own) * spectrum
        # Neighbouring classes are about `separation` within-class deviations apart.
        separation = log_uniform(2.0, 10.0, generator)
        noise_power = uniform(0.0, 1.0, generator)
        shape = spectrum**noise_power
        spreads = shape * torch.exp(
            uniform(0, 0.5, generator) * torch.randn(classes, latent, generator=generator)
        )
        distance = (2 * (means / shape).square().mean()).sqrt() * latent**0.5
        spreads = spreads * distance / separation
        freedom = log_uniform(3, 30, generator) if chance(0.5, generator) else math.inf
        width = features * (1 if chance(0.3, generator) else 3)
        layers, size = [], latent
        for _ in range(int(torch.randint(0, 3, (), generator=generator))):
            weights = torch.randn(size, width, generator=generator) / size**0.5
            layers.append(
                (weights, uniform(0, 1, generator) * torch.randn(width, generator=generator))
            )
            size = width
        turn = torch.randn(size, features, generator=generator) / size**0.5
        cloud = BackboneCloud(means, spreads, freedom, layers, torch.eye(size))
        if chance(0.5, generator) and features <= size:
            sample = cloud.draw(
                torch.randint(classes, (1000,), generator=generator), generator, test=False
            )
            centred = sample - sample.mean(0)
            turn = torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)[:, :features]
        return BackboneCloud(means, spreads, freedom, layers, turn)

    def draw(self, labels: Tensor, generator: torch.Generator, *, test: bool) -> Tensor:  # noqa: ARG002
        """Draw examples: every one is new."""
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
        return x @ self.turn
