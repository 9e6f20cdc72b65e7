"""A request's filters of single GPUs: vendor, product, architecture, memory, versions and NICs.

A filter does not depend on the other GPUs of a set.
"""

from __future__ import annotations

from dradriver.allocator.choice.nearest_nics import near_gpus
from dradriver.allocator.request import NEAR_REQUIRED, Request, Whole
from dradriver.topology.machine import Gpu, Machine
from dradriver.topology.versions import reaches


def filters(request: Request) -> bool:
    """Return whether a request accepts only some of its vendor's GPUs.

    True if the request names a product, an architecture, a least amount of memory, a version or GPU numbers to exclude.
    Also True if it requires near NICs. False if it accepts every GPU of its vendor.
    """
    exclude = request.exclude if isinstance(request, Whole) else ()
    kind = request.product or request.architecture or request.min_memory_mib
    near = isinstance(request, Whole) and request.near_nic == NEAR_REQUIRED
    return bool(kind or request.min_driver or request.min_cuda or exclude or near)


def suits(gpu: Gpu, request: Whole) -> bool:
    """Return whether a GPU passes the request's filters of product, architecture, memory and number.

    Case matters in product names (``NVIDIA GeForce RTX 4090``), because it matters in the CEL selectors of claims. This
    function and these selectors must accept the same GPUs. Case does not matter in ``architecture``, because this
    driver chose its values (``hopper``).
    """
    return (
        (not request.product or gpu.of_product((request.product,)))
        and (not request.architecture or gpu.architecture.lower() == request.architecture.lower())
        and gpu.memory_mib >= request.min_memory_mib
        and gpu.index not in request.exclude
    )


def serves(machine: Machine, request: Request) -> bool:
    """Return whether a machine passes the request's filters of vendor and versions.

    A machine with an unknown version does not pass a filter of that version.
    """
    if machine.vendor.word != request.vendor:
        return False
    driver, cuda = machine.driver_version, machine.cuda_version
    return reaches(driver, request.min_driver) and reaches(cuda, request.min_cuda)


def suitable(machine: Machine, request: Whole) -> int:
    """Return the machine's GPUs that pass all filters of the request, as a bit mask.

    The GPUs may be free or not. Filters are, for example, product and memory. Bit ``i`` is the GPU at position ``i``.
    The result is 0 if the machine has another vendor or version than the request requires.
    """
    if not serves(machine, request):
        return 0
    near = near_gpus(machine) if request.near_nic == NEAR_REQUIRED else range(len(machine.gpus))
    return sum(1 << at for at, gpu in enumerate(machine.gpus) if at in near and suits(gpu, request))
