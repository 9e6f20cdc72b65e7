"""Which processes use AMD's GPUs, and whether these work: ``/sys/class/kfd/kfd/proc``, one folder a process.

A process that opened /dev/kfd has files of every GPU; it uses those on which it has memory or a queue (kernel,
kfd_process.c): ``vram_<gpu_id>`` in bytes, ``queues/<number>/gpuid``. Numbers are those of the host's processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dradriver.node.discovery import sysfs

PROC: Final = "sys/class/kfd/kfd/proc"


def find(root: Path, gpu_ids: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the pids that use each of AMD's GPUs; none of one that the driver does not number.

    Args:
        root: Where the host's /sys is.
        gpu_ids: The driver's numbers of the GPUs, by uuid.
    """
    by_id: dict[int, list[int]] = {}
    for name in sysfs.entries(root / PROC):
        if not (name.isascii() and name.isdigit()):
            continue
        folder = root / PROC / name
        queues = {sysfs.number(folder / "queues" / queue / "gpuid") for queue in sysfs.entries(folder / "queues")}
        for gpu_id in set(gpu_ids.values()):
            if gpu_id and (gpu_id in queues or (sysfs.number(folder / f"vram_{gpu_id}") or 0) > 0):
                by_id.setdefault(gpu_id, []).append(int(name))
    return {uuid: tuple(sorted(by_id.get(gpu_id, ()))) for uuid, gpu_id in gpu_ids.items()}
