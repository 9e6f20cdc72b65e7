"""NCCL's bandwidths of links and CPUs, GB/s in one direction (``topo.h``, ``topo.cc``, ``xml.cc``; 2.18 to 2.30)."""

from __future__ import annotations

import re

from dradriver.topology.machine import Cpu

_PER_LANE = {"2.5": 15, "5": 30, "8": 60, "16": 120, "32": 240, "64": 480}  # NCCL's number for the signalling rate
# The spellings that NCCL knows, exact to the character: old kernels' and new ones'. All others it takes for Gen 3.
LINK_SPEEDS = {f"{rate} GT/s": number for rate, number in _PER_LANE.items() if rate != "64"} | {
    f"{rate if '.' in rate else rate + '.0'} GT/s PCIe": number for rate, number in _PER_LANE.items()
}
NO_SPEED = ("", "unknown", "unknown speed")  # what /sys has, in any letters, if it does not say
_RATE = re.compile(r"([0-9]{1,2}(?:\.[0-9])?) ?GT/s.*", re.IGNORECASE | re.ASCII)
_GENERATION = re.compile(r"(?:PCIe? ?)?Gen(?:eration)? ?([1-6])(?:\.0)?", re.IGNORECASE | re.ASCII)
ZHAOXIN = ("CentaurHauls", "  Shanghai  ")  # as the CPU says it, blanks included
ARCHITECTURES = {6: "pascal", 7: "volta", 8: "ampere", 9: "hopper", 10: "blackwell", 12: "blackwell"}


def lane_rate(speed: str) -> int | None:
    """Return NCCL's number for a PCIe signalling rate such as ``32.0 GT/s PCIe``.

    NCCL multiplies this number by the link's width (lanes) to get the bandwidth. The result is None for a rate that
    NCCL does not know.
    """
    return next((number for words, number in LINK_SPEEDS.items() if speed.startswith(words)), None)


def known_speed(speed: str) -> str:
    """Return a PCIe signalling rate in a spelling that NCCL knows, such as ``32.0 GT/s PCIe`` for Gen5.

    ``speed`` can be in another spelling, such as the kernel's or NVML's. The result is empty if NCCL knows no such
    rate.
    """
    if lane_rate(speed) is not None:
        return speed
    rate, generation = _RATE.fullmatch(speed.strip()), _GENERATION.fullmatch(speed.strip())
    known = [f"{rate if '.' in rate else rate + '.0'} GT/s PCIe" for rate in _PER_LANE]
    if generation is not None:
        return known[int(generation[1]) - 1]
    words = f"{float(rate[1]):.1f} GT/s PCIe" if rate is not None else ""
    return words if words in known else ""


def pci_gbps(speed: str, width: int) -> float:
    """Return the bandwidth that NCCL counts for a PCIe link, GB/s: 12 for x16 Gen 3, 48 for x16 Gen 5.

    Width 0 counts as 16, an unknown speed as Gen 3.
    """
    return (width or 16) * (lane_rate(speed) or 60) / 80


def link_gbps(sm: int) -> float:
    """Return the bandwidth that NCCL counts for one NVLink of a GPU, GB/s in one direction.

    ``sm`` is the GPU's compute capability times ten: 70, 80, 86, 90, 100. The result is 20 if NCCL does not know it.
    """
    if sm >= 100:
        return 40.1
    if sm >= 90:
        return 20.6
    if sm == 86:
        return 12.0
    return 18.0 if 60 <= sm < 70 else 20.0


def architecture(sm: int) -> str:
    """Return the name of the architecture that NCCL assumes for a compute capability.

    ``sm`` is the compute capability times ten: 89 is ``ada``.
    """
    return {75: "turing", 89: "ada"}.get(sm) or ARCHITECTURES.get(sm // 10, "")


def socket_gbps(cpu: Cpu | None) -> float:
    """Return the bandwidth that NCCL counts between two sockets with these CPUs, GB/s in one direction.

    The result is 10 if the CPUs are not known.
    """
    if cpu is None:
        return 10.0
    if cpu.arch in ("arm64", "ppc64"):
        return 6.0 if cpu.arch == "arm64" else 32.0
    if cpu.vendor == "AuthenticAMD":
        return 16.0
    if cpu.vendor == "GenuineIntel" and cpu.family == 6:
        steps = ((0xCF, 40.0), (0x8F, 22.0), (0x55, 10.0))
        return next((gbps for model, gbps in steps if cpu.model >= model), 6.0)
    if cpu.vendor in ZHAOXIN:
        return 9.0 if (cpu.family, cpu.model) == (7, 0x5B) else 6.0  # 0x5B: Yongfeng
    return 10.0 if cpu.vendor != "GenuineIntel" else 6.0


def family_id(family: int) -> int:
    """Return NCCL's number of a CPU family, which determines its bandwidth between sockets.

    Zen 3 is 25 (15 + 10) to the kernel and 175 (15 + 160) to NCCL.
    """
    return 15 + 16 * (family - 15) if family > 15 else family


def family_of(family_id: int) -> int:
    """Return the kernel's number of a CPU family from NCCL's number (``family_id``).

    A number that NCCL cannot have computed is returned unchanged.
    """
    extended, rest = divmod(family_id - 15, 16)
    return 15 + extended if family_id > 15 and not rest else family_id
