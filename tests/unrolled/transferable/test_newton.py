"""Newton-like steps against loops with explicit inverses, their reach, and mini-batches."""

from dataclasses import replace

import pytest
import random_data
import torch
import transferable_loop
from random_data import seeded

from fedsurf.common.streams import Streams
from fedsurf.tasks.task import Examples
from fedsurf.unrolled.transferable.local import LocalExamples
from fedsurf.unrolled.transferable.newton import HeadFit, LocalProblem, Step, by_feature
from fedsurf.unrolled.transferable.summaries import Curvature

AGENTS, CLASSES = 3, 4


def normal(seed, *shape):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def some_step(seed=0):
    """Return a step with different settings for all agents, and gates, offsets and bends for all classes."""
    lengths = {
        name: (0.3 * normal(seed + place, AGENTS, 1, 1)).exp() * size
        for place, (name, size) in enumerate(
            {"newton": 0.5, "gradient": 0.1, "damping": 0.8, "decay": 0.05, "floor": 0.3,
             "reach": 1.0, "again": 0.7, "scale": 1.5}.items()
        )
    }  # fmt: skip
    each = AGENTS, CLASSES, 1
    return Step(
        gate=2 * normal(seed + 10, *each).sigmoid(),
        offset=normal(seed + 11, *each),
        bend=0.2 * normal(seed + 12, *each).sigmoid(),
        **lengths,
    )


def start(view, curvature, weights):
    """Return a fit that begins at raw heads in the order of a SoftmaxHead."""
    return HeadFit(LocalProblem.of(view, curvature), by_class(weights, view.x.shape[2]))


def raw_head(fit):
    return by_feature(fit.head(), fit.examples.x.shape[2])


def some_curvature(features, width, seed=1):
    axes = torch.linalg.qr(normal(seed, AGENTS, features, width)).Q.mT
    return Curvature(axes, normal(seed + 1, AGENTS, width).exp(), normal(seed + 2, AGENTS).exp())


def one_agent(curvature, agent=0):
    return Curvature(*(value[agent : agent + 1] for value in curvature))


def by_class(weights, features):
    """Undo `by_feature`."""
    return weights.reshape(len(weights), features + 1, -1).mT.flatten(1)


def as_matrix(curvature, agent):
    axes, values = curvature.axes[agent], curvature.values[agent]
    others = torch.eye(axes.shape[1], dtype=torch.float64) - axes.T @ axes
    return axes.T @ torch.diag(values) @ axes + curvature.rest[agent] * others


@pytest.mark.parametrize(
    ("size", "features", "width"), [(6, 3, 2), (6, 3, 3), (6, 9, 4), (13, 3, 2), (13, 20, 4)]
)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("moved", [False, True])
def test_steps_equal_a_loop_with_explicit_inverses(size, features, width, masked, moved):
    examples = random_data.examples(2, AGENTS, size, features, CLASSES, masked=masked)
    view = LocalExamples.of(examples, CLASSES, unit=normal(3, AGENTS, features).exp())
    assert view.x.shape[1] == {6: 6, 13: 16}[size], "rows are added where few are missing"
    assert view.wide == (features > size)
    centres = view.centre
    if moved:
        centres = normal(50, AGENTS, features)
        view = view.recentred(normal(51, AGENTS, features)).recentred(centres)
    curvature, step = some_curvature(features, width), some_step()
    weights = normal(4, AGENTS, (features + 1) * CLASSES)
    fit = start(view, curvature, weights)
    for _ in range(3):
        fit.take(step)
    found = raw_head(fit).reshape(AGENTS, features + 1, CLASSES)
    for agent, own in enumerate(random_data.real_examples(examples)):
        raw = torch.tensor([x for x, _ in own], dtype=torch.float64)
        centre, unit = centres[agent], view.unit[agent]
        assert moved or torch.allclose(centre, raw.mean(0))
        x = (raw - centre) / unit
        labels = torch.eye(CLASSES, dtype=torch.float64)[[label for _, label in own]]
        table = weights[agent].reshape(features + 1, CLASSES)
        matrix, bias = table[:-1] * unit[:, None], table[-1] + centre @ table[:-1]
        controls = {
            name: float(getattr(step, name)[agent])
            for name in ("newton", "gradient", "damping", "decay", "floor", "reach")
        }
        each = [getattr(step, name)[agent, :, 0] for name in ("gate", "offset", "bend")]
        for number in range(3):
            matrix, bias = transferable_loop.local_step(
                x, labels, matrix, bias, as_matrix(curvature, agent), controls, *each,
                float(step.scale[agent]), float(step.again[agent]) if number else 1.0,
            )  # fmt: skip
        logits = (x @ matrix + bias) * 1.0
        real = view.real[agent, :, 0] > 0
        torch.testing.assert_close(fit.logits[agent].T[real], logits)
        torch.testing.assert_close(found[agent, :-1], matrix / unit[:, None])
        torch.testing.assert_close(found[agent, -1], bias - centre @ (matrix / unit[:, None]))


def test_without_a_step_the_head_stays():
    weights = normal(9, AGENTS, 4 * CLASSES)
    view = LocalExamples.of(random_data.examples(9, AGENTS, 5, 3, CLASSES), CLASSES)
    view = replace(view, unit=normal(10, AGENTS, 3).exp())
    torch.testing.assert_close(raw_head(start(view, some_curvature(3, 2), weights)), weights)


def test_by_feature_reorders_heads():
    weights = normal(9, AGENTS, 3 + 1, CLASSES)
    head = by_class(weights.flatten(1), 3)
    for c in range(CLASSES):
        assert torch.equal(head[:, 4 * c : 4 * c + 4], weights[:, :, c])
    assert torch.equal(by_feature(head, 3), weights.flatten(1))


def test_a_step_moves_the_logits_no_farther_than_its_reach():
    view = LocalExamples.of(random_data.examples(11, AGENTS, 6, 9, CLASSES), CLASSES)
    weights = torch.zeros(AGENTS, 10 * CLASSES, dtype=torch.float64)
    step = some_step(40)
    for length, reach in ((1e6, 0.7), (1e6, 3.0), (1e-6, 3.0)):
        fit = start(view, some_curvature(9, 4), weights)
        fit.take(
            step._replace(
                newton=torch.full_like(step.newton, length),
                gradient=torch.zeros_like(step.gradient),
                reach=torch.full_like(step.reach, reach),
            )
        )
        moved = fit.logits.square().mean((1, 2)).sqrt()
        assert (moved <= reach).all()
        assert (moved > 0.99 * reach).all() == (length > 1)


@pytest.mark.parametrize("features", [3, 9])
@pytest.mark.parametrize("size", [1, 4, 6, 100])
def test_a_batch_is_a_problem_of_some_examples(features, size):
    examples = random_data.examples(23, AGENTS, 6, features, CLASSES, masked=True)
    unit = normal(24, AGENTS, features).exp()
    view = LocalExamples.of(examples, CLASSES, unit=unit).recentred(normal(25, AGENTS, features))
    curvature = some_curvature(features, 2)
    batch = LocalProblem.of(view, curvature).batch(size, Streams(26, range(AGENTS)))
    counts = examples.counts
    assert batch.examples.count[:, 0, 0].tolist() == counts.clamp(max=size).tolist()
    for agent, own in enumerate(random_data.real_examples(examples)):
        raw = torch.tensor([x for x, _ in own], dtype=torch.float64)
        labels = torch.tensor([label for _, label in own])
        seen = (raw - view.centre[agent]) / unit[agent]
        real = batch.examples.real[agent, :, 0] > 0
        here = ((batch.examples.x + batch.examples.moved[:, None]) * batch.examples.real)[agent][
            real
        ]
        distance = torch.cdist(here, seen)
        chosen = distance.argmin(1)
        assert float(distance.amin(1).max()) < 1e-7
        assert len(set(chosen.tolist())) == min(size, len(own))
        one_of = Examples(raw[chosen][None], labels[chosen][None])
        centre = view.centre[agent : agent + 1]
        alone = LocalExamples.of(one_of, CLASSES, centre, unit[agent : agent + 1])
        expected = LocalProblem.of(alone, one_agent(curvature, agent))
        torch.testing.assert_close(batch.seen[agent][:, real], expected.seen[0])
        torch.testing.assert_close(batch.examples.labels[agent][:, real], alone.labels[0])
        torch.testing.assert_close(batch.examples.total[agent], batch.examples.x[agent].sum(0))
        if view.wide:
            products = here @ here.T
            torch.testing.assert_close(batch.examples.gram[agent][real][:, real], products)


def test_batches_are_uniform():
    examples = random_data.examples(27, 1, 5, 9, CLASSES)
    problem = LocalProblem.of(LocalExamples.of(examples, CLASSES), one_agent(some_curvature(9, 2)))
    seen = torch.zeros(5)
    for number in range(2000):
        batch = problem.batch(2, Streams(28, [0], number)).examples.x[0]
        seen += (batch[:, None] == problem.examples.x).all(2).sum(0)
    assert (seen / 2000 - 2 / 5).abs().max() < 0.05
