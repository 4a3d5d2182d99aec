"""Standard errors."""

import numpy as np
import torch
from drawn import weights

from fedsurf.common.statistics import finite, standard_error


def test_the_standard_error_is_that_of_the_mean_along_the_first_dimension():
    values = weights(0, 7, 3)
    expected = values.numpy().std(0, ddof=1) / np.sqrt(7)
    torch.testing.assert_close(standard_error(values), torch.from_numpy(expected))


def test_a_single_value_says_nothing_about_its_error():
    assert standard_error(torch.ones(1, 2)).tolist() == [float("inf")] * 2
    assert float(standard_error(torch.ones(1))) == float("inf")


def test_numbers_for_json_are_finite():
    assert finite(torch.tensor(1.5)) == 1.5
    assert finite(torch.tensor(float("inf"))) is None
    assert finite(torch.tensor(float("nan"))) is None


def test_equal_values_have_no_error():
    assert float(standard_error(torch.full((5,), 2.0))) == 0
