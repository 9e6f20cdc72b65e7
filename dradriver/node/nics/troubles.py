"""Faults of network cards' ports in one reading, found by comparison with sibling ports.

Siblings are ports of cards of one product and board on the same link layer. The comparison is needed because no source
tells which state a port should have. Ports of virtual functions are left out, because the program that assigned the
function decides the state of its port.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from dradriver.node.nics.ports import ETHERNET, INFINIBAND, NicState, Port

DOWN: Final = "down"
SLOW: Final = "slow"
GID: Final = "gid"
FIRMWARE: Final = "firmware"
FLAPPING: Final = "flapping"
ERRORS: Final = "errors"
KINDS: Final = (DOWN, SLOW, GID, FIRMWARE, FLAPPING, ERRORS)
"""The last two are told by ``history``, which knows more than one reading."""
SEVERE: Final = (DOWN, SLOW, FLAPPING, ERRORS)
"""Kinds by which jobs get slow without a word."""


class At(NamedTuple):
    """The identity of a port: its card's name and its number."""

    nic: str
    port: int


class Trouble(msgspec.Struct, frozen=True):
    """One fault of a port.

    Attributes:
        at: The port; for a fault of a card's firmware, the card's first port.
        kind: One of ``KINDS``.
        said: The observation, without figures that change while the fault lasts.
        cure: The repair.
    """

    at: At
    kind: str
    said: str
    cure: str


class Seen(NamedTuple):
    """A port and its state in one reading."""

    at: At
    port: Port


def troubles(nics: Sequence[NicState], *, known_up: Collection[At] = ()) -> tuple[Trouble, ...]:
    """Return the faults of network cards' ports that one reading shows, sorted by card and port.

    Args:
        nics: A reading.
        known_up: Ports that were active in an earlier reading. They are needed if all siblings go down together,
            because then no active port is left to compare with.
    """
    found = [trouble for group in siblings(nics) for trouble in _of_group(group, known_up)]
    found += _firmware(nics)
    order = {nic.name: n for n, nic in enumerate(nics)}
    return tuple(sorted(found, key=lambda one: (order[one.at.nic], one.at.port, KINDS.index(one.kind))))


def siblings(nics: Sequence[NicState]) -> list[list[Seen]]:
    """Return the groups of sibling ports, which should have the same state and rate.

    Ports of virtual and scalable functions are left out.
    """
    groups: dict[tuple[str, str, str], list[Seen]] = {}
    for nic in nics:
        for port in nic.ports if not nic.function else ():
            key = (nic.product or nic.name, nic.board, port.layer)  # what is not known is nothing's sibling
            groups.setdefault(key, []).append(Seen(At(nic.name, port.number), port))
    return list(groups.values())


def _of_group(group: Sequence[Seen], known_up: Collection[At]) -> Iterator[Trouble]:
    some_up = any(port.up for _, port in group)
    best = max(group, key=lambda one: one.port.gbit).port
    for at, port in group:
        where = f"port {at.port} of {at.nic}"
        if port.up:
            if 0 < port.gbit < best.gbit:
                yield Trouble(
                    at, SLOW, f"{where} runs at {_rate(port)}, its siblings at {_rate(best)}",
                    "reseat its cable and transceiver, and check the speed and width of the switch port",
                )  # fmt: skip
            if port.layer == ETHERNET and port.ipv4 is False:
                yield Trouble(
                    at, GID, f"{where} has no RoCE v2 GID with an IPv4 address",
                    "give its interface an IPv4 address, or set NCCL_IB_ADDR_FAMILY=AF_INET6 where the network is IPv6",
                )  # fmt: skip
        elif port.state and not (port.off or port.away) and (some_up or at in known_up or _unmanaged(port)):
            yield Trouble(at, DOWN, f"{where} is {_state(port)}", _cure(port))


def _firmware(nics: Sequence[NicState]) -> Iterator[Trouble]:
    boards: dict[str, list[NicState]] = {}
    for nic in nics:
        if nic.board and nic.firmware and nic.ports and not nic.function:
            boards.setdefault(nic.board, []).append(nic)
    for board, alike in boards.items():
        counts = Counter(nic.firmware for nic in alike)
        usual = max(counts, key=lambda one: (counts[one], one))
        for nic in alike:
            if nic.firmware != usual:
                yield Trouble(
                    At(nic.name, nic.ports[0].number), FIRMWARE,
                    f"NIC {nic.name} has firmware {nic.firmware}, {counts[usual]} others of board {board} have {usual}",
                    "install the same firmware on all cards of one board (mlxfwmanager)",
                )  # fmt: skip


def state_of(port: Port) -> str:
    """Return the state of a port for the metrics, one of ``STATES``.

    ``away`` is a port without an interface on the host.
    """
    if port.up:
        return "active"
    if port.off or port.away:
        return "off" if port.off else "away"
    return DOWN if port.state else "other"


STATES: Final = ("active", DOWN, "off", "away", "other")


def _state(port: Port) -> str:
    return f"{port.state} ({port.phys})" if port.phys else port.state


def _rate(port: Port) -> str:
    return f"{port.gbit:g} Gb/s" + (f" ({port.lanes})" if port.lanes else "")


def _unmanaged(port: Port) -> bool:
    """Return whether an InfiniBand link is up and waits for a subnet manager.

    This is a fault even if all siblings have the same state.
    """
    return port.layer == INFINIBAND and port.state in ("INIT", "ARMED")


def _cure(port: Port) -> str:
    if _unmanaged(port):
        return "check the fabric's subnet manager (sminfo): the link is up, and no subnet manager has activated it"
    if port.layer == ETHERNET:
        return "check its cable and the switch. If the port is not meant to be used, run: ip link set dev … down"
    return "check its cable and the switch. If the port is not meant to be used, run: ibportstate -D 0 PORT disable"
