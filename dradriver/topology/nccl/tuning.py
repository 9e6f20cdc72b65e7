"""NCCL variables for a kind of machine, for ``/etc/nccl.conf``.

The node agent writes the file for containers if the policies name a tuning profile. No variable is set unless a user
asks for it: NCCL's own choice is right nearly everywhere, and most advice in articles slows a job down or ends it. For
example, ``NCCL_ALGO=NVLink,IB`` is an error since 2.24, ``NCCL_ALGO=Ring,Tree`` costs an H200 server a quarter of its
bandwidth, and ``NCCL_NVLINK_ENABLE`` does not exist. The useful variables are here, each with its reason. Sources:
NVIDIA's NCCL user guide, env.rst (2.30); ``src/misc/param.cc`` for the file's form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Machine

CONF_PATH = "/etc/nccl.conf"  # read by every NCCL; what the environment or ~/.nccl.conf has wins over it
AUTO = "auto"


class Line(NamedTuple):
    """One variable, its value, and the reason for this value."""

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
            "NCCL_IGNORE_CPU_AFFINITY", "1", "threads run near their GPU, even if a cpuset would place them elsewhere"
        ),
    ),
}


def profile_of(machine: Machine) -> str:
    """Return the name of the tuning profile that fits a machine: ``nvswitch``, ``nvlink`` or ``pcie``."""
    if machine.switched:
        return "nvswitch"
    return "nvlink" if any(any(row) for row in machine.links) else "pcie"


def conf(profile: str, machine: Machine) -> str:
    """Return the text of ``/etc/nccl.conf`` with the variables of a tuning profile.

    For the profile ``auto``, the machine's GPUs decide which profile is used.

    Raises:
        TopologyError: There is no such profile.
    """
    name = check_profile(profile_of(machine) if profile == AUTO else profile)
    lines = []
    for line in PROFILES[name]:
        lines += [f"# {line.reason}", f"{line.name}={line.value}"]  # before 2.24 a comment with = would be a variable
    return "\n".join([f"# gpu-topology: {name}", *lines]) + "\n"


def check_profile(name: str) -> str:
    """Return ``name`` unchanged if there is a tuning profile of this name.

    Raises:
        TopologyError: There is no such profile.
    """
    if name not in PROFILES:
        raise TopologyError(f"{name!r} is no tuning profile. Write one of {', '.join((AUTO, *PROFILES))}.")
    return name
