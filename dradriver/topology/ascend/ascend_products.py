"""What follows from an Ascend product: how its chips are linked, and which of them may be had together.

Both stand in ready profiles, with where they are from. Here stands only whose rule a machine comes under.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from dradriver.topology import profiles
from dradriver.topology.machine import Blocks
from dradriver.topology.vendors import ASCEND

PRODUCTS: Final = {  # as machines name them: PCIe GB/s
    "Ascend 910A": 24.0,
    "Ascend 910B": 24.0,
    "Ascend 910B1": 24.0,
    "Ascend 910B2": 24.0,
    "Ascend 910B2C": 24.0,
    "Ascend 910B3": 24.0,
    "Ascend 910B4": 24.0,
    "Ascend 910B4-1": 24.0,
    "Ascend 910C": 48.0,
    "Ascend 310P3": 24.0,
}
_BEFORE: Final = re.compile(r"Ascend ?")
_OF_A_910A: Final = re.compile("910(A|B|ProA|ProB|PremiumA)")  # a 910B without a number: torch_npu, NpuVariables.h
_SIO: Final = next(kind.links for kind in ASCEND.kinds if kind.cell == "SIO")
_OF_A_910B: Final = re.compile("910B([1-4].*)?")


class Kind(msgspec.Struct, frozen=True):
    """Machines of one kind, whose links follow from the product.

    Attributes:
        products: What ``npu-smi info`` calls their chips, without the ``Ascend`` that some have before it.
        profile: The profile that has their links and blocks.
        chips: Chips of one NPU, as ``npu-smi`` numbers NPUs: 2 where it is a card or a module of two, which are linked,
            and there may be any number of those; 1 where the whole machine is as the profile has it.
    """

    products: re.Pattern[str]
    profile: str
    chips: int = 1


# A 910B4 is not among those of a full mesh: it is on cards for any server, too, which are not linked (Atlas 300I A2).
# npu-smi calls a die of an A3 Ascend910.
_KINDS: Final = (
    Kind(_OF_A_910A, "ascend-910a-x8"),
    Kind(re.compile("910B[1-3]C?"), "ascend-910b-x8"),
    Kind(re.compile("910(C|_93[0-9]{2})?"), "ascend-a3-x16", chips=2),
    Kind(re.compile("310P[0-9]?"), "ascend-300i-duo-x8", chips=2),
)


def kind(product: str, chips: int) -> Kind | None:
    """Return the kind of Ascend machines with so many chips of this product; None if links do not follow."""
    name = _BEFORE.sub("", product, count=1)
    return next((one for one in _KINDS if one.chips == chips and one.products.fullmatch(name)), None)


@functools.cache
def _counts(profile: str) -> tuple[int, ...]:
    like = profiles.load(profile).blocks
    return () if like is None else like.counts


def counts(product: str) -> tuple[int, ...]:
    """Return how many chips of an Ascend product a pod may have, ascending; nothing without one rule.

    A 910B is in machines with a rule and without.
    """
    name = _BEFORE.sub("", product, count=1)
    if name in ("910A", "910C"):
        return _counts("ascend-910a-x8" if name == "910A" else "ascend-a3-x16")
    return ()


def paired(of: Sequence[int], profile: str) -> tuple[tuple[tuple[int, ...], ...], Blocks | None]:
    """Return links and blocks of Ascend chips that stand in pairs.

    Args:
        of: Per chip, which pair it is of, by any number.
        profile: The profile's name.
    """
    within, between = profiles.load(profile).links[0][1:3]
    g = range(len(of))
    links = tuple(tuple(0 if i == j else within if of[i] == of[j] else between for j in g) for i in g)
    return links, _blocks_as(profile, of)


def blocks(links: Sequence[Sequence[int]], product: str = "") -> Blocks | None:
    """Return which Ascend chips may be had together, by their links and product.

    SIO is within the modules of an A3. Sixteen in two groups of eight are a Box16: of
    the machines that say their links no other has such groups. Eight in two of four may be others', so that only
    their product tells a 910A.

    Args:
        links: g x g, as ``Machine.links``.
        product: As ``Gpu.product``; empty where nobody says it.
    """
    name = _BEFORE.sub("", product, count=1)
    g = range(len(links))
    if any(_SIO in row for row in links):
        return _blocks_as("ascend-a3-x16", [min(j for j in g if j == i or links[i][j] == _SIO) for i in g])

    # Each NPU's group, by the first NPU that it has links to. If links do not join whole groups, nothing is known.
    groups = [min(j for j in g if j == i or links[i][j]) for i in g]
    if any(bool(links[i][j]) != (groups[i] == groups[j]) for i in g for j in range(i)):
        return None
    sizes = [groups.count(group) for group in sorted(set(groups))]
    if sizes == [8, 8] and (not name or _OF_A_910B.fullmatch(name)):
        return _blocks_as("ascend-box16-x16", groups)
    if sizes == [4, 4] and _OF_A_910A.fullmatch(name):
        return _blocks_as("ascend-910a-x8", groups)
    return None


def _blocks_as(profile: str, of: Sequence[int]) -> Blocks | None:
    """Return the profile's rule for blocks that are named by any number each."""
    like = profiles.load(profile).blocks
    names = sorted(set(of))
    return None if like is None else msgspec.structs.replace(like, of=tuple(map(names.index, of)))
