"""Reservations that help nobody: the wait until the next one doubles for the tenant, whatever its pods are called."""

from __future__ import annotations

import msgspec
import pytest

from dradriver.api.claims.reservation_config_map import Since, Written
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Queue, Reservation, Tenant
from tests.fakes.reserving import Reserving

MINUTE_S = 60
SHORT = Reservation(after_minutes=5, idle_minutes=10, moves=0, short_minutes=1)


async def half_free(*, tenants: dict[str, Tenant] | None = None) -> Reserving:
    """Return a cluster of one node, half of which is in use without end, and half of which is idle."""
    cluster = Reserving()
    cluster.worker.follow(Policies(queue=Queue(reservation=SHORT), tenants=tenants or {}))
    cluster.node("a")
    await cluster.settle()
    await cluster.run("endless", 4)
    return cluster


async def reserved_minutes(cluster: Reserving, minutes: int) -> int:
    """Let so much time pass, and return for how many minutes GPUs were reserved."""
    count = 0
    for _ in range(minutes):
        await cluster.later(MINUTE_S)
        count += bool(cluster.held)
    return count


@pytest.mark.slow
async def test_pods_of_a_tenant_do_not_have_gpus_reserved_in_turns() -> None:
    cluster = await half_free()
    for number in range(4):
        cluster.pod(f"big-{number}", 8, requests={"cpu": str(number + 1)})
    await cluster.settle()
    assert await reserved_minutes(cluster, 300) < 120


@pytest.mark.slow
async def test_a_pod_that_is_made_again_before_its_reservation_ends_gains_nothing() -> None:
    cluster = await half_free()
    count = 0
    for number in range(12):
        cluster.pod(f"big-{number}", 8)
        await cluster.settle()
        count += await reserved_minutes(cluster, 24)  # the reservation would end a minute or two later
        await cluster.end(f"big-{number}")
        await cluster.look()
    assert count < 120


@pytest.mark.slow
async def test_another_tenant_waits_no_longer_for_that() -> None:
    tenants = {"a": Tenant(namespaces=("default",)), "b": Tenant(namespaces=("other",))}
    cluster = await half_free(tenants=tenants)
    for name in ("one", "two"):
        cluster.pod(name, 8)
    await cluster.settle()
    await reserved_minutes(cluster, 120)
    assert not cluster.held
    cluster.pod("big", 8, namespace="other")
    await cluster.settle()
    await reserved_minutes(cluster, 7)
    (held,) = cluster.held
    assert held.who.startswith("other/big/")


async def test_the_next_leader_knows_how_often_a_tenants_reservations_came_to_nothing() -> None:
    cluster = await half_free()
    cluster.pod("one", 8)
    await cluster.settle()
    await reserved_minutes(cluster, 60)
    written = await cluster.kept.load()
    assert [(since.who, since.failed) for since in written.failed] == [("namespace/default", 2)]
    await cluster.fail_over()
    assert await reserved_minutes(cluster, 10) == 0


async def test_what_a_former_release_counted_for_a_pod_is_its_tenants() -> None:
    cluster = await half_free()
    cluster.features.reservations.restore(
        Written(blocked=[Since("default/one/uid", cluster.now, 3)], failed=[], kept=[], evicted=[])
    )
    cluster.pod("two", 8)
    await cluster.settle()
    assert await reserved_minutes(cluster, 35) == 0
    assert msgspec.json.decode(b'{"version":1}', type=Written).failed == []
