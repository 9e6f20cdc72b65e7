"""What can be wrong with a GPU: one kind of fault a taint."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import msgspec

from dradriver.api.base import names
from dradriver.node import repairs
from dradriver.node.repairs import Repair
from dradriver.topology.machine import Machine

Effect = Literal["NoSchedule", "None"]


class FaultKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of fault.

    Attributes:
        effect: ``NoSchedule`` keeps new pods off the GPU; ``None`` only says so. What runs is never evicted by us.
        words: What it is, in words.
        advice: What to do, in a sentence or two.
        values: Of values of the fault that say more, what they are and what to do, by value.
        comes_s: How long it must be seen at every look before it counts: not at all for what is not there by chance.
        leaves_s: How long it must be gone before it is over: what comes and goes would be written again and again.
        is_taint: Whether it is a taint of the device, too; else the pods that hold the GPU are told, and the log.
    """

    effect: Effect
    words: str
    advice: str
    values: Mapping[str, Repair] = MappingProxyType({})
    comes_s: float = 0.0
    leaves_s: float = 60.0
    is_taint: bool = True


KINDS: Final[dict[str, FaultKind]] = {
    "driver": FaultKind(
        effect="NoSchedule",
        words="the driver does not answer, or does not have the GPU",
        advice="Look at the driver with nvidia-smi (amd-smi) on the node; if that hangs too, reboot the node.",
        leaves_s=0.0,
    ),
    "runtime": FaultKind(
        effect="NoSchedule",
        words="containerd gives containers no CDI devices",
        advice="Set enable_cdi = true for the CRI plugin in containerd's configuration, and restart containerd.",
        leaves_s=0.0,
    ),
    "lost": FaultKind(
        effect="NoSchedule",
        words="the GPU is not on the node any more",
        advice="Look at the kernel's log and nvidia-smi (amd-smi) on the node; a GPU that fell off the bus needs a "
        "reboot.",
        leaves_s=0.0,
    ),
    "unreadable": FaultKind(
        effect="NoSchedule",
        words="the driver does not answer all questions about the GPU",
        advice="Look at the GPU with nvidia-smi -q (amd-smi static) on the node; the node agent's log names the "
        "queries that fail.",
        comes_s=25.0,  # the third reading
    ),
    "xid": FaultKind(
        effect="NoSchedule",
        words="an error that the driver reported in the kernel's log",
        advice=f"Look the XID up in NVIDIA's catalog ({repairs.CATALOG}). Until then, drain the GPU's pods and reset "
        "the GPU, or reboot the node.",
        values=repairs.XIDS,
    ),
    "xid-warning": FaultKind(
        effect="None",
        words="an error that the driver reported in the kernel's log; work goes on",
        advice=f"Look the XID up in NVIDIA's catalog ({repairs.CATALOG}); new pods get the GPU all the same.",
        values=repairs.XIDS,
    ),
    "sxid": FaultKind(
        effect="NoSchedule",
        words="a fatal error of an NVSwitch in the kernel's log",
        advice="Look at the log of nvidia-fabricmanager.service; reset all GPUs with their NVSwitches (nvidia-smi -r) "
        "or reboot the node.",
    ),
    "sxid-warning": FaultKind(
        effect="None",
        words="an error of an NVSwitch in the kernel's log; work goes on",
        advice="Look the SXid up in NVIDIA's Fabric Manager guide; new pods get the GPU all the same.",
        is_taint=False,
    ),
    "nvlink": FaultKind(
        effect="NoSchedule",
        words="NVLinks of the GPU are down",
        advice="Look at nvidia-smi nvlink -s and nvidia-smi topo -p2p n; reset all GPUs, then reseat the bridge or "
        "baseboard if it stays.",
        values=repairs.LINKS,
    ),
    # Those that were contained (XID 94) count too, after which the GPU takes new work (NVIDIA "GPU Memory Error
    # Management"). For one that does not there is another taint: xid (48, 64, 95, 140), row-remap-failed, recovery.
    "ecc": FaultKind(
        effect="None",
        words="memory errors that could not be corrected",
        advice="Reset the GPU once nobody uses it: the bad rows are remapped then; new pods get it all the same.",
    ),
    "ras": FaultKind(
        effect="NoSchedule",
        words="errors of an AMD GPU that could not be corrected",
        advice="Look at amd-smi metric --ecc-blocks and at the kernel's log; reset the GPU once nobody uses it.",
    ),
    "gpu-reset": FaultKind(
        effect="NoSchedule",
        words="the driver is resetting the GPU",
        advice="Wait for the end of the reset. If it does not come within minutes, drain the node and reboot it.",
        values=repairs.GPU_RESETS,
        leaves_s=0.0,
    ),
    "package": FaultKind(
        effect="NoSchedule",
        words="the other GPU of its package has a fault",
        advice="Look at the other GPU of its package, which has a fault of its own: both are reset together.",
        leaves_s=0.0,
    ),
    "row-remap-failed": FaultKind(
        effect="NoSchedule",
        words="a bad row of its memory could not be remapped",
        advice="Have the GPU replaced: its spare rows are used up.",
    ),
    "row-remap-pending": FaultKind(
        effect="None",
        words="a bad row of its memory is remapped at its next reset",
        advice="Reset the GPU once nobody uses it.",
    ),
    "recovery": FaultKind(
        effect="NoSchedule",
        words="the driver asks for a recovery of the GPU",
        advice="Do what the driver asks for, once nobody uses the GPU.",
        values=repairs.RECOVERIES,
    ),
    "fabric": FaultKind(
        effect="NoSchedule",
        words="the GPU's NVLink fabric is not well",
        advice="Look at the log of nvidia-fabricmanager.service and at nvidia-smi -q, section Fabric.",
        values=repairs.FABRICS,
        comes_s=25.0,  # a fabric manager that starts again
    ),
    "held": FaultKind(
        effect="NoSchedule",
        words="the GPU is in use although no claim holds it",
        advice="End the processes on the GPU, which nvidia-smi names; one that cannot be ended needs a reboot.",
        leaves_s=0.0,
    ),
    "mig-mode": FaultKind(
        effect="NoSchedule",
        words="MIG mode cannot be turned off",
        advice="End what holds the GPU's driver (dcgm, nvidia-smi, other monitoring), or reset it once nobody uses it.",
        leaves_s=0.0,
    ),
    "thermal": FaultKind(
        effect="None",
        words="the GPU's clocks are lowered by heat",
        advice="Look at the server's cooling and nvidia-smi -q -d PERFORMANCE.",
        comes_s=60.0,
        leaves_s=300.0,
    ),
    "power": FaultKind(
        effect="None",
        words="the GPU's clocks are lowered by the power brake",
        advice="Look at the server's power supplies and limits.",
        comes_s=60.0,
        leaves_s=300.0,
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
        """Return the key of the fault's taint: ``gpu.topology/xid``."""
        return names.PREFIX + self.kind

    @property
    def effect(self) -> Effect:
        """Return the effect of the fault's taint."""
        return KINDS[self.kind].effect

    @property
    def words(self) -> str:
        """Return the fault in words; of its kind if nothing is known of its value."""
        return self._repair.words

    @property
    def advice(self) -> str:
        """Return what to do about the fault."""
        return self._repair.repair

    @property
    def described(self) -> str:
        """Return in sentences what was seen of the fault, what that is and what to do."""
        has_more = self.value in KINDS[self.kind].values and self.words not in self.said
        return f"{self.said}: {self.words}. {self.advice}" if has_more else f"{self.said}. {self.advice}"

    @property
    def _repair(self) -> Repair:
        kind = KINDS[self.kind]
        return kind.values.get(self.value, Repair(kind.words, kind.advice))


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
