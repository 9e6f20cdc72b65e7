"""The publisher against a fake API server, over HTTP."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.policies.policy_sections import DEFAULTS, GpuRule
from dradriver.api.slices import resource_slices
from dradriver.kube.client import Client
from dradriver.kube.resources import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dradriver.node import metrics
from dradriver.node.discovery.simulated_machine import without
from dradriver.node.publishing import mode_transition
from dradriver.node.publishing import publisher as module
from dradriver.topology import profiles
from tests.fakes.node import NODE, Object, claim, device, eventually, machine, result, uuid
from tests.fakes.stage import SLICE, Stage, stage, taint, tainted


async def test_a_registered_node_is_published_once_and_whole() -> None:
    async with stage() as on:
        await on.settled(devices=8)
        (obj,) = on.slices
        assert obj["metadata"]["name"] == SLICE
        assert obj["metadata"]["ownerReferences"][0] | {"controller": None} == {
            "apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "node-uid", "controller": None,
        }  # fmt: skip
        assert obj["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
        assert on.writes() == ["POST"]


async def test_trap_7_nothing_is_published_before_the_kubelet_registers_the_plugin() -> None:
    async with stage(registered=False) as on:
        await eventually(lambda: on.api.watchers == 2)
        on.machine = without(machine(), {"2"})
        on.publisher.poke()
        on.node(cpu="9")
        on.register()
        await on.settled(devices=7)
        assert on.writes() == ["POST"]


async def test_trap_7_what_is_deleted_while_unregistered_stays_so_until_registered_again() -> None:
    async with stage() as on:
        await on.settled(devices=8)
        on.register(False)
        assert not on.publisher.published
        on.api.remove(RESOURCE_SLICES, SLICE)
        on.register()
        await on.settled(devices=8)
        assert on.writes() == ["POST", "POST"]


async def test_trap_6_slices_that_the_kubelet_deletes_at_its_start_come_back_once_it_registers_plugins() -> None:
    async with stage() as on:
        await on.settled(devices=8)
        before = on.slices[0]["spec"]
        on.api.remove(RESOURCE_SLICES, SLICE)
        await eventually(lambda: not on.publisher.published)
        for _ in range(20):
            await asyncio.sleep(0)
        assert on.slices == []
        on.publisher.registration_changed()
        await on.settled(devices=8)
        assert on.slices[0]["spec"] == before


async def test_slices_that_another_program_deletes_come_back_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOLD_S", 0.01)
    async with stage() as on:
        await on.settled(devices=8)
        before = on.slices[0]["spec"]
        on.api.remove(RESOURCE_SLICES, SLICE)
        await eventually(lambda: on.slices)
        assert on.slices[0]["spec"] == before


async def test_what_another_program_changes_is_put_right() -> None:
    async with stage() as on:
        await on.settled(devices=8)
        obj = on.slices[0]
        obj["spec"]["devices"].pop()
        on.api.put(RESOURCE_SLICES, obj)
        await on.settled(devices=8)
        assert on.generations == [2]
        stray = on.slices[0] | {"metadata": {"name": "00001-stray"}}
        on.api.put(RESOURCE_SLICES, stray)
        await eventually(lambda: [o["metadata"]["name"] for o in on.slices] == [SLICE])


async def test_a_lost_gpu_is_taken_out_with_a_new_generation_and_comes_back_with_another() -> None:
    async with stage() as on:
        await on.settled(devices=8)
        on.machine = without(machine(), {"2"})
        on.publisher.poke()
        await on.settled(devices=7)
        assert on.generations == [2]
        on.machine = machine()
        on.publisher.poke()
        await on.settled(devices=8)
        assert on.generations == [3]


async def test_when_no_gpu_is_left_no_slice_is_and_generations_go_on() -> None:
    async with stage() as on:
        await on.settled(devices=8)
        on.machine = without(machine(), {str(i) for i in range(8)})
        on.publisher.poke()
        await on.settled(devices=None)
        on.machine = without(machine(), {"2"})
        on.publisher.poke()
        await on.settled(devices=7)
        assert on.generations == [2]


async def test_a_restart_writes_nothing() -> None:
    async with stage() as on:
        await on.settled(devices=8)
        async with Client(on.api.config, user_agent="second") as client:
            second = Stage(on.api, client)
            task = asyncio.create_task(second.publisher.run())
            await eventually(lambda: second.publisher.published)
            task.cancel()
            await asyncio.wait([task])
        assert on.writes() == ["POST"]


async def test_at_the_end_the_slices_stay() -> None:
    async with stage() as on:
        await on.settled(devices=8)
        api = on.api
    assert len(api.all(RESOURCE_SLICES)) == 1


async def test_a_node_of_another_uid_gets_slices_of_its_own() -> None:
    async with stage() as on:
        await on.settled(devices=8)
        on.api.remove(NODES, NODE)
        on.node(uid="reborn")
        await eventually(lambda: on.slices[0]["metadata"]["ownerReferences"][0]["uid"] == "reborn")


async def test_other_nodes_and_other_drivers_slices_are_left_alone() -> None:
    async with stage(registered=False) as on:
        theirs = resource_slices.build(machine("node-b"), node="node-b", node_uid="b")[0]
        on.api.put(RESOURCE_SLICES, theirs)
        nic: Object = {"metadata": {"name": "nic"}, "spec": {"driver": "nic.example.com", "nodeName": NODE, "pool": {}}}
        on.api.put(RESOURCE_SLICES, nic)
        on.register()
        await eventually(lambda: on.publisher.published)
        assert len(on.slices) == 3


async def test_nothing_is_published_next_to_a_device_plugin_until_it_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with stage() as on:
        await on.settled(devices=8)
        on.node(**{"nvidia.com/gpu": "8"})
        await on.settled(devices=None)
        assert on.publisher.withheld == "a device plugin offers 8 nvidia.com/gpu"
        assert caplog.text.count("because a device plugin offers 8") == 1
        on.node(**{"nvidia.com/gpu": "0"})
        await on.settled(devices=8)
        assert on.publisher.withheld is None


async def test_what_it_deleted_itself_is_not_taken_for_a_kubelet_that_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOLD_S", 3600.0)
    async with stage() as on:
        await on.settled(devices=8)
        on.node(**{"nvidia.com/gpu": "8"})
        await on.settled(devices=None)
        on.node(**{"nvidia.com/gpu": "0"})
        await on.settled(devices=8)


async def test_nothing_is_published_next_to_another_driver() -> None:
    async with stage() as on:
        await on.settled(devices=8)
        spec = {"driver": "gpu.nvidia.com", "nodeName": NODE, "pool": {"name": NODE}, "devices": [{"name": "gpu-0"}]}
        on.api.put(RESOURCE_SLICES, {"metadata": {"name": "theirs"}, "spec": spec})
        await eventually(lambda: [o["metadata"]["name"] for o in on.slices] == ["theirs"])
        assert on.publisher.settled
        on.api.remove(RESOURCE_SLICES, "theirs")
        await on.settled(devices=8)


async def test_a_flag_publishes_next_to_a_device_plugin() -> None:
    async with stage(registered=False, allow_device_plugin=True) as on:
        on.node(**{"nvidia.com/gpu": "8"})
        on.register()
        await on.settled(devices=8)


async def test_taints_come_and_go_and_keep_their_time_over_a_restart() -> None:
    async with stage() as on:
        await on.settled(devices=8)
        on.taints = {uuid(2): [taint()]}
        on.publisher.poke()
        await eventually(lambda: tainted(on) == {device(2): [taint()]})
        async with Client(on.api.config, user_agent="second") as client:
            second = Stage(on.api, client)
            second.taints = {uuid(2): [taint("2026-01-02T00:00:00Z")]}
            task = asyncio.create_task(second.publisher.run())
            await eventually(lambda: second.publisher.published)
            task.cancel()
            await asyncio.wait([task])
        assert on.writes() == ["POST", "PUT"]
        on.taints = {}
        on.publisher.poke()
        await eventually(lambda: tainted(on) == {})


async def test_a_gpu_that_pods_shall_keep_off_is_in_no_group_and_only_noted_faults_change_none() -> None:
    async with stage(registered=False) as on:
        on.taints = {uuid(2): [taint()], uuid(3): [taint(effect="None")]}
        on.register()
        await on.settled(devices=8)
        groups = {
            d["name"]: [key for key in d["attributes"] if key.startswith("nvlink")]
            for d in on.slices[0]["spec"]["devices"]
        }
        assert groups[device(2)] == []
        assert "nvlinkGroup2" in groups[device(3)]


async def test_that_mig_mode_must_be_turned_on_is_said_once_for_each_gpu(caplog: pytest.LogCaptureFixture) -> None:
    policies = msgspec.structs.replace(DEFAULTS, gpus=(GpuRule(numbers=(0, 2), mig="dynamic"),))
    async with stage(registered=False, policies=lambda: policies) as on:
        on.machine = profiles.load("dgx-a100", seed=NODE)
        on.register()
        await on.settled(devices=8)
        on.taints = {on.machine.gpus[1].uuid: [taint()]}
        on.publisher.poke()
        await eventually(lambda: len(tainted(on)) == 1)
        assert [text.split()[1] for text in on.mig_off] == [on.machine.gpus[n].uuid for n in (0, 2)]
        assert caplog.text.count("-mig 1") == 2
        assert metrics.MIG_OFF._value.get() == 2
        gpus = tuple(msgspec.structs.replace(gpu, mig=()) for gpu in on.machine.gpus)
        on.machine = msgspec.structs.replace(on.machine, gpus=gpus)
        on.publisher.poke()
        await eventually(lambda: metrics.MIG_OFF._value.get() == 0)
        assert len(on.mig_off) == 2


async def test_slices_follow_the_policies_file_and_a_used_gpu_changes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr(mode_transition, "GRACE_S", 0.0)
    monkeypatch.setattr(mode_transition, "ASK_S", 0.0)
    policies, used = DEFAULTS, {uuid(0): [resource_slices.device_name(uuid(0))]}

    async def who() -> dict[str, list[str]]:
        return used

    def shown(on: Stage, number: int) -> Object:
        (found,) = [one for one in on.slices[0]["spec"]["devices"] if one["name"] == device(number)]
        return dict(found)

    async with stage(policies=lambda: policies, used=who) as on:
        await on.settled(devices=8)
        policies = msgspec.structs.replace(DEFAULTS, gpus=(GpuRule(numbers=(0, 1), shared="time-slicing"),))
        on.publisher.poke()
        await eventually(lambda: shown(on, 1).get("allowMultipleAllocations") is True)
        assert [taint["key"] for taint in shown(on, 0)["taints"]] == ["gpu.topology/mode-changes"]
        assert "allowMultipleAllocations" not in shown(on, 0)
        used = {}
        await eventually(lambda: shown(on, 0).get("allowMultipleAllocations") is True)
        assert "taints" not in shown(on, 0)
        assert on.modes.modes[uuid(0)] == Mode(shared="time-slicing")


async def test_a_gpu_changes_once_no_claim_is_allocated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("GRACE_S", 0.0), ("ASK_S", 0.0)):
        monkeypatch.setattr(mode_transition, name, value)
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    policies = DEFAULTS

    def shareable(on: Stage) -> set[str]:
        devices = on.slices[0]["spec"]["devices"]
        return {one["name"] for one in devices if one.get("allowMultipleAllocations")}

    async with stage(policies=lambda: policies) as on:
        await on.settled(devices=8)
        other = result("gpu", device(3)) | {"pool": "node-b"}
        watching = result("gpu", device(4), adminAccess=True)
        for number, one in enumerate((result("gpu", device(2)), other, watching)):
            on.api.put(RESOURCE_CLAIMS, claim(f"c{number}", results=[one], used=False))
        policies = msgspec.structs.replace(DEFAULTS, gpus=(GpuRule(shared="time-slicing"),))
        on.publisher.poke()
        await eventually(lambda: shareable(on) == {device(n) for n in range(8)} - {device(2)})
        on.api.remove(RESOURCE_CLAIMS, "c0", "default")
        await eventually(lambda: shareable(on) == {device(n) for n in range(8)})


@pytest.mark.slow
async def test_placements_are_several_slices_of_one_generation_counters_first() -> None:
    """An incomplete pool, or one of two generations, is given to nobody."""
    policies = msgspec.structs.replace(DEFAULTS, gpus=(GpuRule(mig="placements"),))
    async with stage(registered=False, policies=lambda: policies) as on:
        on.machine = machine(profile="hgx-h100")
        on.register()
        await eventually(lambda: on.publisher.published)
        assert len(on.slices) == on.slices[0]["spec"]["pool"]["resourceSliceCount"] > 2
        assert [len(one["spec"].get("sharedCounters", ())) for one in on.slices][:2] == [8, 0]
        assert set(on.generations) == {1}
        on.taints = {on.machine.gpus[0].uuid: [taint()]}
        on.publisher.poke()
        await eventually(lambda: tainted_devices(on) > 1)
        assert set(on.generations) == {2}


def tainted_devices(on: Stage) -> int:
    return sum("taints" in device for one in on.slices for device in one["spec"].get("devices", ()))
