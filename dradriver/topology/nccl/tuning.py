"""NCCL variables for a kind of machine, and what values NCCL accepts.

None is set unless somebody asks for it: NCCL's own choice is right nearly everywhere, and most of what articles
recommend slows a job down or ends it (``NCCL_ALGO=NVLink,IB`` is an error since 2.24, ``NCCL_ALGO=Ring,Tree`` costs an
H200 server a quarter, ``NCCL_NVLINK_ENABLE`` does not exist). What is left of them is here, each with its reason.
Sources: NVIDIA's NCCL user guide, env.rst (2.30); ``src/misc/param.cc`` for the file's form.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Machine

CONF_PATH = "/etc/nccl.conf"  # read by every NCCL; what the environment or ~/.nccl.conf has wins over it
AUTO = "auto"


class Line(NamedTuple):
    """One variable, its value, and why it has this one."""

    name: str
    value: str
    reason: str


PROFILES: Final[Mapping[str, tuple[Line, ...]]] = {
    "nvlink": (
        Line(
            "NCCL_P2P_LEVEL",
            "NVL",
            "GPUs without a link talk through memory: P2P over PCIe fails behind an IOMMU or ACS",
        ),
        Line("NCCL_NVLS_ENABLE", "0", "there is no NVSwitch whose multicast could be used: nothing is probed for it"),
    ),
    "nvswitch": (
        Line(
            "NCCL_NVLS_ENABLE",
            "2",
            "multicast where the fabric has it, and no failed start where it has not, as 1 gives",
        ),
        Line("NCCL_CUMEM_ENABLE", "1", "buffers that multicast and NVLink between servers need"),
    ),
    "pcie": (
        Line("NCCL_P2P_LEVEL", "PXB", "P2P within PCIe switches alone: through a CPU it is slower than through memory"),
        Line("NCCL_NVLS_ENABLE", "0", "there is no NVSwitch whose multicast could be used: nothing is probed for it"),
    ),
    "multinode": (
        Line("NCCL_CROSS_NIC", "0", "a ring stays on one rail: between rails packets climb to the spine"),
        Line(
            "NCCL_NET_GDR_LEVEL", "PXB", "the NIC reads a GPU's memory below a common switch, and never through a CPU"
        ),
        Line(
            "NCCL_IGNORE_CPU_AFFINITY", "1", "threads run beside their GPU also where a cpuset would have them far away"
        ),
    ),
}

_PATHS: Final = "LOC|PIX|PXB|P2C|PHB|SYS"
_TOKENS: Final = "Ring|Tree|CollnetChain|CollnetDirect|NVLS|NVLSTree|PAT"
_LIST: Final = r"\^?(?:{0})(?:,(?:{0}))*"
_ACCEPTED: Final = {
    "NCCL_P2P_LEVEL": (f"{_PATHS}|NVL", "LOC, NVL, PIX, PXB, P2C, PHB or SYS"),
    "NCCL_NET_GDR_LEVEL": (_PATHS, "LOC, PIX, PXB, P2C, PHB or SYS"),
    "NCCL_ALGO": (_LIST.format(_TOKENS), "names as Ring or NVLS with commas between them, ^ before them to exclude"),
    "NCCL_PROTO": (_LIST.format("LL128|LL|Simple"), "LL, LL128 and Simple with commas between them, ^ to exclude"),
    "NCCL_NVLS_ENABLE": ("[012]", "0, 1 or 2"),
    "NCCL_MNNVL_ENABLE": ("[012]", "0, 1 or 2"),
    "NCCL_CROSS_NIC": ("[012]", "0, 1 or 2"),
    "NCCL_CUMEM_ENABLE": ("[01]", "0 or 1"),
    "NCCL_CUMEM_HOST_ENABLE": ("[01]", "0 or 1"),
    "NCCL_IGNORE_CPU_AFFINITY": ("[01]", "0 or 1"),
    "NCCL_MIN_CTAS": ("[1-9]|[1-5][0-9]|6[0-4]", "a number from 1 to 64"),
    "NCCL_MAX_CTAS": ("[1-9]|[1-5][0-9]|6[0-4]", "a number from 1 to 64"),
    "NCCL_SOCKET_IFNAME": (r"[\^=]{0,2}[A-Za-z0-9_.-]{1,15}(,[A-Za-z0-9_.-]{1,15})*", "names of interfaces"),
    "NCCL_IB_HCA": (r"[\^=]{0,2}[A-Za-z0-9_]{1,63}(:\d{1,2})?(,[A-Za-z0-9_]{1,63}(:\d{1,2})?)*", "names of NICs"),
    "NCCL_DEBUG": ("VERSION|WARN|INFO|TRACE", "VERSION, WARN, INFO or TRACE"),
}


def profile_of(machine: Machine) -> str:
    """Return the profile that fits a machine's own GPUs: ``nvswitch``, ``nvlink`` or ``pcie``."""
    if machine.switched:
        return "nvswitch"
    return "nvlink" if any(any(row) for row in machine.links) else "pcie"


def conf(profile: str, machine: Machine) -> str:
    """Return the text of ``/etc/nccl.conf`` by a profile's name, or by ``auto`` what fits the machine.

    Raises:
        TopologyError: There is no such profile.
    """
    name = check_profile(profile_of(machine) if profile == AUTO else profile)
    lines = []
    for line in PROFILES[name]:
        lines += [f"# {line.reason}", f"{line.name}={line.value}"]  # before 2.24 a comment with = would be a variable
    return "\n".join([f"# gpu-topology: {name}", *lines]) + "\n"


def check_profile(name: str) -> str:
    """Return the name of a profile.

    Raises:
        TopologyError: There is none of this name.
    """
    if name not in PROFILES:
        raise TopologyError(f"{name!r} is no tuning profile; write one of {', '.join((AUTO, *PROFILES))}")
    return name


def check_variable(name: str, value: str) -> None:
    """Raise unless NCCL 2.18 to 2.30 know the variable and take the value.

    Raises:
        TopologyError: They do not.
    """
    accepted = _ACCEPTED.get(name)
    if accepted is None:
        near = difflib.get_close_matches(name[:64], _ACCEPTED, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise TopologyError(
            f"{name[:64]!r} is no NCCL variable that can be set here{hint}; known are {', '.join(_ACCEPTED)}"
        )
    if not re.fullmatch(accepted[0], value, re.ASCII):
        raise TopologyError(f"{name}: {value[:64]!r} is not what NCCL takes; write {accepted[1]}")
