"""Synthetic data: families of classification problems for tests of transfer, not used in meta-training.

They differ in kind: counts of words, spectra, a table of mixed columns, classes of several clusters, ordered
classes, labels of a linear teacher, drawn glyphs, and noisy counts. Each is a pure function of a fixed seed.
Values are rounded to multiples of 1/1024, which hides differences between machines. Classes alternate,
so that any beginning of a part is balanced. Centres, topics and shapes are shared by both parts.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedsurf.tasks.dataset import Array, Dataset

TRAIN_EXAMPLES, TEST_EXAMPLES = 30_000, 12_000
"""Examples of each part: twice those of a task of 100 agents with 60 examples, in the test part and in the two
fifths of the training part for validation, since tasks are imbalanced."""

SEED = 20_260_101
"""Seed of all families; their names tell their random streams apart."""

GRID = 1024
"""Values are multiples of one over this."""

_ALL = TRAIN_EXAMPLES + TEST_EXAMPLES

Draw = Callable[[np.random.Generator], tuple[Array, Array]]
"""Draws the features `[examples, features]` and labels `[examples]` of both parts, training first."""


def words(random: np.random.Generator) -> tuple[Array, Array]:
    """Draw bags of words: the square roots of the counts of 256 words in documents of 20 kinds.

    A kind is a mixture of 30 topics, a document a mixture around that of its kind, and its words
    are drawn from the document's mixture of topics. Words are about as frequent as in Zipf's law.
    """
    kinds, topics, vocabulary = 20, 30, 256
    y = _alternating_labels(kinds)
    frequency = 1 / (10 + np.arange(vocabulary))
    topic_words = random.dirichlet(40 * frequency / frequency.sum(), size=topics)
    kind_topics = random.dirichlet(np.full(topics, 0.3), size=kinds)
    mixture = random.standard_gamma(8 * kind_topics[y] + 0.02)
    mixture /= mixture.sum(1, keepdims=True)
    length = np.exp(random.normal(np.log(120), 0.5, size=(_ALL, 1)))
    return np.sqrt(random.poisson(length * (mixture @ topic_words))), y


def spectra(random: np.random.Generator) -> tuple[Array, Array]:
    """Draw signals of 12 machines: the logarithms of the energies in 32 bands of 128 samples.

    Each machine has four frequencies. They drift with its speed, the phases are random,
    the loudness of each varies, and there is white noise.
    """
    machines, tones, samples = 12, 4, 128
    y = _alternating_labels(machines)
    frequency = random.uniform(4, 60, size=(machines, tones))[y]
    frequency = frequency * (1 + 0.03 * random.standard_normal((_ALL, 1)))
    loudness = np.exp(0.5 * random.standard_normal((_ALL, tones)))
    phase = random.uniform(0, 2 * np.pi, size=(_ALL, tones))
    signal = 0.8 * random.standard_normal((_ALL, samples))
    time = np.arange(samples) / samples
    for tone in range(tones):
        angle = 2 * np.pi * frequency[:, tone, None] * time + phase[:, tone, None]
        signal += loudness[:, tone, None] * np.sin(angle)
    power = np.abs(np.fft.rfft(signal)[:, 1:]) ** 2
    return np.log(power.reshape(_ALL, 32, 2).mean(2)), y


def table(random: np.random.Generator) -> tuple[Array, Array]:
    """Draw rows of a table about 5 kinds of customers: 8 numbers and 6 choices, one-hot.

    The numbers have different units (money, years, visits, shares), so every column is standardised over
    the training part.
    """
    kinds = 5
    y = _alternating_labels(kinds)
    latent = 0.45 * random.standard_normal((kinds, 8))[y] + random.standard_normal((_ALL, 8))
    columns = [
        np.exp(7 + 0.8 * latent[:, :2]),
        np.rint(45 + 14 * latent[:, 2:4]),
        random.poisson(np.exp(1 + 0.6 * latent[:, 4:6])),
        1 / (1 + np.exp(-2 * latent[:, 6:])),
    ]
    for levels in (2, 3, 4, 5, 6, 8):
        chance = random.dirichlet(np.full(levels, 4.0), size=kinds).cumsum(1)[y]
        choice = (random.random((_ALL, 1)) > chance[:, :-1]).sum(1)
        columns.append(np.eye(levels)[choice])
    x = np.concatenate(columns, 1)
    return (x - x[:TRAIN_EXAMPLES].mean(0)) / x[:TRAIN_EXAMPLES].std(0), y


def clusters(random: np.random.Generator) -> tuple[Array, Array]:
    """Draw 8 classes of four clusters each, at corners of a cube, among 16 features.

    As with exclusive or, the corners of a class are random, and no linear head can separate the
    classes. Six of the features are noise.
    """
    classes, each, informative, features = 8, 4, 10, 16
    y = _alternating_labels(classes)
    corners = random.permutation(2**informative)[: classes * each]
    signs = 2.0 * (corners[:, None] >> np.arange(informative) & 1) - 1
    mine = each * y + random.integers(each, size=_ALL)
    x = random.standard_normal((_ALL, features))
    x[:, :informative] = signs[mine] + 0.6 * x[:, :informative]
    return x, y


def curve(random: np.random.Generator) -> tuple[Array, Array]:
    """Draw 10 ordered classes: consecutive stretches of a curve through 10 dimensions, with noise.

    Neighbouring classes touch, so that confusions are with neighbours.
    """
    classes, features = 10, 10
    y = _alternating_labels(classes)
    place = (y + random.random(_ALL)) / classes
    order = 1 + np.arange(features) / 2
    phase = random.uniform(0, 2 * np.pi, size=features)
    middle = np.cos(np.pi * order * place[:, None] + phase) / np.sqrt(order)
    return middle + 0.65 * random.standard_normal((_ALL, features)), y


def teacher(random: np.random.Generator) -> tuple[Array, Array]:
    """Draw uniform features, 40 of them, and labels of 15 classes from a linear softmax teacher.

    The labels are as random as the teacher is unsure; a linear head is the right model. Of each
    class equally many are kept, which shifts no more than the teacher's biases.
    """
    classes, features = 15, 40
    x = random.uniform(-1, 1, size=(2 * _ALL, features)) / np.sqrt(1 + np.arange(features) / 8)
    weights = 0.65 * random.standard_normal((features, classes))
    gumbel = random.gumbel(size=(2 * _ALL, classes))
    y = (x @ weights + gumbel).argmax(1)
    kept = [np.flatnonzero(y == label)[: _ALL // classes] for label in range(classes)]
    order = np.stack(kept, 1).ravel()
    return x[order], y[order]


def glyphs(random: np.random.Generator) -> tuple[Array, Array]:
    """Draw 50 letters of an invented script by a shaky hand, in 10 × 10 pixels.

    A letter is three curved strokes, each with a start, a bend and an end. Hands move these points,
    and shift, slant and scale the letter. It is drawn on 20 × 20 pixels with a soft pen, averaged
    over 2 × 2, and noise is added.
    """
    letters, strokes, dots = 50, 3, 6
    y = _alternating_labels(letters)
    points = random.uniform(-1, 1, size=(letters, strokes, 3, 2))[y]
    points = points + 0.15 * random.standard_normal(points.shape)
    along = np.linspace(0, 1, dots)
    bend = np.stack([(1 - along) ** 2, 2 * along * (1 - along), along**2], 1)
    place = (bend @ points).reshape(_ALL, strokes * dots, 2)
    place[..., 0] += 0.15 * random.standard_normal((_ALL, 1)) * place[..., 1]
    place *= 1 + 0.1 * random.standard_normal((_ALL, 1, 1))
    place += 0.08 * random.standard_normal((_ALL, 1, 2))
    x = np.concatenate([_pixels(chunk) for chunk in np.array_split(place, 20)])
    return x + 0.1 * random.standard_normal(x.shape), y


def _pixels(place: Array) -> Array:
    """Draw dots `[examples, dots, 2]` with a soft pen, and return the averages of 2 × 2 pixels."""
    examples, size = len(place), 20
    distance = place[..., None] - np.linspace(-1.3, 1.3, size)
    pen = np.exp(-0.5 * (distance / 0.14) ** 2)
    ink = 1 - np.exp(-(pen[:, :, 1].transpose(0, 2, 1) @ pen[:, :, 0]))
    pooled: Array = ink.reshape(examples, size // 2, 2, size // 2, 2).mean((2, 4))
    return pooled.reshape(examples, -1)


def genes(random: np.random.Generator) -> tuple[Array, Array]:
    """Draw counts of 120 genes in cells of 20 types, as log(1 + count per depth): small and noisy.

    Each type expresses a tenth of the genes more than others do. The counts are overdispersed and
    cells differ in depth.
    """
    types, count = 20, 120
    y = _alternating_labels(types)
    base = np.exp(random.normal(0.5, 1.0, size=count))
    marker = random.random((types, count)) < 0.1
    depth = np.exp(0.3 * random.standard_normal((_ALL, 1)))
    mean = depth * base * np.where(marker, 2.05, 1.0)[y]
    counts = random.poisson(mean * random.standard_gamma(1.5, size=mean.shape) / 1.5)
    return np.log1p(counts / depth), y


def _alternating_labels(classes: int) -> Array:
    return np.arange(_ALL, dtype=np.int64) % classes


FAMILIES: dict[str, tuple[str, int, Draw]] = {
    "synthetic-words": ("counts of 256 words in 20 kinds of documents", 20, words),
    "synthetic-spectra": ("32 band energies of 12 humming machines", 12, spectra),
    "synthetic-table": ("36 mixed columns about 5 kinds of customers", 5, table),
    "synthetic-clusters": ("8 classes of 4 clusters each, 16 features", 8, clusters),
    "synthetic-curve": ("10 ordered classes along a curve, 10 features", 10, curve),
    "synthetic-teacher": ("15 classes that a linear softmax labels, 40 features", 15, teacher),
    "synthetic-glyphs": ("50 letters of an invented script, 100 pixels", 50, glyphs),
    "synthetic-genes": ("noisy counts of 120 genes in 20 types of cells", 20, genes),
}
"""Description, number of classes and generator of each source."""


def generate(_: Path | None = None, *, name: str) -> Dataset:
    """Generate the data of a source.

    Examples
    --------
    >>> generate(name="synthetic-curve").train_x.shape
    (30000, 10)
    """
    _about, classes, draw = FAMILIES[name]
    # Each family has its own stream: changing one leaves the others as they are. The key decides the numbers.
    key = f"made-{name.removeprefix('synthetic-')}"
    stream = np.random.SeedSequence([SEED, *key.encode()])
    x, y = draw(np.random.Generator(np.random.PCG64(stream)))
    x = (np.rint(x * GRID) / GRID).astype(np.float32)
    return Dataset.from_arrays(
        x[:TRAIN_EXAMPLES],
        y[:TRAIN_EXAMPLES],
        x[TRAIN_EXAMPLES:],
        y[TRAIN_EXAMPLES:],
        name=name,
        classes=classes,
    )
