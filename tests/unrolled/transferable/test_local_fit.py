"""An agent's view of its examples, and steps through Gram matrices against steps in all features."""

from dataclasses import replace

import naive_transfer
import pytest
import random_data
import torch
from random_data import seeded

from fedsurf.tasks.examples import Examples
from fedsurf.unrolled.transferable.local import LocalExamples
from fedsurf.unrolled.transferable.newton import HeadFit, LocalProblem, Step, by_feature
from fedsurf.unrolled.transferable.summaries import Curvature

AGENTS, CLASSES = 3, 4


def normal(seed, *shape):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def some_step(seed=0):
    """A step with another setting for every agent, and a gate, an offset and a bend for every class."""
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
    """A fit that begins at raw heads as a SoftmaxHead has them."""
    return HeadFit(LocalProblem.of(view, curvature), by_class(weights, view.x.shape[2]))


def raw_head(fit):
    return by_feature(fit.head(), fit.examples.x.shape[2])


def some_curvature(features, width, seed=1):
    axes = torch.linalg.qr(normal(seed, AGENTS, features, width)).Q.mT
    return Curvature(axes, normal(seed + 1, AGENTS, width).exp(), normal(seed + 2, AGENTS).exp())


def one_agent(curvature, agent=0):
    return Curvature(*(value[agent : agent + 1] for value in curvature))


def by_class(weights, features):
    """Order raw heads class by class: the weights and the bias of each."""
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
        knobs = {
            name: float(getattr(step, name)[agent])
            for name in ("newton", "gradient", "damping", "decay", "floor", "reach")
        }
        each = [getattr(step, name)[agent, :, 0] for name in ("gate", "offset", "bend")]
        for number in range(3):
            matrix, bias = naive_transfer.local_step(
                x, labels, matrix, bias, as_matrix(curvature, agent), knobs, *each,
                float(step.scale[agent]), float(step.again[agent]) if number else 1.0,
            )  # fmt: skip
        logits = (x @ matrix + bias) * 1.0
        real = view.real[agent, :, 0] > 0
        torch.testing.assert_close(fit.logits[agent].T[real], logits)
        torch.testing.assert_close(found[agent, :-1], matrix / unit[:, None])
        torch.testing.assert_close(found[agent, -1], bias - centre @ (matrix / unit[:, None]))


@pytest.mark.parametrize("masked", [False, True])
def test_the_path_through_the_gram_matrix_equals_the_one_through_the_features(masked):
    """Features that are always zero change nothing, but make the task wide."""
    examples = random_data.examples(5, AGENTS, 6, 4, CLASSES, masked=masked)
    wide = replace(examples, x=torch.cat([examples.x, examples.x.new_zeros(AGENTS, 6, 5)], 2))
    curvature, step = some_curvature(4, 2), some_step(20)
    longer = curvature._replace(
        axes=torch.cat([curvature.axes, curvature.axes.new_zeros(AGENTS, 2, 5)], 2)
    )
    weights = normal(6, AGENTS, 5, CLASSES)
    zeros = weights.new_zeros(AGENTS, 5, CLASSES)
    wider = torch.cat([weights[:, :4], zeros, weights[:, 4:]], 1)
    narrow_fit = start(LocalExamples.of(examples, CLASSES), curvature, weights.flatten(1))
    wide_fit = start(LocalExamples.of(wide, CLASSES), longer, wider.flatten(1))
    assert wide_fit.examples.wide
    assert not narrow_fit.examples.wide
    for _ in range(4):
        narrow_fit.take(step)
        wide_fit.take(step)
        torch.testing.assert_close(
            narrow_fit.logits.mT * narrow_fit.examples.real,
            wide_fit.logits.mT * wide_fit.examples.real,
        )
    narrow = raw_head(narrow_fit).reshape(AGENTS, 5, CLASSES)
    found = raw_head(wide_fit).reshape(AGENTS, 10, CLASSES)
    torch.testing.assert_close(found[:, [0, 1, 2, 3, 9]], narrow)
    assert torch.equal(found[:, 4:9], zeros)


@pytest.mark.parametrize("features", [3, 9])
def test_logits_are_those_of_the_raw_head(features):
    examples = random_data.examples(7, AGENTS, 6, features, CLASSES, masked=True)
    view = LocalExamples.of(examples, CLASSES)
    fit = start(view, some_curvature(features, 2), normal(8, AGENTS, (features + 1) * CLASSES))
    for _ in range(2):
        fit.take(some_step(30))
    head = raw_head(fit).reshape(AGENTS, features + 1, CLASSES)
    logits = examples.x @ head[:, :-1] + head[:, -1:]
    torch.testing.assert_close(fit.logits.mT * view.real, logits * view.real)
    torch.testing.assert_close(fit.probabilities(), (logits.softmax(2) * view.real).mT)


def test_without_a_step_the_head_is_what_it_was():
    weights = normal(9, AGENTS, 4 * CLASSES)
    view = LocalExamples.of(random_data.examples(9, AGENTS, 5, 3, CLASSES), CLASSES)
    view = replace(view, unit=normal(10, AGENTS, 3).exp())
    torch.testing.assert_close(raw_head(start(view, some_curvature(3, 2), weights)), weights)


def test_heads_class_by_class_are_the_same_numbers():
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
@pytest.mark.parametrize("masked", [False, True])
def test_a_view_from_elsewhere_is_of_the_same_examples(features, masked):
    examples = random_data.examples(12, AGENTS, 6, features, CLASSES, masked=masked)
    centre, unit = normal(13, AGENTS, features), normal(14, AGENTS, features).exp()
    first = LocalExamples.of(examples, CLASSES, unit=unit)
    view = first.recentred(normal(19, AGENTS, features)).recentred(centre)
    expected = LocalExamples.of(examples, CLASSES, centre, unit)
    for name in ("gram", "centre", "raw_sum", "unit", "labels", "real", "count"):
        torch.testing.assert_close(getattr(view, name), getattr(expected, name))
    torch.testing.assert_close((view.x + view.moved[:, None]) * view.real, expected.x)
    assert torch.equal(view.x, first.x) == view.wide
    for agent, own in enumerate(random_data.real_examples(examples)):
        raw = torch.tensor([x for x, _ in own], dtype=torch.float64)
        torch.testing.assert_close(view.raw_sum[agent], raw.sum(0))
        seen = (raw - centre[agent]) / unit[agent]
        omega = normal(15, features, 2)
        kept = first.sketch(omega) if view.wide else None
        for sketch in (view.sketch(omega), view.sketch(omega, kept)):
            torch.testing.assert_close(sketch[agent], omega.T @ seen.T @ seen)
        assert float(view.count[agent]) == len(own)
        counts = [sum(label == c for _, label in own) for c in range(CLASSES)]
        assert view.labels[agent].sum(1).tolist() == counts


@pytest.mark.parametrize("features", [3, 9])
def test_an_outlook_is_of_the_examples_from_the_centre(features):
    examples = random_data.examples(21, AGENTS, 6, features, CLASSES, masked=True)
    view = LocalExamples.of(examples, CLASSES).recentred(normal(22, AGENTS, features))
    curvature = some_curvature(features, 2)
    outlook = LocalProblem.of(view, curvature)
    assert outlook.seen.shape == (AGENTS, 2, 6)
    for agent, own in enumerate(random_data.real_examples(examples)):
        places = view.real[agent, :, 0].nonzero().flatten().tolist()
        for place, (x, _) in zip(places, own, strict=True):
            seen = torch.tensor(x, dtype=torch.float64) - view.centre[agent]
            for k in range(2):
                expected = sum(
                    float(a * b) for a, b in zip(curvature.axes[agent, k], seen, strict=True)
                )
                assert float(outlook.seen[agent, k, place]) == pytest.approx(expected)


@pytest.mark.parametrize("features", [3, 9])
@pytest.mark.parametrize("size", [1, 4, 6, 100])
def test_a_batch_is_an_outlook_on_some_of_the_examples(features, size):
    examples = random_data.examples(23, AGENTS, 6, features, CLASSES, masked=True)
    unit = normal(24, AGENTS, features).exp()
    view = LocalExamples.of(examples, CLASSES, unit=unit).recentred(normal(25, AGENTS, features))
    curvature = some_curvature(features, 2)
    batch = LocalProblem.of(view, curvature).batch(size, seeded(26))
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
    outlook = LocalProblem.of(LocalExamples.of(examples, CLASSES), one_agent(some_curvature(9, 2)))
    random, seen = seeded(28), torch.zeros(5)
    for _ in range(2000):
        batch = outlook.batch(2, random).examples.x[0]
        seen += (batch[:, None] == outlook.examples.x).all(2).sum(0)
    assert (seen / 2000 - 2 / 5).abs().max() < 0.05


def test_some_agents_see_what_they_saw():
    unit = normal(18, AGENTS, 9).exp()
    view = LocalExamples.of(
        random_data.examples(16, AGENTS, 6, 9, CLASSES, masked=True), CLASSES, unit=unit
    )
    assert replace(view, unit=None).of_agents(torch.tensor([1])).unit is None
    some = view.of_agents(torch.tensor([2, 0]))
    for name, value in vars(view).items():
        assert torch.equal(getattr(some, name), value[[2, 0]])


def test_padding_is_never_seen():
    examples = random_data.examples(17, AGENTS, 6, 9, CLASSES, masked=True)
    noisy = Examples(
        torch.where(examples.mask[:, :, None], examples.x, 1e3),
        torch.where(examples.mask, examples.y, 3),
        examples.mask,
    )
    one, two = LocalExamples.of(examples, CLASSES), LocalExamples.of(noisy, CLASSES)
    for name, value in vars(one).items():
        if value is not None:
            torch.testing.assert_close(getattr(two, name), value)
