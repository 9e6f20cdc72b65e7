"""Which driver is new enough."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.topology.versions import numbers, reaches


@pytest.mark.parametrize(
    ("version", "least", "reached"),
    [
        ("580.95.05", "580", True),
        ("580.95.05", "580.95.5", True),
        ("580.95.05", "580.95.06", False),
        ("580.95.05", "580.126", False),
        ("535.104.05", "550", False),
        ("9.2", "12.4", False),
        ("13.0", "13", True),
        ("12.4", "12.4.0", True),
        ("580.95.05-open", "580.95.05", True),
        ("", "1", False),
        ("unknown", "0", False),
        ("", "", True),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, least: str, reached: bool) -> None:
    assert reaches(version, least) is reached


@pytest.mark.parametrize("text", ["", ".", "1.", "v1", "1.2.3.4", "1e3", "²", "1 ", "580.95.05-open", "9" * 6])
def test_what_is_no_version_does_not_count(text: str) -> None:
    assert numbers(text) is None


@given(st.lists(st.tuples(*[st.integers(0, 99)] * 3), min_size=2, max_size=2))
def test_one_of_two_reaches_the_other(pair: list[tuple[int, ...]]) -> None:
    one, other = (".".join(map(str, version)) for version in pair)
    assert reaches(one, other) is (pair[0] >= pair[1])
