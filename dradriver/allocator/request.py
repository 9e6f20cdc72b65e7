"""What a pod wants of GPUs, whole ones or parts, and what was chosen: plain data, without numpy.

A request is one of three: ``Whole`` GPUs, a ``Share`` of one for each container, or ``Mig`` slices.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from fnmatch import fnmatchcase

import msgspec

from dradriver.errors import DriverError
from dradriver.reason import Cause, Reason
from dradriver.topology.vendors import NVIDIA

NEAR_REQUIRED, NEAR_PREFERRED = NEAR_NIC = ("required", "preferred")  # the words of the annotation


class Constraint(enum.StrEnum):
    """What every GPU of a set must have in common; the values are the words of the annotations."""

    NVLINK = "nvlink"  # a ring through the whole set whose every step is a direct link or one switch
    SAME_NUMA = "same-numa"
    SAME_PCIE_ROOT = "same-pcie-root"
    SAME_PCIE_SWITCH = "same-pcie-switch"


class Level(enum.StrEnum):
    """The worst step inside a set, best first: NVLink, one PCIe switch, one root, one NUMA node, the node."""

    NVLINK = "nvlink"
    PCIE_SWITCH = "pcie-switch"
    PCIE_ROOT = "pcie-root"
    NUMA = "numa"
    NODE = "node"


class Strategy(enum.StrEnum):
    """Which of several equally good places is taken; the values are the words of the annotation."""

    BEST_FIT = "best-fit"  # what leaves most behind for those who come later
    PACK = "pack"  # the node with the fewest free GPUs
    SPREAD = "spread"  # the node with the most free GPUs, and the emptiest NUMA node of it
    FIRST_FIT = "first-fit"  # the first node by name, the lowest numbers


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """What counts how much among sets of equal bandwidth that leave equally much behind; see ``set_order.cohesion``."""

    nvlink: float = 40
    pcie: float = 25
    numa: float = 20
    memory: float = 10
    power: float = 5


class NodeWeights(Weights, frozen=True, kw_only=True):
    """The same, and which of several nodes with sets of equal bandwidth; see ``node_order.ties``. In no pod's note.

    Attributes:
        price: A positive weight prefers cheaper GPUs.
        utilisation: A positive weight prefers nodes with more allocated GPUs, a negative weight emptier nodes.
        prices: What GPUs cost, by globs of products: the first that fits counts, and none is as the dearest.
    """

    price: float = 0
    utilisation: float = 0
    prices: tuple[tuple[str, float], ...] = ()

    def relative_price(self, product: str) -> float:
        """Return the price of a GPU by the request's price list, relative to the dearest, 0 to 1."""
        most = max((price for _, price in self.prices), default=0.0)
        own = next((price for glob, price in self.prices if fnmatchcase(product, glob)), most)
        return own / most if most else 0.0


class _Wanted(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """What every request may say: of which kind the GPUs are, and where.

    Attributes:
        strategy: Which of several equally good places.
        product: Only GPUs whose full product name matches this, exactly or as a glob, in upper and lower case as given.
        architecture: Only GPUs of this architecture (``hopper``).
        min_memory_mib: Only GPUs with at least this much memory, the whole GPU's also where a part is wanted.
        min_driver: Only machines with this driver or a later one: ``580``.
        min_cuda: Only machines whose driver knows this CUDA: ``12.4``.
        vendor: Whose GPUs, by the word of a ``Vendor``: nobody who says nothing gets another's than NVIDIA's. Parts are
            NVIDIA's alone.
    """

    strategy: Strategy = Strategy.BEST_FIT
    product: str = ""
    architecture: str = ""
    min_memory_mib: int = 0
    min_driver: str = ""
    min_cuda: str = ""
    vendor: str = NVIDIA.word


class Whole(_Wanted, frozen=True, kw_only=True, tag="whole"):
    """Whole GPUs for one pod.

    Attributes:
        containers: GPUs of each container that wants any, in pod order; the set is chosen as one and then split.
        required: All of these must hold for the whole set, or there is no place.
        preferred: A ladder, best first: the first rung that some free set can reach is kept; after the last, anything.
        min_bandwidth_gbps: Least line rate of the weakest step of a ring of links alone through the set, one direction,
            whole GB/s; a single GPU always has it.
        min_busbw_gbps: Least all-reduce bus bandwidth predicted for the set; a single GPU always has it.
        include: Numbers of GPUs that must be in the set.
        exclude: Numbers of GPUs that must not be.
        max_cross_nvswitch_gpus: Most GPUs of the set that may lie outside the NVLink domain that holds most of them.
        prefer_same_numa: Fewest NUMA nodes decides right after bandwidth, before what is left for others.
        weights: What counts among sets that are equal otherwise.
        near_nic: ``required``: only GPUs that have a NIC near them (``choice.nearest_nics``); ``preferred``: these
            rather than others, which whoever ranks nodes asks for first; empty: any.
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
    """How much of a GPU: of its compute and of its memory; 0 of one is as much as the other's proportion.

    Attributes:
        cores: Percent of its compute.
        memory_mib: Memory, MiB.
    """

    cores: int = 0
    memory_mib: int = 0

    def of(self, memory_mib: int) -> Amount:
        """Return what a requested share comes to on a GPU with so much memory, in whole percent and MiB.

        What follows from the other's proportion is rounded down, to 1 at least: then parts fill a GPU whenever what
        was asked for does (four quarters of 81,559 MiB, eight times 10 GiB of 80).
        """
        if not self.memory_mib:
            return Amount(self.cores, max(memory_mib * self.cores // 100, 1))
        if not self.cores:
            return Amount(max(100 * self.memory_mib // max(memory_mib, 1), 1), self.memory_mib)
        return self


class Share(_Wanted, frozen=True, kw_only=True, tag="share"):
    """A share of a GPU for each of one pod's containers that want one; several may be of one GPU.

    Attributes:
        amounts: What each container wants, in pod order.
    """

    amounts: tuple[Amount, ...]


class Mig(_Wanted, frozen=True, kw_only=True, tag="mig"):
    """MIG slices for one pod, of one GPU or of several.

    Attributes:
        profiles: For each container that wants some, in pod order, the profiles' names as NVML gives them
            (``1g.10gb``): any GPU that has such a profile will do, whatever its product.
    """

    profiles: tuple[tuple[str, ...], ...]


Request = Whole | Share | Mig


class Choice(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="whole"):
    """One set of whole GPUs on one machine and what it is worth.

    Attributes:
        gpus: The machine's own GPU numbers, ascending.
        containers: The same numbers split over the request's containers, each in the order its ranks should take.
        ring: The same numbers in the order of the best ring through all of them, starting at the lowest.
        busbw_gbps: Predicted all-reduce bus bandwidth; 0 for a single GPU, and where nothing can be predicted.
        bandwidth_gbps: Weakest step of the ring, one direction: of links the line rate, over PCIe and between sockets
            what NCCL counts; 0 for a single GPU, and of a vendor whose links' rate nobody publishes.
        level: The worst step of the ring.
        score: 0-100, ``busbw_gbps``, else its links, against the best that a set of this size can have on such a
            machine, all GPUs free.
        fallback: What was preferred and not had: the rungs of the ladder above the one that was reached.
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
    """A share of one GPU.

    Attributes:
        gpu: The machine's own number of the GPU.
        amount: How much of it; neither is 0.
    """

    gpu: int
    amount: Amount


class MigPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="mig"):
    """One MIG slice of one GPU.

    Attributes:
        gpu: The machine's own number of the GPU.
        profile: The profile's name.
        start: Its first memory slice.
        size: How many memory slices it takes from there on.
    """

    gpu: int
    profile: str
    start: int
    size: int


Part = SharePart | MigPart


class PartChoice(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="parts"):
    """Parts of one machine's GPUs for a ``Share`` or ``Mig`` request.

    Attributes:
        containers: For each container of the request its parts, in the request's order.
        node: The machine's node in a cluster; empty offline.
    """

    containers: tuple[tuple[Part, ...], ...]
    node: str = ""

    @property
    def gpus(self) -> tuple[int, ...]:
        """Return the machine's own numbers of the GPUs that were chosen for a request of parts, ascending."""
        return tuple(sorted({part.gpu for parts in self.containers for part in parts}))


class NoPlaceError(DriverError):
    """No free set fits. The message gives the reason and the nearest thing that is possible.

    ``stable`` is a sentence that stays the same as GPUs come and go: what was asked, and whether all GPUs being free
    would help. It is the message itself where that says no more.
    """

    reason = "NoPlace"

    def __init__(self, message: str, *, stable: str = "", cause: Cause = Cause.POD) -> None:
        """Make one; ``cause`` says whether a free set would help, another cluster, or another request."""
        super().__init__(message)
        self._stable = stable or message
        self._cause = cause

    @property
    def stable(self) -> str:
        """Return the sentence on a request without a place that stays the same as GPUs come and go."""
        return self._stable

    @property
    def cause(self) -> Cause:
        """Return for programs why a request has no place."""
        return self._cause

    def more(self, text: str, cause: Cause | None = None) -> NoPlaceError:
        """Return this error that a request has no place with another clause.

        It has another cause if that says more.
        """
        return NoPlaceError(f"{self}; {text}", stable=f"{self.stable}; {text}", cause=cause or self.cause)

    @property
    def why(self) -> Reason:
        """Return the reason of a pod that waits because its request has no place."""
        return Reason(self.cause, str(self))


class LazyNoPlaceError(NoPlaceError):
    """No free set fits. Why is found out when the message is first read: a search reads it of no try but the last."""

    def __init__(self, explain: Callable[[], NoPlaceError]) -> None:
        """Make one; ``explain`` returns the error with the message."""
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
        """Return the sentence on a request without a place that stays the same as GPUs come and go."""
        return self._error().stable

    @property
    def cause(self) -> Cause:
        """Return for programs why a request has no place."""
        return self._error().cause


def check_request(request: Whole) -> None:
    """Raise unless every container of a request for whole GPUs asks for at least one GPU.

    Raises:
        NoPlaceError: No container, or one that asks for less than one GPU.
    """
    if not request.containers or min(request.containers) < 1:
        asked = ", ".join(map(str, request.containers)) or "none"
        raise NoPlaceError(f"GPUs per container: {asked}; ask for at least 1 GPU in each")
