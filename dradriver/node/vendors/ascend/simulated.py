"""What a container is given of a simulated NPU.

As Huawei's runtime gives it (ascend-docker-runtime): the NPU by its physical number, and three nodes that all share.
The driver's libraries, which it mounts beside them, a simulated host does not have.
"""

from __future__ import annotations

from typing import Final

from dradriver.node.container_edits import DeviceNode, Edits
from dradriver.topology.machine import Gpu

SHARED: Final = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
_NOTHING: Final = "/dev/null"  # every host has it


def edits(gpu: Gpu) -> Edits:
    """Return the device nodes of an NPU, with one behind them that every host has."""
    return Edits(nodes=tuple(DeviceNode(path, _NOTHING) for path in (f"/dev/davinci{gpu.minor}", *SHARED)))
