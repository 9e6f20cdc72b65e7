"""DeviceTaintRules of a real API server: 1.37 has them, 1.36 once a feature gate and a beta API are turned on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from dradriver.api.slices import resource_slices
from dradriver.controller.controller import Controller
from dradriver.kube.client import Client
from dradriver.kube.config import from_kubeconfig
from dradriver.kube.resources import DEVICE_TAINT_RULES, NODES, RESOURCE_SLICES
from dradriver.topology import profiles
from tests import kubernetes_versions, needs
from tests.cluster.nodeless import Nodeless
from tests.cluster.settings import KUBERNETES_VERSIONS, minor_of
from tests.contract.planes import Planes

pytestmark = pytest.mark.cluster
NODE = "node-a"
ON = {"feature-gates": "DRADeviceTaintRules=true", "runtime-config": "resource.k8s.io/v1beta2=true"}


@pytest.fixture(params=kubernetes_versions.params([one for one in KUBERNETES_VERSIONS if minor_of(one) >= "1.36"]))
def plane(request: pytest.FixtureRequest, planes: Planes) -> Iterator[Nodeless]:
    version = request.param
    if minor_of(version) != "1.36":
        with planes.restored("contract", version) as plane:
            yield plane
        return
    needs.real_cluster(version)
    early = Nodeless("taint-rules-1.36", version, api_server=ON)
    with early.running():
        yield early


async def test_what_a_rule_taints_is_not_handed_out_while_it_is_there(plane: Nodeless) -> None:
    machine = profiles.load("dgx1-v100", seed=NODE)
    config = from_kubeconfig(plane.folder / "kubeconfig")
    async with Client(config, user_agent="contract", timeout_s=30) as client:
        served = [version for version in DEVICE_TAINT_RULES if await client.serves(version)]
        assert [version.version for version in served] == ["v1beta2" if minor_of(plane.version) == "1.36" else "v1"]
        node = await client.create(NODES, {"metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}}})
        for built in resource_slices.build(machine, node=NODE, node_uid=node["metadata"]["uid"], modes={}):
            await client.create(RESOURCE_SLICES, built)

        async with asyncio.TaskGroup() as tasks:
            controller = Controller(client)
            watching = tasks.create_task(controller.watch())
            await controller.synced()
            inventory = controller.worker.picture.inventory

            async def free(number: int) -> None:
                async with asyncio.timeout(30):
                    while inventory.free().sum() != number:  # of a server in another process
                        await asyncio.sleep(0.05)

            await free(8)
            device = resource_slices.device_name(machine.gpus[5].uuid)
            for name, selector, left in (
                ("one", {"driver": "gpu.topology", "pool": NODE, "device": device}, 7),
                ("others", {"driver": "gpu.nvidia.com"}, 7),
                ("all", {"driver": "gpu.topology"}, 0),
            ):
                taint = {"key": "example.com/maintenance", "effect": "NoSchedule"}
                spec = {"deviceSelector": selector, "taint": taint}
                await client.create(served[0], {"metadata": {"name": name}, "spec": spec})
                await free(left)
            assert controller.worker.picture.offered.taint_rules.tainting() == ["all", "one"]
            await client.delete(served[0], "all")
            await free(7)
            await client.delete(served[0], "one")
            await free(8)
            watching.cancel()
