"""A ledger on disk: one file an entry, so that no entry's damage or rewriting touches another's.

A file is ``{"version": 3, "checksum": "<sha256 of entry>", "entry": {…}}``, written beside its place, synced and
renamed. What cannot be read is set aside and reported, and is never in the way of other entries: a damaged file, and
one that a newer version of the agent wrote, which may be the agent of before a rollback.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from dradriver.node import atomic_files, metrics
from dradriver.node.errors import ClaimError

logger = logging.getLogger(__name__)

T = TypeVar("T")
Stamp = tuple[int, int, int]

_SUFFIX: Final = ".json"
_NEWER: Final = re.compile(r"(.+)\.json\.newer-(\d{1,9})")
_LAST_VERSION: Final = 999_999_999
# What one file alone can have: a bad sector, a directory or a ring of links in its place. What keeps all files from
# being read (no descriptor is left, the disk is gone) is no damage: then nobody knows what is held.
_DAMAGE: Final = frozenset({errno.EIO, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.EBADMSG, errno.EUCLEAN})


class Entry(NamedTuple, Generic[T]):
    """An entry as it stands in its file, and the file's stamp: another stamp means that it was written again since."""

    value: T
    stamp: Stamp


class _File(msgspec.Struct):
    version: int
    checksum: str = ""
    # Agents before version 3 call the field ``claim``: they take a file without it for damaged and set it aside, where
    # a version that they do not know would keep them from all others.
    entry: msgspec.Raw = msgspec.Raw(b"")
    claim: msgspec.Raw = msgspec.Raw(b"")


class Journal(Generic[T]):
    """The folder of a ledger. The caller holds the node's lock around every method."""

    def __init__(
        self,
        folder: Path,
        readers: Mapping[int, Callable[[bytes], T]],
        *,
        version: int,
        key: Callable[[T], str],
    ) -> None:
        """Open a folder's entries; no file is changed.

        Args:
            folder: Where the files are; made when the first is written.
            readers: For each version, what reads the text of its entries; it may raise ``msgspec.DecodeError``.
            version: Of the form that is written; a change that an older agent would misread needs another.
            key: The entry's own name, which is its file's; it can be one, see ``checked_key``.
        """
        self._folder = folder
        self._readers = dict(readers)
        self._version = version
        self._key = key
        self._at_start = self._stamps()
        # Keys of entries that a newer agent wrote since this one started: it runs next to this one (``_handle_newer``).
        self._foreign: set[str] = set()
        self._decoded: dict[str, Entry[T]] = {}  # valid while the file has the same stamp

    def read(self) -> dict[str, Entry[T]]:
        """Return all entries of the journal by key, in order of key; what cannot be read is set aside.

        A file whose name is no key is nobody's entry, such as a copy that somebody made: it is passed over.

        Raises:
            OSError: The folder cannot be read.
        """
        entries = {}
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            entry = self.get(path.stem) if _KEY.fullmatch(path.stem) else None
            if entry is not None:
                entries[path.stem] = entry
        self._decoded = dict(entries)
        return entries

    def get(self, key: str) -> Entry[T] | None:
        """Return an entry of the journal; None if it does not exist or cannot be read.

        Raises:
            ClaimError: The key cannot be a file's name.
            OSError: It cannot be read.
        """
        path = self._path(key)
        try:
            # The stamp is read before the text. If the file is written in between, the stamp is too old, and the next
            # call reads it again.
            stamp = _stamp(path.stat())
            # An unchanged file needs no second decoding.
            known = self._decoded.get(key)
            if known is not None and known.stamp == stamp:
                return known
            data = path.read_bytes()
        except FileNotFoundError:
            self._foreign.discard(key)
            return None
        except OSError as error:
            # Damage is of this one file. Other errors (the disk is gone) say nothing of the entry.
            if error.errno not in _DAMAGE:
                raise
            self._handle_damaged(path, error)
            return None
        try:
            value = self._decode(data, key)
        except _NewerError as error:
            self._handle_newer(path, stamp, error.version)
            return None
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            self._handle_damaged(path, error)
            return None
        self._foreign.discard(key)
        self._decoded[key] = Entry(value, stamp)
        return self._decoded[key]

    def has(self, key: str, stamp: Stamp) -> bool:
        """Return whether the journal's entry still is the one that had this stamp.

        Raises:
            OSError: It cannot be read.
        """
        entry = self.get(key)
        return entry is not None and entry.stamp == stamp

    def __len__(self) -> int:
        """Return the number of entries, those included that cannot be read."""
        return sum(1 for _ in self._folder.glob(f"*{_SUFFIX}"))

    def unreadable_keys(self) -> set[str]:
        """Return the keys of journal files that cannot be read and have no entry, as the keys may still be in use."""
        aside = {path.name.split(_SUFFIX + ".", 1)[0] for path in self._aside()}
        return {key for key in aside if _KEY.fullmatch(key) and not self._path(key).exists()} | self._foreign

    def foreign(self, key: str) -> bool:
        """Return whether the journal's entry is of a newer agent that runs next to this one, as it was seen last."""
        return key in self._foreign

    def newer(self) -> dict[str, bytes]:
        """Return the text of each readable journal file of a newer agent that was set aside without an entry, by key.

        Raises:
            OSError: None can be read.
        """
        kept = self.unreadable_keys()
        texts = {}
        for path in sorted(self._folder.glob(f"*{_SUFFIX}.newer-*")):
            match = _NEWER.fullmatch(path.name)
            if match is None or match[1] not in kept:
                continue
            try:
                texts[match[1]] = path.read_bytes()
            except OSError as error:
                if error.errno not in _DAMAGE:
                    raise
        return texts

    def write(self, value: T) -> None:
        """Write an entry of the journal durably.

        Raises:
            ClaimError: Its key cannot be a file's name.
            OSError: It was not written.
        """
        path = self._path(self._key(value))
        body = msgspec.json.encode(value)
        file = {"version": self._version, "checksum": hashlib.sha256(body).hexdigest(), "entry": msgspec.Raw(body)}
        self._folder.mkdir(parents=True, exist_ok=True)
        atomic_files.write(path, msgspec.json.encode(file))

    def touch(self, value: T) -> Entry[T]:
        """Give the file of a journal entry a new stamp, and return the entry.

        Raises:
            ClaimError: Its key cannot be a file's name.
            OSError: There is no such file, or it cannot be changed.
        """
        key = self._key(value)
        self._decoded[key] = Entry(value, _stamp(atomic_files.touch(self._path(key))))
        return self._decoded[key]

    def remove(self, key: str) -> None:
        """Remove an entry of the journal for good, and what was set aside of it; an unknown key is fine.

        Raises:
            ClaimError: The key cannot be a file's name.
            OSError: Something of it is still there.
        """
        path = self._path(key)
        for aside in self._aside():
            if aside.name.startswith(f"{path.name}."):
                atomic_files.remove(aside)
        atomic_files.remove(path)
        self._decoded.pop(key, None)
        self._foreign.discard(key)

    def sweep(self) -> None:
        """Remove what a killed writer left in the journal, and restore entries that an older agent had set aside.

        Raises:
            OSError: Something is still there.
        """
        for path in self._folder.glob(f"*{atomic_files.TEMPORARY}"):
            atomic_files.remove(path)
        for path in sorted(self._folder.glob(f"*{_SUFFIX}.newer-*")):
            match = _NEWER.fullmatch(path.name)
            if match is None or int(match[2]) > self._version or not _KEY.fullmatch(match[1]):
                continue
            if self._path(match[1]).exists():  # rebuilt since
                atomic_files.remove(path)
            else:
                atomic_files.move(path, self._path(match[1]))

    def _stamps(self) -> dict[str, Stamp]:
        """Return the stamps of all files by key; none of what cannot be looked at."""
        stamps = {}
        with contextlib.suppress(OSError):
            for path in self._folder.glob(f"*{_SUFFIX}"):
                with contextlib.suppress(OSError):
                    stamps[path.stem] = _stamp(path.stat())
        return stamps

    def _aside(self) -> Iterable[Path]:
        """Return the files set aside; of all keys, because Python keeps every pattern that it ever compiled."""
        return self._folder.glob(f"*{_SUFFIX}.*-*")

    def _path(self, key: str) -> Path:
        return self._folder / f"{checked_key(key)}{_SUFFIX}"

    def _decode(self, data: bytes, key: str) -> T:
        file = msgspec.json.decode(data, type=_File)
        if self._version < file.version <= _LAST_VERSION:
            raise _NewerError(file.version)
        body = file.entry or file.claim
        if hashlib.sha256(body).hexdigest() != file.checksum:
            raise msgspec.DecodeError("its checksum is wrong")
        if file.version not in self._readers:
            raise msgspec.DecodeError(f"no agent wrote a version {file.version}")
        value = self._readers[file.version](bytes(body))
        if self._key(value) != key:
            raise msgspec.DecodeError(f"it is the entry of {self._key(value)[:64]!r}")
        return value

    def _handle_newer(self, path: Path, stamp: Stamp, version: int) -> None:
        """Set a newer agent's file aside if it is as this process found it at its start.

        If it was written since, that agent runs, and this one is about to be replaced by it. No clock is asked: it may
        have been put forward or back since.
        """
        if self._at_start.get(path.stem) == stamp:
            self._set_aside(path, f"newer-{version}", f"of version {version}, newer than {self._version}")
            metrics.CHECKPOINT_NEWER.inc()
        elif path.stem not in self._foreign:
            self._foreign.add(path.stem)
            logger.warning("%s was just written by a newer agent (version %d); it is left alone", path, version)

    def _handle_damaged(self, path: Path, error: Exception) -> None:
        """Set a damaged file aside, and count it."""
        self._set_aside(path, f"corrupt-{int(time.time())}", f"damaged ({error})")
        metrics.CHECKPOINT_CORRUPT.inc()

    def _set_aside(self, path: Path, suffix: str, why: str) -> None:
        aside = path.with_name(f"{path.name}.{suffix}")
        atomic_files.move(path, aside)
        self._decoded.pop(path.stem, None)
        logger.error("%s is %s; kept as %s", path, why, aside.name)


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_mtime_ns, status.st_ino, status.st_size


_KEY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}(\.[0-9]{1,3})?")


class _NewerError(Exception):
    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


def checked_key(key: str) -> str:
    """Return the journal's key, a claim's uid or one and a number, if it can be part of file names.

    Raises:
        ClaimError: It cannot.
    """
    if not _KEY.fullmatch(key):
        raise ClaimError(f"claim uid {key[:64]!r} is none: letters, digits and '-', at most 64")
    return key
