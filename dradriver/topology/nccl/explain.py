"""Whether a machine needs an NCCL topology file at all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import msgspec

from dradriver.topology.machine import Machine, PathType


class Advice(msgspec.Struct, frozen=True):
    """``needed`` is the answer, ``reasons`` are whole sentences: first why, then what else is worth knowing."""

    needed: bool
    reasons: tuple[str, ...]


def explain(machine: Machine) -> Advice:
    """Return whether NCCL should be given a file on ``machine``.

    Where a container sees the host's /sys and NVML, NCCL finds the truth by itself and a file can only do harm. It is
    of use where /sys does not show the PCI tree: in a virtual machine whose hypervisor hangs every device below the
    root.
    """
    flat = flattened(machine)
    switched = all(machine.links[i][j] for i, j in combinations(range(len(machine.gpus)), 2))
    if not machine.virtual:
        reasons = [
            "No file is needed: this is no virtual machine, NCCL reads /sys and NVML here and gets the truth. A file "
            "could only be as good, or do harm."
        ]
    elif not flat:
        reasons = ["No file is needed: this is a virtual machine, but its PCI tree shows which devices are near."]
    elif switched and not machine.nics:
        reasons = [
            "No file is needed: the PCI tree of this virtual machine is flat, but links join all GPUs and there is no "
            "NIC for NCCL to find a near GPU to."
        ]
    else:
        what = "GPUs and NICs" if machine.nics else "GPUs"
        reasons = [
            f"A file is worth it: this is a virtual machine whose PCI tree is flat, so that NCCL sees all {what} "
            "equally far apart and sends their data through the CPU. Write one with 'gputopo nccl write --like "
            "PROFILE', where PROFILE is the server below it."
        ]
    return Advice(reasons[0].startswith("A file"), (*reasons, *_notes(machine)))


def flattened(machine: Machine) -> bool:
    """Return whether no device of ``machine`` shares a PCIe switch with another, as hypervisors show it."""
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
            f"{names}: fewer links than the others. NCCL then slows down the whole job; no file mends that, a healthy "
            "GPU does."
        )
    if len({gpu.numa for gpu in machine.gpus}) == 1 and machine.gpus[0].numa is None:
        notes.append("The GPUs' NUMA nodes are not known (/sys says -1): NCCL may bind its threads to far CPUs.")
    return notes


def _weak(machine: Machine) -> Sequence[int]:
    """Return the positions of GPUs with fewer links to the switches than most."""
    counts = [gpu.switch_links for gpu in machine.gpus]
    usual = max(counts, key=counts.count)
    return [i for i, count in enumerate(counts) if count < usual]
