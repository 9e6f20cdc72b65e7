"""Makes a PCI tree for a machine of which only the paths are known: switches with bus ids that no server has.

``nccl_file_writer`` uses it for machines from profiles.

PIX and PXB are PCIe paths of ``nvidia-smi topo -m``: over one switch, and over several switches.
"""

from __future__ import annotations

from collections.abc import Sequence

from dradriver.topology.machine import Gpu, Machine, Nic, PathType, PciDevice
from dradriver.topology.nccl import nccl_bandwidths

INVENTED = "ffff:ff:"  # no server has this bus: clouds name the switches so that stand for hidden ones
BRIDGE = "0x060400"
_GPU = "0x030200"
_NIC = {"infiniband": "0x020700"}
_OF_NOBODY = "ffff:ffff:ffff:ffff"
_LANES = 16
_MOST_LANES = 64  # of any link: more than PCIe has, NCCL multiplies whatever it reads


def invent(machine: Machine) -> tuple[PciDevice, ...]:
    """Return invented switches with a machine's GPUs and NICs below them, parents first.

    Devices that are PIX to each other share a switch. Switches whose devices are PXB to each other share one switch
    above them. The switches have the bus ids ``ffff:ff:00.0`` and following, as in the files of cloud providers. /sys
    has no such devices, so NCCL adds nothing to them.
    """
    # Each GPU, then each NIC, with the bandwidth of its PCIe link, GB/s.
    devices: list[tuple[Gpu | Nic, float]] = [(gpu, gpu.pcie_gbps) for gpu in machine.gpus]

    # A NIC's own speed is not known: it must not be slower than any GPU.
    fastest_gbps = max(gpu.pcie_gbps for gpu in machine.gpus)
    devices += [(nic, fastest_gbps) for nic in machine.nics]
    kinds = classes(machine)

    # Positions in ``devices`` whose PIX paths, or PXB and nearer, join them.
    pix_label = _labels_of_joined(machine, PathType.PIX)
    tree: list[PciDevice] = []
    switch_count = 0
    for outer_set in _positions_by_label(_labels_of_joined(machine, PathType.PXB)):
        first_device, _ = devices[outer_set[0]]
        numa = first_device.numa
        inner_sets = _positions_by_label([pix_label[i] for i in outer_set])

        # Several sets of PIX devices: a switch above theirs. A position in ``tree`` is what children name as parent.
        outer_switch = None
        if len(inner_sets) > 1:
            outer_switch = len(tree)
            tree.append(invented_switch(switch_count, None, numa, fastest_gbps))
            switch_count += 1
        for members in inner_sets:
            parent = outer_switch  # a device that is near no other hangs on the CPU
            if len(outer_set) > 1:
                parent = len(tree)
                tree.append(invented_switch(switch_count, outer_switch, numa, fastest_gbps))
                switch_count += 1
            for device, gbps in (devices[outer_set[member]] for member in members):
                if device.pci:
                    tree.append(PciDevice(device.pci, parent, numa, kinds[device.pci], "", *speed_and_width(gbps)))
    return tuple(tree)


def classes(machine: Machine) -> dict[str, str]:
    """Return the PCI class of each NIC and GPU of a machine without a PCI tree, by bus id."""
    nics = {nic.pci: _NIC.get(nic.kind, "0x020000") for nic in machine.nics}
    return nics | {gpu.pci: _GPU for gpu in machine.gpus}


def speed_and_width(gbps: float) -> tuple[str, int]:
    """Return the PCIe link speed and width for which NCCL counts ``gbps``: 32.0 GT/s and 16 for 48.

    NCCL multiplies speed and width. The width can be a number that PCIe does not have, such as 13; it is at most 64.
    """
    for speed, number in nccl_bandwidths.LINK_SPEEDS.items():
        if speed.endswith("PCIe") and number * _LANES / 80 >= gbps:
            return speed, max(1, int(gbps * 80 / number))
    return "64.0 GT/s PCIe", min(_MOST_LANES, int(gbps * 80 / 480))


def switch_id(number: int) -> str:
    """Return the bus id of an invented switch, ``number`` from 0 to 255: ``ffff:ff:00.0``, …."""
    return f"{INVENTED}{number % 32:02x}.{number // 32 % 8}"


def invented_switch(number: int, parent: int | None, numa: int | None, gbps: float) -> PciDevice:
    """Return an invented switch.

    Args:
        number: The number of the switch, from 0 to 255, which determines its bus id.
        parent: Position of the switch above it; None for none.
        numa: NUMA node; None if it is not known.
        gbps: The bandwidth that NCCL should count for it, GB/s.
    """
    return PciDevice(switch_id(number), parent, numa, BRIDGE, _OF_NOBODY, *speed_and_width(gbps))


def numaid(device: PciDevice) -> int:
    """Return the number of the ``<cpu>`` element that a device is below.

    The number is the device's NUMA node, or -1 if the device has none.
    """
    return -1 if device.numa is None else device.numa


def _labels_of_joined(machine: Machine, level: PathType) -> list[int]:
    """Return a label for each GPU, then for each NIC, to find the devices that share a switch.

    Two devices have equal labels if a chain of devices connects them. In the chain, the path of each two neighbours is
    at most as far as ``level``.
    """
    count = len(machine.gpus)
    labels = list(range(count + len(machine.nics)))
    steps = [(i, j) for i, row in enumerate(machine.paths) for j, path in enumerate(row[:i]) if path <= level]
    steps += [(count + n, j) for n, row in enumerate(machine.nic_paths) for j, path in enumerate(row) if path <= level]
    for a, b in steps:
        old, new = labels[a], labels[b]
        labels = [new if label == old else label for label in labels]
    return labels


def _positions_by_label(labels: Sequence[int]) -> list[list[int]]:
    """Return the positions that have the same label, as one list for each label."""
    sets: dict[int, list[int]] = {}
    for i, label in enumerate(labels):
        sets.setdefault(label, []).append(i)
    return list(sets.values())
