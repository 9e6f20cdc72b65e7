"""What cannot be had of a vendor's GPUs: words that say so of another's than NVIDIA's are refused, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dradriver.allocator.request import Request, Whole
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.topology.ascend import ascend_products
from dradriver.topology.vendors import ASCEND, NVIDIA, VENDORS, Vendor

_LESS: Final = "shares and MIG slices are of NVIDIA's GPUs alone"


def check(fields: Mapping[str, Any], *, parts: bool) -> None:
    """Raise an error if a pod's words request something that the vendor's GPUs do not have.

    Args:
        fields: The fields of a request.
        parts: Whether the request is for fractions of GPUs.

    Raises:
        WordError: With the reason, and what to write instead.
    """
    vendor = VENDORS[fields.get("vendor", NVIDIA.word)]
    if vendor is NVIDIA:
        return
    if parts and not vendor.parts:
        raise WordError(f"{names.VENDOR}: {vendor.word}: {_LESS}; write a limit {vendor.resources[0]}, for whole ones")
    if fields.get("min_busbw_gbps"):
        raise WordError(f"{names.MIN_BUSBW}: {unpredicted(vendor)}")
    if fields.get("min_bandwidth_gbps") and not vendor.rated:
        raise WordError(
            f"{names.MIN_BANDWIDTH}: what a link of {vendor.link} carries is not published, so no figure can be kept: "
            f"write {names.REQUIRED}: linked"
        )
    if fields.get("min_cuda"):
        raise WordError(f"{names.MIN_CUDA}: there is no CUDA on GPUs of {vendor.word}: write {names.MIN_DRIVER}")
    if fields.get("max_cross_nvswitch_gpus") is not None:
        raise WordError(
            f"{names.MAX_CROSS_NVSWITCH}: there is no NVSwitch between GPUs of {vendor.word}: write {names.REQUIRED}: "
            f"linked"
        )


def count_warning(request: Request) -> str:
    """Return a warning for a count of GPUs that the vendor's machines of the product never give; empty if they may.

    It is a warning and no refusal: the rule is that of a product's usual machine.
    """
    if not isinstance(request, Whole) or request.vendor != ASCEND.word:
        return ""
    counts = ascend_products.counts(request.product.removeprefix("*"))
    if not counts or request.gpus in counts:
        return ""
    *some, last = map(str, counts)
    return (
        f"{request.gpus} of product {request.product!r}: such a machine gives a pod {', '.join(some)} or {last}, and "
        f"this one waits until there is a machine that gives others: write one of these"
    )


def unpredicted(vendor: Vendor) -> str:
    """Return why no bus bandwidth can be asked for of the vendor's GPUs, and what to write instead."""
    cure = f"write {names.MIN_BANDWIDTH}" if vendor.rated else f"write {names.REQUIRED}: linked"
    return f"the bandwidth that {vendor.library} reaches over {vendor.link} cannot be predicted: {cure}"
