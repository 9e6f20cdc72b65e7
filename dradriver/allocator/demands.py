"""What a set must be, and what is wanted of it beyond that, as keys that tables can keep answers under."""

from __future__ import annotations

import fnmatch

import msgspec

from dradriver.allocator.request import Constraint, Request, Strategy, Weights
from dradriver.topology.machine import Gpu, Machine


class Demand(msgspec.Struct, frozen=True):
    """What a set of positions must be.

    Attributes:
        constraints: What all its GPUs must have in common.
        min_bandwidth_gbps: Least line rate of the weakest step.
        max_cross: Most members outside the NVLink domain that holds most of them; None for any number.
        include: Mask of positions that must be in it.
        min_busbw_gbps: Least predicted bandwidth.
    """

    constraints: frozenset[Constraint] = frozenset()
    min_bandwidth_gbps: float = 0.0
    max_cross: int | None = None
    include: int = 0
    min_busbw_gbps: float = 0.0

    @property
    def any_busbw(self) -> Demand:
        """The same but for the predicted bandwidth: where the best set has enough of it some set has."""
        return msgspec.structs.replace(self, min_busbw_gbps=0.0) if self.min_busbw_gbps else self


class Taste(msgspec.Struct, frozen=True):
    """Which of the sets of equal bandwidth is taken."""

    strategy: Strategy = Strategy.BEST_FIT
    numa_first: bool = False
    weights: Weights = Weights()


PLAIN = Demand()
USUAL = Taste()


def rungs(request: Request, *, include: int = 0) -> tuple[Demand, ...]:
    """The demands to try, best first: what is required with each preferred word, then what is required alone."""
    required = frozenset(request.required)
    ladder = [required | {wish} for wish in request.preferred]
    return tuple(demand(request, words, include=include) for words in dict.fromkeys((*ladder, required)))


def demand(request: Request, constraints: frozenset[Constraint] | None = None, *, include: int = 0) -> Demand:
    """What the request demands of a set, with these constraints in place of its required ones."""
    return Demand(
        constraints=frozenset(request.required) if constraints is None else constraints,
        min_bandwidth_gbps=request.min_bandwidth_gbps,
        max_cross=request.max_cross_nvswitch_gpus,
        include=include,
        min_busbw_gbps=request.min_busbw_gbps,
    )


def taste(request: Request) -> Taste:
    """Which of the equal sets the request would have."""
    return Taste(request.strategy, request.prefer_same_numa, request.weights)


def filters(request: Request) -> bool:
    """Whether the request wants only some kinds of GPU, or only some of them."""
    return bool(request.product or request.architecture or request.min_memory_mib or request.exclude)


def suits(gpu: Gpu, request: Request) -> bool:
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


def suitable(machine: Machine, request: Request) -> int:
    """Mask of the machine's GPUs that are of the kind that is wanted."""
    return sum(1 << place for place, gpu in enumerate(machine.gpus) if suits(gpu, request))


def words(request: Request) -> str:
    """``4 GPUs with nvlink and at least 100 GB/s of bus bandwidth``: what is required, for people."""
    kind, set_ = kind_words(request), set_words(request)
    gpus = f"{request.gpus} GPU{'s' if request.gpus > 1 else ''}"
    return gpus + (f" {kind}" if kind else "") + (f" with {set_}" if set_ else "")


def set_words(request: Request) -> str:
    """``nvlink and same-numa``: what the set must be, for people; empty for any."""
    parts = [constraint.value for constraint in dict.fromkeys(request.required)]
    if request.min_bandwidth_gbps:
        parts.append(f"at least {request.min_bandwidth_gbps:g} GB/s between neighbours of the ring")
    if request.min_busbw_gbps:
        parts.append(f"at least {request.min_busbw_gbps:g} GB/s of bus bandwidth")
    if request.max_cross_nvswitch_gpus is not None:
        parts.append(f"at most {request.max_cross_nvswitch_gpus} outside one NVLink domain")
    if request.include:
        parts.append(f"GPU {', '.join(map(str, request.include))} among them")
    return " and ".join(parts)


def kind_words(request: Request) -> str:
    """``of product NVIDIA A100*``: which kinds of GPU are wanted, for people; empty for any."""
    parts = []
    if request.product:
        parts.append(f"of product {request.product}")
    if request.architecture:
        parts.append(f"of architecture {request.architecture}")
    if request.min_memory_mib:
        parts.append(f"of at least {request.min_memory_mib} MiB")
    if request.exclude:
        parts.append(f"other than {', '.join(map(str, request.exclude))}")
    return " ".join(parts)
