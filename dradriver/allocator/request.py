"""What is wanted of a set of GPUs, and what was chosen: plain data, without numpy."""

from __future__ import annotations

import enum

import msgspec

from dradriver.errors import DriverError


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


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What one pod wants.

    Attributes:
        containers: GPUs of each container that wants any, in pod order; the set is chosen as one and then split.
        required: All of these must hold for the whole set, or there is no place.
        preferred: A ladder, best first: the first rung that some free set can reach is kept; after the last, anything.
    """

    containers: tuple[int, ...]
    required: tuple[Constraint, ...] = ()
    preferred: tuple[Constraint, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs of all containers together."""
        return sum(self.containers)


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One set on one machine and what it is worth.

    Attributes:
        gpus: The machine's own GPU numbers, ascending.
        containers: The same numbers split over the request's containers, each in the order its ranks should take.
        ring: The same numbers in the order of the best ring through all of them, starting at the lowest.
        busbw_gbps: Predicted all-reduce bus bandwidth.
        bandwidth_gbps: Weakest step of the ring; 0 for a single GPU.
        level: The worst step of the ring.
        score: 0-100, ``busbw_gbps`` against the best that a set of this size can have on such a machine, all GPUs free.
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


class NoPlaceError(DriverError):
    """No free set fits. The message gives the reason and the nearest thing that is possible."""

    reason = "NoPlace"
