"""What becomes of a slice that is only tried, and of fields whose feature is off."""

from __future__ import annotations

import uuid

import pytest

from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import resource_slices
from dradriver.api.slices.slice_features import ALL, SliceFeatures, probes
from dradriver.kube.resources import RESOURCE_SLICES
from dradriver.node.publishing import feature_probe
from dradriver.node.publishing.pool import differences
from dradriver.topology import profiles
from tests.contract.built import MODES, UID, in_mig_mode
from tests.contract.conftest import Server
from tests.fakes import nvidia


async def test_a_dry_run_answers_as_a_write_would_and_stores_nothing(server: Server) -> None:
    node = f"node-{uuid.uuid4().hex[:8]}"
    (_, probe) = probes(node, UID)
    stored = await server.client.create(RESOURCE_SLICES, probe, dry_run=True)

    assert stored["metadata"]["name"].startswith(probe["metadata"]["generateName"])
    assert stored["spec"]["devices"][0]["taints"] == probe["spec"]["devices"][0]["taints"]
    found, _ = await server.client.list(RESOURCE_SLICES, field_selector=f"spec.nodeName={node}")
    assert found == []


async def test_a_slice_with_a_machine_and_no_device_comes_back_as_sent(server: Server) -> None:
    (one,) = resource_slices.machine_alone(profiles.load("hgx-h100", seed="n"), node="n", node_uid=UID)
    stored = await server.client.create(RESOURCE_SLICES, one, dry_run=True)
    assert differences(one, stored) == frozenset()


async def test_slices_of_nvidias_driver_come_back_as_the_fake_makes_them(server: Server) -> None:
    machine = profiles.load("hgx-h100", seed="n")
    parts = [*nvidia.whole(machine, without=(0,)), nvidia.mig(machine.gpus[0], 0), nvidia.vfio(machine.gpus[1], 1)]
    one = nvidia.slices("n", parts)
    stored = await server.client.create(RESOURCE_SLICES, one, dry_run=True)
    assert differences(one, stored) == frozenset()


async def test_this_kubernetes_keeps_all_that_divides_a_gpu(server: Server) -> None:
    assert await feature_probe.ask(server.client, node="n", node_uid=UID) == ALL


async def test_slices_of_instances_that_exist_come_back_as_sent(server: Server) -> None:
    for name in ("hgx-h100", "dgx-a100"):
        machine = in_mig_mode(profiles.load(name, seed="n"))
        for able in (ALL, SliceFeatures(taints=False, shares=False, counters=False)):
            for one in resource_slices.build(machine, node="n", node_uid=UID, features=able):
                assert sum("mig" in str(device["attributes"]["type"]) for device in one["spec"]["devices"]) == 16
                stored = await server.client.create(RESOURCE_SLICES, one, dry_run=True)
                assert differences(one, stored) == frozenset()


@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_slices_of_gpus_in_parts_come_back_as_sent(server: Server, mode: Mode) -> None:
    for name in ("hgx-h100", "dgx-a100"):
        machine = profiles.load(name, seed="n")
        modes = {gpu.uuid: mode for gpu in machine.gpus[::2]}
        for able in (ALL, SliceFeatures(shares=False, counters=False)):
            for one in resource_slices.build(machine, node="n", node_uid=UID, modes=modes, features=able):
                stored = await server.client.create(RESOURCE_SLICES, one, dry_run=True)
                assert differences(one, stored) == frozenset()
