"""Finds the processes that use AMD's GPUs: ``/sys/class/kfd/kfd/proc``, one folder for each process.

A process that opened /dev/kfd has files for every GPU. But it uses only the GPUs on which it has memory or a queue
(kernel, kfd_process.c): ``vram_<gpu_id>`` in bytes, ``queues/<number>/gpuid``. The process ids are those of the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dradriver.node.discovery import sysfs

PROC: Final = "sys/class/kfd/kfd/proc"


def find(root: Path, gpu_ids: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the ids of processes that use each of AMD's GPUs, by uuid.

    A GPU for which the driver has no number has no processes.

    Args:
        root: Folder that contains the host's /sys.
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
