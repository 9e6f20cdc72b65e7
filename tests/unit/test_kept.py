"""tests.kept sees what an object keeps."""

from __future__ import annotations

import asyncio

from dradriver.cluster.gpus.device_holders import Holds
from dradriver.queue.write_lanes import Lanes
from tests.kept import entries, lose_one_by_one


def nothing(*_: object) -> None:
    pass


async def test_what_waits_is_counted_and_what_went_is_not() -> None:
    lanes = Lanes(nothing)
    before = entries(lanes)
    slots = [lanes.take("n", nothing) for _ in range(100)]
    during = entries(lanes)
    for slot in slots:
        slot.give_back()
    await asyncio.sleep(0)
    assert during > before
    assert entries(lanes) == before


def test_slots_and_msgspec_structs_are_followed() -> None:
    holds = Holds()
    before = entries(holds)
    holds.hold(("ns", "claim"), {("node", "gpu"): None})
    assert entries(holds) > before
    holds.hold(("ns", "claim"), {})
    assert entries(holds) == before


def test_a_key_is_lost_in_one_mapping_after_the_other() -> None:
    holds = Holds()
    holds.hold(("ns", "claim"), {("node", "gpu"): None})
    for key in (("ns", "claim"), ("node", "gpu"), ("ns", "other")):
        for _ in lose_one_by_one(holds, key):
            assert not holds.of(("ns", "claim")) or not holds.holders(("node", "gpu"))
    assert not holds.of(("ns", "claim"))
    assert not holds.holders(("node", "gpu"))
