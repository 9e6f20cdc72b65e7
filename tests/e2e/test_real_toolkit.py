"""NVIDIA's real toolkit on the nodes: the agent's pod runs nvidia-ctk, and the runtime runs the hooks that it names.

The driver is the tests' NVML and libraries without content that have real names and ELF headers, where the GPU
operator's driver container has its own; NVIDIA's programs are those of its newest release here.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator

import pytest

from dradriver.api import names
from dradriver.node.discovery import toolkit
from dradriver.topology import profiles
from dradriver.topology.machine import Machine
from tests import deploy, needs
from tests.cluster import Cluster, Node
from tests.cluster.settings import NVIDIA_TOOLKITS
from tests.e2e.kubectl import Namespace, pod
from tests.fakes import nvml
from tests.fakes.server import complete
from tests.programs.host import CONTROL, LIBRARIES, STAND_INS, stand_in

ROOT = "/run/nvidia/driver"
NEWEST = max(NVIDIA_TOOLKITS)
SEEN = "/usr/lib/x86_64-linux-gnu"  # where containers find the driver's libraries


def machine(node: str) -> Machine:
    return complete(profiles.load(deploy.MACHINES[node], seed=node))


def lay(node: Node) -> None:
    """Put driver and toolkit where the node's /run has them, by way of a folder that this process sees, too."""
    stage, here = node.kubelet_root / "stage", machine(node.name)
    libraries = stage / LIBRARIES
    libraries.mkdir(parents=True)
    files = {name: stand_in(name) for name in STAND_INS}
    files["libnvidia-ml"] = nvml.compiled() / "usr/lib64/libnvidia-ml.so.1"
    for name, file in files.items():
        shutil.copy(file, libraries / f"{name}.so.{here.driver_version}")
        (libraries / f"{name}.so.1").symlink_to(f"{name}.so.{here.driver_version}")
    nvml.write(nvml.table(here), libraries / "table")
    (stage / "dev").mkdir()
    for name in (*CONTROL, *(f"nvidia{gpu.minor}" for gpu in here.gpus)):
        os.mknod(stage / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (stage / "usr/bin").mkdir()
    for program in needs.nvidia_toolkit(NEWEST).glob("nvidia-*"):
        shutil.copy(program, stage / "usr/bin")
    node.run("mkdir", "-p", ROOT)
    node.run("cp", "-a", "/var/lib/kubelet/stage/.", ROOT)
    shutil.rmtree(stage)


@pytest.fixture(scope="module")
def equipped(driver: Cluster) -> Iterator[Cluster]:
    """The driver on nodes with NVIDIA's toolkit; afterwards it simulates again."""
    for node in driver.nodes.values():
        lay(node)
    try:
        deploy.install(driver, driver_root=ROOT)
        yield driver
    finally:
        deploy.install(driver)
        for node in driver.nodes.values():
            node.run("rm", "-r", "/run/nvidia")
            (node.cdi_dir / toolkit.FILE).unlink(missing_ok=True)


def test_the_agents_pod_makes_the_specification_by_the_real_program(equipped: Cluster) -> None:
    for node in equipped.nodes.values():
        made = json.loads((node.cdi_dir / toolkit.FILE).read_text())
        log = equipped.kubectl("-n", deploy.NAMESPACE, "logs", "daemonset/gpu-topology-node", "--tail=40").stdout
        found = {one["name"] for one in made["devices"]}
        assert found == {"driver", *(gpu.uuid for gpu in machine(node.name).gpus)}, log
        hooks = made["containerEdits"]["hooks"]
        assert {hook["path"] for hook in hooks} == {f"{ROOT}/usr/bin/nvidia-cdi-hook"}
        assert {hook["args"][1] for hook in hooks} >= {"create-symlinks", "update-ldcache"}


def test_the_runtime_runs_the_real_hooks_in_a_container(equipped: Cluster, namespace: Namespace) -> None:
    namespace.apply(pod("trainer", gpus=4, words={names.POLICY: "nvlink"}, node="node-a"))
    namespace.wait_running("trainer")
    here = machine("node-a")
    minors = {gpu.uuid: gpu.minor for gpu in here.gpus}
    allocated = (namespace.annotation("trainer", names.ALLOCATED) or "").split(",")
    control = {f"/dev/{name}" for name in CONTROL}
    assert namespace.devices("trainer") == {f"/dev/nvidia{minors[uuid]}" for uuid in allocated} | control

    def inside(*words: str) -> str:
        return str(namespace.kubectl("exec", "trainer", "--", *words).stdout).strip()

    assert inside("readlink", f"{SEEN}/libcuda.so") == "libcuda.so.1"  # which only a hook makes
    # So that programs find it by its name.
    assert inside("grep", "-c", "libcuda.so.1", "/etc/ld.so.cache") != "0"
    assert inside("sh", "-c", f"head -c 4 {SEEN}/libcuda.so.{here.driver_version} | tail -c 3") == "ELF"
