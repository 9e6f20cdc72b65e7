"""What a request asks for, in words for people."""

from __future__ import annotations

from collections import Counter

from dradriver.allocator.request import NEAR_REQUIRED, Request, Whole
from dradriver.topology.machine import Machine
from dradriver.topology.vendors import NVIDIA, VENDORS, Vendor


def wanted(request: Whole) -> str:
    """``4 GPUs with nvlink and at least 100 GB/s of bus bandwidth``: all that is required."""
    kind, properties = wanted_gpus(request), wanted_set(request)
    gpus = f"{request.gpus} GPU{'s' if request.gpus > 1 else ''}"
    return gpus + (f" {kind}" if kind else "") + (f" with {properties}" if properties else "")


def wanted_set(request: Whole) -> str:
    """``nvlink and same-numa``: what the set must be; empty for any."""
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
    """``of product NVIDIA A100*``: which kinds of GPU; empty for any."""
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
    """Why a wish for bandwidth has no place with a vendor of whose GPUs no such figure is known; else empty."""
    instead = "min-bandwidth" if vendor.rated else "required: linked"
    if request.gpus < 2:
        return ""
    if request.min_busbw_gbps and not vendor.predicted:
        return f"the bus bandwidth of {vendor.link} cannot be predicted: write {instead} in place of min-busbw"
    if request.min_bandwidth_gbps and not vendor.rated:
        return f"what a link of {vendor.link} carries is not published: write {instead} in place of min-bandwidth"
    return ""


def wrong_count(machine: Machine, gpus: int) -> str:
    """Why no pod has so many GPUs of the machine, whatever is free; empty where one may."""
    if machine.blocks is None or gpus in machine.blocks.counts:
        return ""
    return counts(machine)


def counts(machine: Machine) -> str:
    """How many GPUs of the machine a pod may have; empty where that is any number."""
    if machine.blocks is None or not machine.blocks.counts:
        return ""
    *some, last = map(str, machine.blocks.counts)
    allowed = f"{', '.join(some)} or {last}" if some else last
    return f"of {machine.product} a pod has {allowed}"


def together(machine: Machine) -> str:
    """Which GPUs of the machine may be had together; empty where any may."""
    if machine.blocks is None:
        return ""
    size = max(Counter(machine.blocks.of).values())
    rule = f"several are of whole blocks of {size}"
    if not machine.blocks.whole:
        rule = f"up to {size} are of one block, more are as many of each"
    return f"of {machine.product} {rule}"
