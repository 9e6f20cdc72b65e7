"""The node agent on GPUs that a driver tells of: a library for tests answers in place of NVIDIA's."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.slices import resource_slices
from dradriver.topology import profiles
from dradriver.topology.machine import Machine
from tests import deploy
from tests.cluster import Cluster, Node
from tests.e2e import parts
from tests.e2e.installation import Installation
from tests.e2e.kubectl import Namespace, eventually, pod
from tests.e2e.parts import restarts
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


def make_device(node: Node) -> None:
    """Make the node by which the library asks the driver, with /dev/null behind it."""
    os.mknod(folder(node) / "dev/nvidiactl", stat.S_IFCHR | 0o666, os.makedev(1, 3))


@pytest.fixture(scope="module")
def hardware(driver: Cluster, installation: Installation) -> Iterator[Cluster]:
    """The driver on nodes with a library; afterwards it simulates again."""
    for node in driver.nodes.values():
        library = folder(node) / LIBRARY
        library.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(nvml.compiled() / LIBRARY, library)
        nvml.write(table(node.name), library.with_name("table"))
        (folder(node) / "dev").mkdir()
        make_device(node)
        toolkit(node).write_text(cdi_specification(machine(node.name)))
    try:
        installation.install(driver_root=ROOT)
        yield driver
    finally:
        installation.install()
        with parts.no_agent(driver, deploy.SHARED[0]):  # else its shared GPUs would stay whole for another minute
            parts.forget(driver, deploy.SHARED[0])
        for node in driver.nodes.values():
            shutil.rmtree(folder(node))
            toolkit(node).unlink()
            (node.cdi_dir / "gpu.topology-gpu.json").unlink()


def published(cluster: Cluster, node: str) -> Machine | None:
    found = cluster.api.objects("resourceslices")
    own = [one for one in msgspec.convert(found, list[ResourceSlice]) if one.spec.pool.name == node]
    return resource_slices.read_machine(own)


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


@contextlib.contextmanager
def watched(cluster: Cluster, node: str, folder: Path) -> Iterator[Callable[[], list[int]]]:
    """Watch a node's slices during the block; gives how many GPUs they had after every change."""
    file = folder / "changes"
    watch = ["get", "resourceslices", "--watch", "--output-watch-events", "-o", "json"]
    command = [cluster.kubectl_command, "--kubeconfig", str(cluster.kubeconfig), *watch]

    def counts() -> list[int]:
        text, found, decoder = file.read_text(), [], json.JSONDecoder()
        while text := text.lstrip():
            try:
                event, end = decoder.raw_decode(text)
            except json.JSONDecodeError:  # it is being written
                break
            text, spec = text[end:], event["object"]["spec"]
            if spec.get("nodeName") == node:
                found.append(0 if event["type"] == "DELETED" else len(spec["devices"]))
        return found

    with file.open("wb") as out, subprocess.Popen(command, stdout=out) as process:
        try:
            eventually("the watch has begun", counts)
            yield counts
        finally:
            process.terminate()


@pytest.fixture
def module(hardware: Cluster) -> Iterator[Path]:
    """The folder below /sys that is there while node-a has the driver's module loaded."""
    node = hardware.nodes["node-a"]
    modules = node.folder / "modules"
    (modules / "nvidia").mkdir(parents=True)
    node.run("mount", "--bind", modules, "/sys/module")
    yield modules / "nvidia"
    hardware.kubectl("label", "node", "node-a", f"{names.DRIVER_LABEL}-")
    node.run("umount", "/sys/module")
    shutil.rmtree(modules)


def replace_library(node: Node, version: str) -> None:
    """Install another version of the driver: other files of the same names."""
    library = folder(node) / LIBRARY
    new = library.with_name("new")
    shutil.copy(library, new)
    nvml.write(table(node.name) | {"nvmlSystemGetDriverVersion": version}, library.with_name("table"))
    toolkit(node).write_text(cdi_specification(msgspec.structs.replace(machine(node.name), driver_version=version)))
    new.replace(library)


def test_drivers_are_replaced_while_a_pod_runs(
    hardware: Cluster, namespace: Namespace, module: Path, tmp_path: Path
) -> None:
    """The agent lets go of a driver that is to be unloaded, and its successor takes the next; slices go with it."""
    node, release = hardware.nodes["node-a"], f"{names.DRIVER_LABEL}=now"
    namespace.apply(pod("steady", gpus=4, words={names.POLICY: "nvlink"}, node="node-a"))
    namespace.wait_running("steady")
    agent = parts.agent(hardware, "node-a")["name"]

    def version() -> str | None:
        found = published(hardware, "node-a")
        return None if found is None else found.driver_version

    def said() -> str:
        return hardware.kubectl("-n", deploy.NAMESPACE, "logs", agent).stdout

    with watched(hardware, "node-a", tmp_path) as counts:
        replace_library(node, "600.10")  # as a package manager does
        eventually("the new version is published", lambda: version() == "600.10")

        hardware.kubectl("label", "node", "node-a", release)
        eventually("the agent lets go", lambda: f"the driver is let go: node label {release}" in said())
        assert published(hardware, "node-a") is not None
        module.rmdir()
        (folder(node) / "dev/nvidiactl").unlink()
        eventually("without a driver there are no GPUs", lambda: counts()[-1] == 0)

        replace_library(node, "610.20")
        make_device(node)
        module.mkdir()
        hardware.kubectl("label", "node", "node-a", f"{names.DRIVER_LABEL}-")
        eventually("the new version is published", lambda: version() == "610.20", timeout_s=90)
        eventually("the watch has seen it", lambda: counts()[-1] == 8)
        # A slice may lose its devices before it is deleted, so the same number can follow itself.
        assert [number for number, _ in itertools.groupby(counts())] == [8, 0, 8]
    assert restarts(namespace, "steady") == 0
    assert len(namespace.devices("steady")) == 5
    assert parts.agent(hardware, "node-a")["name"] == agent
