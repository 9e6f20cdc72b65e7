"""The AMD GPUs that are one package: the two dies of an MI250 are separate GPUs, but they fail together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dradriver.topology.machine import Machine
from dradriver.topology.vendors import AMD

_ARCHITECTURE: Final = "gfx90a"
_INSIDE: Final = 4  # links between the dies of a package, and between no others (RCCL's models of MI250)


def pairs(machine: Machine) -> Iterator[tuple[str, str]]:
    """Yield the uuids of the two GPUs of each AMD package (one MI250 has two).

    Two GPUs are one package if both have the architecture ``gfx90a``, and at least four links join them. GPUs of
    different packages have fewer links.
    """
    if machine.vendor is not AMD:
        return
    for i, a in enumerate(machine.gpus):
        for j, b in enumerate(machine.gpus[:i]):
            if machine.links[i][j] >= _INSIDE and a.architecture == b.architecture == _ARCHITECTURE:
                yield b.uuid, a.uuid
