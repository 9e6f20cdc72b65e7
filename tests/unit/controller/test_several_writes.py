"""Several writes for one workload: what happens to the others if one goes wrong."""

from __future__ import annotations

import asyncio
import functools

import pytest

from dradriver.controller.writing.several_writes import each
from dradriver.controller.writing.write_outcome import MovedOnError
from dradriver.kube.client import ApiError


async def test_after_an_error_none_begins_those_under_way_end_and_the_worst_is_raised() -> None:
    ended: list[str] = []
    errors: list[Exception] = []

    async def write(name: str, after_s: float, error: Exception | None = None) -> None:
        await asyncio.sleep(after_s)
        if error is not None:
            raise error
        ended.append(name)

    trouble = ApiError(500, "InternalError", "no")
    writes = [
        functools.partial(write, "refused", 1, MovedOnError("changed")),
        functools.partial(write, "slow", 5),
        functools.partial(write, "worse", 3, trouble),
        functools.partial(write, "never", 0),
    ]
    with pytest.raises(ApiError) as raised:
        await each(writes, at_once=3, on_error=errors.append)
    assert raised.value is trouble
    assert ended == ["slow"]
    assert len(errors) == 2
