"""MIG profiles of products, only for simulated machines. On real machines the node agent asks NVML instead.

Names, ids, sizes, placements and engines are those of real ``nvidia-smi mig -lgip`` and ``-lgipp`` texts and of
NVIDIA's MIG user guide. A profile's memory is computed: the memory of one slice times the profile's slices. For the
larger profiles it is a little more than NVML prints.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from dradriver.topology.machine import MigProfile


class _Form(NamedTuple):
    """One MIG profile as several GPU products have it, with different memory.

    The other fields are those of ``MigProfile``. The name of a profile also contains its memory.

    Attributes:
        slices: The beginning of its name, before the memory: ``1g``.
        extension: The end of its name: ``+me``.
        engines: The number of engines of each type, in the order of ``mig_limits.ENGINES``.
    """

    id: int
    slices: str
    compute: int
    most: int
    starts: tuple[int, ...]
    size: int
    engines: tuple[int, ...]
    extension: str = ""


_AMPERE: Final = (
    _Form(19, "1g", 1, 7, (0, 1, 2, 3, 4, 5, 6), 1, (1, 0, 0, 0, 0)),
    _Form(20, "1g", 1, 1, (0, 1, 2, 3, 4, 5, 6), 1, (1, 1, 0, 1, 1), "+me"),
    _Form(15, "1g", 1, 4, (0, 2, 4, 6), 2, (1, 1, 0, 0, 0)),
    _Form(14, "2g", 2, 3, (0, 2, 4), 2, (2, 1, 0, 0, 0)),
    _Form(9, "3g", 3, 2, (0, 4), 4, (3, 2, 0, 0, 0)),
    _Form(5, "4g", 4, 1, (0,), 4, (4, 2, 0, 0, 0)),
    _Form(0, "7g", 7, 1, (0,), 8, (7, 5, 0, 1, 1)),
)
_HOPPER: Final = tuple(
    form._replace(engines=engines)
    for form, engines in zip(
        _AMPERE,
        (
            (1, 1, 0, 1, 0), (1, 1, 0, 1, 1), (1, 1, 0, 1, 0), (2, 2, 0, 2, 0), (3, 3, 0, 3, 0), (4, 4, 0, 4, 0),
            (8, 7, 0, 7, 1),
        ),
        strict=True,
    )
)  # fmt: skip
_BLACKWELL: Final = tuple(  # one decoder and one JPEG engine in every profile, whatever its size
    form._replace(engines=(copy, 1, 0, 1, ofa))
    for form, copy, ofa in zip(_AMPERE, (2, 2, 2, 3, 6, 8, 16), (0, 1, 0, 0, 0, 0, 1), strict=True)
)
_FOUR: Final = (
    _Form(14, "1g", 1, 4, (0, 1, 2, 3), 1, (1, 0, 0, 0, 0)),
    _Form(21, "1g", 1, 1, (0, 1, 2, 3), 1, (1, 1, 0, 1, 1), "+me"),
    _Form(5, "2g", 2, 2, (0, 2), 2, (2, 2, 0, 0, 0)),
    _Form(6, "2g", 2, 1, (0, 2), 2, (2, 2, 0, 1, 1), "+me"),
    _Form(0, "4g", 4, 1, (0,), 4, (4, 4, 0, 1, 1)),
)
_GRAPHICS: Final = (
    _Form(14, "1g", 1, 4, (0, 1, 2, 3), 1, (1, 1, 1, 1, 0)),
    _Form(21, "1g", 1, 1, (0, 1, 2, 3), 1, (1, 1, 1, 1, 1), "+me"),
    _Form(47, "1g", 1, 4, (0, 1, 2, 3), 1, (1, 1, 1, 1, 0), "+gfx"),
    _Form(65, "1g", 1, 1, (0, 1, 2, 3), 1, (1, 4, 4, 4, 1), "+me.all"),
    _Form(67, "1g", 1, 4, (0, 1, 2, 3), 1, (1, 0, 0, 0, 0), "-me"),
    _Form(5, "2g", 2, 2, (0, 2), 2, (2, 2, 2, 2, 0)),
    _Form(35, "2g", 2, 2, (0, 2), 2, (2, 2, 2, 2, 0), "+gfx"),
    _Form(64, "2g", 2, 1, (0, 2), 2, (2, 4, 4, 4, 1), "+me.all"),
    _Form(66, "2g", 2, 2, (0, 2), 2, (2, 0, 0, 0, 0), "-me"),
    _Form(0, "4g", 4, 1, (0,), 4, (4, 4, 4, 4, 1)),
    _Form(32, "4g", 4, 1, (0,), 4, (4, 4, 4, 4, 1), "+gfx"),
)
_PRODUCTS: Final = {  # form, GB in the name by memory slices, MiB of one slice
    "NVIDIA A30": (_FOUR, {1: 6, 2: 12, 4: 24}, 5836),
    "NVIDIA A100-SXM4-40GB": (_AMPERE, {1: 5, 2: 10, 4: 20, 8: 40}, 4864),
    "NVIDIA A100-SXM4-80GB": (_AMPERE, {1: 10, 2: 20, 4: 40, 8: 80}, 9728),
    "NVIDIA A100 80GB PCIe": (_AMPERE, {1: 10, 2: 20, 4: 40, 8: 80}, 9728),
    "NVIDIA H100 80GB HBM3": (_HOPPER, {1: 10, 2: 20, 4: 40, 8: 80}, 9984),
    "NVIDIA H100 PCIe": (_HOPPER, {1: 10, 2: 20, 4: 40, 8: 80}, 9984),
    "NVIDIA H100 NVL": (_HOPPER, {1: 12, 2: 24, 4: 47, 8: 94}, 11776),
    "NVIDIA H800": (_HOPPER, {1: 10, 2: 20, 4: 40, 8: 80}, 9984),
    "NVIDIA H200": (_HOPPER, {1: 18, 2: 35, 4: 71, 8: 141}, 16384),
    "NVIDIA B200": (_BLACKWELL, {1: 23, 2: 45, 4: 90, 8: 180}, 22528),
    "NVIDIA GB200": (_BLACKWELL, {1: 24, 2: 47, 4: 93, 8: 186}, 23296),
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": (_GRAPHICS, {1: 24, 2: 48, 4: 96}, 24192),
}


def profiles(product: str) -> tuple[MigProfile, ...]:
    """Return the MIG profiles that a GPU of this product has in a simulation.

    The result is empty if the product does not have MIG.
    """
    if product not in _PRODUCTS:
        return ()
    forms, gb, slice_mib = _PRODUCTS[product]
    return tuple(
        MigProfile(
            id=form.id,
            name=f"{form.slices}.{gb[form.size]}gb{form.extension}",
            compute=form.compute,
            memory_mib=form.size * slice_mib,
            most=form.most,
            starts=form.starts,
            size=form.size,
            engines=form.engines,
        )
        for form in forms
    )
