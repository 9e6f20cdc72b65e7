"""The size of a fraction in GPUs, and the products on which a request can get GPUs or fractions.

GPU time, quotas and metrics count with these numbers.

A *pool* is all ResourceSlices of a node, and has the node's name. A *memory slice* is the unit in which MIG divides a
GPU's memory. A *share* is a fraction of a GPU without MIG.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from dradriver.allocator.choice.filters import suits
from dradriver.allocator.parts.gpu_shares import share_of
from dradriver.allocator.request import Amount, Mig, Request, Share, Whole
from dradriver.api.claims.pins import ALL_CORES, MigSlice, Usage
from dradriver.api.claims.usage_config_maps import Kind
from dradriver.api.slices import resource_slices
from dradriver.cluster.gpus.pools import Pool
from dradriver.topology.machine import Gpu
from dradriver.topology.versions import reaches

_SLICES: Final = 8  # memory slices of a GPU whose profiles nobody knows


def gpus_of(pool: Pool | None, device: str, usage: Usage) -> list[tuple[str, Kind, float]]:
    """Return how many GPUs each used fraction of a device counts as.

    The result has, for each fraction, the product, the kind of fraction and the number of GPUs. For example, a MIG
    slice with a quarter of the memory slices is ``[("NVIDIA H200", "slice", 0.25)]``. A share counts as the larger of
    its fractions of compute and memory. A MIG slice counts as its fraction of the GPU's memory slices, even if the
    slice is a device of its own: no other claim can use that fraction of the GPU.

    Args:
        pool: The node's pool; None if its slices are not known. Then the product is an empty text.
        device: The device's name.
        usage: The fractions that are used of the device; None for all of it.
    """
    gpu = None if pool is None else _gpu(pool, device)
    product = "" if gpu is None else gpu.product
    if usage is None and gpu is not None and (size := _size_of(gpu, device)):
        return [(product, "slice", size / _memory_slices(gpu))]
    if usage is None:
        return [(product, "whole", 1.0)]
    return [
        (product, "slice", part.size / _memory_slices(gpu))
        if isinstance(part, MigSlice)
        else (product, "share", _fraction(part, gpu))
        for part in usage
    ]


def _gpu(pool: Pool, device: str) -> Gpu | None:
    """Return the GPU behind a device: the device is this GPU, or a MIG slice of it.

    None if the pool has no such GPU.
    """
    for gpu in pool.machine.gpus:
        name = resource_slices.device_name(gpu.uuid)
        if device == name or device.startswith(f"{name}-"):
            return gpu
    return None


def _size_of(gpu: Gpu, device: str) -> int:
    """Return how many memory slices a MIG slice takes of its GPU.

    0 if the device is a whole GPU.
    """
    named = (
        profile.size
        for profile in gpu.profiles
        for start in profile.starts
        if resource_slices.part_name(gpu.uuid, profile.id, start) == device
    )
    return 0 if device == resource_slices.device_name(gpu.uuid) else next(named, 0)


def _memory_slices(gpu: Gpu | None) -> int:
    return max((profile.size for profile in gpu.profiles), default=_SLICES) if gpu is not None else _SLICES


def _fraction(part: Amount, gpu: Gpu | None) -> float:
    memory = part.memory_mib / gpu.memory_mib if gpu is not None and gpu.memory_mib else 0.0
    return min(max(part.cores / ALL_CORES, memory), 1.0)


class GpuKind(NamedTuple):
    """GPUs that are equal for every request.

    Attributes:
        gpu: A GPU of this kind, without the fields that differ between such GPUs (uuid, PCI address, numbers).
        equal: The number of equal shares that the GPU is divided into; 0 for shares of any size.
        driver: The machine's driver version.
        cuda: The CUDA version that this driver supports.
    """

    gpu: Gpu
    equal: int
    driver: str
    cuda: str


class GpuKinds:
    """All kinds of GPUs in the cluster, which say what a request means per product.

    GPUs of one kind are equal for every request.
    """

    def __init__(self) -> None:
        """Make an empty collection of kinds of GPUs."""
        self._of_node: dict[str, frozenset[GpuKind]] = {}
        self._nodes: collections.Counter[GpuKind] = collections.Counter()

    def set(self, node: str, pool: Pool | None) -> None:
        """Replace the GPU kinds (GPUs that are equal for every request) of a node.

        ``pool`` has the node's GPUs now. If it is None, the node's kinds are removed.
        """
        kinds = frozenset(() if pool is None else _kinds(pool))
        before = self._of_node.pop(node, frozenset())
        if kinds:
            self._of_node[node] = kinds
        for kind in kinds - before:
            self._nodes[kind] += 1
        for kind in before - kinds:
            self._nodes[kind] -= 1
            if not self._nodes[kind]:
                del self._nodes[kind]

    def asked(self, request: Request) -> dict[str, float]:
        """Return how many GPUs a request counts as, for each GPU product that can serve it.

        A share of a quarter of a GPU counts as 0.25, for example. If the request counts differently on GPUs of one
        product, the largest number is returned.
        """
        found: dict[str, float] = {}
        for kind in self._nodes:
            gpus = _asked(request, kind)
            if gpus is not None:
                product = kind.gpu.product
                found[product] = max(found.get(product, 0.0), gpus)
        return found


def _kinds(pool: Pool) -> Iterable[GpuKind]:
    for gpu in pool.machine.gpus:
        how = pool.parts.get(resource_slices.device_name(gpu.uuid))
        like = Gpu(
            index=0, uuid="", minor=0, pci="", product=gpu.product, board=gpu.board, architecture=gpu.architecture,
            memory_mib=gpu.memory_mib, profiles=gpu.profiles, vendor=gpu.vendor,
        )  # fmt: skip
        machine = pool.machine
        yield GpuKind(like, 0 if how is None else how.equal, machine.driver_version, machine.cuda_version)


def _asked(request: Request, kind: GpuKind) -> float | None:
    """Return how many GPUs a request counts as on GPUs of a kind.

    A share of a quarter of a GPU counts as 0.25, for example. None if GPUs of this kind cannot serve the request.
    """
    like = Whole(
        containers=(),
        product=request.product,
        architecture=request.architecture,
        min_memory_mib=request.min_memory_mib,
    )
    serves = reaches(kind.driver, request.min_driver) and reaches(kind.cuda, request.min_cuda)
    serves = serves and kind.gpu.vendor == request.vendor
    if not (serves and suits(kind.gpu, like)):
        return None
    match request:
        case Whole():
            return float(request.gpus)
        case Share():
            taken = [share_of(amount, kind.gpu.memory_mib, kind.equal) for amount in request.amounts]
            return None if None in taken else sum(_fraction(each, kind.gpu) for each in taken if each is not None)
        case Mig():
            size = {profile.name: profile.size for profile in kind.gpu.profiles}
            names = [name for each in request.profiles for name in each]
            if not all(name in size for name in names):
                return None
            return sum(size[name] for name in names) / _memory_slices(kind.gpu)


def of_products(product: str, products: Iterable[str]) -> bool:
    """Return whether a GPU's product matches one of these names or globs.

    If the product is not known (an empty text), the answer is True.
    """
    return not product or any(fnmatchcase(product, each) for each in products)
