"""Which network cards a container's GPUs have near, as NCCL is told: ``NCCL_IB_HCA``.

Where several pods of a machine see all its RDMA devices (host network, ``rdma/…`` of a shared device plugin) each uses
the cards nearest to its own GPUs, and nobody else's. Never a GID's index: that depends on card and network namespace.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from dradriver.topology.machine import Machine, PathType
from dradriver.topology.vendors import ASCEND

VARIABLE: Final = "NCCL_IB_HCA"
_VERBS: Final = ("infiniband", "roce")  # NCCL skips other link layers (net_ib/init.cc)
_MOST: Final = 32  # entries that NCCL reads: MAX_IB_DEVS
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,63}")  # NCCL copies a name into 64 bytes, and ends it at a colon or comma


def near(machine: Machine, gpus: Sequence[int]) -> list[int]:
    """Return positions of the network cards that NCCL can use and that are nearest to a GPU, ascending.

    Nearest is the best path that the GPU has to any of them, up or down: what is a switch away on one server is the
    host bridge away on another. A card that is down gives its GPU no card of others. A virtual function is where its
    physical function is.

    Args:
        machine: The machine.
        gpus: Positions of GPUs.
    """
    # By name, the position of a NIC. ``path``: from a NIC, or its physical function, to a GPU.
    names = {nic.name: n for n, nic in enumerate(machine.nics)}
    usable = [n for n, nic in enumerate(machine.nics) if nic.kind in _VERBS]

    def path(n: int, gpu: int) -> PathType:
        return machine.nic_paths[names.get(machine.nics[n].parent, n)][gpu]

    nearest: set[int] = set()
    for gpu in gpus:
        best = min((path(n, gpu) for n in usable), default=None)
        nearest |= {n for n in usable if path(n, gpu) == best}
    return sorted(nearest)


def hca(machine: Machine, gpus: Sequence[int], active: Mapping[str, Sequence[int]]) -> tuple[str, str]:
    """Return the value of ``NCCL_IB_HCA`` that names the near network cards (``=mlx5_0:1``), or nothing and the reason.

    ``=`` has names match whole: without it ``mlx5_1`` is ``mlx5_10`` as well.

    Args:
        machine: The machine.
        gpus: Positions of the container's GPUs.
        active: The numbers of active ports by card: NCCL skips all others.
    """
    if machine.vendor is ASCEND:
        return "", f"{machine.vendor.library} does not read it"
    cards = [machine.nics[n] for n in near(machine, gpus)]
    if not cards:
        return "", "this machine has no network card that does InfiniBand or RoCE"
    cards.sort(key=lambda nic: bool(nic.parent))  # functions last, of which there may be more than NCCL reads
    said = [f"{nic.name}:{port}" for nic in cards if _NAME.fullmatch(nic.name) for port in active.get(nic.name, ())]
    if not said:
        return "", f"none of the nearest network cards ({', '.join(nic.name for nic in cards[:8])}) has an active port"
    return "=" + ",".join(said[:_MOST]), ""
