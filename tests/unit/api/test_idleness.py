"""What a claim's status says of idleness: anybody's text in its place says nothing."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.api.base import names
from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.api.base.objects import seconds
from dradriver.api.claims import idleness
from dradriver.api.claims.idleness import Idle

SINCE = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
TOLD = idleness.told(SINCE, now=SINCE + datetime.timedelta(hours=1))


def claim(*data: Any, results: int | None = None, driver: str = names.DRIVER) -> ResourceClaim:
    count = len(data) if results is None else results
    given = [{"driver": names.DRIVER, "pool": "n", "device": f"d{i}"} for i in range(count)]
    said = [{"driver": driver, "pool": "n", "device": f"d{i}", "data": one} for i, one in enumerate(data)]
    status = {"allocation": {"devices": {"results": given}}, "devices": said}
    encoded = msgspec.json.encode({"metadata": {"name": "c"}, "status": status})
    return msgspec.json.decode(encoded, type=ResourceClaim)


def test_all_devices_say_so() -> None:
    later = idleness.told(SINCE + datetime.timedelta(minutes=5), now=SINCE + datetime.timedelta(minutes=50))
    began = SINCE.timestamp()
    assert idleness.idle_of(claim(TOLD, TOLD)) == Idle(began, began + 3600)
    assert idleness.idle_of(claim(TOLD, later)) == Idle(began + 300, began + 3000), "of both together"


@pytest.mark.parametrize(
    "found",
    [
        claim(TOLD, {}),
        claim(TOLD, results=2),
        claim(TOLD, results=0),
        claim(TOLD, driver="another.driver"),
        claim({"idleSince": "2026-01-02T03:04:05Z"}),
        claim({"idleSince": "2026-01-02T03:04:05", "idleSeen": "2026-01-02T03:04:05"}),
        claim({"idleSince": "9" * 5000, "idleSeen": "2026-01-02T03:04:05Z"}),
        claim({"idleSince": 7, "idleSeen": []}),
        claim(TOLD | {"filler": "x" * 20_000}),
        claim(["idleSince"]),
    ],
)
def test_half_of_it_or_something_else_says_nothing(found: ResourceClaim) -> None:
    assert idleness.idle_of(found) is None


@given(st.text(max_size=40))
def test_any_text_is_a_time_or_none(text: str) -> None:
    found = seconds(text)
    assert found is None or isinstance(idleness.moment(found), str)


@given(st.integers(0, 4_102_444_800).map(lambda second: datetime.datetime.fromtimestamp(second, datetime.UTC)))
def test_a_time_that_was_written_is_read(moment: datetime.datetime) -> None:
    assert seconds(idleness.written(moment)) == int(moment.timestamp())


def test_what_is_no_time_any_more_is_shown_as_nothing() -> None:
    assert idleness.moment(float("inf")) == idleness.moment(1e30) == ""


def test_a_question_is_asked_and_taken_back() -> None:
    asked = idleness.question(SINCE)["metadata"]["annotations"]
    assert idleness.asked(asked) == SINCE.timestamp()
    assert idleness.question(None)["metadata"]["annotations"] == {names.IDLE_END: None}
    assert idleness.asked({}) is idleness.asked({names.IDLE_END: "soon"}) is None
