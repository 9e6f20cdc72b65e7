"""What a container is given of a simulated NPU.

As Huawei's runtime gives it (mind-cluster, ascend-docker-runtime: ``base.list``): the NPU by its physical number, three
nodes that all share, and what the driver has on the host. It sets no variable: images say where libraries are, and
``ASCEND_VISIBLE_DEVICES`` would have that runtime add the devices once more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dradriver.node.container_edits import DeviceNode, Edits, Mount
from dradriver.topology.machine import Gpu

SHARED: Final = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
DRIVER: Final = (
    "/usr/local/Ascend/driver/lib64",
    "/usr/local/Ascend/driver/include",
    "/usr/local/dcmi",
    "/usr/local/bin/npu-smi",
    "/var/queue_schedule",
)
_NOTHING: Final = "/dev/null"  # every host has it


def edits(gpu: Gpu, *, host_root: Path) -> Edits:
    """Return the device nodes and driver's files of a simulated Ascend NPU.

    Args:
        gpu: The NPU.
        host_root: Where the host's file system is.
    """
    nodes = tuple(DeviceNode(path, _NOTHING) for path in (f"/dev/davinci{gpu.minor}", *SHARED))
    there = (path for path in DRIVER if (host_root / path.lstrip("/")).exists())
    return Edits(nodes=nodes, mounts=tuple(Mount(path, path) for path in there))
