"""What can be wrong with a GPU: one kind of fault a taint."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from dradriver.api import names
from dradriver.topology.machine import Machine

Effect = Literal["NoSchedule", "None"]


class FaultKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of fault.

    Attributes:
        effect: ``NoSchedule`` keeps new pods off the GPU; ``None`` only says so. What runs is never evicted by us.
        advice: What to do, in a sentence.
        comes_s: How long it must be seen at every look before it counts: not at all for what is not there by chance.
        leaves_s: How long it must be gone before it is over: what comes and goes would be written again and again.
        is_taint: Whether it is a taint of the device, too; else the pods that hold the GPU are told, and the log.
    """

    effect: Effect
    advice: str
    comes_s: float = 0.0
    leaves_s: float = 60.0
    is_taint: bool = True


KINDS: Final[dict[str, FaultKind]] = {
    "driver": FaultKind(
        effect="NoSchedule",
        advice="Look at the driver with nvidia-smi (amd-smi) on the node; where it hangs too, reboot the node.",
        leaves_s=0.0,
    ),
    "runtime": FaultKind(
        effect="NoSchedule",
        advice="Set enable_cdi = true for the CRI plugin in containerd's configuration, and restart containerd.",
        leaves_s=0.0,
    ),
    "lost": FaultKind(
        effect="NoSchedule",
        advice="Look at the kernel's log and nvidia-smi (amd-smi) on the node; a GPU that fell off the bus needs a "
        "reboot.",
        leaves_s=0.0,
    ),
    "unreadable": FaultKind(
        effect="NoSchedule",
        advice="Look at the GPU with nvidia-smi -q (amd-smi static) on the node; the node agent's log names the "
        "queries that fail.",
        comes_s=25.0,  # the third reading
    ),
    "xid": FaultKind(
        effect="NoSchedule",
        advice="Look the XID up in NVIDIA's list, then reset the GPU or reboot the node.",
    ),
    "xid-warning": FaultKind(
        effect="None", advice="Look the XID up in NVIDIA's list; new pods get the GPU all the same."
    ),
    "sxid": FaultKind(
        effect="NoSchedule",
        advice="Look at the log of nvidia-fabricmanager.service; reset all GPUs with their NVSwitches (nvidia-smi -r) "
        "or reboot the node.",
    ),
    "sxid-warning": FaultKind(
        effect="None",
        advice="Look the SXid up in NVIDIA's Fabric Manager guide; new pods get the GPU all the same.",
        is_taint=False,
    ),
    "nvlink": FaultKind(
        effect="NoSchedule",
        advice="Look at nvidia-smi nvlink -s and nvidia-smi topo -p2p n; reset all GPUs, then reseat the bridge or "
        "baseboard if it stays.",
    ),
    # Those that were contained (XID 94) count too, after which the GPU takes new work (NVIDIA "GPU Memory Error
    # Management"). For one that does not there is another taint: xid (48, 64, 95, 140), row-remap-failed, recovery.
    "ecc": FaultKind(
        effect="None",
        advice="Reset the GPU once nobody uses it: the bad rows are remapped then; new pods get it all the same.",
    ),
    "ras": FaultKind(
        effect="NoSchedule",
        advice="Look at amd-smi metric --ecc-blocks and at the kernel's log; reset the GPU once nobody uses it.",
    ),
    "gpu-reset": FaultKind(
        effect="NoSchedule",
        advice="Look at the kernel's log on the node; a GPU whose reset fails needs a reboot.",
        leaves_s=0.0,
    ),
    "package": FaultKind(
        effect="NoSchedule",
        advice="Look at the other GPU of its package, which has a fault of its own: both are reset together.",
        leaves_s=0.0,
    ),
    "row-remap-failed": FaultKind(effect="NoSchedule", advice="Have the GPU replaced: its spare rows are used up."),
    "row-remap-pending": FaultKind(effect="None", advice="Reset the GPU once nobody uses it."),
    "recovery": FaultKind(effect="NoSchedule", advice="Do what the driver asks for, once nobody uses the GPU."),
    "fabric": FaultKind(
        effect="NoSchedule",
        advice="Look at the log of nvidia-fabricmanager.service and at nvidia-smi -q, section Fabric.",
        comes_s=25.0,  # a fabric manager that starts again
    ),
    "held": FaultKind(
        effect="NoSchedule",
        advice="End the processes on the GPU, which nvidia-smi names; one that cannot be ended needs a reboot.",
        leaves_s=0.0,
    ),
    "mig-mode": FaultKind(
        effect="NoSchedule",
        advice="End what holds the GPU's driver (dcgm, nvidia-smi, other monitoring), or reset it once nobody uses it.",
        leaves_s=0.0,
    ),
    "thermal": FaultKind(
        effect="None",
        advice="Look at the server's cooling and nvidia-smi -q -d PERFORMANCE.",
        comes_s=60.0,
        leaves_s=300.0,
    ),
    "power": FaultKind(
        effect="None", advice="Look at the server's power supplies and limits.", comes_s=60.0, leaves_s=300.0
    ),
}


class Fault(msgspec.Struct, frozen=True, order=True):
    """One thing that is wrong with one GPU.

    Attributes:
        kind: A key of ``KINDS``.
        value: A few letters and digits that say more, for the taint: ``79``; may be empty.
        said: What was seen, for people.
    """

    kind: str
    value: str
    said: str

    @property
    def key(self) -> str:
        """The taint's key: ``gpu.topology/xid``."""
        return names.PREFIX + self.kind

    @property
    def effect(self) -> Effect:
        """The taint's effect."""
        return KINDS[self.kind].effect

    @property
    def advice(self) -> str:
        """What to do about it."""
        return KINDS[self.kind].advice


Faults: TypeAlias = Mapping[str, Collection[Fault]]
"""Faults by the GPU's uuid."""


def of_all(machine: Machine | None, said: str | None, *, kind: str) -> dict[str, tuple[Fault, ...]]:
    """Return one and the same fault for every GPU, by uuid; none where nothing is wrong.

    Args:
        machine: The machine as it was last known.
        said: What is wrong; None for nothing.
        kind: A key of ``KINDS``.
    """
    if machine is None or said is None:
        return {}
    return {gpu.uuid: (Fault(kind, "", said),) for gpu in machine.gpus}
