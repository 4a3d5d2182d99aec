"""The number of threads, and for how long."""

import pytest
import torch
from joblib import parallel_config

from fedsurf.common import threads


@pytest.fixture(autouse=True)
def _three_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before, plain = torch.get_num_threads(), torch.set_num_threads  # a test may replace it
    plain(3)
    yield
    plain(before)


def test_optimizers_of_fewer_than_50_million_parameters_take_one_thread(monkeypatch):
    set_to = []
    monkeypatch.setattr("torch.set_num_threads", set_to.append)
    monkeypatch.setattr("threadpoolctl.threadpool_limits", set_to.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads.limit_threads(50_000_000)
    assert set_to == []
    threads.limit_threads(49_999_999)
    assert set_to == [1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    threads.limit_threads(0)
    assert set_to == [1, 1]


@pytest.mark.parametrize(("n_jobs", "wanted"), [(None, 1), (1, 1), (2, 2)])
def test_the_number_of_threads_is_restored(n_jobs, wanted):
    with threads.threads(n_jobs):
        assert torch.get_num_threads() == wanted
    assert torch.get_num_threads() == 3
    with pytest.raises(RuntimeError, match="stop"), threads.threads(n_jobs):
        raise RuntimeError("stop")
    assert torch.get_num_threads() == 3


def test_without_a_number_joblib_decides():
    with parallel_config(backend="threading", n_jobs=2), threads.threads(None):
        assert torch.get_num_threads() == 2


def test_processes_of_joblib_take_one_each(monkeypatch):
    # It tells libraries in its processes by this variable to use all cores among them.
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    with threads.threads(None):
        assert torch.get_num_threads() == 1
