"""Gives a virtual machine the paths of its host, for a topology file. Its hypervisor does not show the PCI tree.

GPUs of the virtual machine and of the host are matched in the order of their numbers. NICs are matched in their order,
but only NICs that carry the traffic of GPUs: a host has other cards for storage and its own network, and a guest can
have a card of its hypervisor.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Gpu, Machine, Nic, PathType

_RDMA = ("infiniband", "roce", "efa")


def with_paths(machine: Machine, *, like: Machine) -> Machine:
    """Return a virtual machine with the paths that its host, ``like``, has between GPUs and NICs.

    If both have the same NUMA nodes, a device without a node gets the node of the matching device of the host. A NIC
    without GPU traffic stays far from all GPUs, on its own NUMA node, where NCCL would also place it.

    Args:
        machine: The virtual machine.
        like: The host, or a machine of the same kind.

    Raises:
        TopologyError: The devices cannot be matched: one machine has more GPUs or NICs than the other, or the NUMA
            nodes show another order.
    """
    if len(like.gpus) != len(machine.gpus):
        raise TopologyError(
            f"{like.name}: the server has {len(like.gpus)} GPUs, but this machine has "
            f"{len(machine.gpus)}. Name a server with the same number of GPUs."
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
    """Return warnings about paths of the host that a file for the guest cannot express.

    ``machine`` is the virtual machine, ``like`` its host. Paths are lost in this way if devices of several sockets of
    the host are on one NUMA node of the virtual machine. The warnings are whole sentences.

    Raises:
        TopologyError: The devices of the two machines cannot be matched.
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
        f"{like.name} has GPUs on NUMA nodes {theirs or 'that it does not name'}, this machine has "
        f"{mine or 'none'}: in the file, devices of several sockets are below one CPU. NCCL then treats the path "
        "between them as a path within a socket. Give the virtual machine the NUMA nodes of the server"
    ]


def _host_nic_of_guest_nic(machine: Machine, like: Machine) -> dict[int, int]:
    """Return, for each NIC with GPU traffic, the matching NIC of the host, as positions.

    ``machine`` is the virtual machine, ``like`` its host.
    """
    mine = _fastest(machine, [n for n, nic in enumerate(machine.nics) if nic.pci])
    cards = [n for n, nic in enumerate(like.nics) if not nic.parent]
    near = [n for n in cards if min(like.nic_paths[n]) <= PathType.PXB]
    theirs = _fastest(like, near or cards)
    if mine and len(mine) != len(theirs):
        raise TopologyError(
            f"{like.name}: the server has {len(theirs)} NICs near its GPUs ({len(like.nics)} in total), but this "
            f"machine has {len(mine)} ({len(machine.nics)} in total). So the NICs cannot be matched. Write a file "
            "of the server that has only the NICs of this machine, in the same order."
        )
    return dict(zip(mine, theirs, strict=False))


def _fastest(machine: Machine, positions: list[int]) -> list[int]:
    """Return the NICs with RDMA that have the highest rate, as positions in ``machine.nics``.

    The result is all of ``positions``, the NICs to choose from, if none is known to do RDMA.
    """
    able = [n for n in positions if machine.nics[n].kind in _RDMA]
    most = max((machine.nics[n].gbps for n in able), default=0.0)
    return [n for n in able if machine.nics[n].gbps == most] or positions


def _matched(machine: Machine, like: Machine, nics: dict[int, int]) -> Iterator[tuple[str, Gpu | Nic, Gpu | Nic]]:
    """Yield each pair of matching devices: the name in the host, the virtual machine's device, the host's device.

    Args:
        machine: The virtual machine.
        like: The host.
        nics: The host's NIC for each NIC of the virtual machine, both as positions.
    """
    for gpu, other in zip(machine.gpus, like.gpus, strict=True):
        yield f"GPU{other.index}", gpu, other
    for n, card in nics.items():
        yield like.nics[card].name, machine.nics[n], like.nics[card]


def _check_order(machine: Machine, like: Machine, nics: dict[int, int]) -> None:
    """Raise unless devices on one NUMA node of the host are also on one node of the virtual machine.

    Args:
        machine: The virtual machine.
        like: The host.
        nics: The host's NIC for each NIC of the virtual machine, both as positions.
    """
    first: dict[int, tuple[str, int]] = {}
    for name, here, there in _matched(machine, like, nics):
        if here.numa is None or there.numa is None:
            continue
        other, numa = first.setdefault(there.numa, (name, here.numa))
        if numa != here.numa:
            raise TopologyError(
                f"{like.name}: its {other} and {name} are on one NUMA node, but this machine's are on {numa} and "
                f"{here.numa}. So its devices are in another order. Write a file of the server with the devices "
                "in the order of this machine."
            )
