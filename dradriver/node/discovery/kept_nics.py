"""Network cards of earlier readings: cards that left /sys because a pod has them, and each card's best rate.

A network interface always belongs to one network namespace. In RDMA's exclusive mode, an RDMA device does, too. So
while a pod has a card, the host's /sys/class does not show it, but the card's PCI function stays visible. Without this
record, the published machine would lose a card when a pod starts and get it back when the pod ends. A card with a link
that is down has no rate, so the best rate that was seen is used.

A scalable function is a part of a network card that has no PCI function of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dradriver.node import atomic_files
from dradriver.node.discovery.nic_functions import is_scalable
from dradriver.node.discovery.pci import PciTree
from dradriver.topology.identifiers import is_bus_id
from dradriver.topology.machine import Nic
from dradriver.topology.natural import natural

logger = logging.getLogger(__name__)

_MOST = 1_000_000  # GB/s, and number of a NUMA node; far above any
_NETWORK = "0x02"  # with which the PCI classes of all network cards begin


class FoundNic(msgspec.Struct, frozen=True):
    """A NIC and its place on the PCI bus.

    Attributes:
        nic: The NIC.
        busids: Bus ids of the PCI functions through which the NIC sends; several for a bond.
        scalable: Name of the NIC's device on the auxiliary bus (``mlx5_core.sf.4``) if the NIC is a scalable function;
            empty for others.
    """

    nic: Nic
    busids: tuple[str, ...]
    scalable: str = ""

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the names of the devices that only this NIC has: its PCI functions, or its scalable function."""
        return (self.scalable,) if self.scalable else self.busids


class _Written(msgspec.Struct, frozen=True):
    boot: str
    nics: tuple[FoundNic, ...]


class KeptNics:
    """The network cards that were seen in this boot, in a file that the agent reads after a restart."""

    def __init__(self, path: Path | None = None, *, boot: str = "", writes: bool = True) -> None:
        """Store the arguments; read nothing yet.

        Args:
            path: The file; None keeps the cards in memory only.
            boot: Id of this boot: after a reboot every card belongs to the host again.
            writes: Whether this process owns the file and writes it.
        """
        self._path = path
        self._writes = writes
        self._boot = boot
        self._known: tuple[FoundNic, ...] | None = None
        self._written: tuple[FoundNic, ...] = ()
        self._said = ""

    def gone(self, found: Sequence[FoundNic], tree: PciTree) -> list[FoundNic]:
        """Return the kept network cards that /sys does not show now, although their devices exist.

        A kept card is left out if a card that /sys shows has the same name or one of the same devices.

        Args:
            found: The cards that /sys has.
            tree: The PCI tree.
        """
        names = {card.nic.name for card in found}
        devices = {device for card in found for device in card.devices}
        return [
            card
            for card in self._read()
            if card.nic.name not in names
            and devices.isdisjoint(card.devices)
            and (not card.scalable or tree.has_auxiliary(card.scalable))
            and all(tree.pci_class(busid).startswith(_NETWORK) for busid in card.busids)
        ]

    def at_best(self, cards: Sequence[FoundNic]) -> list[FoundNic]:
        """Return the network cards, each with the best rate that was seen in this boot."""
        before = {(card.nic.name, card.busids): card.nic.gbps for card in self._read()}
        return [
            card if (best := before.get((card.nic.name, card.busids), 0.0)) <= card.nic.gbps else _at(card, best)
            for card in cards
        ]

    def names(self) -> dict[str, str]:
        """Return the names of the kept network cards by PCI function (bus id).

        They are needed to name the card of a virtual function: while a pod has the card itself, /sys does not show its
        name.
        """
        return {card.nic.pci: card.nic.name for card in self._read() if card.nic.pci and not card.scalable}

    def keep(self, cards: Sequence[FoundNic]) -> None:
        """Store the network cards in the file; a failed write is tried again at the next reading."""
        self._known = tuple(cards)
        if self._path is None or not self._writes or self._known == self._written:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            atomic_files.write(self._path, msgspec.json.encode(_Written(self._boot, self._known)))
        except OSError as error:
            self._say(f"The list of network cards cannot be written: {error}")
            return
        self._written = self._known

    def _read(self) -> tuple[FoundNic, ...]:
        if self._known is None:
            self._known = ()
            if self._path is not None:
                try:
                    written = msgspec.json.decode(self._path.read_bytes(), type=_Written)
                except FileNotFoundError:
                    return ()
                except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                    self._say(f"The list of network cards that were there before cannot be read: {self._path}: {error}")
                    return ()
                if written.boot == self._boot and _are_cards(written.nics):
                    self._known = self._written = written.nics
        return self._known

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            logger.warning("%s", text)


def _at(card: FoundNic, gbps: float) -> FoundNic:
    return msgspec.structs.replace(card, nic=msgspec.structs.replace(card.nic, gbps=gbps))


def _are_cards(cards: Sequence[FoundNic]) -> bool:
    """Return whether the network cards from a file have valid values, so that they can be part of a machine."""
    return all(map(_is_card, cards)) and len({card.nic.name for card in cards}) == len(cards)


def _is_card(card: FoundNic) -> bool:
    nic = card.nic
    places = all(map(is_bus_id, card.busids)) and (not nic.pci or is_bus_id(nic.pci))
    places = places and (not card.scalable or is_scalable(card.scalable))
    numbers = all(0 <= number <= _MOST for number in (nic.gbps, nic.numa or 0))
    return bool(nic.name and card.busids and places and numbers)


def in_order(cards: Sequence[FoundNic]) -> list[FoundNic]:
    """Return the network cards in the natural order of their names (``mlx5_2`` before ``mlx5_10``)."""
    return sorted(cards, key=lambda card: natural(card.nic.name))
