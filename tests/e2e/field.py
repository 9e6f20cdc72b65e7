"""Manifests of the field on the real cluster, and what they take for granted that this cluster has not."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from dradriver.api.base import names
from dradriver.node.vendors.nvidia.devices.nvidia_hardware import HARDWARE
from dradriver.topology import profiles
from tests import deploy
from tests.cluster import Cluster, oci
from tests.cluster.requirements import busybox
from tests.cluster.settings import cache_folder
from tests.e2e.kubectl import Namespace, eventually
from tests.paths import SHARED_DATA

Object = dict[str, Any]

FOLDER: Final = SHARED_DATA / "manifests"
LABELLED: Final = {names.PREFIX + "translate": "true"}
# What the manifests select nodes by, and what they ask of a node that is no GPU.
_LABELS: Final = {
    "node-a": {"accelerator": "nvidia-tesla-a100", "topology.kubernetes.io/zone": "z"},
    "node-b": {"gpu-type": "a100", "gpu-topology": "nvlink", "gpu-sharing": "enabled"}
    | {"topology.kubernetes.io/zone": "z"},
}
_RDMA: Final = "rdma/hca"
# A machine with the profile 1g.5gb and links of 100 GB/s takes the place of a DGX-1; its last two GPUs are for slices,
# and MIG mode is on on one of them.
MIG_OFF: Final = 6
MIG_ON: Final = 7
A100S: Final = (
    "simulated.machines.node-a=dgx-a100",
    *(f"policies.gpus[2].{word}" for word in ("nodes[0]=node-a", f"numbers={{{MIG_OFF},{MIG_ON}}}", "mig=dynamic")),
)
# Programs that the manifests start, as far as they matter here: they stay, and end when they are told to.
_PROGRAMS: Final = {
    "bash": 'trap "exit 0" TERM\n/bin/sh "$@" & wait $!\n',
    "nvidia-smi": "ls /dev/nvidia*\n",
    "torchrun": 'trap "exit 0" TERM\nsleep 100000 & wait $!\n',
}


def load(name: str) -> Object:
    """Return a manifest, but for what these small nodes do not have: so much CPU and memory."""
    found: Object = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    spec = found["spec"].get("template", found)["spec"]
    for container in spec["containers"]:
        for amounts in container["resources"].values():
            for resource in ("cpu", "memory"):
                amounts.pop(resource, None)
    return found


def _images() -> list[str]:
    manifests = [yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yaml"))]
    specs = [found["spec"].get("template", found)["spec"] for found in manifests]
    return sorted({container["image"] for spec in specs for container in spec["containers"]})


def _archive() -> Path:
    """Return the archive of an image that has the programs, under the first of the manifests' names."""
    with tempfile.TemporaryDirectory() as folder:
        rootfs = Path(folder)
        for name in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            (rootfs / name).mkdir()
        shutil.copy(busybox(), rootfs / "bin" / "busybox")
        for name in ("sh", "ls", "sleep"):
            (rootfs / "bin" / name).symlink_to("busybox")
        for name, script in _PROGRAMS.items():
            (rootfs / "bin" / name).write_text(f"#!/bin/sh\n{script}")
            (rootfs / "bin" / name).chmod(0o755)
        archive = cache_folder() / "images" / "field.tar"
        oci.write_oci_tar(
            archive, reference=_images()[0], rootfs=rootfs, entrypoint=["/bin/torchrun"], env={"PATH": "/bin"}
        )
    return archive


@contextmanager
def supplied(cluster: Cluster) -> Iterator[None]:
    """Give the cluster images, labels, network cards and a GPU in MIG mode for a while, as the manifests expect.

    The chart is installed with `A100S` meanwhile.
    """
    first, *others = map(oci.qualified, _images())
    cluster.load_image(_archive())
    for node in cluster.nodes.values():
        for other in others:
            node.ctr("images", "tag", "--force", first, other)
    for node_name, labels in _LABELS.items():
        cluster.kubectl("label", "node", node_name, "--overwrite", *(f"{key}={value}" for key, value in labels.items()))
    _set_cards(cluster, "2")
    hardware = deploy.state_dir(cluster.nodes["node-a"]) / "simulated" / HARDWARE
    before = hardware.read_text() if hardware.exists() else None
    _turn_mig_on(hardware, "node-a", MIG_ON)
    try:
        yield
    finally:
        if before is None:
            hardware.unlink(missing_ok=True)
        else:
            hardware.write_text(before)
        _set_cards(cluster, None)
        for node_name, labels in _LABELS.items():
            cluster.kubectl("label", "node", node_name, *(f"{key}-" for key in labels))


def _set_cards(cluster: Cluster, count: str | None) -> None:
    patch = json.dumps({"status": {"capacity": {_RDMA: count}, "allocatable": {_RDMA: count}}})
    for node in cluster.nodes:
        cluster.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", patch)


def _turn_mig_on(file: Path, node: str, number: int) -> None:
    """Do what an administrator does before instances are made on an A100, which changes its mode at a reset only."""
    gpu = profiles.load("dgx-a100", seed=node).gpus[number]
    file.parent.mkdir(parents=True, exist_ok=True)
    state = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(state | {gpu.uuid: {"mig": True}}))


def pods(namespace: Namespace, count: int) -> list[str]:
    """Return the names of a namespace's pods, once there are so many."""

    def found() -> list[str] | None:
        every = [item["metadata"]["name"] for item in namespace.list("pods")]
        return every if len(every) == count else None

    return eventually(f"{count} pods", found)
