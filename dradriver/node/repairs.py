"""Meaning and repair of fault values such as XIDs.

The kinds of faults in ``faults.KINDS`` use these tables. The texts of XIDs are from NVIDIA's catalog
(docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), the repairs from its column "Immediate Action".

Repairs name the next command. The placeholders ``<node>`` and ``<UUID>`` stand for the GPU with the fault. ``located``
replaces them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from dradriver.reason import capitalized

CATALOG: Final = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
_DRAIN: Final = "drain the node (kubectl drain <node> --ignore-daemonsets --delete-emptydir-data)"
_UNCORDON: Final = "and run kubectl uncordon <node>."
OR_REBOOT: Final = f"{_DRAIN}, reboot it, {_UNCORDON}"  # the end of a sentence
REBOOT: Final = capitalized(OR_REBOOT)
RESET: Final = (
    "End the pods that use the GPU (gputopo health names them). Then reset it on the node (nvidia-smi --gpu-reset -i "
    "<UUID>)."
)
RESET_WHEN_FREE: Final = (
    "Keep new pods off the node (kubectl cordon <node>). When no pod uses the GPU, reset it on the node (nvidia-smi "
    f"--gpu-reset -i <UUID>), {_UNCORDON}"
)
RESET_ALL: Final = f"{capitalized(_DRAIN)}, reset all its GPUs together (nvidia-smi --gpu-reset), {_UNCORDON}"
_NVLINKS: Final = f"{RESET_ALL} If it comes again, have the baseboard checked."
_GSP: Final = f"{RESET} If that fails or it comes again, {OR_REBOOT}"


class Repair(NamedTuple):
    """The meaning of a fault and its repair, each in words."""

    words: str
    repair: str


def located(text: str, *, node: str = "", uuid: str = "") -> str:
    """Return the text of a repair for one GPU. A placeholder stays if its value is not known (empty)."""
    return text.replace("<node>", node or "<node>").replace("<UUID>", uuid or "<UUID>")


_BY_NUMBER: Final[dict[int, Repair]] = {
    13: Repair("a program's error on the graphics engine", "Restart the program. The GPU needs no repair."),
    31: Repair("a program's access to memory that it does not have", "Restart the program. The GPU needs no repair."),
    32: Repair(
        "a corrupted stream of commands, often because of PCIe errors",
        "Look for PCIe errors in the kernel's log. If there are more, have the GPU reseated.",
    ),
    43: Repair("a program that stopped because of its own error", "Restart the program. The GPU needs no repair."),
    46: Repair("the GPU stopped processing", RESET),
    48: Repair("a memory error of two bits that could not be corrected", RESET),
    62: Repair("the GPU's own micro-controller halted", RESET),
    63: Repair("a bad row of the GPU's memory is remapped at the next reset", RESET_WHEN_FREE),
    64: Repair(
        "a bad row of the GPU's memory could not be recorded for remapping",
        f"{RESET} If it comes again, have the GPU replaced.",
    ),
    74: Repair("an error of NVLink", _NVLINKS),
    79: Repair(
        "the GPU has fallen off the bus, so its PCIe connection is broken",
        f"{REBOOT} If it comes again, have the GPU and its slot checked.",
    ),
    92: Repair(
        "a very high number of corrected memory errors",
        f"Look at nvidia-smi -q -d ECC on the node. {RESET_WHEN_FREE}",
    ),
    93: Repair("the GPU's InfoROM was written more often than planned", "Ask the vendor of the GPU."),
    94: Repair(
        "a memory error that was contained, which ended one program",
        f"Restart the program. A reset remaps the bad row. {RESET_WHEN_FREE}",
    ),
    95: Repair("a memory error that was not contained", RESET),
    110: Repair("a security fault", RESET),
    119: Repair("the GPU's system processor (GSP) did not answer in time", _GSP),
    120: Repair("an error of the GPU's system processor (GSP)", _GSP),
    121: Repair(
        "an error of the link to the CPU (C2C) that was corrected",
        "Do nothing now. If it comes often, ask the vendor of the GPU.",
    ),
    136: Repair("the training of a link failed", RESET),
    140: Repair("a memory error that could not be recovered", RESET),
    143: Repair("the GPU could not be initialized", f"{RESET} If that fails, {OR_REBOOT}"),
    **{number: Repair("an error of an NVLink of the fifth generation", _NVLINKS) for number in range(144, 151)},
    151: Repair("an error at a change of keys", REBOOT),
    154: Repair(
        "the driver asks for a recovery",
        "Do what the driver asks for, when no pod uses the GPU. nvidia-smi -q shows it.",
    ),
    155: Repair("an error of NVLink that software defines", RESET),
    156: Repair("the driver wants to retire a part of the GPU", RESET),
    157: Repair(
        "a part of the GPU could not be retired, because no spare is left", "Have the GPU replaced when convenient."
    ),
    158: Repair("the GPU did not answer in time, and does not recover", RESET),
    **{
        number: Repair(
            "an event of the GPU's power smoothing",
            "Look at the server's power supply. If it is fine, ask the vendor of the GPU.",
        )
        for number in range(163, 166)
    },
}

XIDS: Final = {str(number): repair for number, repair in _BY_NUMBER.items()}

GPU_RESETS: Final = {
    "failed": Repair("the driver could not reset the GPU", REBOOT),
}

FABRICS: Final = {
    "in-progress": Repair(
        "the GPU has not joined its NVLink fabric",
        "Check whether nvidia-fabricmanager.service runs on the node, and read its log.",
    ),
    "failed": Repair(
        "the NVLink fabric refused the GPU",
        f"Look at the log of nvidia-fabricmanager.service. If it names no cause, {_DRAIN}, restart the service, "
        f"{_UNCORDON}",
    ),
}

LINKS: Final = {
    "refused": Repair(
        "the GPU and another GPU refuse peer access to each other, although their NVLinks are up",
        f"Look at nvidia-smi topo -p2p n and at the log of nvidia-fabricmanager.service. {RESET_ALL}",
    ),
}

RECOVERIES: Final = {
    "reset": Repair("the driver asks for a reset of the GPU", RESET),
    "reboot": Repair("the driver asks for a reboot of the node", REBOOT),
    "drain-p2p": Repair(
        "the driver asks to end the traffic between this GPU and others",
        "End the pods that use this GPU together with others.",
    ),
    "drain-reset": Repair("the driver asks to drain the GPU, then to reset it", RESET),
    "bus-reset": Repair(
        "the driver asks for a reset of the GPU's bus",
        f"{capitalized(_DRAIN)}, power cycle it, {_UNCORDON} A reset of the GPU alone is not enough.",
    ),
    "imex": Repair(
        "the driver asks to recover the IMEX domain",
        "Look at the log of nvidia-imex.service on the nodes of the domain, and restart it when its jobs have ended.",
    ),
}
