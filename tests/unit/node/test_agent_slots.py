"""GPUs of an exclusive partition stay their tenant's when the node loses one: the agent's slices, and who gets what."""

from __future__ import annotations

import json

import pytest

from dradriver.api.base import names
from dradriver.api.policies.policies_reader import read
from dradriver.api.slices import resource_slices
from dradriver.kube.resources import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dradriver.node.discovery import simulated_failures
from dradriver.node.discovery.simulated_failures import Failure
from dradriver.topology import machine_codec
from tests.fakes.control_plane.devices import pinned
from tests.fakes.gpucluster import GpuCluster, claim_of
from tests.fakes.node import NODE, NodeUnderTest, Object, a_node, claim, device, eventually, machine, uuid

EXCLUSIVE = b"""
tenants:
  a: {namespaces: [team-a], partition: {numbers: [0, 1, 2, 3]}, exclusive: true}
"""
OWN = {0, 1, 2, 3}
OTHERS = {4, 5, 6, 7}


def boot(node: NodeUnderTest, boot: str) -> None:
    """Have the simulated node be in another boot from the next agent on."""
    folder = node.state / "simulated"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "boot_id").write_text(boot)


async def published(node: NodeUnderTest, *gpus: int) -> None:
    """Wait until the slices have these GPUs."""
    await eventually(lambda: {d["name"] for piece in node.slices for d in piece["spec"]["devices"]} == devices(*gpus))


def devices(*gpus: int) -> set[str]:
    return {device(gpu) for gpu in gpus}


async def given(found: list[Object]) -> tuple[set[int], set[int]]:
    """Return which GPUs the pods of others, and of the partition's tenant, get if both ask for all that there is."""
    cluster = GpuCluster()
    cluster.worker.follow(read(EXCLUSIVE, source="x"))
    cluster.node(NODE, None)
    for piece in found:
        cluster.put(RESOURCE_SLICES, piece)
    for number in range(8):
        for namespace in ("other", "team-a"):
            cluster.pod(f"{namespace}-{number}", 1, namespace=namespace)
    await cluster.settle()
    gpus = {uuid(gpu): gpu for gpu in range(8)}

    def of(namespace: str) -> set[int]:
        claims = (cluster.find(RESOURCE_CLAIMS, claim_of(f"{namespace}-{n}"), namespace) for n in range(8))
        return {gpus[each] for claim in claims if claim is not None for each in pinned(claim)}

    return of("other"), of("team-a")


@pytest.mark.slow
async def test_no_gpu_of_an_exclusive_partition_goes_to_others_when_one_is_lost() -> None:
    async with a_node() as node:
        boot(node, "first")
        async with node.agent():
            await published(node, *range(8))
            assert await given(node.slices) == (OTHERS, OWN)
            simulated_failures.write(
                simulated_failures.path(node.state / "simulated", NODE), {"gpu-0": Failure(lost=True)}
            )
            await published(node, *range(1, 8))
            assert await given(node.slices) == (OTHERS, OWN - {0})
        async with node.agent("pod-2"):
            await published(node, *range(1, 8))
            assert await given(node.slices) == (OTHERS, OWN - {0})
        boot(node, "second")  # the driver numbers the GPUs anew
        for piece in node.slices:  # as the kubelet does when it starts
            node.api.remove(RESOURCE_SLICES, piece["metadata"]["name"])
        async with node.agent("pod-3"):
            await published(node, *range(1, 8))
            assert await given(node.slices) == (OTHERS, OWN - {0})
        simulated_failures.write(simulated_failures.path(node.state / "simulated", NODE), {})
        async with node.agent("pod-4"):
            await published(node, *range(8))
            assert await given(node.slices) == (OTHERS, OWN)


async def test_a_gpu_that_is_lost_is_told_of_after_a_reboot_in_which_the_kubelet_deleted_the_slices() -> None:
    async with a_node() as node:
        boot(node, "first")
        async with node.agent():
            await published(node, *range(8))
        simulated_failures.write(simulated_failures.path(node.state / "simulated", NODE), {"gpu-2": Failure(lost=True)})
        boot(node, "second")
        for piece in node.slices:
            node.api.remove(RESOURCE_SLICES, piece["metadata"]["name"])
        async with node.agent("pod-2"):
            await published(node, 0, 1, 3, 4, 5, 6, 7)
            lost = node.slices[0]["metadata"]["annotations"][names.LOST_GPUS]
            (entry,) = json.loads(lost)
            assert (entry["index"], entry["uuid"]) == (2, uuid(2))


async def test_a_simulated_node_of_another_profile_has_its_gpus_by_the_numbers_of_that_profile() -> None:
    async with a_node() as node:
        async with node.agent():
            await published(node, *range(8))
        async with node.agent("pod-2", simulated_default="hgx-h100"):
            await eventually(lambda: device(0) not in {d["name"] for p in node.slices for d in p["spec"]["devices"]})
            found = machine_codec.decode(node.slices[0]["metadata"]["annotations"][names.MACHINE])
            assert [gpu.index for gpu in found.gpus] == list(range(8))
            assert names.LOST_GPUS not in node.slices[0]["metadata"]["annotations"]


async def test_a_gpu_of_an_unknown_slot_goes_to_no_pod_while_it_may_be_in_an_exclusive_partition() -> None:
    async with a_node() as node:
        async with node.agent():
            await published(node, *range(8))
        (node.state / "simulated" / "slots" / "2.json").write_bytes(b"damaged")
        for piece in node.slices:
            node.api.remove(RESOURCE_SLICES, piece["metadata"]["name"])
        async with node.agent("pod-2"):
            await published(node, *range(8))
            assert await given(node.slices) == (OTHERS, OWN - {2})


async def test_an_administrator_clears_the_slot_of_a_gpu_that_was_removed() -> None:
    async with a_node() as node, node.agent():
        await published(node, *range(8))
        simulated_failures.write(simulated_failures.path(node.state / "simulated", NODE), {"gpu-3": Failure(lost=True)})
        await published(node, 0, 1, 2, 4, 5, 6, 7)
        table = node.state / "simulated" / "slots"
        assert len(list(table.glob("*.json"))) == 8
        metadata = {"name": NODE, "uid": "node-uid", "annotations": {names.REMOVED_GPUS: f"GPU-0, {uuid(3)}"}}
        node.api.put(NODES, {"metadata": metadata, "status": {"allocatable": {"cpu": "8"}}})
        await eventually(lambda: not (table / "3.json").exists())
        assert len(list(table.glob("*.json"))) == 7


async def test_slices_of_an_agent_that_keeps_no_slots_are_read_by_the_index_in_them() -> None:
    pieces = resource_slices.build(machine(), node=NODE, node_uid="node-uid")
    assert "driver_index" not in pieces[0]["metadata"]["annotations"][names.MACHINE]
    for piece in pieces:
        piece["spec"]["pool"]["generation"] = 1
    assert await given(pieces) == (OTHERS, OWN)


async def test_a_claim_has_no_cdi_specification_while_its_gpu_is_away() -> None:
    async with a_node() as node, node.agent():
        await published(node, *range(8))
        await node.kubelet.prepare(node.put_claim(claim("c", [2])))
        before = node.specs
        simulated_failures.write(simulated_failures.path(node.state / "simulated", NODE), {"gpu-2": Failure(lost=True)})
        await eventually(lambda: node.specs == {})
        simulated_failures.write(simulated_failures.path(node.state / "simulated", NODE), {})
        await eventually(lambda: node.specs == before)
