"""The register of units: which unit is looked after, and when the newest pod was created."""

from __future__ import annotations

import time

import msgspec

from dradriver.queue.namespace_tenants import Tenants
from dradriver.queue.tenant_shares import Shares
from dradriver.queue.unit_register import UnitRegister
from dradriver.queue.units import Member, Unit
from tests.unit.queue.test_order import unit


def register() -> UnitRegister:
    return UnitRegister(Tenants(Shares(time.monotonic)))


def test_another_unit_of_the_same_key_is_not_the_one_that_is_looked_after() -> None:
    units, first, second = register(), unit("p", "default"), unit("p", "default")
    assert not units.has(first)
    units.add(first)
    assert units.has(first)
    units.add(second)
    assert not units.has(first)


def test_the_newest_pod_counts_and_one_without_a_time_does_not() -> None:
    def created(name: str, timestamp: str | None) -> Unit:
        pod = unit(name, "default").lead.pod
        metadata = msgspec.structs.replace(pod.metadata, creation_timestamp=timestamp)
        return Unit(Member(msgspec.structs.replace(pod, metadata=metadata)))

    units = register()
    units.add(created("a", None))
    assert units.newest == ""
    for name, timestamp in (("b", "2026-01-02T00:00:00Z"), ("c", "2026-01-01T00:00:00Z"), ("d", None)):
        units.add(created(name, timestamp))
    assert units.newest == "2026-01-02T00:00:00Z"
