"""The container edits of a simulated GPU of AMD."""

from __future__ import annotations

from typing import Final

from dradriver.node.container_edits import DeviceNode, Edits
from dradriver.topology.machine import Gpu

_NOTHING: Final = "/dev/null"  # every host has it
_FIRST_RENDER: Final = 128


def edits(gpu: Gpu) -> Edits:
    """Return the device nodes of a simulated AMD GPU, which are ``/dev/null`` on the host."""
    render = gpu.minor if gpu.minor >= _FIRST_RENDER else _FIRST_RENDER + gpu.minor
    paths = ("/dev/kfd", f"/dev/dri/card{render - _FIRST_RENDER}", f"/dev/dri/renderD{render}")
    return Edits(nodes=tuple(DeviceNode(path, _NOTHING) for path in paths))
