"""NVIDIA's container toolkit, the nodes' own or the image's: the agent runs it, containerd its hooks in containers."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from dradriver.api.base import names
from dradriver.node.container_edits import GPU_FILE
from dradriver.topology import profiles
from dradriver.topology.machine import Machine
from tests import deploy, needs
from tests.cluster import Cluster, Node
from tests.cluster.settings import NVIDIA_TOOLKITS
from tests.e2e.installation import Installation
from tests.e2e.kubectl import Namespace, eventually, pod
from tests.fakes import nvml
from tests.fakes.server import complete
from tests.programs.host import CONTROL, LIBRARIES, direct, put_libraries

NODE: Final = "node-a"
ROOT: Final = "/run/nvidia/driver"  # of the GPU operator's driver container
COPIED: Final = r"/var/lib/gpu-topology/[0-9a-f]{16}/nvidia-cdi-hook"
_PCI: Final = "/sys/bus/pci/devices"


def machine() -> Machine:
    return complete(profiles.load(deploy.MACHINES[NODE], seed=NODE))


def make_node(path: Path) -> None:
    """Make a device node with /dev/null behind it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))


def lay(root: Path, whole: Machine) -> None:
    """Make a driver container's root: libraries that are ELF files with sonames, NVML among them, and device nodes."""
    libraries = root / LIBRARIES
    put_libraries(libraries, whole.driver_version)
    nvml.write(nvml.table(whole), libraries / "table")
    for name in (*CONTROL, *(f"nvidia{gpu.minor}" for gpu in whole.gpus)):
        make_node(root / "dev" / name)
    by_path = root / "dev/dri/by-path"
    by_path.mkdir(parents=True)
    for gpu in whole.gpus:
        for name, kind in zip(direct(gpu.minor), ("card", "render"), strict=True):
            make_node(root / "dev/dri" / name)
            (by_path / f"pci-{gpu.pci}-{kind}").symlink_to(f"../{name}")


@pytest.fixture(scope="module")
def host(driver: Cluster, installation: Installation) -> Iterator[Node]:
    """A node with a driver container's root and a /sys that knows its GPUs; afterwards it simulates again."""
    node, whole = driver.nodes[NODE], machine()
    root, pci = node.folder / "driver", node.folder / "pci"
    lay(root, whole)
    for gpu in whole.gpus:
        for name in direct(gpu.minor):
            (pci / str(gpu.pci) / "drm" / name).mkdir(parents=True)
    node.run("mkdir", "-p", ROOT)
    node.run("mount", "--bind", root, ROOT)
    node.run("mount", "--bind", pci, _PCI)
    try:
        installation.install(driver_root=ROOT)
        yield node
    finally:
        installation.install()
        node.run("umount", _PCI)
        node.run("umount", ROOT)
        shutil.rmtree(root)
        shutil.rmtree(pci)
        (node.cdi_dir / GPU_FILE).unlink(missing_ok=True)


def put_toolkit(node: Node, version: str | None) -> None:
    """Have the driver's container bring this release of the toolkit, or none, and nothing made by another."""
    folder = node.folder / "driver/usr/bin"
    if version is None:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    for program in () if version is None else needs.nvidia_toolkit(version).glob("nvidia-*"):
        shutil.copy(program, folder / f"{program.name}.new")
        (folder / f"{program.name}.new").replace(folder / program.name)
    (node.cdi_dir / GPU_FILE).unlink(missing_ok=True)


def made(node: Node) -> dict[str, Any] | None:
    """The base specification, once it is there."""
    try:
        found: dict[str, Any] = json.loads((node.cdi_dir / GPU_FILE).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return found


VERSIONS: Final = (*(one for one in NVIDIA_TOOLKITS if not one.startswith("1.15.")), None)  # None: the image's


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version or "image's")
def test_the_toolkits_hooks_prepare_a_container(version: str | None, host: Node, namespace: Namespace) -> None:
    """What they do is seen from inside: links, the linker's cache, a folder that everybody may enter."""
    put_toolkit(host, version)
    spec = eventually("the agent has run nvidia-ctk", lambda: made(host), timeout_s=90)
    ran = [hook["args"][1] for edits in (spec, *spec["devices"]) for hook in edits["containerEdits"].get("hooks", ())]
    assert {"create-symlinks", "update-ldcache"} <= set(ran)
    (path,) = {hook["path"] for hook in spec["containerEdits"]["hooks"]}
    assert re.fullmatch(COPIED if version is None else f"{ROOT}/usr/bin/nvidia-cdi-hook", path)

    namespace.apply(pod("user", gpus=2, words={names.POLICY: "nvlink"}, node=NODE))
    namespace.wait_running("user")
    by_uuid = {gpu.uuid: gpu for gpu in machine().gpus}
    gpus = [by_uuid[uuid] for uuid in (namespace.annotation("user", names.ALLOCATED) or "").split(",")]
    assert len(gpus) == 2

    def see(*command: str) -> str:
        return namespace.kubectl("exec", "user", "--", *command).stdout.strip()

    assert namespace.devices("user") == {f"/dev/{name}" for name in (*CONTROL, *(f"nvidia{g.minor}" for g in gpus))}
    if version is not None:  # the image's asks its pod's own /sys, which is this machine's
        assert set(see("ls", "/dev/dri").split()) == {name for gpu in gpus for name in direct(gpu.minor)}
        for gpu in gpus:  # of the node's path, in all releases; the toolkit's own runtime takes the driver's root off
            assert see("readlink", f"{ROOT}/dev/dri/by-path/pci-{gpu.pci}-card") == f"../card{gpu.minor + 1}"
    libcuda = f"/{LIBRARIES}/libcuda.so"
    assert see("readlink", f"{libcuda}.1") == f"libcuda.so.{machine().driver_version}"
    assert see("head", "-c", "4", f"{libcuda}.1") == "\x7fELF"
    if version != "1.16.2":  # which makes no link for linking, and no cache where the image has none
        assert see("readlink", libcuda) == "libcuda.so.1"
        assert see("grep", "-c", f"{libcuda}.1", "/etc/ld.so.cache") != "0"
    if "chmod" in ran:  # newer ones leave it out: runtimes do it themselves
        assert see("stat", "-c", "%a", "/dev/dri") == "755"
