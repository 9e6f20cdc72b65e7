"""Says whether NCCL needs a topology file on a machine; ``gputopo nccl explain`` and the node agent use it.

A PCI tree is flat if no two devices share a PCIe switch in it, so that all devices seem equally far apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import msgspec

from dradriver.topology.machine import Machine, PathType
from dradriver.topology.nccl.invented_switches import INVENTED
from dradriver.topology.vendors import NVIDIA

_TRUTH = "NCCL reads /sys and NVML and gets the truth. A file could only be as good, or do harm."


class Advice(msgspec.Struct, frozen=True):
    """Whether a file is needed (``needed``), and why (``reasons``).

    ``reasons`` are whole sentences: first the reason, then further advice. ``needed`` is None if only a virtual machine
    would need the file, and the source does not say whether this machine is virtual.
    """

    needed: bool | None
    reasons: tuple[str, ...]


def explain(machine: Machine) -> Advice:
    """Return whether NCCL needs a topology file on the machine, and why.

    If a container sees the host's /sys and NVML, NCCL finds the topology by itself, and a file can only do harm. A file
    helps if /sys does not show the PCI tree: in a virtual machine whose hypervisor puts every device directly below the
    root. The libraries of other vendors, such as AMD's RCCL, get no file.
    """
    if machine.vendor is not NVIDIA:
        library = machine.vendor.library
        return Advice(
            False, (f"No file is needed: these GPUs' jobs bring {library}, which finds the machine by itself.",)
        )
    is_worth, why = _if_virtual(machine)
    verdict = "A file is worth it" if is_worth else "No file is needed"
    if machine.virtual is None:
        needed = None if is_worth else False
        reason = (
            "Whether this is a virtual machine is not known from this source. If it is not: no file is needed, "
            f"{_TRUTH} If it is: {verdict[0].lower()}{verdict[1:]}, {why} The node itself knows which it is, and "
            "what its /sys shows: run this there without --machine."
        )
    elif machine.virtual:
        needed, reason = is_worth, f"{verdict}: this is a virtual machine, and {why}"
    else:
        needed, reason = False, f"No file is needed: this is no virtual machine, {_TRUTH}"
    return Advice(needed, (reason, *_notes(machine)))


def _if_virtual(machine: Machine) -> tuple[bool, str]:
    """Return whether a topology file helps NCCL on the machine if it is virtual, and why.

    The second value completes a sentence that begins with "this is a virtual machine, and".
    """
    count = len(machine.gpus)
    if any(device.busid.startswith(INVENTED) for device in machine.pci):
        return True, (
            f"this tree is a topology file's, whose switches ({INVENTED}…) are in no /sys: without the file NCCL does "
            "not know which devices are near."
        )
    if not flattened(machine):
        return False, "its PCI tree shows which devices are near."
    if not machine.nics and all(machine.links[i][j] for i, j in combinations(range(count), 2)):
        why = "its PCI tree is flat, but links join all GPUs and there is no NIC for NCCL to find a near GPU to."
        return False, why
    what = "GPUs and NICs" if machine.nics else "GPUs"
    return True, (
        f"its PCI tree is flat, so that NCCL sees all {what} equally far apart and sends their data through the CPU. "
        "Write one with 'gputopo nccl write --like PROFILE', where PROFILE is the server below it."
    )


def flattened(machine: Machine) -> bool:
    """Return whether no two GPUs, and no GPU and NIC, share a PCIe switch.

    Hypervisors show the devices in this way, and then a file may help. The result is False for a machine with one
    device.
    """
    devices = len(machine.gpus) + len(machine.nics)
    gpus = (machine.paths[i][j] for i, j in combinations(range(len(machine.gpus)), 2))
    nics = (path for row in machine.nic_paths for path in row)
    return devices > 1 and all(path > PathType.PXB for path in (*gpus, *nics))


def _notes(machine: Machine) -> list[str]:
    notes = []
    weak = _weak(machine)
    if weak:
        names = ", ".join(f"GPU{machine.gpus[i].index}" for i in weak)
        notes.append(
            f"{names}: fewer links than the others. NCCL then slows down the whole job. A file does not help. "
            "Repair the GPU."
        )
    if len({gpu.numa for gpu in machine.gpus}) == 1 and machine.gpus[0].numa is None:
        notes.append(
            "The GPUs' NUMA nodes are not known (/sys says -1, or the source does not say): NCCL may bind its threads "
            "to far CPUs."
        )
    return notes


def _weak(machine: Machine) -> Sequence[int]:
    """Return the positions of GPUs with fewer links than expected, probably because links are down."""
    products: dict[str, list[int]] = {}
    for i, gpu in enumerate(machine.gpus):
        products.setdefault(gpu.product, []).append(i)
    weak = []
    for members in products.values():
        switched = [machine.gpus[i].switch_links for i in members]
        if any(switched):
            weak += [i for i, count in zip(members, switched, strict=True) if count < max(switched)]
        else:
            weak += _weak_of_direct(machine, members)
    return sorted(weak)


def _weak_of_direct(machine: Machine, members: Sequence[int]) -> list[int]:
    """Return the GPUs of ``members`` that must have lost links.

    All are of one product, and linked without switches. The links of a GPU are compared with those of the GPU that has
    the most:

    * If bridges join pairs of GPUs, a GPU with a bridge has lost links if it has fewer. A GPU without a bridge has lost
      none, because makers also build machines in this way.
    * In a mesh, a GPU without any link has lost links.
    * In a mesh, a GPU with fewer links has lost links only if more than half of the GPUs have the most. Otherwise link
      counts can differ on a healthy machine, because links to GPUs that are not visible do not show. In half a DGX-1,
      for example, two GPUs have 4 links and two have 5, so none is in the result.
    """
    sums = {i: sum(machine.links[i]) for i in members}
    most = max(sums.values())
    if all(sum(count > 0 for count in machine.links[i]) <= 1 for i in members):
        return [i for i, count in sums.items() if 0 < count < most]
    usual = 2 * list(sums.values()).count(most) > len(members)
    return [i for i, count in sums.items() if count < most and (usual or not count)]
