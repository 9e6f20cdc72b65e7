"""What a kubelet sees that watches the health of a node's GPUs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any

import pytest

from dradriver.api.slices import resource_slices
from dradriver.errors import DriverError
from dradriver.node.discovery.simulated_machine import without
from dradriver.node.faults import Fault
from dradriver.node.health.faults_in_force import Standing
from dradriver.node.kubelet.gpu_health_service import AGAIN_S, MOST_TEXT, HealthStream
from dradriver.node.protos.health.v1 import health_pb2 as v1
from dradriver.node.protos.health.v1 import health_pb2_grpc as v1_grpc
from dradriver.node.protos.health.v1alpha1 import health_pb2 as v1alpha1
from dradriver.node.protos.health.v1alpha1 import health_pb2_grpc as v1alpha1_grpc
from dradriver.topology.machine import Machine
from tests.fakes.kubelet import dial
from tests.fakes.node import NODE, a_node, device, machine, uuid

XID = Standing(Fault("xid", "79", "XID 79 in the kernel's log"), 0.0)
HOT = Standing(Fault("thermal", "", "its clocks are lowered because it is too hot"), 0.0)


class Stage:
    """A stream, and what it looks at."""

    def __init__(self) -> None:
        self.machine: Machine | None = machine()
        self.standing: dict[str, list[Standing]] = {}
        self.parts: dict[str, list[str]] | DriverError = {}
        self.stream = HealthStream(
            node=NODE, machine=lambda: self.machine, standing=lambda: self.standing, prepared=self.prepared
        )
        self.watch = self.stream.watch(v1)

    async def prepared(self) -> dict[str, list[str]]:
        if isinstance(self.parts, DriverError):
            raise self.parts
        return self.parts

    async def next(self) -> dict[str, tuple[int, str]]:
        return said(await anext(self.watch))


def said(state: Any) -> dict[str, tuple[int, str]]:
    assert {one.device.pool_name for one in state.devices} == {NODE}
    assert all(one.last_updated_time > 1_700_000_000 for one in state.devices)
    return {one.device.device_name: (one.health, one.message) for one in state.devices}


WELL = {device(i): (v1.HEALTHY, "") for i in range(8)}


@pytest.fixture
async def on() -> AsyncIterator[Stage]:
    stage = Stage()
    yield stage
    await stage.watch.aclose()  # type: ignore[attr-defined]


@pytest.mark.looptime
async def test_all_gpus_are_told_at_once_and_again_before_they_count_as_unknown(on: Stage) -> None:
    loop = asyncio.get_running_loop()
    assert await on.next() == WELL
    before = loop.time()
    assert await on.next() == WELL
    assert loop.time() - before == AGAIN_S < 30


@pytest.mark.looptime
async def test_a_part_that_a_claim_has_is_as_well_as_its_gpu_under_its_own_name(on: Stage) -> None:
    part = resource_slices.part_name(uuid(2), 9, 4)
    on.parts = {uuid(2): [part], uuid(1): [device(1), device(1)]}
    on.standing = {uuid(2): [XID]}
    found = await on.next()
    assert found.keys() == WELL.keys() | {part}
    assert found[part] == found[device(2)] != found[device(1)]
    on.parts = {}
    assert (await on.next()).keys() == WELL.keys()


@pytest.mark.looptime
async def test_gpus_are_told_while_what_is_prepared_cannot_be_read(on: Stage, caplog: pytest.LogCaptureFixture) -> None:
    on.parts = DriverError("the lock is held")
    for _ in range(2):
        assert await on.next() == WELL
    assert caplog.text.count("the lock is held") == 1


@pytest.mark.looptime
async def test_a_fault_is_told_at_once_with_what_to_do_and_so_is_its_end(on: Stage) -> None:
    await on.next()
    waiting = asyncio.create_task(on.next())
    await asyncio.sleep(0)
    on.standing = {uuid(2): [XID, HOT], uuid(3): [HOT]}
    on.stream.poke()
    found = await asyncio.wait_for(waiting, 1)
    health, message = found[device(2)]
    assert health == v1.UNHEALTHY
    assert message.startswith(
        "XID 79 in the kernel's log: the GPU has fallen off the bus, so its PCIe connection is broken. Drain the node "
        f"(kubectl drain {NODE} "
    )
    assert "Its clocks are lowered because it is too hot. " in message
    assert found[device(3)][0] == v1.HEALTHY
    assert "too hot" in found[device(3)][1]
    on.standing = {}
    on.stream.poke()
    assert await on.next() == WELL


@pytest.mark.looptime
async def test_a_gpu_that_is_gone_is_unhealthy_and_a_machine_that_was_never_read_is_not_told_of(on: Stage) -> None:
    on.machine = None
    waiting = asyncio.create_task(on.next())
    await asyncio.sleep(AGAIN_S * 3)
    assert not waiting.done()
    on.machine = machine()
    on.stream.poke()
    assert await waiting == WELL
    on.machine = without(machine(), {"2"})
    on.standing = {uuid(2): [Standing(Fault("lost", "", "it is not on the node any more"), 0.0)]}
    found = await on.next()
    assert found[device(2)][0] == v1.UNHEALTHY
    assert found[device(2)][1].startswith(f"It is not on the node any more. Drain the node (kubectl drain {NODE} ")
    assert found | {device(2): WELL[device(2)]} == WELL


async def test_a_plugin_that_stops_lets_the_kubelet_go(on: Stage) -> None:
    await on.next()
    on.stream.end()
    with pytest.raises(StopAsyncIteration):
        await on.next()


async def test_a_message_is_no_longer_than_the_kubelet_takes(on: Stage) -> None:
    on.standing = {uuid(2): [Standing(Fault("xid", "79", "x" * 5000), 0.0)]}
    assert len((await on.next())[device(2)][1]) == MOST_TEXT


@pytest.mark.parametrize(("words", "calls"), [(v1, v1_grpc), (v1alpha1, v1alpha1_grpc)])
async def test_both_versions_are_served_on_the_agents_socket(words: ModuleType, calls: ModuleType) -> None:
    async with a_node() as node, node.agent():
        await node.published()
        async with dial(node.state / "dra-pod-1.sock") as channel:
            stream = calls.DRAResourceHealthStub(channel).NodeWatchResources(
                words.NodeWatchResourcesRequest(), timeout=50
            )
            assert said(await anext(aiter(stream))) == WELL
            folder = node.state / "simulated"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "lost").write_text("2")
            async for state in stream:
                if said(state)[device(2)][0] == words.UNHEALTHY:
                    break
            stream.cancel()
