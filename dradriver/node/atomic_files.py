"""Writes files so that a crash leaves the old file or the new file, but never half a file."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from pathlib import Path
from typing import Final

TEMPORARY: Final = ".tmp"  # never .json or .yaml: container runtimes read every such file of the CDI folder


def write(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace the content of a file atomically.

    After a crash, and at any time, readers see the old content or the new content. If several processes write at the
    same time, the last one wins.

    Args:
        path: The file.
        data: The new content.
        durable: Whether the content must survive a power cut; if so, the call waits for the disk.

    Raises:
        OSError: The content could not be written, and the old file is unchanged. Or the new content is in place, but
            a power cut may still restore the old content.
    """
    # Agents run in the host's PID namespace, so no other agent has the same temporary name.
    temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            # ``os.write`` may write less than it is given.
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        # Errors of a descriptor name no file. With the path, an administrator sees which disk is full.
        if error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    if durable:
        _sync(path.parent)  # the rename itself, too


def touch(path: Path) -> os.stat_result:
    """Set the modification time of a file to now and return the file's status.

    Other processes read the time to see that the file is in use.
    """
    now = time.time_ns()
    os.utime(path, ns=(now, now))
    return path.stat()


def move(path: Path, to: Path) -> None:
    """Rename a file within its folder so that the rename survives a power cut.

    An existing file of the new name is replaced.

    Raises:
        OSError: The file could not be renamed and keeps its name. Or it is renamed, but a power cut may still undo
            this.
    """
    os.replace(path, to)
    _sync(path.parent)


def remove(path: Path, *, durable: bool = True) -> None:
    """Remove a file; a file that does not exist is no error.

    Args:
        path: The file.
        durable: Whether the removal must survive a power cut; if so, the call waits for the disk.

    Raises:
        OSError: The file could not be removed, or a power cut may still restore it.
    """
    with contextlib.suppress(FileNotFoundError):
        try:
            os.unlink(path)
        except IsADirectoryError:  # one would be in the way of all that is removed after it, for ever
            _remove_folder(path)
        if durable:
            _sync(path.parent)


def _remove_folder(path: Path) -> None:
    """Remove a folder and everything in it, however deep its subfolders are nested.

    The contents of each subfolder are first moved up into ``path``, because a nested path may be too long for the
    kernel.
    """
    # A folder may be nested deeper than a path can be long, so descriptors are used, two at a time.
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    top = os.open(path, flags)
    try:
        while names := os.listdir(top):
            for name in names:
                try:
                    os.unlink(name, dir_fd=top)
                except IsADirectoryError:
                    # Move its content up under new names, so that it is empty and can go.
                    folder = os.open(name, flags, dir_fd=top)
                    try:
                        for inner in os.listdir(folder):
                            os.rename(inner, uuid.uuid4().hex, src_dir_fd=folder, dst_dir_fd=top)
                    finally:
                        os.close(folder)
                    os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(path)


def _sync(folder: Path) -> None:
    """Make renames and removals of files in this folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
