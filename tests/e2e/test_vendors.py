"""GPUs of AMD on a real cluster, as captured on a machine; test_vendors_ascend.py has those of Ascend."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from dradriver.api.base import names
from dradriver.node.container_edits import GPU_FILE
from dradriver.node.vendors.amd import kfd
from dradriver.topology.machine import Machine
from dradriver.topology.vendors import AMD
from tests.cluster import Cluster, Node
from tests.e2e.installation import Installation
from tests.e2e.kubectl import Namespace, eventually, no_gpu_is_owned_twice, pod
from tests.e2e.test_hardware import published
from tests.paths import SHARED_DATA

CAPTURED: Final = SHARED_DATA / "vendors/amd/kfd-topo-mi210-xgmi-pcie.tar.gz"
ROOT: Final = "/var/lib/kubelet/test-amd"
VIDEO, RENDER = 44, 109
HIVES: Final = ({0, 1, 2, 3}, {4, 5, 6, 7})


def folder(node: Node) -> Path:
    """Where the machine sees the captured machine's root of the node."""
    return node.kubelet_root / Path(ROOT).name


def make_node(path: Path, group: int) -> None:
    """Make a device node with /dev/null behind it, as the driver's are: for root and one group."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, stat.S_IFCHR | 0o660, os.makedev(1, 3))
    path.chmod(0o660)
    os.chown(path, 0, group)


def lay(root: Path) -> None:
    """Unpack the captured KFD, and make what was not captured: PCI devices, each below a port, and device nodes.

    Cards are numbered otherwise than render nodes: card0 is a management controller's.
    """
    nodes = root / kfd.NODES
    nodes.parent.mkdir(parents=True)
    with tarfile.open(CAPTURED) as tar:
        tar.extractall(root / "captured")
    (root / "captured/topo-mi210-xgmi-pcie/nodes").rename(nodes)
    found = kfd.read(root)
    assert found is not None
    make_node(root / "dev/kfd", RENDER)
    pci = root / "sys/bus/pci/devices"
    pci.mkdir(parents=True)
    for number, gpu in enumerate(found.gpus):
        domain, bus = gpu.pci.split(":")[:2]
        device = root / f"sys/devices/pci{domain}:{bus}" / f"{domain}:{bus}:00.1" / gpu.pci
        said = {"vendor": "0x1002", "device": f"0x{gpu.device}", "class": "0x038000", "numa_node": str(number // 4)}
        card, render = f"card{number + 1}", f"renderD{gpu.render}"
        for name in (card, render):
            (device / "drm" / name).mkdir(parents=True)
        for name, text in said.items():
            (device / name).write_text(text + "\n")
        (pci / gpu.pci).symlink_to(os.path.relpath(device, pci))
        make_node(root / "dev/dri" / card, VIDEO)
        make_node(root / "dev/dri" / render, RENDER)


@pytest.fixture(scope="module")
def amd(driver: Cluster, installation: Installation) -> Iterator[Cluster]:
    """The driver on a node whose /sys tells of eight MI210; afterwards it simulates again."""
    if not CAPTURED.exists():
        pytest.skip(f"no {CAPTURED}")
    node = driver.nodes["node-a"]
    lay(folder(node))
    try:
        installation.install(device_root=ROOT)
        yield driver
    finally:
        installation.install()
        shutil.rmtree(folder(node))
        (node.cdi_dir / GPU_FILE).unlink(missing_ok=True)


def asks(name: str, resource: str, count: int, *, user: int = 0) -> dict[str, Any]:
    """Return a pod whose limit asks for GPUs of a vendor."""
    made = pod(name, words={names.POLICY: "best-effort"})
    container = made["spec"]["containers"][0]
    container["resources"]["limits"] = {resource: count}
    container["securityContext"] = {"runAsUser": user}
    return made


def machine(cluster: Cluster, node: str, vendor: str) -> Machine:
    """Return what a node has published, once it is a vendor's."""
    return eventually(
        f"{node} publishes GPUs of {vendor}",
        lambda: found if (found := published(cluster, node)) is not None and found.vendor.word == vendor else None,
    )


def given(namespace: Namespace, name: str, found: Machine) -> set[int]:
    """Return the numbers of the GPUs that a pod was given, by what stands on it."""
    numbers = {gpu.uuid: gpu.index for gpu in found.gpus}
    allocated = namespace.annotation(name, names.ALLOCATED) or ""
    return {numbers[uuid] for uuid in allocated.split(",")}


def seen(namespace: Namespace, name: str, *below: str) -> set[str]:
    """Return the device nodes that a container sees in some of the folders below /dev."""
    shown = namespace.kubectl("exec", name, "--", "find", "/dev", "-type", "c").stdout.split()
    return {path for path in shown if path.startswith(below)}


def test_four_gpus_of_amd_are_one_hive_and_any_user_may_open_them(amd: Cluster, namespace: Namespace) -> None:
    found = machine(amd, "node-a", "amd")
    assert [len({j for j in range(8) if row[j]} | {i}) for i, row in enumerate(found.links)] == [4] * 8
    assert published(amd, "node-b") is None

    namespace.apply(asks("trainer", AMD.resources[0], 4, user=1000))
    namespace.wait_running("trainer")
    numbers = given(namespace, "trainer", found)
    assert numbers in HIVES
    minors: Mapping[int, int] = {gpu.index: gpu.minor for gpu in found.gpus}
    cards = {f"/dev/dri/card{number + 1}" for number in numbers}
    renders = {f"/dev/dri/renderD{minors[number]}" for number in numbers}
    assert seen(namespace, "trainer", "/dev/kfd", "/dev/dri") == {"/dev/kfd", *cards, *renders}
    groups = namespace.kubectl("exec", "trainer", "--", "id", "-G").stdout.split()
    assert {str(VIDEO), str(RENDER)} <= set(groups)
    for path in ("/dev/kfd", *cards, *renders):
        namespace.kubectl("exec", "trainer", "--", "sh", "-c", f": < {path}")
    variables = namespace.kubectl("exec", "trainer", "--", "env").stdout
    assert not any(word in variables for word in ("NVIDIA", "CUDA", "NCCL", "AMD_VISIBLE"))

    namespace.apply(asks("second", AMD.resources[0], 4))
    namespace.wait_running("second")
    assert given(namespace, "second", found) | numbers == set(range(8))
    assert no_gpu_is_owned_twice(amd)
