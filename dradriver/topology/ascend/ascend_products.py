"""The facts that follow from an Ascend product: the links between its chips, and which chips may be used together.

The facts are in machine profiles, with their sources. This module only chooses the profile for a machine.

A block is a group of chips that may be used together. A profile is the description of a machine in a YAML file.
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
    """A kind of Ascend machine whose links follow from the product.

    Attributes:
        products: The pattern that the chips' names in ``npu-smi info`` match, without ``Ascend`` at their beginning.
        profile: The machine profile that has the links and blocks of this kind. A block is a group of chips that may be
            used together.
        chips: The number of chips that ``npu-smi`` shows for one NPU. It is 2 if an NPU is a card or module of two
            linked chips; the machine may then have any number of NPUs. It is 1 for other kinds; the machine must then
            have exactly as many NPUs as the profile.
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
    """Return the kind of an Ascend machine, from its product and the number of chips of one NPU.

    The result is None if these two do not determine the links between the chips.
    """
    name = _BEFORE.sub("", product, count=1)
    return next((one for one in _KINDS if one.chips == chips and one.products.fullmatch(name)), None)


@functools.cache
def _counts(profile: str) -> tuple[int, ...]:
    like = profiles.load(profile).blocks
    return () if like is None else like.counts


def counts(product: str) -> tuple[int, ...]:
    """Return the numbers of chips of an Ascend product that a pod may have, ascending.

    The result is empty for products without one rule for all machines. The 910B is an example: some of its machines
    have a rule, others have none.
    """
    name = _BEFORE.sub("", product, count=1)
    if name in ("910A", "910C"):
        return _counts("ascend-910a-x8" if name == "910A" else "ascend-a3-x16")
    return ()


def paired(of: Sequence[int], profile: str) -> tuple[tuple[tuple[int, ...], ...], Blocks | None]:
    """Return the links and blocks of a machine whose Ascend chips are linked in pairs.

    A block is a group of chips that may be used together.

    Args:
        of: For each chip, the number of its pair.
        profile: The machine profile that has the number of links within a pair and between pairs, and the rule for
            blocks.
    """
    within, between = profiles.load(profile).links[0][1:3]
    g = range(len(of))
    links = tuple(tuple(0 if i == j else within if of[i] == of[j] else between for j in g) for i in g)
    return links, _blocks_as(profile, of)


def blocks(links: Sequence[Sequence[int]], product: str = "") -> Blocks | None:
    """Return which Ascend chips may be used together, from their links and product.

    The result is None if it is not known. The rules, in this order:

    * If there are SIO links, the machine is an A3, because no other product has them. They join the two chips of a
      module.
    * Sixteen chips in two groups of eight are a Box16, if ``product`` is a 910B or empty. Links of this form are known
      from no other machine.
    * Eight chips in two groups of four are 910As only if ``product`` says so. Several products have this form.

    Args:
        links: GPUs x GPUs, the number of direct links of each pair.
        product: The chips' product name; empty if it is not known.
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
    """Return the blocks of a machine's chips, with a profile's rules about which sets of chips a pod may get.

    A block is a group of chips that may be used together. The result is None if the profile has no blocks.

    Args:
        profile: The profile's name.
        of: For each chip a number, which is the same for all chips of one block.
    """
    like = profiles.load(profile).blocks
    names = sorted(set(of))
    return None if like is None else msgspec.structs.replace(like, of=tuple(map(names.index, of)))
