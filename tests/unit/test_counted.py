"""Numbers with their nouns, and the first of many names."""

from __future__ import annotations

import pytest

from dradriver.counted import counted, first_of, shortened


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0 GPUs"), (1, "1 GPU"), (1.0, "1 GPU"), (2, "2 GPUs"), (0.5, "0.5 GPUs"), (1_000_000, "1000000 GPUs")],
)
def test_one_is_one(number: float, said: str) -> None:
    assert counted(number, "GPU") == said


def test_a_noun_can_have_another_plural() -> None:
    assert [counted(number, "agent is", "agents are") for number in (1, 2)] == ["1 agent is", "2 agents are"]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b"], "a, b"),
        (["a", "b", "c"], "a, b and 1 more"),
        (list("abcde"), "a, b and 3 more"),
    ],
)
def test_the_first_names_and_the_number_of_the_others(names: list[str], text: str) -> None:
    assert first_of(names, 2) == text


@pytest.mark.parametrize(("text", "shown"), [("", ""), ("abcdef", "abcdef"), ("abcdefg", "abc...")])
def test_a_long_text_ends_with_dots(text: str, shown: str) -> None:
    assert shortened(text, 6) == shown
