"""Tenants that have namespaces by their labels: who has which, what waits until that is known, and what is said."""

from __future__ import annotations

import asyncio
from typing import Any

from dradriver.api.base.objects import Metadata
from dradriver.api.policies.policy_sections import UNKNOWN, Policies
from dradriver.api.policies.tenant_policies import Cap, Tenant
from dradriver.controller.controller import Controller
from dradriver.controller.features.namespaces import Namespaces
from dradriver.kube.client import Client
from dradriver.kube.resources import NAMESPACES
from dradriver.queue.namespace_tenants import Tenants
from dradriver.queue.tenant_shares import Shares
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.gpucluster import GpuCluster
from tests.scraped import sample

CAPPED = (Cap(gpus=4),)
VISION = Tenant(namespace_labels={"team": "vision"}, cap=CAPPED)
BY_LABELS = Policies(tenants={"vision": VISION})


def tenants(**of: Tenant) -> Tenants:
    found = Tenants(Shares(lambda: 0.0))
    found.follow(Policies(tenants=of))
    return found


def test_a_namespace_is_the_tenants_whose_labels_it_has() -> None:
    found = tenants(vision=VISION)
    assert not found.known("a")
    assert found.namespace_changed("a", {"team": "vision", "more": "x"})
    assert found.of("a") == "vision"
    assert found.known("a")
    assert found.namespace_changed("a", {"team": "other"})
    assert found.of("a") == "namespace/a"
    assert found.namespace_changed("a", None), "then it is not known any more"
    assert not found.known("a")


def test_a_name_says_more_than_labels_and_of_labels_the_first_in_the_file() -> None:
    one, two = Tenant(namespace_labels={"a": "1"}), Tenant(namespace_labels={"b": "2"}, namespaces=("mine",))
    found = tenants(one=one, two=two)
    for namespace in ("mine", "x"):
        found.namespace_changed(namespace, {"a": "1", "b": "2"})
    assert (found.of("mine"), found.of("x")) == ("two", "one")
    assert found.claiming("x", {"a": "1", "b": "2"}) == ["one", "two"]
    assert found.claiming("mine", {"a": "1", "b": "2"}) == []
    assert (found.namespaces("one"), found.namespaces("two")) == (["x"], ["mine"])


def test_what_a_namespace_has_had_goes_with_it() -> None:
    found = tenants(vision=VISION, other=Tenant(namespaces=("o",)))
    found.shares.holds("a", 2.0, 3.0)
    found.namespace_changed("a", {"team": "vision"})
    assert found.shares.held("vision") == (2.0, 3.0)
    assert "namespace/a" not in found.shares.tenants()
    found.namespace_changed("a", {})
    assert found.shares.held("vision") == (0.0, 0.0)
    assert found.shares.held("namespace/a") == (2.0, 3.0)


async def test_no_pod_is_placed_before_its_tenant_is_known() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.worker.follow(BY_LABELS)
    cluster.pod("p", 8)
    await cluster.settle()
    assert cluster.claim("p") is None
    assert "The tenant of the namespace is not known yet" in (cluster.note("p", "reason") or "")
    cluster.worker.namespace_changed("default", {"team": "vision"})
    await cluster.settle()
    assert 'Refused by quota: tenant "vision" may use 4 GPUs' in (cluster.note("p", "reason") or "")
    cluster.worker.namespace_changed("default", {"team": "language"})
    await cluster.settle()
    assert cluster.claim("p") is not None


async def test_no_pod_is_placed_while_the_policies_are_not_known() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.worker.follow(UNKNOWN)
    cluster.pod("p", 4)
    cluster.pod("q", 4, wishes={"when-full": "hand-over"})
    await cluster.settle()
    for pod in ("p", "q"):
        assert cluster.claim(pod) is None
        assert "The policies file is invalid, and the controller has restarted" in (cluster.note(pod, "reason") or "")
    cluster.worker.follow(Policies())
    await cluster.settle()
    assert all(cluster.claim(pod) is not None for pod in ("p", "q"))


async def test_the_controller_watches_namespaces_while_the_file_has_labels() -> None:
    async with FakeApiServer() as api, Client(api.config, user_agent="test") as client:
        cluster = GpuCluster()
        cluster.store = api.store
        cluster.node("a")
        cluster.put(NAMESPACES, {"metadata": {"name": "default", "labels": {"team": "vision"}}})
        controller = Controller(client)
        found = controller.worker.tenants
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(20):
            watching = tasks.create_task(controller.watch())
            await controller.synced()
            assert not any("namespaces" in request.path for request in api.requests)
            controller.follow(BY_LABELS)
            while found.of("default") != "vision":
                await asyncio.sleep(0.01)
            cluster.put(NAMESPACES, {"metadata": {"name": "default", "labels": {}}})
            while found.of("default") == "vision":
                await asyncio.sleep(0.01)
            controller.follow(Policies())
            await asyncio.sleep(1)
            found.follow(BY_LABELS)  # as the controller would, which would watch them again
            assert not found.known("default"), "no labels are kept that nobody watches"
            watching.cancel()


async def test_of_one_that_several_claim_it_is_said_once() -> None:
    said: list[tuple[str, str]] = []

    async def record(name: str, _: str, message: str) -> None:
        said.append((name, message))

    found = tenants(one=Tenant(namespace_labels={"a": "1"}), two=Tenant(namespace_labels={"b": "2"}))
    client: Any = None
    watched = Namespaces(client, found, found.namespace_changed, record)
    telling = asyncio.create_task(watched.tell())
    for labels in ({"a": "1", "b": "2"}, {"a": "1", "b": "2", "c": "3"}):
        watched.shown("x", Metadata(labels=labels))
        await asyncio.sleep(1)
    assert [name for name, _ in said] == ["x"]
    assert "several tenants of the policies file: one, two. The namespace is part of one" in said[0][1]
    assert sample("gpu_topology_namespaces_of_several_tenants") == 1
    watched.shown("x", Metadata(labels={"b": "2"}))
    assert sample("gpu_topology_namespaces_of_several_tenants") == 0
    watched.follow()
    await asyncio.sleep(1)
    assert len(said) == 1
    telling.cancel()
