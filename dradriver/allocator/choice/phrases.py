"""Phrases for people about a request for whole GPUs, and about what a machine can never give it."""

from __future__ import annotations

from collections import Counter

from dradriver.allocator.request import NEAR_REQUIRED, Request, Whole
from dradriver.counted import counted
from dradriver.topology.machine import Machine
from dradriver.topology.vendors import NVIDIA, VENDORS, Vendor


def wanted(request: Whole) -> str:
    """Return the phrase for what a request requires: ``4 GPUs with nvlink and at least 100 GB/s of bus bandwidth``."""
    kind, properties = wanted_gpus(request), wanted_set(request)
    gpus = counted(request.gpus, "GPU")
    return gpus + (f" {kind}" if kind else "") + (f" with {properties}" if properties else "")


def wanted_set(request: Whole) -> str:
    """Return the phrase for what a requested set must be: ``nvlink and same-numa``; empty for any."""
    parts = [constraint.value for constraint in dict.fromkeys(request.required)]
    if request.min_bandwidth_gbps:
        link = VENDORS[request.vendor].link
        parts.append(f"at least {request.min_bandwidth_gbps:g} GB/s over {link} between neighbours of the ring")
    if request.min_busbw_gbps:
        parts.append(f"at least {request.min_busbw_gbps:g} GB/s of bus bandwidth")
    if request.max_cross_nvswitch_gpus is not None:
        parts.append(f"at most {request.max_cross_nvswitch_gpus} outside one NVLink domain")
    if request.include:
        parts.append(f"GPU {', '.join(map(str, request.include))} among them")
    if request.near_nic == NEAR_REQUIRED:
        parts.append("a NIC near each GPU")
    return " and ".join(parts)


def wanted_gpus(request: Request) -> str:
    """Return the phrase for which GPUs a request accepts: ``of product NVIDIA A100*``; empty for any."""
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
        parts.append(f"under {' and '.join(versions)} or later")
    if isinstance(request, Whole) and request.exclude:
        parts.append(f"other than {', '.join(map(str, request.exclude))}")
    return " ".join(parts)


def no_figure(vendor: Vendor, request: Whole) -> str:
    """Return the phrase for why a vendor without predicted bandwidths can meet no request for bandwidth; else empty."""
    instead = "min-bandwidth" if vendor.rated else "required: linked"
    if request.gpus < 2:
        return ""
    if request.min_busbw_gbps and not vendor.predicted:
        return f"the bus bandwidth of {vendor.link} cannot be predicted: write {instead} in place of min-busbw"
    if request.min_bandwidth_gbps and not vendor.rated:
        return f"what a link of {vendor.link} carries is not published: write {instead} in place of min-bandwidth"
    return ""


def wrong_count(machine: Machine, gpus: int) -> str:
    """Return the phrase for why no pod can have so many GPUs of the machine, even if all are free; else empty."""
    if machine.blocks is None or gpus in machine.blocks.counts:
        return ""
    return counts(machine)


def counts(machine: Machine) -> str:
    """Return the phrase for how many GPUs of the machine a pod may have; empty if any number is possible."""
    if machine.blocks is None or not machine.blocks.counts:
        return ""
    *some, last = map(str, machine.blocks.counts)
    allowed = f"{', '.join(some)} or {last}" if some else last
    return f"of {machine.product} a pod has {allowed}"


def together(machine: Machine) -> str:
    """Return the phrase for which GPUs of the machine one pod may have together; empty if any may."""
    if machine.blocks is None:
        return ""
    size = max(Counter(machine.blocks.of).values())
    rule = f"several are of whole blocks of {size}"
    if not machine.blocks.whole:
        rule = f"up to {size} are of one block, more are as many of each"
    return f"of {machine.product} {rule}"
