"""CPU lists and masks, the kernel's two forms of a set of CPUs: ``0-19,40-59`` and, in hex, ``ff,ffff0fff``."""

from __future__ import annotations

import re

_CPUS = re.compile(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*")
MOST_CPUS = 8192  # what the kernel itself can be built for (NR_CPUS)


def is_cpu_list(text: str) -> bool:
    """Return whether ``text`` is a CPU list as the kernel writes it, each CPU once in rising order: ``0-19,40-59``."""
    if not _CPUS.fullmatch(text):
        return False
    before = -1
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not before < int(first) <= int(last or first):
            return False
        before = int(last or first)
    return True


def from_mask(mask: str) -> str:
    """Return the CPU list of a mask: ``0-3`` for ``00000000,0000000f``; ``""`` for no CPUs.

    Args:
        mask: Hexadecimal groups of 32 bits, most significant first, as ``/sys/devices/system/node/node0/cpumap``.
    """
    bits = int(mask.replace(",", "") or "0", 16)
    parts = []
    first = 0
    while bits >> first:
        first += ((bits >> first) & -(bits >> first)).bit_length() - 1
        length = (~(bits >> first) & ((bits >> first) + 1)).bit_length() - 1
        parts.append(str(first) if length == 1 else f"{first}-{first + length - 1}")
        first += length
    return ",".join(parts)


def to_mask(cpus: str, *, count: int = 0) -> str:
    """Return the mask of a CPU list: groups of 32 bits in hex.

    The result is ``""`` for an empty list, and for CPU numbers that no kernel has (from 8,192).

    Args:
        cpus: A list that ``is_cpu_list`` accepts, or empty.
        count: The number of CPUs of the server. The mask gets as many groups as the kernel prints for this number.
    """
    bits = 0
    for part in filter(None, cpus.split(",")):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not low <= high < MOST_CPUS:
            return ""
        bits |= ((1 << (high - low + 1)) - 1) << low
    if not bits:
        return ""
    groups = -(-max(bits.bit_length(), count) // 32)
    text = f"{bits:0{groups * 8}x}"
    return ",".join(text[i : i + 8] for i in range(0, len(text), 8))
