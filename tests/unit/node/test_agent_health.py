"""The whole agent on a node whose GPUs or driver are ill: taints, readiness, what pods are told."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
import pytest

from dradriver.api.slices import lost_gpus
from dradriver.api.slices.lost_gpus import LostGpu
from dradriver.kube.resources import EVENTS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dradriver.node.discovery import simulated_failures
from dradriver.node.discovery.simulated_failures import Failure
from dradriver.node.hardware import Backend
from dradriver.topology.vendors import NVIDIA
from tests.fakes.agents import Hanging, becomes, lose, ready_port
from tests.fakes.gpunodes import read_slices
from tests.fakes.node import NODE, NodeUnderTest, a_node, claim, device, eventually, machine, uuid


async def test_gpus_of_a_driver_that_hangs_for_long_are_tainted_and_the_agent_is_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dradriver.node.discovery.machine_watch.PATIENCE_S", 0.02)
    monkeypatch.setattr("dradriver.node.discovery.machine_watch.HANGS_S", 0.04)
    found = Hanging(free=1)
    monkeypatch.setattr("dradriver.node.hardware.backend", lambda *_, **__: Backend(NVIDIA, found))

    def taints() -> set[tuple[str, str]]:
        devices = node.slices[0]["spec"]["devices"] if node.slices else []
        assert len(devices) in (0, 8)
        return {(taint["key"], taint["effect"]) for device in devices for taint in device.get("taints", ())}

    async with a_node() as node, ready_port() as (port, status), node.agent(health_port=port):
        await eventually(lambda: taints() == {("gpu.topology/driver", "NoSchedule")})
        await becomes(status, 503)
        found.released.set()
        await eventually(lambda: taints() == set())
        await becomes(status, 200)


async def test_the_pods_that_hold_a_gpu_are_told_what_is_wrong_and_when_it_is_over() -> None:
    def events() -> list[tuple[str, str, str]]:
        found = [obj for obj in node.api.all(EVENTS) if obj["involvedObject"]["kind"] == "Pod"]
        return sorted((obj["type"], obj["reason"], obj["involvedObject"]["uid"]) for obj in found)

    async with a_node() as node, node.agent():
        await node.published()
        await node.kubelet.prepare(node.put_claim(claim("mine", [2])))
        await node.kubelet.prepare(node.put_claim(claim("others", [3])))
        await lose(node, "2")
        await eventually(lambda: events() == [("Warning", "GPUUnhealthy", "pod-uid")])
        (told,) = (obj for obj in node.api.all(EVENTS) if obj["involvedObject"]["kind"] == "Pod")
        where = f"Node {NODE}, GPU2 ({machine().gpus[2].pci}, {uuid(2)}), fault lost"
        assert told["message"].startswith(
            f"{where}: the GPU is not on the node any more. Drain the node (kubectl drain "
        )
        assert told["message"].endswith(f"gpu.topology/removed-gpus={uuid(2)}.")
        assert told["metadata"]["namespace"] == "default"
        await lose(node)
        await eventually(lambda: len(events()) == 2)
        assert events()[0] == ("Normal", "GPURecovered", "pod-uid")


async def test_the_node_is_told_of_a_free_gpu_that_is_lost_and_its_slice_keeps_the_place_over_a_restart() -> None:
    def events() -> list[tuple[str, str]]:
        found = [obj for obj in node.api.all(EVENTS) if obj["involvedObject"]["kind"] == "Node"]
        return sorted((obj["reason"], obj["message"]) for obj in found if obj["reason"].startswith("GPU"))

    def counts() -> list[int]:
        return [obj["count"] for obj in node.api.all(EVENTS) if gone.uuid in obj["message"]]

    def lost() -> list[LostGpu]:
        pieces = read_slices(*node.slices)
        if not pieces or len(pieces[0].spec.devices) != expected:
            return [gone] * 9
        return [msgspec.structs.replace(gpu, since=0) for gpu in lost_gpus.read(pieces, None)]

    gpu = machine().gpus[2]
    gone = LostGpu(2, gpu.pci, gpu.uuid)
    expected = 8
    async with a_node() as node:
        async with node.agent():
            await node.published()
            assert lost() == []
            await lose(node, "2")
            expected = 7
            await eventually(lambda: events() != [] and lost() == [gone])
            ((reason, message),) = events()
            assert reason == "GPUUnhealthy"
            where = f"Node {NODE}, GPU2 ({gpu.pci}, {gpu.uuid})"
            assert message.startswith(
                f"{where}, fault lost: the GPU is not on the node any more. Drain the node (kubectl drain {NODE} "
            )
        async with node.agent():
            await eventually(lambda: counts() == [2])
            assert lost() == [gone], "an agent that never saw the GPU knows of it"
            await lose(node)
            expected = 8
            await eventually(lambda: len(events()) == 2 and lost() == [])
            assert events()[0] == (
                "GPURecovered",
                f"{where}: the fault lost is over. The fault was: the GPU is not on the node any more.",
            )


async def test_a_gpu_that_is_lost_is_told_of_after_the_kubelet_starts_and_after_a_reboot() -> None:
    def lost() -> list[str]:
        return [gpu.uuid for gpu in lost_gpus.read(read_slices(*node.slices), None)] if node.slices else [""]

    async with a_node() as node:
        folder = node.state / "simulated"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "boot_id").write_text("first")
        async with node.agent():
            await node.published()
            await lose(node, "2")
            await eventually(lambda: lost() == [uuid(2)])
            node.api.remove(RESOURCE_SLICES, node.slices[0]["metadata"]["name"])  # the kubelet starts again
            await node.kubelet.register(next(iter(node.kubelet.seen)))
            await eventually(lambda: lost() == [uuid(2)])
        (folder / "boot_id").write_text("second")
        async with node.agent():
            await node.published()
            await eventually(lambda: lost() == [uuid(2)])


async def test_who_else_is_named_by_a_claim_or_has_its_name_is_told_nothing() -> None:
    async with a_node() as node, node.agent():
        await node.published()
        for name, gpu in (("mine", 2), ("again", 3)):
            await node.kubelet.prepare(node.put_claim(claim(name, [gpu])))
        other = claim("again", [3], uid="another")
        mine = claim("mine", [2])
        mine["status"]["reservedFor"].append({"resource": "gangs", "name": "g", "uid": "gang-uid", "apiGroup": "x.io"})
        node.put_claim(mine)
        node.api.remove(RESOURCE_CLAIMS, "again", "default")
        node.put_claim(other)
        await lose(node, "2\n3")
        await eventually(lambda: len(node.slices[0]["spec"]["devices"]) == 6)
        await lose(node)
        await eventually(lambda: told(node, "GPURecovered"))
        assert told(node, "GPUUnhealthy") == told(node, "GPURecovered") == {("pod-uid", uuid(2))}


def told(node: NodeUnderTest, reason: str) -> set[tuple[str, str]]:
    """Which pods events of a reason are about, and which GPU they name."""
    every = (obj for obj in node.api.all(EVENTS) if obj["involvedObject"]["kind"] == "Pod")
    found = (obj for obj in every if obj["reason"] == reason)
    return {(obj["involvedObject"]["uid"], re.findall(r"GPU-[0-9a-f-]+", obj["message"])[0]) for obj in found}


async def test_while_the_driver_hangs_a_new_claim_waits_and_those_that_are_prepared_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_node() as node:
        asked = [node.put_claim(claim(name, [gpu])) for gpu, name in enumerate(("kept", "given-back", "new"))]
        async with node.agent():
            await node.published()
            for one in asked[:2]:
                assert (await node.kubelet.prepare(one))[one[2]].error == ""
        found = Hanging(free=1)
        monkeypatch.setattr("dradriver.node.hardware.backend", lambda *_, **__: Backend(NVIDIA, found))
        async with node.agent():
            await eventually(lambda: node.kubelet.registrations == 2 and not found.free)
            waiting = asyncio.create_task(node.kubelet.prepare(asked[2]))
            assert (await node.kubelet.prepare(asked[0]))[asked[0][2]].error == ""
            assert (await node.kubelet.unprepare(asked[1]))[asked[1][2]].error == ""
            assert node.checkpoint == [asked[0][2]]
            assert not waiting.done()
            found.released.set()
            assert (await waiting)[asked[2][2]].error == ""


@pytest.mark.slow
async def test_a_gpu_with_a_process_is_tainted_and_its_new_claim_waits() -> None:
    def held() -> list[str]:
        devices = node.slices[0]["spec"]["devices"]
        return [d["name"] for d in devices if "gpu.topology/held" in {taint["key"] for taint in d.get("taints", ())}]

    async with a_node() as node, node.agent():
        await node.published()
        folder = node.state / "simulated"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "processes").write_text(f"{uuid(2)} 4711\n")
        await eventually(lambda: held() == [device(2)])
        asked = node.put_claim(claim("c", [2]))
        waiting = asyncio.create_task(node.kubelet.prepare(asked))
        assert (await node.kubelet.prepare(other := node.put_claim(claim("other", [3]))))[other[2]].error == ""
        assert not waiting.done()
        (folder / "processes").unlink()
        assert (await waiting)[asked[2]].error == ""
        await eventually(lambda: held() == [])


async def test_next_to_a_device_plugin_others_processes_are_on_the_gpus_rightly() -> None:
    async with a_node() as node, node.agent(allow_device_plugin=True):
        await node.published()
        folder = node.state / "simulated"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "processes").write_text(f"{uuid(2)} 4711\n{uuid(3)} 4712\n")
        asked = node.put_claim(claim("c", [2]))
        assert (await node.kubelet.prepare(asked))[asked[2]].error == ""
        asked = node.put_claim(claim("next", [4]))
        assert (await node.kubelet.prepare(asked))[asked[2]].error == ""
        assert not any("taints" in found for found in node.slices[0]["spec"]["devices"])


async def test_an_event_that_cannot_be_written_holds_up_nothing() -> None:
    async with a_node() as node, node.agent():
        await node.published()
        await node.kubelet.prepare(node.put_claim(claim("mine", [2])))
        node.api.fail(method="POST", status=403, reason="Forbidden", times=1)
        await lose(node, "2")
        await eventually(lambda: len(node.slices[0]["spec"]["devices"]) == 7)
        await lose(node)
        await eventually(lambda: node.api.all(EVENTS))


def slice_writes(node: NodeUnderTest) -> int:
    sent = (r for r in node.api.requests if r.method in ("POST", "PUT") and "resourceslices" in r.path)
    return sum("dryRun" not in r.query for r in sent)


async def test_a_taint_that_comes_slowly_stays_with_its_time_over_a_restart() -> None:
    def taints() -> list[Any]:
        (found,) = [d for d in node.slices[0]["spec"]["devices"] if d["name"] == device(2)]
        return found.get("taints", [])  # type: ignore[no-any-return]

    async with a_node() as node:
        file = simulated_failures.path(node.state / "simulated", NODE)
        simulated_failures.write(file, {"gpu-2": Failure(faults=("thermal",))})
        async with node.agent():
            await node.published()
            assert taints() == []
        (obj,) = node.slices
        taint = {"key": "gpu.topology/thermal", "effect": "None", "timeAdded": "2026-01-01T00:00:00Z"}
        next(d for d in obj["spec"]["devices"] if d["name"] == device(2))["taints"] = [taint]
        node.api.put(RESOURCE_SLICES, obj)
        writes = slice_writes(node)
        async with ready_port() as (port, status), node.agent(health_port=port):
            await becomes(status, 200)
        assert taints() == [taint]
        assert slice_writes(node) == writes


async def test_a_driver_that_hangs_from_the_start_on_taints_what_an_earlier_agent_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dradriver.node.discovery.machine_watch.PATIENCE_S", 0.02)
    monkeypatch.setattr("dradriver.node.discovery.machine_watch.HANGS_S", 0.04)
    async with a_node() as node:
        async with node.agent():
            await node.published()
        found = Hanging()
        monkeypatch.setattr("dradriver.node.hardware.backend", lambda *_, **__: Backend(NVIDIA, found))

        def tainted() -> int:
            return sum("taints" in d for obj in node.slices for d in obj["spec"]["devices"])

        async with node.agent():
            await eventually(lambda: tainted() == 8)
            node.api.remove(RESOURCE_SLICES, node.slices[0]["metadata"]["name"])  # the kubelet starts again
            await node.kubelet.register(next(iter(node.kubelet.seen)))
            await eventually(lambda: tainted() == 8)
            found.released.set()
            await eventually(lambda: tainted() == 0)
