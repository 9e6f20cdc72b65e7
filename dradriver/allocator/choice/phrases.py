"""What a request asks for, in words for people."""

from __future__ import annotations

from dradriver.allocator.request import NEAR_REQUIRED, Request, Whole
from dradriver.topology.vendors import Vendor


def wanted(request: Whole) -> str:
    """``4 GPUs with nvlink and at least 100 GB/s of bus bandwidth``: all that is required."""
    kind, properties = wanted_gpus(request), wanted_set(request)
    gpus = f"{request.gpus} GPU{'s' if request.gpus > 1 else ''}"
    return gpus + (f" {kind}" if kind else "") + (f" with {properties}" if properties else "")


def wanted_set(request: Whole) -> str:
    """``nvlink and same-numa``: what the set must be; empty for any."""
    parts = [constraint.value for constraint in dict.fromkeys(request.required)]
    if request.min_bandwidth_gbps:
        parts.append(f"at least {request.min_bandwidth_gbps:g} GB/s over NVLink between neighbours of the ring")
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


def unpredicted(vendor: Vendor) -> str:
    """Why a wish for predicted bandwidth has no place there."""
    return f"the bus bandwidth of {vendor.link} cannot be predicted: write min-bandwidth in place of min-busbw"
