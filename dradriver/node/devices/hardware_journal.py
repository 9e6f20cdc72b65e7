"""What was changed on hardware: the second of the node's two ledgers.

An entry is written as an intent before the change, and as done after it: whatever an agent dies at, the next one knows
all that may have to be undone. No change outlives a boot (MIG instances are gone, as are the servers of shares), so an
entry of another boot is dropped. Nor does an instance outlive the driver's module, which can be loaded anew without a
boot; but there the claims are in use still, so their entries stay, and what they say is made again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from dradriver.node.devices.part_records import MigInstance, MigPlace, MpsServed, MpsShare
from dradriver.node.journal import Entry, Journal

logger = logging.getLogger(__name__)

W = TypeVar("W")
D = TypeVar("D")

VERSION: Final = 1
_RECORDS: Final[dict[str, tuple[Any, Any]]] = {"mig": (MigPlace, MigInstance), "mps": (MpsShare, MpsServed)}


class Change(msgspec.Struct, Generic[W, D], frozen=True, kw_only=True, omit_defaults=True):
    """One change of hardware.

    Attributes:
        owner: Uid of the claim that it is for.
        number: Which of the claim's devices.
        boot: Id of the boot in which it is.
        driver: Which load of the driver's module it is in (``Control.driver``); empty where that is not known, as in
            entries of agents that did not say.
        kind: The kind of device.
        device: The device's name, as it was allocated.
        uuid: Identity of the GPU that is changed.
        share_id: What tells it from others of the same device; None where nobody else can have that.
        wanted: What the kind has to know to make it, and to find what it made.
        done: What the kind noted of the change; None as long as it is an intent, and from when it is to be undone.
        was: What ``done`` was before that, or what of it is known while it is being made; None where nobody knows.
            Agents that do not read it undo what they find by ``wanted``.
    """

    owner: str
    number: int
    boot: str
    driver: str = ""
    kind: str
    device: str
    uuid: str
    share_id: str | None = None
    wanted: W
    done: D | None = None
    was: D | None = None

    @property
    def key(self) -> str:
        """Return the key of the hardware change in the journal."""
        return f"{self.owner}.{self.number}"

    @property
    def noted(self) -> D | None:
        """Return what the kind of device noted of the hardware change; None if nothing knows."""
        return self.done or self.was

    def in_load(self, driver: str) -> bool:
        """Return whether the hardware change is of this load of the driver's module."""
        return self.driver in ("", driver)

    def to_undo(self) -> Change[W, D]:
        """Return the journal entry that says that the hardware change must be undone."""
        return msgspec.structs.replace(self, done=None, was=self.noted)


Made = Change[Any, Any]  # of any kind: only the kind looks into what it noted


def typed(kind: str, wanted: Any, *noted: Any) -> tuple[Any, ...]:
    """Return a hardware change's record as its kind of device defines it; of an unknown kind unchanged.

    Args:
        kind: The kind's name.
        wanted: What it had to know.
        noted: What it noted, None where nothing is.

    Raises:
        msgspec.ValidationError: It is nothing that the kind writes.
    """
    if kind not in _RECORDS:
        return wanted, *noted
    form, done = _RECORDS[kind]
    return msgspec.convert(wanted, form), *(msgspec.convert(one, done | None) for one in noted)


def _read(text: bytes) -> Made:
    entry = msgspec.json.decode(text, type=Made)
    wanted, done, was = typed(entry.kind, entry.wanted, entry.done, entry.was)
    return msgspec.structs.replace(entry, wanted=wanted, done=done, was=was)


class HardwareJournal(Journal[Made]):
    """The folder of changes. The caller holds the node's lock around every method."""

    def __init__(self, folder: Path, again: Callable[[str], Made | None] = lambda _: None) -> None:
        """Open the folder's entries; no file is touched.

        Args:
            folder: Where the entries are.
            again: Gives an entry, by its key, that cannot be read any more; None where nothing can. Else nobody would
                know of what is on the hardware, and it would stay there.
        """
        super().__init__(folder, {VERSION: _read}, version=VERSION, key=lambda made: made.key)
        self._again = again

    def read(self) -> dict[str, Entry[Made]]:
        """Return all entries of the hardware journal by key, in order of key.

        Raises:
            OSError: The folder cannot be read, or a file not be written.
        """
        for key in self.unreadable_keys():
            self.get(key)
        return super().read()

    def get(self, key: str) -> Entry[Made] | None:
        """Return one entry of the hardware journal; None if there is none.

        Raises:
            ClaimError: The key cannot be a file's name.
            OSError: It cannot be read or written.
        """
        entry = super().get(key)
        if (
            entry is None
            and key in self.unreadable_keys()
            and not self.foreign(key)
            and (anew := self._again(key)) is not None
        ):
            self.write(anew)
            logger.warning("what was made for claim %s is known from the claim's own entry", anew.owner)
            entry = super().get(key)
        return entry

    def of(self, owner: str) -> list[Made]:
        """Return the hardware changes for a claim, in the order in which they were intended.

        Raises:
            OSError: The folder cannot be read.
        """
        return sorted((e.value for e in self.read().values() if e.value.owner == owner), key=lambda made: made.number)
