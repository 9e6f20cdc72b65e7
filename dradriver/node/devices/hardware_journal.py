"""The hardware journal: the record on disk of the hardware changes for claims.

``Ledgers`` uses it. An entry is written as an intent before the change, and as done after it. So after a crash the next
agent knows all changes that it may have to undo.

No change survives a reboot: MIG instances and the MPS daemons of shares do not exist any more. So entries of another
boot are removed. MIG instances do not survive a new load of the driver's module either, which needs no reboot. But then
pods still use the claims, so the entries stay and the devices are made again.
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
    """One change of hardware: a device that the agent makes, has made, or must undo.

    Attributes:
        owner: Uid of the claim that the device is for.
        number: Number of the device in the claim.
        boot: Id of the boot in which the change was made.
        driver: The id ``Control.driver`` when the change was made. The id is new each time that the driver's module is
            loaded. Empty if unknown, as in entries of old agents.
        kind: The kind of device.
        device: The device's name, as it was allocated.
        uuid: The uuid of the GPU that is changed.
        share_id: Distinguishes claims that share one device; None if only one claim at a time can have the device.
        wanted: The intent with all choices made: what the agent needs to know to make the device, and to find it later.
        done: The kind's record of the device that was made; None before it is made, and when it has to be undone.
        was: For a device that has to be undone, the last value of ``done``. For a device that is being made, what is
            known about it so far. None if unknown. Old agents do not read this field; they undo what they find by
            ``wanted``.
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
        """Return the key of the change's entry in the journal: the claim's uid, a dot, and the device's number."""
        return f"{self.owner}.{self.number}"

    @property
    def noted(self) -> D | None:
        """Return what is known about the device: ``done`` if it is complete, else ``was``.

        The result is None if nothing is known.
        """
        return self.done or self.was

    def in_load(self, driver: str) -> bool:
        """Return whether the driver's module was not loaded again since the change was made.

        ``driver`` is the present id of ``Control.driver``, which is new each time that the module is loaded. The result
        is True if the id of the change is unknown, because old agents did not record it.
        """
        return self.driver in ("", driver)

    def to_undo(self) -> Change[W, D]:
        """Return a copy of this entry that says that the hardware change must be undone."""
        return msgspec.structs.replace(self, done=None, was=self.noted)


Made = Change[Any, Any]  # of any kind: only the kind looks into what it noted


def typed(kind: str, wanted: Any, *noted: Any) -> tuple[Any, ...]:
    """Return the values of a journal entry as typed records, converted from plain JSON data.

    Each kind of device has its own record types. Values of an unknown kind, as a newer agent may write, stay plain
    data.

    Args:
        kind: The kind's name.
        wanted: The entry's ``wanted``.
        noted: The entry's ``done`` and ``was``; each can be None.

    Raises:
        msgspec.ValidationError: A value does not have the form that the kind writes.
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
    """The folder with an entry for each hardware change.

    The caller holds the node's lock, a file lock that all agents on this node share, around every method.
    """

    def __init__(self, folder: Path, again: Callable[[str], Made | None] = lambda _: None) -> None:
        """Open the folder's entries; no file is touched.

        Args:
            folder: The folder of the entries.
            again: Returns a replacement for an entry that cannot be read, by its key; None if there is none. Without a
                replacement, a device would stay on the hardware and no agent would know of it.
        """
        super().__init__(folder, {VERSION: _read}, version=VERSION, key=lambda made: made.key)
        self._again = again

    def read(self) -> dict[str, Entry[Made]]:
        """Return all entries of the hardware journal by key, in order of key.

        Entries that cannot be read are first restored from the claims' checkpoint entries, as far as possible.

        Raises:
            OSError: The folder cannot be read, or a restored entry cannot be written.
        """
        for key in self.unreadable_keys():
            self.get(key)
        return super().read()

    def get(self, key: str) -> Entry[Made] | None:
        """Return one entry of the hardware journal; None if there is none.

        An entry that cannot be read is first restored from the claim's checkpoint entry, if that is possible.

        Raises:
            ClaimError: The key cannot be a file name.
            OSError: The entry cannot be read, or a restored entry cannot be written.
        """
        entry = super().get(key)
        if (
            entry is None
            and key in self.unreadable_keys()
            and not self.foreign(key)
            and (anew := self._again(key)) is not None
        ):
            self.write(anew)
            logger.warning(
                "Claim %s: the record of its changed devices was unreadable. It was restored from the "
                "claim's checkpoint entry.",
                anew.owner,
            )
            entry = super().get(key)
        return entry

    def of(self, owner: str) -> list[Made]:
        """Return the hardware changes for the claim with the uid ``owner``, in the order of the claim's devices.

        Raises:
            OSError: The folder cannot be read.
        """
        return sorted((e.value for e in self.read().values() if e.value.owner == owner), key=lambda made: made.number)
