"""The kinds of faults that a GPU can have; most kinds become a taint."""

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
        effect: Effect of the taint: ``NoSchedule`` keeps new pods off the GPU, ``None`` only informs. Neither effect
            ends pods that run already.
        words: The meaning of the fault, in words.
        advice: The repair, in one or two sentences.
        values: By value of the fault, such as the number of an XID: the meaning and repair of this value.
        comes_s: Seconds for which the fault must be seen without a gap before it comes into force. 0 for a fault that
            is certain when it is seen once.
        leaves_s: Seconds for which the fault must be gone before it is over. This keeps a fault that comes and goes
            from being written again and again.
        is_taint: Whether the fault becomes a taint of the device. If not, the agent only logs it and writes Events on
            the pods that use the GPU.
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
        advice=f"Run nvidia-smi (amd-smi) on the node. If it hangs, too, {repairs.OR_REBOOT}",
        leaves_s=0.0,
    ),
    "runtime": FaultKind(
        effect="NoSchedule",
        words="containerd does not give CDI devices to containers",
        advice="Set enable_cdi = true for the CRI plugin in containerd's configuration, and restart containerd.",
        leaves_s=0.0,
    ),
    "lost": FaultKind(
        effect="NoSchedule",
        words="the node had the GPU, and the driver does not report it any more",
        advice=f"{repairs.REBOOT} If the GPU is still missing, have it and its slot checked. If you remove it for "
        f"good, run kubectl annotate node <node> {names.REMOVED_GPUS}=<UUID>.",
        leaves_s=0.0,
    ),
    "unreadable": FaultKind(
        effect="NoSchedule",
        words="the driver does not answer some queries about the GPU",
        advice="Look at the GPU with nvidia-smi -q (amd-smi static) on the node. The node agent's log names the "
        "queries that fail.",
        comes_s=25.0,  # the third reading
    ),
    "xid": FaultKind(
        effect="NoSchedule",
        words="an error that the driver reported in the kernel's log",
        advice=f"Look the XID up in NVIDIA's catalog ({repairs.CATALOG}). If it names no other action: {repairs.RESET}",
        values=repairs.XIDS,
    ),
    "xid-warning": FaultKind(
        effect="None",
        words="an error that the driver reported in the kernel's log, without effect on running work",
        advice=f"Look the XID up in NVIDIA's catalog ({repairs.CATALOG}). New pods can still get the GPU.",
        values=repairs.XIDS,
    ),
    "sxid": FaultKind(
        effect="NoSchedule",
        words="a fatal error of an NVSwitch in the kernel's log",
        advice=f"Look at the log of nvidia-fabricmanager.service. {repairs.RESET_ALL}",
    ),
    "sxid-warning": FaultKind(
        effect="None",
        words="an error of an NVSwitch in the kernel's log, without effect on running work",
        advice="Look the SXid up in NVIDIA's Fabric Manager guide. New pods can still get the GPU.",
        is_taint=False,
    ),
    "nvlink": FaultKind(
        effect="NoSchedule",
        words="NVLinks of the GPU are down",
        advice=f"Look at nvidia-smi nvlink -s and nvidia-smi topo -p2p n. {repairs.RESET_ALL} If the fault stays, "
        "reseat the bridge or baseboard.",
        values=repairs.LINKS,
    ),
    # Those that were contained (XID 94) count too, after which the GPU takes new work (NVIDIA "GPU Memory Error
    # Management"). For one that does not there is another taint: xid (48, 64, 95, 140), row-remap-failed, recovery.
    "ecc": FaultKind(
        effect="None",
        words="memory errors that could not be corrected",
        advice=f"A reset remaps the bad rows. Until then new pods can still get the GPU. {repairs.RESET_WHEN_FREE}",
    ),
    "ras": FaultKind(
        effect="NoSchedule",
        words="errors of an AMD GPU that could not be corrected",
        advice="Look at amd-smi metric --ecc-blocks and at the kernel's log. Reset the GPU when no pod uses it.",
    ),
    "gpu-reset": FaultKind(
        effect="NoSchedule",
        words="the driver is resetting the GPU",
        advice=f"Wait for the end of the reset. If it does not come within minutes, {repairs.OR_REBOOT}",
        values=repairs.GPU_RESETS,
        leaves_s=0.0,
    ),
    "package": FaultKind(
        effect="NoSchedule",
        words="the other GPU of the same package has a fault",
        advice="Repair the other GPU of the package. Both GPUs are reset together.",
        leaves_s=0.0,
    ),
    "row-remap-failed": FaultKind(
        effect="NoSchedule",
        words="a bad row of the GPU's memory could not be remapped",
        advice="Have the GPU replaced: its spare rows are used up.",
    ),
    "row-remap-pending": FaultKind(
        effect="None",
        words="a bad row of the GPU's memory is remapped at the next reset",
        advice=repairs.RESET_WHEN_FREE,
    ),
    "recovery": FaultKind(
        effect="NoSchedule",
        words="the driver asks for a recovery of the GPU",
        advice="Do what the driver asks for, when no pod uses the GPU.",
        values=repairs.RECOVERIES,
    ),
    "fabric": FaultKind(
        effect="NoSchedule",
        words="the GPU's NVLink fabric reports an error",
        advice="Look at the log of nvidia-fabricmanager.service and at nvidia-smi -q, section Fabric.",
        values=repairs.FABRICS,
        comes_s=25.0,  # a fabric manager that starts again
    ),
    "held": FaultKind(
        effect="NoSchedule",
        words="processes use the GPU, but no prepared claim has it",
        advice=f"End the processes on the GPU, which nvidia-smi lists. If one cannot be ended, {repairs.OR_REBOOT}",
        leaves_s=0.0,
    ),
    "mig-mode": FaultKind(
        effect="NoSchedule",
        words="MIG mode cannot be turned off",
        advice="End the programs that use the GPU's driver (dcgm, nvidia-smi, other monitoring), or reset the GPU "
        "when no pod uses it.",
        leaves_s=0.0,
    ),
    "thermal": FaultKind(
        effect="None",
        words="the GPU is hot and has lowered its clocks",
        advice="Look at the server's cooling and nvidia-smi -q -d PERFORMANCE.",
        comes_s=60.0,
        leaves_s=300.0,
    ),
    "power": FaultKind(
        effect="None",
        words="the power brake has lowered the GPU's clocks",
        advice="Look at the server's power supplies and limits.",
        comes_s=60.0,
        leaves_s=300.0,
    ),
}


class Fault(msgspec.Struct, frozen=True, order=True):
    """One fault of one GPU.

    Attributes:
        kind: A key of ``KINDS``.
        value: Value of the taint, a few letters and digits, for example ``79`` for an XID; may be empty.
        said: What the agent observed, in words.
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
        """Return the meaning of the fault in words.

        This is the meaning of its value, for example of XID 79. If that is unknown, it is the meaning of its kind.
        """
        return self._repair.words

    @property
    def advice(self) -> str:
        """Return the repair of the fault, in sentences."""
        return self._repair.repair

    @property
    def described(self) -> str:
        """Return the fault in sentences: the observation, its meaning and the repair."""
        has_more = self.value in KINDS[self.kind].values and self.words not in self.said
        return f"{self.said}: {self.words}. {self.advice}" if has_more else f"{self.said}. {self.advice}"

    @property
    def _repair(self) -> Repair:
        kind = KINDS[self.kind]
        return kind.values.get(self.value, Repair(kind.words, kind.advice))


Faults: TypeAlias = Mapping[str, Collection[Fault]]
"""Faults by the GPU's uuid."""


def of_all(machine: Machine | None, said: str | None, *, kind: str) -> dict[str, tuple[Fault, ...]]:
    """Return the same fault for every GPU of a machine, by uuid; empty if ``said`` is None.

    Args:
        machine: The machine as it was last known.
        said: The observation; None if nothing is wrong.
        kind: A key of ``KINDS``.
    """
    if machine is None or said is None:
        return {}
    return {gpu.uuid: (Fault(kind, "", said),) for gpu in machine.gpus}
