"""Reads the table of ``npu-smi info``: its chips and, if the links follow from the product, a ``Machine``.

An NPU has a line with its number, name and health. The next line is about a chip. It has the chip's bus id, and the use
of each memory. If an NPU has several chips, the line also has the number of the chip's device (``Phy-ID`` of an A3,
``Device`` of an Atlas 300I Duo), and the two lines appear once for each chip. A table of processes follows.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from dradriver.topology import profiles
from dradriver.topology.ascend import ascend_products
from dradriver.topology.check import check
from dradriver.topology.errors import TopologyError
from dradriver.topology.identifiers import is_bus_id
from dradriver.topology.machine import Blocks, Gpu, Machine, PathType
from dradriver.topology.synthetic import synthetic_uuid
from dradriver.topology.topo_m import inferred_topology
from dradriver.topology.vendors import ASCEND

MARK: Final = re.compile(r"^[ \t]*\|\s*NPU\s+Name\s*\|", re.MULTILINE)
_NAME: Final = re.compile(r"\|\s*([0-9]{1,4})\s+([0-9A-Za-z_-]{1,32})\s*\|[^|]*\|.*")
_CHIP: Final = re.compile(r"\|\s*[0-9]{1,4}(?:\s+([0-9]{1,4}))?\s*\|\s*([0-9A-Fa-f]{4}:[0-9A-Fa-f:.]{7}|NA)\s*\|(.*)")
_USED: Final = re.compile(r"/\s*([0-9]{1,9})\b")
_MOST: Final = 256
_INSTEAD: Final = (
    "Write the text of npu-smi info -t topo, with or without this text. If that command does not exist, use a "
    "profile (gputopo topo --list), or write your own."
)


class Chip(msgspec.Struct, frozen=True):
    """One chip of an Ascend NPU. An NPU is a card or module, and can have two chips.

    Attributes:
        index: The number of its device (``Phy-ID`` or ``Device``); the NPU's number if the text has none.
        npu: The number of its NPU.
        product: ``Ascend 910B3``.
        pci: Its bus id; empty if two chips share one, as on an Atlas 300I Duo.
        memory_mib: The largest of its memories, MiB.
        line: Its line in the text.
    """

    index: int
    npu: int
    product: str
    pci: str
    memory_mib: int
    line: int


def chips(text: str) -> tuple[Chip, ...]:
    """Return the chips in the table of ``npu-smi info``; none without a table."""
    found: list[Chip] = []
    npu, product = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if (chip := _CHIP.fullmatch(line.strip())) is None:
            if (named := _NAME.fullmatch(line.strip())) is not None:
                npu, product = int(named[1]), named[2]
        elif product:
            found.append(
                Chip(
                    index=int(chip[1] or npu),
                    npu=npu,
                    product=product if product.startswith("Ascend") else f"Ascend {product}",
                    pci=chip[2].lower(),
                    memory_mib=max(map(int, _USED.findall(chip[3])), default=0),
                    line=number,
                )
            )
    seen = Counter(chip.pci for chip in found)
    return tuple(
        chip if seen[chip.pci] == 1 and is_bus_id(chip.pci) else msgspec.structs.replace(chip, pci="") for chip in found
    )


def with_table(machine: Machine, text: str) -> Machine:
    """Return the machine with the bus ids, product and memory that a text of ``npu-smi info`` has.

    A text without this table changes nothing.
    """
    known = {chip.index: chip for chip in chips(text)}
    gpus = (
        msgspec.structs.replace(gpu, pci=chip.pci, product=chip.product, memory_mib=chip.memory_mib)
        if (chip := known.get(gpu.index)) is not None
        else gpu
        for gpu in machine.gpus
    )
    return msgspec.structs.replace(machine, gpus=tuple(gpus))


def read(text: str, *, name: str = "", seed: str = "") -> Machine:
    """Return the machine from the table of ``npu-smi info`` alone.

    That is possible only if all machines with this product have the same links. Links, and which chips may be used
    together (blocks), are taken from the profile of these machines. NUMA nodes are not known, and so neither are the
    PCIe paths.

    Args:
        text: The whole output of ``npu-smi info``.
        name: The machine's name.
        seed: A text that gives machines of the same name different uuids.

    Raises:
        TopologyError: With the line and what to give instead: no chip, a chip twice, two products, or a product or
            number of chips whose links are not known.
    """
    all_chips = sorted(chips(text), key=lambda chip: chip.index)
    if not 0 < len(all_chips) <= _MOST:
        raise _error(
            1, f"the table has {len(all_chips)} chips. Write the whole output of npu-smi info, with 1 to {_MOST} chips."
        )
    for before, chip in itertools.pairwise(all_chips):
        if chip.index == before.index:
            raise _error(
                chip.line,
                f"device {chip.index} is in the table twice. Write the output of npu-smi info of one machine.",
            )
        if chip.product != before.product:
            raise _error(chip.line, f"the table has {chip.product} and {before.product}. {_INSTEAD}")

    # ``blocks``: which NPUs may be used together. The profile describes a machine of the same product.
    links, blocks, profile = _links_and_blocks(all_chips)
    return check(
        Machine(
            name=name,
            gpus=tuple(
                Gpu(
                    index=chip.index,
                    uuid=synthetic_uuid(name, chip.index, seed=seed),
                    minor=chip.index,
                    pci=chip.pci,
                    product=chip.product,
                    memory_mib=chip.memory_mib,
                    pcie_gbps=profile.gpus[0].pcie_gbps,
                    vendor=ASCEND.word,
                )
                for chip in all_chips
            ),
            links=links,
            # Nothing is known of any path: all are SYS.
            paths=inferred_topology.paths(
                [[PathType.SELF if a is b else None for b in all_chips] for a in all_chips], (), [None] * len(all_chips)
            ),
            blocks=blocks,
        )
    )


def _links_and_blocks(every: Sequence[Chip]) -> tuple[tuple[tuple[int, ...], ...], Blocks | None, Machine]:
    """Return the links and blocks of chips of one product, and the profile from which they were taken.

    A block is a group of chips that may be used together. ``every`` are the machine's chips.
    """
    product, npus = every[0].product, [chip.npu for chip in every]
    each = set(Counter(npus).values())
    kind = ascend_products.kind(product, chips=each.pop()) if len(each) == 1 else None
    if kind is None:
        raise _error(every[0].line, f"the links of {len(every)} x {product} are not known from the product. {_INSTEAD}")
    like = profiles.load(kind.profile)
    if kind.chips > 1:
        return *ascend_products.paired(npus, kind.profile), like
    if [chip.index for chip in every] != [gpu.index for gpu in like.gpus]:
        raise _error(
            every[0].line,
            f"{len(every)} x {product}: the links are known from the product only if the machine has exactly NPUs "
            f"0 to {len(like.gpus) - 1}. {_INSTEAD}",
        )
    return like.links, like.blocks, like


def _error(line: int, message: str) -> TopologyError:
    return TopologyError(f"npu-smi info, line {line}: {message}")
