"""How many GPUs a part of one is, and which GPUs there are that a request may get parts of, or get whole."""

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
    """Return the product of the GPU of a device, whether the device is all of it, and how many GPUs it counts as.

    A share is the larger of its parts of compute and memory, a MIG slice its part of the memory slices: so much of the
    GPU nobody else can have. That is so also of a slice that is a device of its own.

    Args:
        pool: The node's; None where its slices are not known, and neither is the product.
        device: The device's name.
        usage: What is taken of it.
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
    """Return the GPU that a device is or is a MIG slice of."""
    for gpu in pool.machine.gpus:
        name = resource_slices.device_name(gpu.uuid)
        if device == name or device.startswith(f"{name}-"):
            return gpu
    return None


def _size_of(gpu: Gpu, device: str) -> int:
    """Return how many memory slices a device has that is a MIG slice of a GPU; 0 for the GPU itself."""
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
    """GPUs that are alike for whoever asks for one.

    Attributes:
        gpu: One of them, without what is its own.
        equal: In how many equal shares it is had; 0 for shares of any size.
        driver: The machine's driver.
        cuda: What that knows of CUDA.
    """

    gpu: Gpu
    equal: int
    driver: str
    cuda: str


class GpuKinds:
    """The kinds of all GPUs that there are."""

    def __init__(self) -> None:
        """Begin with none."""
        self._of_node: dict[str, frozenset[GpuKind]] = {}
        self._nodes: collections.Counter[GpuKind] = collections.Counter()

    def set(self, node: str, pool: Pool | None) -> None:
        """Set the products and parts of a node's GPUs by its pool."""
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
        """Return how many GPUs a request counts as, by the products that it may get."""
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
    """Return how many GPUs a request comes to on those of a kind; None where it gets none of them."""
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
    """Return whether a GPU's product is one of these names or globs; an unknown one may be any."""
    return not product or any(fnmatchcase(product, each) for each in products)
