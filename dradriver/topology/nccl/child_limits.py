"""The limit on the children of one element of a topology file: 32.

NCCL 2.18 to 2.20 fail if an element has more. The writer and the checker use it.

PIX and PXB are PCIe paths of ``nvidia-smi topo -m``: over one switch, and over several switches.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Machine, NumaNode, PciDevice
from dradriver.topology.nccl import nccl_bandwidths
from dradriver.topology.nccl.invented_switches import invented_switch, numaid, switch_id

MAX_CHILDREN = 32


def wanted_nodes(machine: Machine) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes that the written file lists.

    These are all nodes if there are fewer than 32, else only nodes with CPUs or devices. A Grace tray has
    34 nodes, of which 32 are GPU memory. NCCL looks only for the nodes of devices.
    """
    if len(machine.numa) < MAX_CHILDREN:
        return machine.numa
    used = {device.numa for devices in (machine.gpus, machine.nics, machine.pci) for device in devices}
    return tuple(node for node in machine.numa if node.cpus or node.cpumap or node.id in used)


def with_switches_above_nics(devices: Sequence[PciDevice]) -> tuple[PciDevice, ...]:
    """Return ``devices``, parents first, with invented switches so that no CPU or bridge has over 32 children.

    If a CPU has too many children, switches with bus ids that no server has are put above its NICs. NCCL computes the
    same paths with them, for three reasons: traffic from other devices to a NIC still crosses the CPU, a switch is as
    wide as all devices below it together, and no GPU is below one. Below a bridge no switch is added, because one more
    switch would turn PIX into PXB.

    Raises:
        TopologyError: A bridge has too many children, or a CPU has too many children that are not NICs.
    """
    # ``parent`` is a position in ``devices``. A device without one hangs on the ``<cpu>`` of its NUMA node.
    # ``children_of`` is by parent and NUMA node. The NUMA node is 0 below a parent: it matters only for a CPU.
    children_of: dict[tuple[int | None, int], list[int]] = {}
    for i, device in enumerate(devices):
        children_of.setdefault((device.parent, numaid(device) if device.parent is None else 0), []).append(i)
    switches: list[PciDevice] = []

    # By position of a NIC, the invented switch above it.
    new_parent: dict[int, int] = {}
    used_bus_ids = {device.busid for device in devices}
    free_numbers = (number for number in range(len(devices) + 256) if switch_id(number) not in used_bus_ids)
    for (parent, node), children in children_of.items():
        nics = [i for i in children if devices[i].kind.startswith("0x02")]  # PCI class 02: network
        room = MAX_CHILDREN - (len(children) - len(nics))
        if len(children) <= MAX_CHILDREN:
            continue
        if parent is not None or room < 1:
            place = f"<cpu> {node}" if parent is None else f"<pci> {devices[parent].busid}"
            cure = "Remove NICs that no job uses." if nics else "Describe the bridges that the server has."
            raise TopologyError(
                f"{place}: the element has {len(children)} children, and NCCL 2.18 to 2.20 have room for "
                f"{MAX_CHILDREN}. A switch between them would change what NCCL reads. {cure}"
            )
        # Share the NICs evenly among as many switches as there is room for; a single NIC needs none.
        for n in range(room):
            members = nics[n * len(nics) // room : (n + 1) * len(nics) // room]
            if len(members) > 1:
                new_parent |= dict.fromkeys(members, len(switches))
                gbps = sum(nccl_bandwidths.pci_gbps(devices[i].link_speed, devices[i].link_width) for i in members)
                switches.append(invented_switch(next(free_numbers), None, devices[members[0]].numa, gbps))

    # The switches come first in the result, so all parents' positions shift.
    shifted_parents = (None if device.parent is None else device.parent + len(switches) for device in devices)
    moved_devices = (
        msgspec.structs.replace(device, parent=new_parent.get(i, parent))
        for i, (device, parent) in enumerate(zip(devices, shifted_parents, strict=True))
    )
    return (*switches, *moved_devices)
