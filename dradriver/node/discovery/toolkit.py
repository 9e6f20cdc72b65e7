"""The base specification: what makes a whole GPU usable in a container, its device nodes and the driver's libraries.

It is our own CDI specification, so that a claim's devices keep their names whatever others do to theirs: made by the
host's ``nvidia-ctk``; where there is none, from a specification that is there, as far as it is true of the machine.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from dradriver.api import names
from dradriver.node import files
from dradriver.node.discovery import ctk
from dradriver.node.discovery.specification import Specification, read_all
from dradriver.node.discovery.specification import files as specifications
from dradriver.node.errors import NotYetError, SetupError
from dradriver.topology.machine import Gpu, Machine

logger = logging.getLogger(__name__)

KIND: Final = f"{names.DRIVER}/{ctk.CLASS}"
FILE: Final = f"{names.DRIVER}-{ctk.CLASS}.json"  # by the convention of the CDI specification
DRIVER: Final = "driver"  # the device that brings no GPU but the rest: for parts of GPUs, whose nodes come from us
AGAIN_S: Final = 300.0  # after a GPU was left out: whoever installs a toolkit need not tell us
SOON_S: Final = 30.0  # after it could not be written: a disk that was full has room again
PATIENCE_S: Final = 10.0  # for another agent's toolkit
_LOOK_S: Final = 0.02
ALONE_S: Final = 600.0  # a toolkit that is being replaced is away for so long at most

_Stamp = tuple[object, ...]


def cdi_id(uuid: str) -> str:
    """Return the fully qualified CDI id of a GPU, which brings its device node and the driver's libraries."""
    return f"{KIND}={uuid}"


class _Name(msgspec.Struct):
    name: str


class _Names(msgspec.Struct):
    devices: list[_Name]


def driver_id(cdi_root: Path) -> str:
    """Return the fully qualified CDI id of the device that brings no GPU but the rest.

    Raises:
        NotYetError: The base specification does not have it: a container with it could not start.
    """
    path = cdi_root / FILE
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Names)
    except (OSError, msgspec.DecodeError, UnicodeError) as error:
        raise NotYetError(f"{path}, which brings the driver's libraries, cannot be read: {error}") from error
    if all(device.name != DRIVER for device in found.devices):
        raise NotYetError(f"{path} does not bring the driver's libraries alone; the node agent's log says why")
    return cdi_id(DRIVER)


class BaseSpecification:
    """The file of it, made when the driver or the GPUs change."""

    def __init__(
        self,
        *,
        cdi_root: Path,
        host_root: Path,
        driver_root: Path | None,
        run: ctk.Run = ctk.run,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep what is needed; no file is touched.

        Args:
            cdi_root: The runtime's folder for specifications that last until a reboot, at the host's path.
            host_root: Where the host's file system is.
            driver_root: Root of the file system that holds the driver, below ``host_root``; None for the host's own.
            run: Runs a command of the host's.
            clock: Seconds that only grow.
        """
        self._path = cdi_root / FILE
        self._folders = (cdi_root, host_root / "etc/cdi")  # runtimes prefer what lasts until a reboot too
        self._host_root = host_root
        self._driver_root = below(host_root, driver_root)
        self._run = run
        self._clock = clock
        self._made: _Stamp | None = None
        self._made_s = 0.0
        self._missing: dict[str, str] = {}
        self._unwritten = False  # a disk did not take what was made
        self._alone_s: float | None = None  # since when nothing else says what our own file says

    def keep(self, machine: Machine) -> dict[str, str]:
        """Make it hold every GPU that is handed out whole; return why others of these cannot be, by uuid.

        A GPU in MIG mode is never handed out whole, and toolkits from 1.18 on leave it out of theirs; its parts need
        the device ``driver`` alone. What the file holds already, and what is true of the machine still, stands for a
        while without anybody who would make it again.
        """
        whole = [gpu for gpu in machine.gpus if gpu.mig is None]
        asked = (machine.driver_version, bool(machine.gpus), tuple((gpu.uuid, gpu.minor) for gpu in whole))
        now = self._clock()
        again_s = SOON_S if self._unwritten else AGAIN_S
        due = (bool(self._missing) or self._alone_s is not None or self._unwritten) and now - self._made_s >= again_s
        if self._made != (asked, self._stamps()) or due:
            try:
                self._missing = self._alone(whole, machine.driver_version) if machine.gpus else {}
                self._unwritten = False
            except OSError as error:
                self._missing = dict.fromkeys(
                    self._not_in_ours(whole, machine.driver_version), f"{self._path} cannot be written: {error}"
                )
                self._unwritten = True
            self._made, self._made_s = (asked, self._stamps()), now
        return self._missing

    def _alone(self, gpus: list[Gpu], driver_version: str) -> dict[str, str]:
        """Make it as the one agent that does: in a rolling update another one has read, and would write, the same file.

        The folder itself is the lock, so that nothing has to be written where the file is right on a full disk.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            until = time.monotonic() + PATIENCE_S
            while not files.lock(descriptor):
                if time.monotonic() >= until:
                    raise OSError(errno.EAGAIN, "another agent is still making it", str(self._path))
                time.sleep(_LOOK_S)
            return self._make(gpus, driver_version)
        finally:
            os.close(descriptor)

    def _make(self, gpus: list[Gpu], driver_version: str) -> dict[str, str]:
        best: tuple[Specification, dict[str, dict[str, Any]], dict[str, Any] | None] | None = None
        wrong: dict[str, str] = {}
        for one in self._sources(wrong):
            found, reasons = one.devices(gpus, driver_version)
            common = one.driver(DRIVER, driver_version)
            wrong = reasons | wrong
            if best is None or (len(found), common is not None) > (len(best[1]), best[2] is not None):
                best = one, found, common
            if len(found) == len(gpus) and common is not None:
                break
        have = best[1] if best is not None else {}
        some = bool(have) or (best is not None and best[2] is not None)
        if best is not None and some and best[0].source == str(self._path):
            self._by_itself(wrong)
        elif len(have) == len(gpus):
            self._alone_s = None
        if best is not None and some:
            devices = [have[uuid] for uuid in sorted(have)] + ([best[2]] if best[2] is not None else [])
            made = best[0].raw | {"kind": KIND, "devices": devices}
            data = msgspec.json.encode(made)
            if not _holds(self._path, data):
                files.write(self._path, data)
                logger.info("%s has %d GPUs, from %s", self._path, len(have), best[0].source)
        advice = ctk.advice(ctk.find(self._host_root), driver_root=self._driver_root or "/")
        none = f"no CDI specification in {' or '.join(map(str, self._folders))}"
        said = wrong.get("", "")
        return {
            gpu.uuid: "; ".join(filter(None, (said, wrong.get(gpu.uuid, none), advice)))
            for gpu in gpus
            if gpu.uuid not in have
        }

    def _not_in_ours(self, gpus: list[Gpu], driver_version: str) -> list[str]:
        """Return the uuids of GPUs that our own file, as it stands, does not hold or not truly."""
        ours = self._own()
        return [gpu.uuid for gpu in gpus] if ours is None else list(ours.devices(gpus, driver_version)[1])

    def _own(self) -> Specification | None:
        with contextlib.suppress(OSError, ValueError):
            return Specification(str(self._path), self._path.read_bytes(), json=True)
        return None

    def _by_itself(self, wrong: dict[str, str]) -> None:
        if self._alone_s is None:
            self._alone_s = self._clock()
            why = next(iter(wrong.values()), "no toolkit and no other specification is there")
            logger.warning("%s stays as it is for %.0f minutes: %s", self._path, ALONE_S / 60, why)

    def _sources(self, wrong: dict[str, str]) -> Iterator[Specification]:
        """Yield the toolkit's, made now, those that are there, and ours; why there is none of it goes into ``wrong``.

        Ours counts again after a restart, and no longer once nobody has said the same for a while.
        """
        found = ctk.find(self._host_root)
        if found is not None and self._driver_root is not None:
            command = ctk.words(found, hook=ctk.hook(self._host_root, found), driver_root=self._driver_root)
            try:
                yield Specification(found, self._run(self._host_root, command), json=True)
            except (SetupError, ValueError) as error:
                wrong[""] = str(error)
                logger.warning("%s", error)
        yield from read_all(self._folders)
        counts = self._alone_s is None or self._clock() - self._alone_s < ALONE_S
        if counts and (ours := self._own()) is not None:
            yield ours

    def _stamps(self) -> _Stamp:
        """Return what changes when our specification does, the toolkit, or without one the specifications of others."""
        found = ctk.find(self._host_root)
        alone = not found or bool(self._missing) or self._alone_s is not None
        others = [p for folder in self._folders for p in specifications(folder)] if alone else []
        return (found, *map(_stamp, (self._path, *others)))


def on_host(host_root: Path, driver_root: Path | None) -> str:
    """Return the driver's root as a path of the host's, empty for ``/``; it may not be below the host's file system."""
    return (below(host_root, driver_root) or str(driver_root)).rstrip("/")


def below(host_root: Path, driver_root: Path | None) -> str | None:
    """Return the driver's root as a path of the host's; None where it is not below the host's file system."""
    if driver_root is None:
        return "/"
    with contextlib.suppress(ValueError):
        return str(Path("/") / driver_root.relative_to(host_root))
    return None


def _holds(path: Path, data: bytes) -> bool:
    with contextlib.suppress(OSError):
        return path.read_bytes() == data
    return False


def _stamp(path: Path) -> object:
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return str(path), status.st_mtime_ns, status.st_ino, status.st_size
    return str(path)
