"""Wording of messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsurf.common.text import counted, listed, printable


@pytest.mark.parametrize(
    ("count", "expected"), [(0, "0 tasks"), (1, "1 task"), (2, "2 tasks"), (1000, "1000 tasks")]
)
def test_a_count_of_one_takes_the_singular(count: int, expected: str) -> None:
    assert counted(count, "task") == expected


def test_an_irregular_plural_can_be_given() -> None:
    assert counted(2, "class", "classes") == "2 classes"


def test_lists_are_cut_after_ten_names() -> None:
    assert listed([]) == "(none)"
    assert listed(["a", 1]) == "a, 1"
    assert listed(range(12)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"


def test_terminal_escape_codes_and_line_breaks_are_escaped() -> None:
    assert printable("\x1b[31mred\x07\nline") == r"\x1b[31mred\x07\nline"
    assert printable("right-to-left \u202e") == r"right-to-left \u202e"
    assert printable("é – ß 漢字") == "é – ß 漢字"


def test_long_text_is_shortened() -> None:
    shown = printable("a" * 100_000 + "z")
    assert shown.startswith("aaa")
    assert shown.endswith("az")
    assert len(shown) < 250


@given(st.text())
def test_printable_text_is_unchanged_and_other_text_becomes_printable(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text) or len(text) > 30
    if text.isprintable() and len(text) <= 200:
        assert printable(text) == text
