"""Settings and fixtures of all tests: deterministic hypothesis, and scikit-learn's digits."""

import pytest
import torch
from hypothesis import settings
from sklearn.datasets import load_digits

settings.register_profile("fedsurf", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("fedsurf")


@pytest.fixture(scope="session")
def digits():
    """All 1,797 digits, `[examples, 64]` scaled to at most 1, and their labels."""
    data = load_digits()
    return torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)
