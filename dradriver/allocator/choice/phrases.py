"""Texts for people about a request for whole GPUs, and about requests that a machine can never meet."""

from __future__ import annotations

from collections import Counter
from typing import Final

from dradriver.allocator.request import NEAR_REQUIRED, Level, Request, Whole
from dradriver.counted import counted
from dradriver.topology.machine import Machine
from dradriver.topology.vendors import NVIDIA, VENDORS, Vendor

SEVERAL_RINGS: Final = (
    "busbw is above the rate of one ring's link: NCCL uses several rings at once, or NVSwitch reduces (NVLS)"
)
"""To be said where the predicted bus bandwidth of a set is above the line rate of the slowest step of its ring."""

_SMI: Final = "in nvidia-smi topo -m"
_LEVELS: Final = {  # docs/reference/glossary.md has the same table
    Level.NVLINK: "direct links such as NVLink, or their switch",
    Level.PCIE_SWITCH: f"one PCIe switch (PIX {_SMI})",
    Level.PCIE_ROOT: f"several PCIe switches, or the PCIe host bridge of a CPU (PXB, PHB {_SMI})",
    Level.NUMA: f"several host bridges of one NUMA node (NODE {_SMI})",
    Level.NODE: f"the link between NUMA nodes (SYS {_SMI})",
}


def level_in_words(level: str) -> str:
    """Return a ``Level`` with its meaning: ``node: the link between NUMA nodes (SYS in nvidia-smi topo -m)``."""
    return f"{level}: {_LEVELS[Level(level)]}"


def wanted(request: Whole) -> str:
    """Return as text what a request requires: ``4 GPUs with nvlink and at least 100 GB/s of bus bandwidth``."""
    kind, properties = wanted_gpus(request), wanted_set(request)
    gpus = counted(request.gpus, "GPU")
    return gpus + (f" {kind}" if kind else "") + (f" with {properties}" if properties else "")


def nodes_within(level: str, nodes: int) -> str:
    """Return as text how many nodes a gang uses, and the network level that has all of them: ``2 nodes of one leaf``.

    For a single node, the text has no level: ``1 node``.
    """
    return counted(nodes, "node") + (f" of one {level}" if nodes > 1 else "")


def wanted_set(request: Whole) -> str:
    """Return as text what the requested set of GPUs must be: ``nvlink and same-numa``.

    The text is empty if the request accepts any set.
    """
    parts = [constraint.value for constraint in dict.fromkeys(request.required)]
    if request.min_bandwidth_gbps:
        link = VENDORS[request.vendor].link
        parts.append(f"at least {request.min_bandwidth_gbps:g} GB/s over {link} between neighbours of the ring")
    if request.min_busbw_gbps:
        parts.append(f"at least {request.min_busbw_gbps:g} GB/s of bus bandwidth")
    if request.max_cross_nvswitch_gpus is not None:
        parts.append(f"at most {counted(request.max_cross_nvswitch_gpus, 'GPU')} outside one NVLink domain")
    if request.include:
        parts.append(f"GPU {', '.join(map(str, request.include))} among them")
    if request.near_nic == NEAR_REQUIRED:
        parts.append("a NIC near each GPU")
    return " and ".join(parts)


def wanted_gpus(request: Request) -> str:
    """Return as text which GPUs a request accepts: ``of product NVIDIA A100*``.

    The text is empty if the request accepts any GPU.
    """
    parts = []
    if request.vendor != NVIDIA.word:
        parts.append(f"of {request.vendor}")
    if request.product:
        parts.append(f"of product {request.product}")
    if request.architecture:
        parts.append(f"of architecture {request.architecture}")
    if request.min_memory_mib:
        parts.append(f"of at least {request.min_memory_mib} MiB")
    versions = [f"driver {request.min_driver}"] * bool(request.min_driver)
    versions += [f"CUDA {request.min_cuda}"] * bool(request.min_cuda)
    if versions:
        parts.append(f"on {' and '.join(versions)} or later")
    if isinstance(request, Whole) and request.exclude:
        parts.append(f"other than {', '.join(map(str, request.exclude))}")
    return " ".join(parts)


def no_figure(vendor: Vendor, request: Whole) -> str:
    """Return as text that the required bandwidth is not known for this vendor.

    There are two cases: the bus bandwidth cannot be predicted, or the rate of a link is not published. The text is
    empty in all other cases, and for a single GPU.
    """
    instead = "min-bandwidth" if vendor.rated else "required: linked"
    if request.gpus < 2:
        return ""
    if request.min_busbw_gbps and not vendor.predicted:
        return f"the bus bandwidth of {vendor.link} cannot be predicted. Write {instead} instead of min-busbw"
    if request.min_bandwidth_gbps and not vendor.rated:
        return f"the rate of a link of {vendor.link} is not published. Write {instead} instead of min-bandwidth"
    return ""


def wrong_count(machine: Machine, gpus: int) -> str:
    """Return as text why no pod can have this number of GPUs of the machine, even if all are free.

    The text is empty if a pod can have that many.
    """
    if machine.blocks is None or gpus in machine.blocks.counts:
        return ""
    return counts(machine)


def counts(machine: Machine) -> str:
    """Return as text how many GPUs of the machine a pod may have.

    The text is empty if any number is possible.
    """
    if machine.blocks is None or not machine.blocks.counts:
        return ""
    *some, last = map(str, machine.blocks.counts)
    allowed = f"{', '.join(some)} or {last}" if some else last
    return f"a pod gets {allowed} GPUs of {machine.product}"


def together(machine: Machine) -> str:
    """Return as text which GPUs of the machine one pod may have together.

    The text is empty if any combination is possible.
    """
    if machine.blocks is None:
        return ""
    size = max(Counter(machine.blocks.of).values())
    if machine.blocks.whole:
        return f"a pod gets more than one GPU of {machine.product} in whole blocks of {size}"
    return (
        f"a pod gets up to {size} GPUs of {machine.product} from one block, and more in equal numbers from each block"
    )
