"""Standard errors and confidence limits."""

import math

import numpy as np
import pytest
import torch
from random_data import weights

from fedsurf.common.statistics import finite, mean_interval, standard_error, upper_limit


def test_the_standard_error_is_that_of_the_mean_along_the_first_dimension():
    values = weights(0, 7, 3)
    expected = values.numpy().std(0, ddof=1) / np.sqrt(7)
    torch.testing.assert_close(standard_error(values), torch.from_numpy(expected))


def test_the_error_of_a_single_value_is_infinite():
    assert standard_error(torch.ones(1, 2)).tolist() == [float("inf")] * 2
    assert float(standard_error(torch.ones(1))) == float("inf")


def test_numbers_for_json_are_finite():
    assert finite(torch.tensor(1.5)) == 1.5
    assert finite(torch.tensor(float("inf"))) is None
    assert finite(torch.tensor(float("nan"))) is None


def test_equal_values_have_no_error():
    assert float(standard_error(torch.full((5,), 2.0))) == 0


def test_limits_of_a_mean_are_those_of_students_t():
    values = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    mean, low, high = mean_interval(values, 0.95)
    assert mean == 2
    half = pytest.approx(4.302652729911275 / math.sqrt(3))
    assert float(high - mean) == half
    assert float(mean - low) == half
    assert upper_limit(values, 0.975) == pytest.approx(float(high))


@pytest.mark.parametrize("confidence", [0, 1, 1.5, math.nan])
def test_a_level_of_confidence_is_between_0_and_1(confidence):
    with pytest.raises(ValueError, match="confidence: got"):
        mean_interval(torch.ones(3), confidence)
