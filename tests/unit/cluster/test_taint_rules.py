"""Devices that an administrator taints by a DeviceTaintRule: no pod is placed on them, and who waits is told why."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.api.base.allocating_driver import NVIDIA
from dradriver.api.slices import resource_slices
from dradriver.cluster.gpus.taint_rules import TaintRule, TaintRules, read_rule
from dradriver.cluster.records.slice_records import SliceRecord, read_slice
from dradriver.controller.controller import Controller
from dradriver.kube.client import Client
from dradriver.kube.optional_reflector import OptionalReflector
from dradriver.kube.reflector import Change
from dradriver.kube.resources import DEVICE_TAINT_RULES, NODES, RESOURCE_SLICES
from dradriver.topology import profiles
from tests.effort import sampled
from tests.fakes.addoncluster import AddOnCluster
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.gpucluster import GpuCluster

Object = dict[str, Any]
_, BETA, ALPHA = DEVICE_TAINT_RULES
GONE = "GPUs tainted by DeviceTaintRule"


def rule(name: str, selector: Object | None, *, effect: str = "NoSchedule") -> Object:
    spec: Object = {"taint": {"key": "example.com/maintenance", "effect": effect}}
    return {"metadata": {"name": name}, "spec": spec if selector is None else spec | {"deviceSelector": selector}}


def read(obj: Object) -> TaintRule | None:
    return read_rule(msgspec.Raw(json.dumps(obj).encode()))


def apply(cluster: GpuCluster, name: str, selector: Object | None, *, effect: str = "NoSchedule") -> TaintRule | None:
    """Let the controller see a new rule."""
    new = read(rule(name, selector, effect=effect))
    if new is not None:
        cluster.worker.picture.taint_rule_changed(Change(("", name), None, new))
    return new


def withdraw(cluster: GpuCluster, old: TaintRule | None) -> None:
    assert old is not None
    cluster.worker.picture.taint_rule_changed(Change(("", old.metadata.name), old, None))


def gpu(cluster: GpuCluster, number: int, node: str = "a") -> str:
    return resource_slices.device_name(cluster.machines[node].gpus[number].uuid)


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
async def test_no_pod_is_placed_on_what_a_rule_taints_until_it_is_gone(effect: str) -> None:
    cluster = GpuCluster()
    cluster.node("a")
    await cluster.settle()
    found = apply(cluster, "drain", {"pool": "a", "device": gpu(cluster, 3)}, effect=effect)
    cluster.pod("seven", 7)
    cluster.pod("one", 1)
    await cluster.settle()
    assert 3 not in cluster.gpus("seven")[1]
    assert f"{GONE} drain are left out" in str(cluster.note("one", "reason"))
    withdraw(cluster, found)
    await cluster.settle()
    assert cluster.gpus("one")[1] == [3]
    assert cluster.note("one", "reason") is None


@pytest.mark.parametrize(
    ("selector", "taints"),
    [
        ({}, True),
        ({"driver": names.DRIVER}, True),
        ({"pool": "a"}, True),
        ({"driver": "", "pool": None, "device": ""}, True),
        ({"driver": "gpu.nvidia.com"}, False),
        ({"driver": "gpu.nvidia.com", "pool": "a"}, False),
        ({"pool": "b"}, False),
        ({"device": "gpu-of-another"}, False),
        (None, False),
    ],
)
async def test_a_rule_is_about_what_all_of_its_selectors_are_about(selector: Object | None, taints: bool) -> None:
    cluster = GpuCluster()
    apply(cluster, "drain", selector)
    cluster.node("a")
    cluster.pod("p", 1)
    await cluster.settle()
    assert (GONE in str(cluster.note("p", "reason"))) is taints


@pytest.mark.parametrize("effect", ["None", "", "PreferNoSchedule"])
def test_a_rule_that_keeps_no_pod_away_does_not_count(effect: str) -> None:
    assert read(rule("note", {}, effect=effect)) is None


@pytest.mark.parametrize(
    "more", [{"deviceClassName": "gpu.topology"}, {"selectors": [{"cel": {"expression": "true"}}]}]
)
async def test_a_rule_that_only_the_scheduler_can_read_is_said_and_taints_nothing_here(
    more: Object, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 1)
    apply(cluster, "by-class", {"pool": "a"} | more)
    await cluster.settle()
    assert len(cluster.gpus("p")[1]) == 1
    assert "DeviceTaintRule by-class selects devices by a class or by CEL" in caplog.text


async def test_a_promise_on_a_gpu_that_is_tainted_meanwhile_ends_at_once() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 8)
    await cluster.settle()
    found = apply(cluster, "drain", {"device": gpu(cluster, 0)})
    await cluster.settle()
    assert "drain" in str(cluster.note("p", "reason"))
    withdraw(cluster, found)
    await cluster.settle()
    assert len(cluster.gpus("p")[1]) == 8


@pytest.mark.usefixtures("addon")
async def test_what_nvidias_driver_hands_out_is_tainted_by_its_own_names() -> None:
    cluster = AddOnCluster()
    cluster.node("a")
    await cluster.settle()
    (theirs,) = [one for one in cluster.all(RESOURCE_SLICES) if one["spec"]["driver"] == NVIDIA.driver]
    device = theirs["spec"]["devices"][2]["name"]
    apply(cluster, "other-driver", {"driver": names.DRIVER, "device": device})
    found = apply(cluster, "drain", {"driver": NVIDIA.driver, "pool": "a", "device": device})
    cluster.pod("p", 8)
    await cluster.settle()
    assert f"{GONE} drain are left out" in str(cluster.note("p", "reason"))
    withdraw(cluster, found)
    await cluster.settle()
    assert len(cluster.gpus("p")[1]) == 8


def piece(node: str, *, generation: int = 1) -> SliceRecord:
    machine = profiles.load("dgx1-v100", seed=node)
    for built in resource_slices.build(machine, node=node, node_uid="n", modes={}):
        if built["spec"].get("devices"):
            built["spec"]["pool"]["generation"] = generation
            found = read_slice(msgspec.Raw(json.dumps(built).encode()))
            assert found is not None
            return found
    raise AssertionError("no devices")


@pytest.mark.parametrize("seed", sampled(range(8)))
def test_what_is_left_is_the_same_in_any_order_of_slices_and_rules(seed: int) -> None:
    rng = random.Random(seed)
    rules, shown, published = TaintRules(), dict[str, SliceRecord](), dict[str, SliceRecord]()
    known: dict[str, TaintRule] = {}
    devices = sorted(piece("a").usable | piece("b").usable)
    numbers = itertools.count(1)
    for _ in range(60):
        if rng.random() < 0.4:
            node = rng.choice("abc")
            key = piece(node).metadata.name
            old = published.pop(key, None)
            if old is None or rng.random() < 0.6:
                published[key] = piece(node, generation=next(numbers))
            changes = [rules.slice_changed(Change(("", key), old, published.get(key)))]
        else:
            name = rng.choice(("r", "s", "t"))
            chosen = {"driver": names.DRIVER, "pool": rng.choice("ab"), "device": rng.choice(devices)}
            new = read(rule(name, {field: text for field, text in chosen.items() if rng.random() < 0.7}))
            before = known.pop(name, None)
            if new is not None and rng.random() < 0.7:
                known[name] = new
            changes = rules.rule_changed(Change(("", name), before, known.get(name)))
        for change in changes:
            if change.new is None:
                shown.pop(change.key[1], None)
            else:
                shown[change.key[1]] = change.new
        assert shown.keys() == published.keys()
        tainting = set()
        for key, one in published.items():
            over = {
                device: [
                    name
                    for name, each in known.items()
                    if each.pool in ("", one.pool) and each.device in ("", device) and each.driver in ("", one.driver)
                ]
                for device in one.usable
            }
            assert shown[key].usable == {device for device, found in over.items() if not found}
            tainting |= {name for found in over.values() for name in found}
        assert rules.tainting() == sorted(tainting)


@pytest.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


class Seen:
    """What a follower is told: the names that are there."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.news = asyncio.Event()

    def changed(self, change: Change[TaintRule]) -> None:
        (self.names.discard if change.new is None else self.names.add)(change.key[1])
        self.news.set()

    async def until(self, *wanted: str) -> None:
        async with asyncio.timeout(50):
            while self.names != set(wanted):
                self.news.clear()
                await self.news.wait()


async def test_a_kind_is_followed_in_the_newest_version_that_there_is_and_while_there_is_one(
    api: FakeApiServer,
) -> None:
    seen = Seen()
    for version in (ALPHA, BETA):
        api.put(version, rule(version.version, {}))
    async with Client(api.config, user_agent="test") as client, asyncio.TaskGroup() as tasks:
        follower = OptionalReflector(client, DEVICE_TAINT_RULES, read_rule, on_change=seen.changed, look_s=0.05)
        running = tasks.create_task(follower.run())
        await follower.synced()
        assert seen.names == set(), "no version is there: nothing is waited for"
        assert not [one for one in api.requests if one.path.endswith("devicetaintrules")], "and nothing asked for"
        api.optional = {ALPHA}
        await seen.until("v1alpha3")
        api.optional = {ALPHA, BETA}
        await seen.until("v1beta2")
        trouble = api.fail(path="^/apis/resource.k8s.io/v[0-9a-z]+$", status=500, reason="InternalError", times=3)
        api.put(BETA, rule("more", {}))
        await seen.until("v1beta2", "more")
        async with asyncio.timeout(50):
            while trouble.hits < 3:
                await asyncio.sleep(0)
        assert seen.names == {"v1beta2", "more"}, "who does not answer has said nothing"
        api.optional = set()
        await seen.until()
        running.cancel()


@pytest.mark.looptime
@pytest.mark.parametrize("status", [403, 404, 500])
async def test_a_controller_that_cannot_read_rules_is_ready_all_the_same(api: FakeApiServer, status: int) -> None:
    api.optional = {BETA}
    api.fail(path="devicetaintrules", status=status, reason="Forbidden", times=1000)
    cluster = GpuCluster()
    cluster.store = api.store
    cluster.node("a")
    async with Client(api.config, user_agent="test") as client, asyncio.TaskGroup() as tasks:
        controller = Controller(client)
        watching = tasks.create_task(controller.watch())
        async with asyncio.timeout(20):
            await controller.synced()
        assert controller.ready()
        assert controller.worker.picture.inventory.fleet.nodes == {"a"}
        watching.cancel()


async def test_rules_are_known_before_the_first_pod_is_placed(api: FakeApiServer) -> None:
    api.optional = {BETA}
    cluster = GpuCluster()
    cluster.store = api.store
    cluster.node("a")
    api.put(BETA, rule("drain", {"device": gpu(cluster, 1)}))
    assert api.all(NODES)
    async with Client(api.config, user_agent="test") as client, asyncio.TaskGroup() as tasks:
        controller = Controller(client)
        watching = tasks.create_task(controller.watch())
        async with asyncio.timeout(20):
            await controller.synced()
        assert controller.worker.picture.inventory.free().tolist()[0] == 7
        watching.cancel()
