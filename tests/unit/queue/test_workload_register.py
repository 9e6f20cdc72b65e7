"""The register of workloads: which workload is looked after, and when the newest pod was created."""

from __future__ import annotations

import time

import msgspec

from dradriver.queue.namespace_tenants import Tenants
from dradriver.queue.pending import Member, PendingWorkload
from dradriver.queue.tenant_shares import Shares
from dradriver.queue.workload_register import WorkloadRegister
from tests.unit.queue.test_order import workload


def register() -> WorkloadRegister:
    return WorkloadRegister(Tenants(Shares(time.monotonic)))


def test_another_unit_of_the_same_key_is_not_the_one_that_is_looked_after() -> None:
    workloads, first, second = register(), workload("p", "default"), workload("p", "default")
    assert not workloads.has(first)
    workloads.add(first)
    assert workloads.has(first)
    workloads.add(second)
    assert not workloads.has(first)


def test_the_newest_pod_counts_and_one_without_a_time_does_not() -> None:
    def created(name: str, timestamp: str | None) -> PendingWorkload:
        pod = workload(name, "default").lead.pod
        metadata = msgspec.structs.replace(pod.metadata, creation_timestamp=timestamp)
        return PendingWorkload(Member(msgspec.structs.replace(pod, metadata=metadata)))

    workloads = register()
    workloads.add(created("a", None))
    assert workloads.newest == ""
    for name, timestamp in (("b", "2026-01-02T00:00:00Z"), ("c", "2026-01-01T00:00:00Z"), ("d", None)):
        workloads.add(created(name, timestamp))
    assert workloads.newest == "2026-01-02T00:00:00Z"
