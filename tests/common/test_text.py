"""How many there are, in words."""

import pytest

from fedsurf.common.text import counted


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 tasks"), (1, "1 task"), (2, "2 tasks"), (1000, "1000 tasks")]
)
def test_one_is_said_in_the_singular(count: int, said: str) -> None:
    assert counted(count, "task") == said


def test_a_plural_of_its_own_may_be_given() -> None:
    assert counted(2, "class", "classes") == "2 classes"
