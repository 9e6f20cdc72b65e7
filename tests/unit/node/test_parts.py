"""A whole agent, beside a fake kubelet, that hands out parts of simulated GPUs."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from dradriver.api.claims import opaque_config
from dradriver.api.slices import resource_slices
from dradriver.node.boot import boot_id
from dradriver.node.discovery.simulated_machine import Simulated
from dradriver.node.publishing import publisher
from dradriver.node.vendors.nvidia.devices.simulated_control import SimulatedGpu
from dradriver.topology import load, machine_codec, profiles
from tests.fakes.instances import in_mig_mode
from tests.fakes.node import NODE, a_node, claim, eventually, machine, parameters, result

PROFILE = "dgx-h100"
GPUS = machine(profile=PROFILE).gpus
H100 = {profile.name: profile for profile in GPUS[0].profiles}


def some(gpu: int, share: str, **consumed: str) -> dict[str, object]:
    return result("gpu", resource_slices.device_name(GPUS[gpu].uuid), shareID=share, consumedCapacity=consumed)


async def test_an_agent_hands_out_mig_instances_and_shares_and_takes_them_back() -> None:
    pinned = parameters(mig={"gpu": {"profile": "2g.20gb", "starts": {GPUS[1].uuid: 2}}})
    asked = [
        claim("placed", results=[result("gpu", resource_slices.part_name(GPUS[0].uuid, H100["3g.40gb"].id, 4))]),
        claim("pinned", results=[some(1, "p", memorySlices="2", computeSlices="2")], config=[pinned]),
        claim("packed", results=[some(1, "q", memorySlices="1", computeSlices="1")]),
        claim("shared", results=[some(2, "r", cores="25", memory="10Gi")]),
        claim("whole", results=[some(3, "s", memorySlices="8", computeSlices="7")]),
    ]
    async with a_node() as node:
        hardware = SimulatedGpu(node.state / "simulated/hardware.json", boot=boot_id())
        policies = node.root / "policies.yaml"
        policies.write_text("gpus: [{numbers: [2], shared: mps}, {mig: dynamic}]")
        options: dict[str, Any] = {"simulated_default": PROFILE, "mps": True, "policies": policies}
        async with node.agent(**options):
            await node.published()
            for obj in asked:
                known = node.put_claim(obj)
                answer = (await node.kubelet.prepare(known))[known[2]]
                assert not answer.error
                assert len(answer.devices) == 1
            assert hardware.gpu_instances(GPUS[0].uuid) == {1: (H100["3g.40gb"].id, 4)}
            assert set(hardware.gpu_instances(GPUS[1].uuid).values()) == {(14, 2), (19, 1)}
            assert (node.state / "mps" / GPUS[2].uuid.lower() / "pipe").is_dir()
            assert len(node.specs) == len(asked)
        async with node.agent("pod-2", **options):
            await eventually(lambda: any("pod-2" in info.endpoint for info in node.kubelet.seen.values()))
            for obj in asked:
                stored = obj["metadata"]
                await node.kubelet.unprepare((stored["namespace"], stored["name"], stored["uid"]))
            assert (node.specs, node.checkpoint) == ({}, [])
            assert not any(hardware.gpu_instances(gpu.uuid) or hardware.mig_mode(gpu.uuid) for gpu in GPUS)
            with hardware.state(GPUS[2].uuid) as state:
                assert (state.server, state.mode) == (None, 0)


@pytest.mark.slow
async def test_after_a_change_of_mig_mode_the_machine_is_read_at_once() -> None:
    part = claim("placed", results=[result("gpu", resource_slices.part_name(GPUS[0].uuid, H100["3g.40gb"].id, 4))])
    with patch.object(Simulated, "read", autospec=True, side_effect=Simulated.read) as read:
        async with a_node() as node:
            policies = node.root / "policies.yaml"
            policies.write_text("gpus: [{mig: placements}]")
            async with node.agent(simulated_default=PROFILE, rediscover_s=3600.0, policies=policies):
                await node.published()
                before = read.call_count
                known = node.put_claim(part)
                assert not (await node.kubelet.prepare(known))[known[2]].error
                await eventually(lambda: read.call_count == before + 1)
                await node.kubelet.unprepare(known)
                await eventually(lambda: read.call_count == before + 2)


def test_a_controllers_pin_is_read_as_it_was_written() -> None:
    pin = opaque_config.Mig(profile="1g.10gb+me", starts={GPUS[0].uuid: 3})
    plain = opaque_config.Mig(profile="3g.40gb")
    written = opaque_config.make({}, [], mig={"b": pin, "a": plain})
    assert list(written) == sorted(written)
    assert opaque_config.read(written).mig == {"a": plain, "b": pin}
    assert "mig" not in opaque_config.make({}, [])


async def test_an_agent_gives_the_instances_that_exist_and_waits_for_one_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher, "LOOK_S", 0.01)
    described = in_mig_mode(profiles.load(PROFILE), {0: [("3g.40gb", 0), ("1g.10gb", 6)]})
    async with a_node() as node:
        file = node.root / "machine.json"
        file.write_text(machine_codec.encode(described))
        (first, *_) = load.read_machine(file, seed=NODE).gpus
        gpu, three = first.uuid, resource_slices.part_name(first.uuid, H100["3g.40gb"].id, 0)
        asked = claim("given", results=[result("gpu", three)])
        hardware = SimulatedGpu(node.state / "simulated/hardware.json", lambda _: first, boot=boot_id())

        def published() -> dict[str, bool]:
            found = [one for piece in node.slices for one in piece["spec"]["devices"]]
            return {one["name"]: "taints" in one for one in found if one["attributes"]["type"]["string"] == "mig"}

        async with node.agent(simulated_default=str(file), rediscover_s=0.05):
            await eventually(lambda: published() == {three: False, resource_slices.part_name(gpu, 19, 6): False})
            known = node.put_claim(asked)
            assert not (await node.kubelet.prepare(known))[known[2]].error
            hardware.destroy_compute_instance(gpu, 1, 0)
            hardware.destroy_gpu_instance(gpu, 1)
            await eventually(lambda: published() == {three: True, resource_slices.part_name(gpu, 19, 6): False})
            await node.kubelet.unprepare(known)
            await eventually(lambda: published() == {resource_slices.part_name(gpu, 19, 6): False})
            assert set(hardware.gpu_instances(gpu).values()) == {(19, 6)}
            again = asyncio.create_task(node.kubelet.prepare(known))
            hardware.create_compute_instance(gpu, hardware.create_gpu_instance(gpu, H100["3g.40gb"], 0))
            assert not (await again)[known[2]].error
            await node.kubelet.unprepare(known)
            assert set(hardware.gpu_instances(gpu).values()) == {(19, 6), (9, 0)}
