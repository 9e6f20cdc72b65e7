"""The container edits of a simulated GPU of NVIDIA."""

from __future__ import annotations

from dradriver.node.container_edits import DeviceNode, Edits
from dradriver.topology.machine import Gpu


def edits(gpu: Gpu) -> Edits:
    """Return the device node of a simulated NVIDIA GPU, which is ``/dev/null`` on the host."""
    return Edits(nodes=(DeviceNode(f"/dev/nvidia{gpu.minor}", "/dev/null"),))
