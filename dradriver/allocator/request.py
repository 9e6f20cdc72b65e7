"""A pod's request for GPUs, whole ones or fractions, and the choice for it: plain data, without numpy.

A *ring* is an order in which each GPU of a set sends to the next one, and the last to the first. A *step* is one of
these connections. A request is a ``Whole`` (whole GPUs), a ``Share`` (one share for each container) or a ``Mig`` (MIG
slices).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from fnmatch import fnmatchcase

import msgspec

from dradriver.errors import DriverError
from dradriver.reason import Cause, Reason, sentences
from dradriver.topology.vendors import NVIDIA

NEAR_REQUIRED, NEAR_PREFERRED = NEAR_NIC = ("required", "preferred")  # the words of the annotation


class Constraint(enum.StrEnum):
    """A property that all GPUs of a set must share, such as one NUMA node.

    The values are those that users write in annotations.
    """

    NVLINK = "nvlink"  # a ring through the whole set whose every step is a direct link or one switch
    SAME_NUMA = "same-numa"
    SAME_PCIE_ROOT = "same-pcie-root"
    SAME_PCIE_SWITCH = "same-pcie-switch"


class Level(enum.StrEnum):
    """How far apart the GPUs of a set are: the farthest connection in the best ring through them.

    Nearest first: NVLink, PCIe switch, PCIe root, NUMA node, node.
    """

    NVLINK = "nvlink"
    PCIE_SWITCH = "pcie-switch"
    PCIE_ROOT = "pcie-root"
    NUMA = "numa"
    NODE = "node"


class Strategy(enum.StrEnum):
    """The rule that chooses between equally good sets of GPUs or nodes.

    The values, such as ``best-fit``, are those that users write in the annotation.
    """

    BEST_FIT = "best-fit"  # what leaves most behind for those who come later
    PACK = "pack"  # the node with the fewest free GPUs
    SPREAD = "spread"  # the node with the most free GPUs, and the emptiest NUMA node of it
    FIRST_FIT = "first-fit"  # the first node by name, the lowest numbers


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """The weights of links, PCIe paths, NUMA nodes and so on in the comparison of sets.

    They count only between sets of GPUs that have equal bandwidth and leave equally much for later pods.
    ``set_order.cohesion`` adds up the weighted values.
    """

    nvlink: float = 40
    pcie: float = 25
    numa: float = 20
    memory: float = 10
    power: float = 5


class NodeWeights(Weights, frozen=True, kw_only=True):
    """The weights of sets, and the weights that order nodes with sets of equal bandwidth (``node_order.ties``).

    The policies file has them. A pod's resolved request does not record the weights of nodes.

    Attributes:
        price: A positive weight prefers cheaper GPUs.
        utilisation: A positive weight prefers nodes with more allocated GPUs, a negative weight emptier nodes.
        prices: Pairs of a glob for product names and a price. For a product, the first glob that matches counts. A
            product without a match counts as the dearest one.
    """

    price: float = 0
    utilisation: float = 0
    prices: tuple[tuple[str, float], ...] = ()

    def relative_price(self, product: str) -> float:
        """Return the price of a product relative to the dearest product: 0 to 1.

        The prices are those in ``prices``.
        """
        most = max((price for _, price in self.prices), default=0.0)
        own = next((price for glob, price in self.prices if fnmatchcase(product, glob)), most)
        return own / most if most else 0.0


class _Wanted(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """The fields that all types of requests have.

    Attributes:
        strategy: The rule that chooses between equally good places.
        product: Only GPUs whose full product name matches this name or glob; case matters.
        architecture: Only GPUs of this architecture (``hopper``).
        min_memory_mib: Only GPUs with at least this much memory. A request for fractions also means the memory of the
            whole GPU.
        min_driver: Only machines whose GPU driver has this version or a later one: ``580``.
        min_cuda: Only machines whose GPU driver supports this CUDA version: ``12.4``.
        vendor: The vendor of the GPUs in lower case, such as ``nvidia``, the default. Only NVIDIA's GPUs can be used as
            fractions.
    """

    strategy: Strategy = Strategy.BEST_FIT
    product: str = ""
    architecture: str = ""
    min_memory_mib: int = 0
    min_driver: str = ""
    min_cuda: str = ""
    vendor: str = NVIDIA.word


class Whole(_Wanted, frozen=True, kw_only=True, tag="whole"):
    """A request for whole GPUs for one pod.

    Attributes:
        containers: The number of GPUs of each container that requests some, in pod order. One set is chosen for all
            containers, and then split.
        required: Constraints that the whole set must meet.
        preferred: Constraints that the set should meet, best first. The first constraint that some free set can meet is
            kept; the others are ignored. If none can be met, any set will do.
        min_bandwidth_gbps: The set must have a ring over links alone. The weakest step of the ring must have at least
            this line rate, one direction, whole GB/s. A single GPU always passes.
        min_busbw_gbps: Least all-reduce bus bandwidth predicted for the set, GB/s. A single GPU always passes.
        include: Numbers of GPUs that must be in the set.
        exclude: Numbers of GPUs that must not be in the set.
        max_cross_nvswitch_gpus: How many GPUs of the set may be outside the NVLink domain that has most of them.
        prefer_same_numa: Whether the fewest NUMA nodes decide right after bandwidth, before the sets that remain for
            later pods.
        weights: The weights that order sets that are equal otherwise.
        near_nic: ``required``: only GPUs that have a NIC near them (``choice.nearest_nics``). ``preferred``: the caller
            that ranks nodes tries these GPUs first. Empty: any GPUs.
    """

    containers: tuple[int, ...]
    required: tuple[Constraint, ...] = ()
    preferred: tuple[Constraint, ...] = ()
    min_bandwidth_gbps: float = 0.0
    min_busbw_gbps: float = 0.0
    include: tuple[int, ...] = ()
    exclude: tuple[int, ...] = ()
    max_cross_nvswitch_gpus: int | None = None
    prefer_same_numa: bool = False
    weights: Weights = Weights()
    near_nic: str = ""

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of all containers of the request together."""
        return sum(self.containers)


class Amount(msgspec.Struct, frozen=True):
    """An amount of a GPU's compute and memory.

    If one of them is 0, the share gets the same portion of it as of the other: half the memory for half the compute.

    Attributes:
        cores: Percent of its compute.
        memory_mib: Memory, MiB.
    """

    cores: int = 0
    memory_mib: int = 0

    def of(self, memory_mib: int) -> Amount:
        """Return the compute and memory of this share on a GPU with ``memory_mib`` of memory, in whole percent and MiB.

        A value of 0 is computed from the other one, and rounded down, to at least 1. Because of the rounding, several
        shares fit that add up to the whole GPU: four quarters of 81,559 MiB, or eight times 10 GiB of 80.
        """
        if not self.memory_mib:
            return Amount(self.cores, max(memory_mib * self.cores // 100, 1))
        if not self.cores:
            return Amount(max(100 * self.memory_mib // max(memory_mib, 1), 1), self.memory_mib)
        return self


class Share(_Wanted, frozen=True, kw_only=True, tag="share"):
    """A request for shares: one share for each container of a pod that requests one.

    Several of these shares can be on one GPU.

    Attributes:
        amounts: The amount of each container, in pod order.
    """

    amounts: tuple[Amount, ...]


class Mig(_Wanted, frozen=True, kw_only=True, tag="mig"):
    """A request for MIG slices for one pod, on one GPU or on several.

    Attributes:
        profiles: For each container that requests some, in pod order, the profiles' names as in NVML (``1g.10gb``). Any
            GPU with such a profile will do, of any product.
    """

    profiles: tuple[tuple[str, ...], ...]


Request = Whole | Share | Mig


class Choice(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="whole"):
    """One set of whole GPUs on one machine, with its figures.

    Attributes:
        gpus: The machine's own GPU numbers, ascending.
        containers: The same numbers split over the request's containers, each in the order that its ranks should have.
        ring: The same numbers in the order of the best ring through all of them, starting at the lowest.
        busbw_gbps: Predicted all-reduce bus bandwidth; 0 for a single GPU, and if it cannot be predicted.
        bandwidth_gbps: The bandwidth of the ring's weakest step, one direction. For links it is the line rate; over
            PCIe and between sockets the bandwidth that NCCL assumes. 0 for a single GPU, and for a vendor that
            publishes no link rate.
        level: How far apart the GPUs are: the farthest step of the ring.
        score: 0-100: ``busbw_gbps`` relative to the best set of this size if all GPUs of the machine were free. If
            bandwidth cannot be predicted, the strength of the links is compared.
        fallback: The preferred constraints that the set misses: all before the first one that it meets.
        node: The machine's node in a cluster; empty offline.
    """

    gpus: tuple[int, ...]
    containers: tuple[tuple[int, ...], ...]
    ring: tuple[int, ...]
    busbw_gbps: float
    bandwidth_gbps: float
    level: Level
    score: int
    fallback: tuple[Constraint, ...] = ()
    node: str = ""


class SharePart(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="share"):
    """A share of one GPU, as it was chosen.

    Attributes:
        gpu: The machine's own number of the GPU.
        amount: Its compute and memory; neither is 0.
    """

    gpu: int
    amount: Amount


class MigPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="mig"):
    """One MIG slice of one GPU, as it was chosen.

    Attributes:
        gpu: The machine's own number of the GPU.
        profile: The profile's name.
        start: Its first memory slice.
        size: How many memory slices it takes, from ``start`` on.
    """

    gpu: int
    profile: str
    start: int
    size: int


Part = SharePart | MigPart


class PartChoice(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="parts"):
    """The fractions of one machine's GPUs that were chosen for a ``Share`` or ``Mig`` request.

    Attributes:
        containers: For each container of the request its fractions, in the request's order.
        node: The machine's node in a cluster; empty offline.
    """

    containers: tuple[tuple[Part, ...], ...]
    node: str = ""

    @property
    def gpus(self) -> tuple[int, ...]:
        """Return the machine's own numbers of the GPUs with these fractions, ascending."""
        return tuple(sorted({part.gpu for parts in self.containers for part in parts}))


class NoPlaceError(DriverError):
    """No free GPUs fit a request.

    The message says what was requested, why nothing fits, and the nearest possible thing.
    """

    reason = "NoPlace"

    def __init__(self, why: str, *, request: str = "", nearest: str = "", cause: Cause = Cause.POD) -> None:
        """Make an error from its texts.

        Args:
            why: Why there is no place, in words that do not change when GPUs are allocated or released. It begins in
                lower case if there is a ``request``.
            request: What was requested: ``8 GPUs with nvlink``. Empty if ``why`` contains it.
            nearest: The nearest thing that is possible, in sentences with figures. Empty if nothing is known.
            cause: Whether a free set of GPUs would help, or only another cluster or another request.
        """
        self._request, self._why, self._nearest, self._cause = request, sentences(why), sentences(nearest), cause
        super().__init__(sentences(self._after("No place for "), nearest))

    def _after(self, lead: str) -> str:
        return f"{lead}{self._request}: {self._why}" if self._request else self._why

    @property
    def stable(self) -> str:
        """Return the part of the message that stays equal as GPUs are allocated and released."""
        return self._after("No place for ")

    @property
    def nearest(self) -> str:
        """Return what the cluster can give instead of the request, in sentences with figures.

        The text is empty if nothing is known.
        """
        return self._nearest

    @property
    def cause(self) -> Cause:
        """Return why the request was refused, as a value for programs, such as ``Cause.GPUS``."""
        return self._cause

    def more(self, *texts: str, nearest: str = "", cause: Cause | None = None) -> NoPlaceError:
        """Return this error with further sentences, which must not change as GPUs are allocated and released.

        ``nearest`` has further sentences with figures that change. ``cause`` replaces the error's cause if it is given.
        """
        why, nearest = sentences(self._why, *texts), sentences(self.nearest, nearest)
        return NoPlaceError(why, request=self._request, nearest=nearest, cause=cause or self.cause)

    @property
    def without_figures(self) -> NoPlaceError:
        """Return this error without the sentences about what the cluster can give instead.

        The figures in those sentences change as GPUs are allocated and released.
        """
        return NoPlaceError(self._why, request=self._request, cause=self.cause)

    @property
    def why(self) -> Reason:
        """Return the reason that a pod with this request waits: cause and text."""
        stable = self._after("Waiting for ")
        return Reason(self.cause, sentences(stable, self.nearest), stable if self.nearest else "")


class LazyNoPlaceError(NoPlaceError):
    """No free GPUs fit a request; the reason is searched for when it is read.

    A search makes many tries, and only the message of the last try is read.
    """

    def __init__(self, explain: Callable[[], NoPlaceError]) -> None:
        """Make an error whose message is computed later.

        ``explain`` is called when the message is first read. It returns an error with the message.
        """
        super().__init__("")
        self._explain = explain
        self._explained: NoPlaceError | None = None

    def _error(self) -> NoPlaceError:
        if self._explained is None:
            self._explained = self._explain()
        return self._explained

    def __str__(self) -> str:
        return str(self._error())

    @property
    def stable(self) -> str:
        """Return the part of the message that stays equal as GPUs are allocated and released."""
        return self._error().stable

    @property
    def nearest(self) -> str:
        """Return what the cluster can give instead of the request, in sentences with figures.

        The text is empty if nothing is known.
        """
        return self._error().nearest

    def more(self, *texts: str, nearest: str = "", cause: Cause | None = None) -> NoPlaceError:
        """Return the error with further sentences, which must not change as GPUs are allocated.

        ``nearest`` has further sentences with figures that change. ``cause`` replaces the error's cause if it is given.
        """
        return self._error().more(*texts, nearest=nearest, cause=cause)

    @property
    def without_figures(self) -> NoPlaceError:
        """Return this error without the sentences about what the cluster can give instead.

        The figures in those sentences change as GPUs are allocated and released.
        """
        return self._error().without_figures

    @property
    def why(self) -> Reason:
        """Return the reason that a pod with this request waits: cause and text."""
        return self._error().why

    @property
    def cause(self) -> Cause:
        """Return why the request was refused, as a value for programs, such as ``Cause.GPUS``."""
        return self._error().cause


def check_request(request: Whole) -> None:
    """Raise an error unless every container of a request for whole GPUs requests at least one GPU.

    Raises:
        NoPlaceError: There is no container, or a container requests less than one GPU.
    """
    if not request.containers or min(request.containers) < 1:
        asked = ", ".join(map(str, request.containers)) or "none"
        raise NoPlaceError(f"GPUs per container: {asked}. Request at least 1 GPU in each container")
