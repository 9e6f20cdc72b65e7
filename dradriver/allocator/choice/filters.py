"""Which single GPUs a request would take, whatever set they are in."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from dradriver.allocator.request import Request, Whole
from dradriver.topology.machine import Gpu


def filters(request: Request) -> bool:
    """Whether the request wants only some kinds of GPU, or only some of them."""
    exclude = request.exclude if isinstance(request, Whole) else ()
    return bool(request.product or request.architecture or request.min_memory_mib or exclude)


def suits(gpu: Gpu, request: Whole) -> bool:
    """Whether the GPU is of the kind that is wanted.

    Product names are case-exact (``NVIDIA GeForce RTX 4090``): a filter that folds case finds what the device
    attribute of the same name would not. ``architecture`` is a word of our own and any case will do.
    """
    return (
        (not request.product or fnmatch.fnmatchcase(gpu.product, request.product))
        and (not request.architecture or gpu.architecture.lower() == request.architecture.lower())
        and gpu.memory_mib >= request.min_memory_mib
        and gpu.index not in request.exclude
    )


def suitable(gpus: Iterable[Gpu], request: Whole) -> int:
    """Mask of the positions whose GPUs are of the kind that is wanted."""
    return sum(1 << position for position, gpu in enumerate(gpus) if suits(gpu, request))
