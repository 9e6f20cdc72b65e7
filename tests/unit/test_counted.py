"""Numbers with their nouns."""

from __future__ import annotations

import pytest

from dradriver.counted import counted


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0 GPUs"), (1, "1 GPU"), (1.0, "1 GPU"), (2, "2 GPUs"), (0.5, "0.5 GPUs"), (1_000_000, "1000000 GPUs")],
)
def test_one_is_one(number: float, said: str) -> None:
    assert counted(number, "GPU") == said


def test_a_noun_can_have_another_plural() -> None:
    assert [counted(number, "agent is", "agents are") for number in (1, 2)] == ["1 agent is", "2 agents are"]
