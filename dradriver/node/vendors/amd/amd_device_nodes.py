"""The numbers of a GPU's device nodes ``/dev/dri/cardN`` and ``/dev/dri/renderDN``.

The two numbers are independent, and both can change at a reboot. The folder ``drm`` of the PCI device has both. card0
often belongs to a management controller.

KFD is the compute part of the driver amdgpu, which also tells the number of a GPU's render node.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from dradriver.node.discovery import sysfs

_CARD: Final = re.compile(r"card([0-9]{1,6})")
_RENDER: Final = re.compile(r"renderD([0-9]{1,6})")
KFD: Final = "dev/kfd"  # all GPUs' at once; which of them a process may use follows from the render nodes that it has


class Drm(msgspec.Struct, frozen=True):
    """The numbers of a GPU's device nodes; None for a node that does not exist.

    Attributes:
        card: N of ``/dev/dri/cardN``.
        render: N of ``/dev/dri/renderDN``.
    """

    card: int | None
    render: int | None

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the paths of an AMD GPU's device nodes, relative to a root folder.

        ``dev/kfd`` is not included.
        """
        card = () if self.card is None else (f"dev/dri/card{self.card}",)
        return (*card, *(() if self.render is None else (f"dev/dri/renderD{self.render}",)))


def read(root: Path, pci: str, render: int | None) -> Drm:
    """Return the numbers of an AMD GPU's device nodes.

    Args:
        root: Folder that contains the host's /sys.
        pci: The GPU's bus id.
        render: The number of the render node by KFD. It is used if /sys has no folder for the PCI device.
    """
    names = sysfs.entries(root / "sys/bus/pci/devices" / pci / "drm")
    cards = [int(match[1]) for name in names if (match := _CARD.fullmatch(name))]
    renders = [int(match[1]) for name in names if (match := _RENDER.fullmatch(name))]
    return Drm(min(cards, default=None), min(renders, default=render))
