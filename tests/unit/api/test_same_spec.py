"""Specs that ask for the same have one digest, and others have others."""

from __future__ import annotations

from typing import Any

import pytest

from dradriver.api.base.same_spec import digest


def spec(memory: object = "10240Mi", **more: Any) -> dict[str, Any]:
    exactly = {"deviceClassName": "c", "count": 1, "capacity": {"requests": {"cores": "25", "memory": memory}}}
    return {"spec": {"devices": {"requests": [{"name": "g", "exactly": exactly | more}]}}}


@pytest.mark.parametrize(
    "other",
    [
        spec("10Gi"),
        spec("10737418240"),
        spec(selectors=[], tolerations=None),
        spec() | {"metadata": {"creationTimestamp": None}},
        dict(reversed((spec() | {"metadata": {}}).items())),
    ],
)
def test_alike(other: dict[str, Any]) -> None:
    assert digest(other) == digest(spec())


@pytest.mark.parametrize(
    "other",
    [
        spec("10G"),
        spec("not a quantity"),
        spec(10),
        spec(count=2),
        spec(adminAccess=True),
        spec(adminAccess=False),
        spec(tolerations=[{"operator": "Exists"}]),
        spec(capacity={}),
        spec(capacity="all"),
        spec() | {"metadata": {"labels": {"a": "b"}}},
        {},
        None,
    ],
)
def test_different(other: Any) -> None:
    assert digest(other) != digest(spec())


@pytest.mark.parametrize(("one", "other"), [(spec("odd"), spec("odder")), (spec(capacity="all"), spec(capacity={}))])
def test_what_is_no_amount_counts_as_it_stands(one: Any, other: Any) -> None:
    assert digest(one) != digest(other)


def test_what_nests_too_deeply_is_like_nothing() -> None:
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]
    assert digest(nested) == ""
