"""Finds the network cards nearest to a container's GPUs, for NCCL's variable ``NCCL_IB_HCA``.

Several pods of a machine may see all its RDMA devices (host network, ``rdma/…`` of a shared device plugin). With the
variable each pod uses only the cards nearest to its own GPUs. This DRA driver never sets the GID index
(``NCCL_IB_GID_INDEX``), because its value depends on the card and the network namespace.
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
    """Return the positions of the network cards that NCCL can use and that are nearest to a GPU, ascending.

    The nearest cards of a GPU are those with the best PCIe path to the GPU, whether they are up or down. If the nearest
    card is down, the GPU does not get a farther card instead. What "near" means depends on the server: on some servers
    a common PCIe switch, on others a common host bridge. A virtual function has the path of its physical function.

    Args:
        machine: The machine.
        gpus: Positions of GPUs in ``machine.gpus``.
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
    """Return the value of ``NCCL_IB_HCA``, the network cards nearest to the GPUs, or a reason.

    The ``=`` at the start makes NCCL compare whole names. Without it ``mlx5_1`` also matches ``mlx5_10``.

    Args:
        machine: The machine.
        gpus: Positions of the container's GPUs in ``machine.gpus``.
        active: The numbers of active ports by card. Other ports are left out, because NCCL skips them.

    Returns:
        The value, for example ``=mlx5_0:1,mlx5_1:1``, and an empty reason. Or an empty value and the reason.
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
