"""Faults of links: links that a GPU should have and does not have, and links that cannot be used.

A GPU has peer access to another GPU if it can read and write the other GPU's memory directly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from dradriver.node.faults import Fault
from dradriver.topology.machine import Machine


class Linked(msgspec.Struct, frozen=True):
    """The number and kind of a GPU's links that are up.

    Attributes:
        uuid: The GPU's uuid.
        product: The GPU's product. GPUs of the same product are called siblings below.
        links: Number of links, to GPUs and switches.
        switched: Whether some links end in a switch.
    """

    uuid: str
    product: str
    links: int
    switched: bool


def of_machine(machine: Machine) -> list[Linked]:
    """Return each GPU's links that are up, counted in the machine's link matrix."""
    linked = []
    for i, gpu in enumerate(machine.gpus):
        switch = [min(gpu.switch_links, other.switch_links) for other in machine.gpus]
        direct = sum(machine.links[i][j] - switch[j] for j in range(len(machine.gpus)) if j != i)
        linked.append(Linked(gpu.uuid, gpu.product, max(direct, 0) + gpu.switch_links, bool(gpu.switch_links)))
    return linked


def lost(gpus: Iterable[Linked], *, whole: bool = True) -> dict[str, tuple[Fault, ...]]:
    """Return the link fault of each GPU that lost links, by uuid.

    A GPU should have as many links as the GPU of the same product that has the most. A GPU with fewer links has lost
    links, with these exceptions:

    * No link of the GPU is up, and no GPU of its product is connected to a switch. Then the GPU has no NVLink bridge,
      which is no fault. With switches it is a fault, because switches reach every GPU.
    * A GPU is missing, because it is lost, never started, or was given to a virtual machine. Its neighbours then lack
      their direct links to it, and are healthy. The agent may not know that a GPU is missing. So fewer direct links are
      a fault only if fewer links are missing in total than one GPU has.

    GPUs without a link fault are left out.

    Args:
        gpus: The GPUs that are not in MIG mode. A GPU in MIG mode has no links to others.
        whole: Whether all GPUs of the server are present, as far as is known. If False, only GPUs with links to
            switches are checked.
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
    """Return a link fault for each GPU to which other GPUs have no peer access.

    The faults are by GPU uuid. A GPU that all others can access is left out.

    Args:
        machine: The machine.
        kept_off: By the position of each GPU with the fault: the positions of the GPUs without peer access to it.
    """
    return {
        machine.gpus[i].uuid: (Fault("nvlink", "refused", _refused(machine, others)),) for i, others in kept_off.items()
    }


def _refused(machine: Machine, others: tuple[int, ...]) -> str:
    named = ", ".join(f"GPU {machine.gpus[j].uuid}" for j in others)  # numbers here are the driver's, no slots
    return f"its NVLinks are up, but peer access to {named} is refused: NCCL ends with an error if a job has both"
