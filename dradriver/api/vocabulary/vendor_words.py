"""Which properties a vendor's GPUs do not support: annotations that request them are refused, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dradriver.allocator.request import Request, Whole
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.topology.ascend import ascend_products
from dradriver.topology.vendors import ASCEND, NVIDIA, VENDORS, Vendor

_LESS: Final = "only NVIDIA's GPUs have shares and MIG slices"


def check(fields: Mapping[str, Any], *, parts: bool) -> None:
    """Raise an error if a pod's annotations request a property that the vendor's GPUs do not have.

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
        raise WordError(
            f"{names.VENDOR}: {vendor.word}: {_LESS}. Write the limit {vendor.resources[0]} to request whole GPUs."
        )
    if fields.get("min_busbw_gbps"):
        raise WordError(f"{names.MIN_BUSBW}: {unpredicted(vendor)}")
    if fields.get("min_bandwidth_gbps") and not vendor.rated:
        raise WordError(
            f"{names.MIN_BANDWIDTH}: the bandwidth of {vendor.link} links is not published, so the driver cannot "
            f"guarantee a figure. Write {names.REQUIRED}: linked."
        )
    if fields.get("min_cuda"):
        raise WordError(f"{names.MIN_CUDA}: GPUs of {vendor.word} have no CUDA. Write {names.MIN_DRIVER}.")
    if fields.get("max_cross_nvswitch_gpus") is not None:
        raise WordError(
            f"{names.MAX_CROSS_NVSWITCH}: GPUs of {vendor.word} have no NVSwitch. Write {names.REQUIRED}: linked."
        )


def count_warning(request: Request) -> str:
    """Return a warning if no usual machine gives one pod the requested number of GPUs.

    The result is empty if a usual machine of the GPUs' vendor can. The number is not refused, because some machines of
    the vendor may allow other numbers.
    """
    if not isinstance(request, Whole) or request.vendor != ASCEND.word:
        return ""
    counts = ascend_products.counts(request.product.removeprefix("*"))
    if not counts or request.gpus in counts:
        return ""
    *some, last = map(str, counts)
    return (
        f"The pod requests {request.gpus} GPUs of product {request.product!r}. The usual machine with this product "
        f"gives a pod {', '.join(some)} or {last} GPUs. Write one of these numbers, or the pod waits for another kind "
        f"of machine."
    )


def unpredicted(vendor: Vendor) -> str:
    """Return why no bus bandwidth can be requested of this vendor's GPUs, and what to write instead.

    The driver has no model that predicts it for them.
    """
    cure = f"Write {names.MIN_BANDWIDTH}." if vendor.rated else f"Write {names.REQUIRED}: linked."
    return f"the driver cannot predict the bandwidth that {vendor.library} reaches over {vendor.link}. {cure}"
