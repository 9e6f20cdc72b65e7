"""The node agent on GPUs that a driver tells of: a library for tests answers in place of NVIDIA's."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dradriver.api import names, slices
from dradriver.api.objects import ResourceSlice
from dradriver.topology import profiles
from dradriver.topology.machine import Machine
from tests import deploy
from tests.cluster import Cluster, Node
from tests.e2e.kubectl import Namespace, eventually, pod
from tests.fakes import nvml
from tests.fakes.hardware import cdi_specification
from tests.fakes.server import complete

ROOT = "/var/lib/kubelet/test-driver"
LIBRARY = Path("usr/lib64/libnvidia-ml.so.1")


def machine(node: str) -> Machine:
    return complete(profiles.load(deploy.MACHINES[node], seed=node))


def table(node: str) -> nvml.Table:
    """What the library answers where it can open the driver's device."""
    return nvml.table(machine(node)) | {"device": "/dev/nvidiactl"}


def folder(node: Node) -> Path:
    """Where the machine sees the driver's root of the node."""
    return node.kubelet_root / Path(ROOT).name


def toolkit(node: Node) -> Path:
    return node.cdi_dir / "nvidia.yaml"


@pytest.fixture(scope="module")
def hardware(driver: Cluster) -> Iterator[Cluster]:
    """The driver on nodes with a library; afterwards it simulates again."""
    for node in driver.nodes.values():
        library = folder(node) / LIBRARY
        library.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(nvml.compiled() / LIBRARY, library)
        nvml.write(table(node.name), library.with_name("table"))
        (folder(node) / "dev").mkdir()
        os.mknod(folder(node) / "dev/nvidiactl", stat.S_IFCHR | 0o666, os.makedev(1, 3))  # as /dev/null
        toolkit(node).write_text(cdi_specification(machine(node.name)))
    try:
        deploy.install(driver, driver_root=ROOT)
        yield driver
    finally:
        deploy.install(driver)
        for node in driver.nodes.values():
            shutil.rmtree(folder(node))
            toolkit(node).unlink()
            (node.cdi_dir / "gpu.topology-gpu.json").unlink()


def published(cluster: Cluster, node: str) -> Machine | None:
    found = json.loads(cluster.kubectl("get", "resourceslices", "-o", "json").stdout)["items"]
    own = [one for one in msgspec.convert(found, list[ResourceSlice]) if one.spec.pool.name == node]
    return slices.read_machine(own)


def test_gpus_of_a_driver_are_published_and_handed_out(hardware: Cluster, namespace: Namespace) -> None:
    for node in deploy.MACHINES:
        whole, seen = machine(node), published(hardware, node)
        assert seen is not None
        assert (seen.links, seen.paths, seen.driver_version) == (whole.links, whole.paths, whole.driver_version)
        assert [gpu.uuid for gpu in seen.gpus] == [gpu.uuid for gpu in whole.gpus]
        assert seen.cpu is not None  # of the machine that runs the test, as are /sys and its NUMA nodes
        assert seen.numa

    namespace.apply(pod("trainer", gpus=4, words={names.POLICY: "nvlink"}, node="node-a"))
    namespace.wait_running("trainer")
    gpus = {gpu.uuid: gpu.minor for gpu in machine("node-a").gpus}
    allocated = (namespace.annotation("trainer", names.ALLOCATED) or "").split(",")
    assert namespace.devices("trainer") == {f"/dev/nvidia{gpus[uuid]}" for uuid in allocated} | {"/dev/nvidiactl"}
    variables = namespace.kubectl("exec", "trainer", "--", "env").stdout.splitlines()
    assert "NVIDIA_VISIBLE_DEVICES=void" in variables


def test_a_gpu_that_the_driver_lost_leaves_the_cluster_and_comes_back(hardware: Cluster, namespace: Namespace) -> None:
    node = hardware.nodes["node-b"]
    whole = table("node-b")
    file = (folder(node) / LIBRARY).with_name("table")
    nvml.write(whole | {"lost 5": "0"}, file)

    def gpus() -> list[int]:
        found = published(hardware, "node-b")
        return [] if found is None else [gpu.index for gpu in found.gpus]

    eventually("the GPU is gone", lambda: gpus() == [0, 1, 2, 3, 4, 6, 7])
    nvml.write(whole, file)
    eventually("the GPU is back", lambda: gpus() == [0, 1, 2, 3, 4, 5, 6, 7])
