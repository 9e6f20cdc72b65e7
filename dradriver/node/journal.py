"""A journal: records on disk that survive a crash, with one file for each entry.

A damaged or rewritten entry does not affect other entries. ``Checkpoint``, ``HardwareJournal`` and the table of GPU
slots are journals.

A file is ``{"version": 3, "checksum": "<sha256 of entry>", "entry": {…}}``. The agent writes it under another name,
syncs it, and renames it. Some files cannot be read: damaged files, and files of a newer agent that ran before a
rollback. The agent renames and logs these files.
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
    """An entry of a journal, and the stamp that identifies the state of its file.

    The stamp changes each time that the file is written or touched.
    """

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
    """The folder of a journal.

    The caller holds the node's lock, a file lock that all agents on this node share, around every method.
    """

    def __init__(
        self,
        folder: Path,
        readers: Mapping[int, Callable[[bytes], T]],
        *,
        version: int,
        key: Callable[[T], str],
    ) -> None:
        """Store the arguments; no file is changed.

        Args:
            folder: The folder of the files; it is created when the first file is written.
            readers: For each version, a function that reads the text of its entries; it may raise
                ``msgspec.DecodeError``.
            version: The version that is written. A change that an older agent would misread needs a new version.
            key: Returns the key of an entry, which is its file's name; see ``checked_key`` for valid keys.
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
        """Return all entries of the journal by key, in order of key; files that cannot be read are renamed.

        A file whose name is not a key, such as a copy that a person made, is ignored.

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
        """Return an entry of the journal; None if it does not exist, is damaged, or a newer agent wrote it.

        A damaged file is renamed. A newer agent's file is renamed, too, except if that agent runs now.

        Raises:
            ClaimError: The key cannot be a file name.
            OSError: The file cannot be read for another reason than damage.
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
        """Return whether an entry still has this stamp.

        If so, its file was not changed since the stamp was read: the stamp identifies the state of the file. If there
        is no entry, the result is False.

        Raises:
            OSError: The file cannot be read.
        """
        entry = self.get(key)
        return entry is not None and entry.stamp == stamp

    def __len__(self) -> int:
        """Return the number of entries, without renamed files."""
        return sum(1 for _ in self._folder.glob(f"*{_SUFFIX}"))

    def unreadable_keys(self) -> set[str]:
        """Return the keys of entries that exist only as files that this agent cannot read.

        Pods may still use the claims of these entries.
        """
        aside = {path.name.split(_SUFFIX + ".", 1)[0] for path in self._aside()}
        return {key for key in aside if _KEY.fullmatch(key) and not self._path(key).exists()} | self._foreign

    def foreign(self, key: str) -> bool:
        """Return whether the entry ``key`` belongs to a newer agent that runs now.

        In a rolling update two agents run at the same time, and this agent must leave such an entry alone. The answer
        is from the last time that this agent read the entry.
        """
        return key in self._foreign

    def newer(self) -> dict[str, bytes]:
        """Return the texts of renamed files that a newer agent wrote, by key.

        A key that has a readable entry again is left out. Damaged files are left out, too.

        Raises:
            OSError: A file cannot be read for another reason than damage.
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
        """Write an entry of the journal so that it survives a power cut.

        Raises:
            ClaimError: The entry's key cannot be a file name.
            OSError: The entry could not be written.
        """
        path = self._path(self._key(value))
        body = msgspec.json.encode(value)
        file = {"version": self._version, "checksum": hashlib.sha256(body).hexdigest(), "entry": msgspec.Raw(body)}
        self._folder.mkdir(parents=True, exist_ok=True)
        atomic_files.write(path, msgspec.json.encode(file))

    def touch(self, value: T) -> Entry[T]:
        """Mark a journal entry as used now, and return the entry with its new stamp.

        The stamp identifies the state of the entry's file. A caller that knows the old stamp sees that the entry was
        used again.

        Raises:
            ClaimError: The entry's key cannot be a file name.
            OSError: The file does not exist, or cannot be changed.
        """
        key = self._key(value)
        self._decoded[key] = Entry(value, _stamp(atomic_files.touch(self._path(key))))
        return self._decoded[key]

    def remove(self, key: str) -> None:
        """Remove an entry of the journal and its renamed files; an unknown key is no error.

        Raises:
            ClaimError: The key cannot be a file name.
            OSError: A file could not be removed.
        """
        path = self._path(key)
        for aside in self._aside():
            if aside.name.startswith(f"{path.name}."):
                atomic_files.remove(aside)
        atomic_files.remove(path)
        self._decoded.pop(key, None)
        self._foreign.discard(key)

    def sweep(self) -> None:
        """Remove temporary files that a killed agent left, and restore renamed entries that this agent can read.

        After a rollback, the older agent renames entries of the newer agent. The newer agent restores them.

        Raises:
            OSError: A file could not be removed or renamed.
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
        """Return the stamp of each entry's file by key; a stamp identifies the file's state.

        Files whose status cannot be read are left out.
        """
        stamps = {}
        with contextlib.suppress(OSError):
            for path in self._folder.glob(f"*{_SUFFIX}"):
                with contextlib.suppress(OSError):
                    stamps[path.stem] = _stamp(path.stat())
        return stamps

    def _aside(self) -> Iterable[Path]:
        """Return the files that were renamed because they could not be read, for all keys.

        The caller filters the files by key. A search pattern for each key would need memory, because Python keeps every
        pattern that it ever compiled.
        """
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
        """Rename a newer agent's file, except if that agent runs now.

        If the file was written since this process started, the newer agent runs now and is about to replace this agent.
        Then the file stays. The states of the file (stamps) are compared, not clocks, because an administrator may have
        set a clock.
        """
        if self._at_start.get(path.stem) == stamp:
            self._set_aside(path, f"newer-{version}", f"of version {version}, newer than {self._version}")
            metrics.CHECKPOINT_NEWER.inc()
        elif path.stem not in self._foreign:
            self._foreign.add(path.stem)
            logger.warning(
                "%s was just written by a newer version of the node agent (format %d). It stays unchanged.",
                path,
                version,
            )

    def _handle_damaged(self, path: Path, error: Exception) -> None:
        """Rename a damaged file, so that it is not read again, and count it."""
        self._set_aside(path, f"corrupt-{int(time.time())}", f"damaged ({error})")
        metrics.CHECKPOINT_CORRUPT.inc()

    def _set_aside(self, path: Path, suffix: str, why: str) -> None:
        aside = path.with_name(f"{path.name}.{suffix}")
        atomic_files.move(path, aside)
        self._decoded.pop(path.stem, None)
        logger.error("%s is %s. The node agent renamed it to %s.", path, why, aside.name)


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_mtime_ns, status.st_ino, status.st_size


_KEY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}(\.[0-9]{1,3})?")


class _NewerError(Exception):
    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


def checked_key(key: str) -> str:
    """Return a journal key after a check that it can be part of file names.

    A key is a claim's uid, or a uid with a dot and a number.

    Raises:
        ClaimError: The key cannot be part of file names.
    """
    if not _KEY.fullmatch(key):
        raise ClaimError(f"claim uid {key[:64]!r} is invalid. A uid has letters, digits and '-', at most 64.")
    return key
