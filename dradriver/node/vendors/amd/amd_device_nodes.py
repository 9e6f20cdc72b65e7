"""The device nodes of a GPU: the numbers of its card and of its render node are independent, and shift over reboots.

Both stand in the folder ``amd_device_nodes`` of the PCI device: card0 is often a management controller's.
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
    """The numbers of a GPU's device nodes; None where there is none.

    Attributes:
        card: N of ``/dev/dri/cardN``.
        render: N of ``/dev/dri/renderDN``.
    """

    card: int | None
    render: int | None

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the paths of an AMD GPU's device nodes, below a root; without ``dev/kfd``."""
        card = () if self.card is None else (f"dev/dri/card{self.card}",)
        return (*card, *(() if self.render is None else (f"dev/dri/renderD{self.render}",)))


def read(root: Path, pci: str, render: int | None) -> Drm:
    """Return the numbers of an AMD GPU's device nodes.

    Args:
        root: Where the host's /sys is.
        pci: Its bus id.
        render: What the driver's compute part says of the render node, for a machine whose PCI devices are not there.
    """
    names = sysfs.entries(root / "sys/bus/pci/devices" / pci / "drm")
    cards = [int(match[1]) for name in names if (match := _CARD.fullmatch(name))]
    renders = [int(match[1]) for name in names if (match := _RENDER.fullmatch(name))]
    return Drm(min(cards, default=None), min(renders, default=render))
