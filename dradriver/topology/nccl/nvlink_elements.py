"""Link counts from the ``<nvlink>`` elements of an NCCL topology file, or the ``<xgmi>`` elements of RCCL's."""

from __future__ import annotations

from collections.abc import Sequence

from dradriver.topology.identifiers import short_bus_id
from dradriver.topology.nccl.device_tree import Leaf, error, number

MOST_LINKS = 18  # that NCCL looks for on any GPU (xml.cc), and the most that there are
SWITCH_CLASS = "0x068000"
_CPU_CLASS = "0x068001"  # POWER


def link_counts(gpus: Sequence[Leaf]) -> tuple[list[list[int]], list[int]]:
    """Return how many links each pair of GPUs has, and how many each GPU has to switches.

    The counts are those of the ``<nvlink>`` elements. A target of class 0x068000 is a switch. A target without a class
    is also taken for a switch if it is not a GPU of the file, as NCCL does. Links to a GPU that is not in the file are
    dropped, as in NCCL. So are links of a GPU to itself, which virtual machines show for a bridge whose other end is
    hidden.

    Raises:
        TopologyError: A link lacks its target, its count is missing or invalid, or the other side has another number of
            links.
    """
    # By pair of positions the links between two GPUs, by position the links to switches, and by pair one element, for
    # messages.
    position = {leaf.busid: i for i, leaf in enumerate(gpus)}
    direct = [[0] * len(gpus) for _ in gpus]
    switched = [0] * len(gpus)
    link_of_pair = {}
    for i, leaf in enumerate(gpus):
        for link in leaf.gpu.children if leaf.gpu else ():
            if link.name not in ("nvlink", "xgmi"):
                continue
            count = number(link, "count", MOST_LINKS)
            if count is None or not link.get("target"):
                raise error(link, None, f"a link (<{link.name}>) needs target, a bus id, and count, a number of links")
            target = short_bus_id(link.get("target") or "")
            target_class = link.get("tclass") or ""
            # A GPU of the file, else a switch, else a GPU (PCI class 03) or CPU to be dropped.
            if target in position:
                if position[target] != i:
                    direct[i][position[target]] += count
                    link_of_pair[i, position[target]] = link
            elif not target_class.startswith("0x03") and target_class != _CPU_CLASS:
                switched[i] += count
    for (i, j), link in link_of_pair.items():
        if direct[i][j] != direct[j][i]:
            raise error(link, "count", f"{direct[i][j]} links from {gpus[i].busid} to {gpus[j].busid}, but "
                f"{direct[j][i]} back. Write the same number on both sides.")  # fmt: skip

    # Far more than any GPU has is nonsense. The bound leaves room for GPUs of the future.
    most_switched = max(switched)
    if most_switched > 4 * MOST_LINKS:
        raise error(
            gpus[0].pci, None, f"one GPU has {most_switched} links to switches, and at most {MOST_LINKS} are possible."
        )
    return direct, switched
