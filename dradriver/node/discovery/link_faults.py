"""Faults of links: links that a GPU should have and does not have, and links that cannot be used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from dradriver.node.faults import Fault
from dradriver.topology.machine import Machine


class Linked(msgspec.Struct, frozen=True):
    """A GPU's links that are up.

    Attributes:
        uuid: Whose.
        product: Siblings are of one product.
        links: How many, to GPUs and switches.
        switched: Whether some end in a switch.
    """

    uuid: str
    product: str
    links: int
    switched: bool


def of_machine(machine: Machine) -> list[Linked]:
    """Return each GPU's links that are up, by the machine's matrix alone."""
    linked = []
    for i, gpu in enumerate(machine.gpus):
        switch = [min(gpu.switch_links, other.switch_links) for other in machine.gpus]
        direct = sum(machine.links[i][j] - switch[j] for j in range(len(machine.gpus)) if j != i)
        linked.append(Linked(gpu.uuid, gpu.product, max(direct, 0) + gpu.switch_links, bool(gpu.switch_links)))
    return linked


def lost(gpus: Iterable[Linked], *, whole: bool = True) -> dict[str, tuple[Fault, ...]]:
    """Return the link fault of each GPU that has fewer links than a sibling, by uuid.

    - A GPU without links has no NVLink bridge, which is no fault. But switches reach every GPU: if its siblings are on
      switches, it has a fault.
    - A GPU that is missing (lost, dead since the start, or given to a virtual machine) takes the direct links of its
      neighbours with it. These neighbours are healthy. Perhaps it is not known that a GPU is missing. So if no more
      direct links are missing in all than one GPU has, they may be the links to a missing GPU.

    Args:
        gpus: GPUs that are used whole. A GPU in MIG mode has no peers.
        whole: Whether no GPU of the server is known to be missing.
    """
    # Direct links to a GPU that is missing are no fault; links to switches are.
    gpus = [gpu for gpu in gpus if whole or gpu.switched]

    # By product: the most links that a GPU has, whether some hang on switches, and the direct links missing in all.
    best = {gpu.product: max(other.links for other in gpus if other.product == gpu.product) for gpu in gpus}
    switched = {gpu.product for gpu in gpus if gpu.switched}
    missing: Counter[str] = Counter()
    for gpu in gpus:
        if gpu.links and not gpu.switched:
            missing[gpu.product] += best[gpu.product] - gpu.links
    return {
        gpu.uuid: (Fault("nvlink", "lost", f"{gpu.links} of {best[gpu.product]} NVLinks are up"),)
        for gpu in gpus
        if gpu.links < best[gpu.product]
        and (gpu.product in switched or (gpu.links and missing[gpu.product] < best[gpu.product]))
    }


def refused(machine: Machine, kept_off: Mapping[int, tuple[int, ...]]) -> dict[str, tuple[Fault, ...]]:
    """Return the link fault of each GPU without peer access to others, by uuid.

    Args:
        machine: The machine.
        kept_off: As ``peer_access.fewest`` returns it.
    """
    return {
        machine.gpus[i].uuid: (Fault("nvlink", "refused", _refused(machine, others)),) for i, others in kept_off.items()
    }


def _refused(machine: Machine, others: tuple[int, ...]) -> str:
    named = ", ".join(f"GPU {machine.gpus[j].uuid}" for j in others)  # numbers here are the driver's, no slots
    return f"its NVLinks are up, but peer access to {named} is refused: NCCL ends with an error if a job has both"
