"""The paths of the host, written for a virtual machine whose hypervisor does not show its PCI tree.

GPUs are matched by number. Of the NICs those are matched, in their order, that carry the traffic of GPUs: a server has
cards for storage and its own network besides, a guest a card of its hypervisor's.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Gpu, Machine, Nic, PathType

_RDMA = ("infiniband", "roce", "efa")


def with_paths(machine: Machine, *, like: Machine) -> Machine:
    """Return a virtual machine with the paths that its host, ``like``, has between GPUs and NICs.

    If both have the same NUMA nodes, devices without a node get that of the host's device. A NIC that carries no GPU's
    traffic stays far from all GPUs, on its own NUMA node, where NCCL would also put it.

    Args:
        machine: The virtual machine.
        like: The host, or a machine of the same kind.

    Raises:
        TopologyError: The devices cannot be matched: the numbers of GPUs or NICs differ, or the NUMA nodes show another
            order.
    """
    if len(like.gpus) != len(machine.gpus):
        raise TopologyError(
            f"{like.name}: {len(like.gpus)} GPUs, but this machine has {len(machine.gpus)}; give a server with as many"
        )
    # By position of a NIC of the virtual machine, the position of the host's NIC. A guest sees some of the host's NICs.
    host_nic_of = _host_nic_of_guest_nic(machine, like)

    # Devices can only be matched by number if both list them in the same order.
    _check_order(machine, like, host_nic_of)
    has_same_nodes = {node.id for node in machine.numa} == {node.id for node in like.numa}
    no_paths = (PathType.SYS,) * len(machine.gpus)
    return msgspec.structs.replace(
        machine,
        gpus=tuple(
            msgspec.structs.replace(gpu, numa=other.numa) if has_same_nodes and gpu.numa is None else gpu
            for gpu, other in zip(machine.gpus, like.gpus, strict=True)
        ),
        paths=like.paths,
        nics=tuple(
            msgspec.structs.replace(nic, numa=like.nics[host_nic_of[n]].numa)
            if has_same_nodes and n in host_nic_of and nic.numa is None
            else nic
            for n, nic in enumerate(machine.nics)
        ),
        nic_paths=tuple(
            like.nic_paths[host_nic_of[n]] if n in host_nic_of else no_paths for n in range(len(machine.nics))
        ),
        # The hypervisor's PCI tree contradicts these paths. The file's writer invents one that agrees.
        pci=(),
        virtual=True,
    )


def lost(machine: Machine, *, like: Machine) -> list[str]:
    """Return in whole sentences what the file of a virtual machine with the paths of its host cannot say.

    Raises:
        TopologyError: As ``with_paths``.
    """
    guest = with_paths(machine, like=like)
    numas = [gpu.numa for gpu in guest.gpus]
    rows = list(zip(numas, like.paths, strict=True))
    for n, other in _host_nic_of_guest_nic(machine, like).items():
        row = like.nic_paths[other]
        near = min(range(len(row)), key=lambda i: row[i])
        rows.append((numas[near] if row[near] <= PathType.PXB else guest.nics[n].numa, row))
    if not any(numa == numas[j] for numa, row in rows for j, path in enumerate(row) if path is PathType.SYS):
        return []
    theirs = ", ".join(str(node) for node in sorted({gpu.numa for gpu in like.gpus if gpu.numa is not None}))
    mine = ", ".join(str(node.id) for node in machine.numa)
    return [
        f"{like.name} has GPUs on NUMA nodes {theirs or 'that it does not name'}, this machine has {mine or 'none'}: "
        "in the file devices of several sockets are below one CPU, and NCCL takes the way between them for one within "
        "a socket; give the virtual machine the server's NUMA nodes to have it right"
    ]


def _host_nic_of_guest_nic(machine: Machine, like: Machine) -> dict[int, int]:
    """Return for each position of a NIC with GPU traffic the position of the one in ``like``."""
    mine = _fastest(machine, [n for n, nic in enumerate(machine.nics) if nic.pci])
    cards = [n for n, nic in enumerate(like.nics) if not nic.parent]
    near = [n for n in cards if min(like.nic_paths[n]) <= PathType.PXB]
    theirs = _fastest(like, near or cards)
    if mine and len(mine) != len(theirs):
        raise TopologyError(
            f"{like.name}: {len(theirs)} NICs beside its GPUs ({len(like.nics)} in all), but this machine has "
            f"{len(mine)} for them ({len(machine.nics)} in all), so that which is which cannot be told; give a file of "
            "the server with those NICs alone that were passed on, in the same order"
        )
    return dict(zip(mine, theirs, strict=False))


def _fastest(machine: Machine, positions: list[int]) -> list[int]:
    """Return those of the NICs that do RDMA at the highest rate; all where none is known to do RDMA."""
    able = [n for n in positions if machine.nics[n].kind in _RDMA]
    most = max((machine.nics[n].gbps for n in able), default=0.0)
    return [n for n in able if machine.nics[n].gbps == most] or positions


def _matched(machine: Machine, like: Machine, nics: dict[int, int]) -> Iterator[tuple[str, Gpu | Nic, Gpu | Nic]]:
    """Yield the name in ``like`` and both devices of each match."""
    for gpu, other in zip(machine.gpus, like.gpus, strict=True):
        yield f"GPU{other.index}", gpu, other
    for n, card in nics.items():
        yield like.nics[card].name, machine.nics[n], like.nics[card]


def _check_order(machine: Machine, like: Machine, nics: dict[int, int]) -> None:
    """Raise unless devices that are on one NUMA node in ``like`` are on one here."""
    first: dict[int, tuple[str, int]] = {}
    for name, here, there in _matched(machine, like, nics):
        if here.numa is None or there.numa is None:
            continue
        other, numa = first.setdefault(there.numa, (name, here.numa))
        if numa != here.numa:
            raise TopologyError(
                f"{like.name}: its {other} and {name} are on one NUMA node, but this machine's are on {numa} and "
                f"{here.numa}, so that its devices are in another order; give a file of the server with the devices in "
                "this machine's order"
            )
