"""MIG profiles of real products, for simulated GPUs alone: a real one is asked for its own.

From ``nvidia-smi mig -lgip`` and ``-lgipp`` of A30, A100, H100, H200 and B200 and NVIDIA/mig-parted's deployments: the
products with seven compute slices have the same ids, placements and counts, and differ in memory.
"""

from __future__ import annotations

from typing import Final

from dradriver.node.devices.control import Profile
from dradriver.topology.machine import Gpu

# id, compute slices, what is added to the name, most, starts, memory slices, which of the sizes below
_SEVEN: Final = (
    (19, 1, "", 7, (0, 1, 2, 3, 4, 5, 6), 1, 0),
    (20, 1, "+me", 1, (0, 1, 2, 3, 4, 5, 6), 1, 0),
    (15, 1, "", 4, (0, 2, 4, 6), 2, 1),
    (14, 2, "", 3, (0, 2, 4), 2, 1),
    (9, 3, "", 2, (0, 4), 4, 2),
    (5, 4, "", 1, (0,), 4, 2),
    (0, 7, "", 1, (0,), 8, 3),
)
_FOUR: Final = (
    (14, 1, "", 4, (0, 1, 2, 3), 1, 0),
    (21, 1, "+me", 1, (0, 1, 2, 3), 1, 0),
    (5, 2, "", 2, (0, 2), 2, 1),
    (6, 2, "+me", 1, (0, 2), 2, 1),
    (0, 4, "", 1, (0,), 4, 2),
)
# By words of the product's name, the first that fits: gigabytes of an instance with 1, 2, 4 and 8 memory slices.
_SIZES: Final = (
    ("A30", (6, 12, 24)),
    ("A100", (5, 10, 20, 40)),
    ("A800", (10, 20, 40, 80)),
    ("GH200", (12, 24, 48, 96)),
    ("H200", (18, 35, 71, 141)),
    ("H100 NVL", (12, 24, 47, 94)),
    ("H100", (10, 20, 40, 80)),
    ("H800", (10, 20, 40, 80)),
    ("GB200", (23, 47, 93, 186)),
    ("B200", (23, 45, 90, 180)),
    ("B300", (34, 67, 135, 269)),
)
_A100_80: Final = (10, 20, 40, 80)
_LARGE_MIB: Final = 60_000

H100: Final = "NVIDIA H100 80GB HBM3"


def profiles(product: str, memory_mib: int = 0) -> tuple[Profile, ...]:
    """Return the profiles of a product, of which there is one with less memory in one case; none without MIG."""
    sizes = next((sizes for word, sizes in _SIZES if word in product), ())
    if "A100" in product and (memory_mib > _LARGE_MIB or "80GB" in product):
        sizes = _A100_80
    return tuple(
        Profile(
            id=number,
            name=f"{compute}g.{sizes[of]}gb{added}",
            compute=compute,
            memory_mib=sizes[of] << 10,
            most=most,
            starts=starts,
            size=size,
        )
        for number, compute, added, most, starts, size, of in (_FOUR if len(sizes) == 3 else _SEVEN if sizes else ())
    )


def of(gpu: Gpu) -> tuple[Profile, ...]:
    """Return the profiles of a GPU."""
    return profiles(gpu.product, gpu.memory_mib)


def resetless(product: str) -> bool:
    """Return whether a product's MIG mode changes without a reset, and is off after a boot: from Hopper on."""
    return not any(word in product for word in ("A30", "A100", "A800"))
