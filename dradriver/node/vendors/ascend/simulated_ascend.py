"""The container edits of a simulated NPU.

A container gets the same as with Huawei's runtime (mind-cluster, ascend-docker-runtime: ``base.list``): the NPU by its
physical number, three device nodes that all NPUs share, and the driver's files on the host. No variable is set. Images
know the paths of the libraries. And if ``ASCEND_VISIBLE_DEVICES`` were set, Huawei's runtime would add the devices
again.
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
    """Return the device nodes and the driver's files of a simulated Ascend NPU.

    Args:
        gpu: The NPU.
        host_root: Folder that contains the host's file system.
    """
    nodes = tuple(DeviceNode(path, _NOTHING) for path in (f"/dev/davinci{gpu.minor}", *SHARED))
    there = (path for path in DRIVER if (host_root / path.lstrip("/")).exists())
    return Edits(nodes=nodes, mounts=tuple(Mount(path, path) for path in there))
