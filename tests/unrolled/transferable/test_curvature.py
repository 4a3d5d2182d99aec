"""The sketch of the second moment, and the curvature that is found in it."""

import naive_transfer
import pytest
import torch
from random_data import seeded

from fedsurf.unrolled.transferable.summaries import (
    DIAGONAL_SHIFT,
    MAX_WHOLE_FEATURES,
    SKETCH_WIDTH,
    Curvature,
    pack,
    sketch_directions,
    unpack,
)

SKETCH = 16
"""The directions of a sketch here; curvature is found in any number of them."""


def moment(seed, features, rank, decay=0.0):
    """Draw a positive semi-definite matrix of a rank, its spectrum falling as a power."""
    axes = torch.linalg.qr(
        torch.randn(features, rank, generator=seeded(seed), dtype=torch.float64)
    ).Q
    values = (1 + torch.arange(rank, dtype=torch.float64)) ** -decay
    return axes @ torch.diag(values) @ axes.T


def found_in(matrices, dtype=torch.float64):
    matrices = matrices.to(dtype)
    features = matrices.shape[1]
    omega = sketch_directions(features, dtype, SKETCH)
    scale = matrices.diagonal(dim1=1, dim2=2).sum(1) / features
    return Curvature.of(omega.T @ matrices, omega, scale, torch.full_like(scale, features))


def whole(curvature, place=0):
    """Uᵀ diag(values) U + rest (I − Uᵀ U)."""
    axes, values = curvature.axes[place], curvature.values[place]
    identity = torch.eye(axes.shape[1], dtype=axes.dtype)
    return axes.T @ torch.diag(values) @ axes + curvature.rest[place] * (identity - axes.T @ axes)


@pytest.mark.parametrize("features", [1, 5, MAX_WHOLE_FEATURES, MAX_WHOLE_FEATURES + 1, 100])
def test_directions_are_orthonormal_and_the_same_for_all(features):
    omega = sketch_directions(features, torch.float64)
    width = SKETCH_WIDTH if features > MAX_WHOLE_FEATURES else features
    assert omega.shape == (features, width)
    torch.testing.assert_close(omega.T @ omega, torch.eye(width, dtype=torch.float64))
    assert torch.equal(omega, sketch_directions(features, torch.float64))
    assert torch.equal(sketch_directions(features, torch.float32), omega.float())


@pytest.mark.parametrize("features", [1, 2, 7, SKETCH_WIDTH, MAX_WHOLE_FEATURES])
@pytest.mark.parametrize("decay", [0.0, 2.0])
def test_with_few_features_everything_is_found(features, decay):
    matrix = moment(0, features, features, decay)
    found = found_in(matrix[None])
    torch.testing.assert_close(whole(found), matrix, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("rank", "error"), [(1, 10), (3, 20), (5, 30), (12, 200)])
def test_matrices_of_small_rank_are_found_up_to_the_shift(rank, error):
    """The error is the shift, enlarged where the random directions hardly see one of the matrix's."""
    matrix = moment(1, 60, rank, 0.5)
    trace = float(matrix.trace())
    found = found_in(matrix[None])
    leading = found.axes[0].T @ torch.diag(found.values[0]) @ found.axes[0]
    assert (leading - matrix).norm() < error * DIAGONAL_SHIFT * trace
    assert float(found.rest[0]) == pytest.approx(1e-3 * trace / 60, rel=1)


@pytest.mark.parametrize("features", [33, 40, 200])
@pytest.mark.parametrize("decay", [0.3, 1.0])
def test_it_equals_a_naive_computation_and_keeps_the_trace(features, decay):
    matrices = torch.stack([moment(seed, features, features, decay) for seed in (2, 3)])
    matrices[1] *= 1e4
    found = found_in(matrices)
    omega = sketch_directions(features, torch.float64, SKETCH)
    for place, matrix in enumerate(matrices):
        trace = float(matrix.trace())
        expected = naive_transfer.second_moment(matrix @ omega, omega, trace / features, features)
        torch.testing.assert_close(whole(found, place), expected, rtol=0, atol=1e-10 * trace)
        assert float(whole(found, place).trace()) == pytest.approx(trace, rel=1e-9)
        axes = found.axes[place]
        torch.testing.assert_close(axes @ axes.T, torch.eye(SKETCH, dtype=torch.float64))


def test_the_leading_directions_are_found_where_they_stand_out():
    matrix = 0.01 * moment(4, 80, 80) + moment(5, 80, 4)
    found = found_in(matrix[None])
    leading = torch.linalg.eigh(matrix).eigenvectors[:, -4:]
    assert (found.axes[0] @ leading).square().sum(0).min() > 0.99
    assert (found.values[0, -4:] - 1).abs().max() < 0.1
    assert found.values[0, :-4].max() < 0.1


@pytest.mark.parametrize("features", [9, 120])
def test_single_and_double_precision_agree(features):
    matrix = moment(6, features, features, 0.7)[None]
    single, double = found_in(matrix, torch.float32), found_in(matrix)
    assert single.axes.dtype == single.values.dtype == single.rest.dtype == torch.float32
    trace = float(matrix[0].trace())
    torch.testing.assert_close(whole(single).double(), whole(double), rtol=0, atol=1e-4 * trace)


@pytest.mark.parametrize("features", [1, 5, 40])
@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_nothing_heard_gives_no_curvature_and_no_trouble(features, scale):
    omega = sketch_directions(features, torch.float32)
    vary = torch.full((2,), float(features))
    found = Curvature.of(torch.zeros(2, *omega.T.shape), omega, torch.full((2,), scale), vary)
    for value in (found.axes, found.values, found.rest):
        assert value.isfinite().all()
    assert (found.values >= 0).all()
    assert (found.values <= 1e-9).all()
    assert (found.rest >= 0).all()
    assert (found.rest <= scale).all()


@pytest.mark.parametrize("features", [3, 50])
def test_one_example_is_one_direction(features):
    x = torch.randn(features, generator=seeded(7), dtype=torch.float64)
    found = found_in(torch.outer(x, x)[None])
    length = float(x.square().sum())
    assert float(found.values.sum()) == pytest.approx(length, rel=1e-2)
    axis = found.axes[0, -1]
    assert float((axis @ x) ** 2) == pytest.approx(length, rel=1e-2)


@pytest.mark.parametrize("features", [6, 40])
def test_whatever_is_heard_the_curvature_is_positive(features):
    """Averages on their way need not be those of any examples: not even symmetric or positive."""
    omega = sketch_directions(features, torch.float64)
    heard = torch.randn(20, *omega.T.shape, generator=seeded(8), dtype=torch.float64)
    scale, vary = (torch.full((20,), one, dtype=torch.float64) for one in (0.5, features))
    found = Curvature.of(heard, omega, scale, vary)
    assert (found.values >= 0).all()
    assert (found.rest > 0).all()
    assert found.axes.isfinite().all()
    for place in range(20):
        damped = whole(found, place) + 1e-6 * torch.eye(features, dtype=torch.float64)
        assert torch.linalg.eigvalsh(damped).min() > 0


@pytest.mark.parametrize("features", [1, 7, MAX_WHOLE_FEATURES, MAX_WHOLE_FEATURES + 1])
def test_a_message_is_half_of_a_whole_moment_and_all_of_a_sketch(features):
    matrices = torch.stack([moment(seed, features, features, 1.0) for seed in range(3)])
    omega = sketch_directions(features, torch.float64)
    sketch = omega.T @ matrices
    message = pack(sketch)
    half = features * (features + 1) // 2
    assert message.shape[1] == (half if features <= MAX_WHOLE_FEATURES else features * SKETCH_WIDTH)
    torch.testing.assert_close(unpack(message, *omega.shape), sketch)


@pytest.mark.parametrize("rank", [1, 5, 10, SKETCH, 60])
def test_axes_are_orthonormal_in_single_precision_too(rank):
    found = found_in(moment(11, 60, rank, 1.0)[None], torch.float32)
    assert found.axes.dtype == torch.float32
    products = (found.axes @ found.axes.mT)[0]
    torch.testing.assert_close(products, torch.eye(SKETCH), rtol=0, atol=2e-6)
