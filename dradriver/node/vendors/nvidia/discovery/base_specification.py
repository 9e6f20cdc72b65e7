"""The base specification: a CDI specification with device nodes and driver libraries for whole GPUs in containers.

The file belongs to this driver. So the names of its devices stay the same when other programs change their CDI files.

The agent makes the file by the host's ``nvidia-ctk``. If the host has no working ``nvidia-ctk``, it uses the image's.
If both fail, it copies the devices of an existing specification that fit the machine.

Container edits are what a container gets for a device: device nodes, mounts, variables, and hooks. A hook is a program
that the container runtime runs on the host when it starts a container.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from dradriver.node import atomic_files
from dradriver.node.container_edits import GPU_FILE, GPU_KIND, cdi_id, names_in
from dradriver.node.errors import NotYetError, SetupError
from dradriver.node.lock import try_lock
from dradriver.node.vendors.nvidia.discovery import ctk
from dradriver.node.vendors.nvidia.discovery.cdi_specifications import Specification, read_all
from dradriver.node.vendors.nvidia.discovery.cdi_specifications import files as specifications
from dradriver.node.vendors.nvidia.discovery.driver_root import below, dev_root, inside
from dradriver.node.vendors.nvidia.discovery.library import real_folder
from dradriver.node.vendors.nvidia.discovery.own_toolkit import STAYS_S, OwnToolkit
from dradriver.topology.machine import Gpu, Machine

logger = logging.getLogger(__name__)

DRIVER: Final = "driver"  # the device that brings no GPU but the rest: for parts of GPUs, whose nodes come from us
AGAIN_S: Final = 300.0  # after a GPU was left out: whoever installs a toolkit need not tell us
SOON_S: Final = 30.0  # after it could not be written: a disk that was full has room again
PATIENCE_S: Final = 10.0  # for another agent's toolkit
_LOOK_S: Final = 0.02
_LEAST_RUN_S: Final = 5.0
_GONE: Final = ".gone"
ALONE_S: Final = 600.0  # a toolkit that is being replaced is away for so long at most

_Stamp = tuple[object, ...]


def driver_id(cdi_root: Path) -> str:
    """Return the CDI id of the device that brings the driver's libraries into a container, but no GPU.

    Raises:
        NotYetError: The base specification does not have the device. A container with the id could not start.
    """
    path = cdi_root / GPU_FILE
    try:
        named = names_in(path.read_bytes())
    except (OSError, ValueError) as error:
        raise NotYetError(f"{path}, which brings the driver's libraries, cannot be read: {error}") from error
    if DRIVER not in named:
        raise NotYetError(f"{path} does not contain the driver's libraries only. Read the node agent's log")
    return cdi_id(DRIVER)


class _Candidate(NamedTuple):
    """One CDI specification whose devices can be copied into the base specification.

    Attributes:
        specification: The specification.
        gpus: Its devices of whole GPUs, by uuid.
        common: A device without a GPU, which adds the driver's libraries to a container; None if there is none.
    """

    specification: Specification
    gpus: dict[str, dict[str, Any]]
    common: dict[str, Any] | None

    @property
    def rank(self) -> tuple[int, bool]:
        """Return how good a candidate is; the candidate with the highest value is used.

        The value is the number of its GPUs, then whether it has ``common``.
        """
        return len(self.gpus), self.common is not None


class BaseSpecification:
    """Writes the base specification: the CDI file that makes whole GPUs usable in containers.

    The file is made again if it lacks a GPU or describes a GPU wrongly.
    """

    def __init__(
        self,
        *,
        cdi_root: Path,
        host_root: Path,
        driver_root: Path | None,
        own_toolkit: OwnToolkit | None = None,
        run: ctk.Run = ctk.run,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Store the arguments; no file is touched.

        Args:
            cdi_root: The runtime's folder for specifications that last until a reboot, at the host's path.
            host_root: Folder that contains the host's file system.
            driver_root: Root of the file system with the driver, below ``host_root``; None for the host's own.
            own_toolkit: NVIDIA's toolkit in this image, for a host without a working one; None if the image has none.
            run: Runs a toolkit.
            clock: Returns seconds that never go back.
            wall: Returns seconds since 1970.
        """
        self._path = cdi_root / GPU_FILE
        self._folders = (cdi_root, host_root / "etc/cdi")  # runtimes prefer what lasts until a reboot too
        self._host_root = host_root
        self._driver_root = driver_root
        self._own_toolkit = own_toolkit
        self._renew_s = 0.0  # next check whether the file names another agent's hooks, by the clock
        self._tidy_s = 0.0  # next removal of old copies of the toolkit, by the clock
        self._run = run
        self._clock = clock
        self._wall = wall
        self._asked: _Stamp | None = None  # GPUs and files of the last attempt, if it failed for some GPUs
        self._again_s = 0.0  # when an attempt with the same GPUs and files is made again, by the clock
        self._why: dict[str, str] = {}  # reasons by uuid, and by ``DRIVER`` for the nodes of every container
        self._gone_s: float | None = None  # since when files that the specification names are missing on the host
        self._remembered = False  # whether this agent has read the mark that earlier agents left in ``_gone``
        self._gone = self._path.with_suffix(_GONE)  # marks that time for the next agent; runtimes ignore the file

    def keep(self, machine: Machine) -> dict[str, str]:
        """Write the CDI file of whole GPUs; return why GPUs are missing, by uuid.

        GPUs in MIG mode are left out. NVIDIA's toolkits from 1.18 on leave them out, too, and MIG instances need only
        the device ``driver``, which has the driver's libraries.

        The file is made again if it lacks a GPU or describes a GPU wrongly. If the new file has the same problem, the
        next attempt is after five minutes (``AGAIN_S``). It is made earlier if the GPUs or the files on the host
        change.
        """
        if not machine.gpus:
            return {}
        whole, driver_version = [gpu for gpu in machine.gpus if gpu.mig is None], machine.driver_version
        if not self._remembered:
            self._remember()

        # 1. Make the file again if it must be. ``lacks`` are the uuids that it does not have, or not as they are now,
        # and ``DRIVER`` if it lacks the device that brings the libraries alone. ``about`` and the stamps of the files
        # tell whether anything changed since an attempt that did not help.
        lacks = self._missing_in_file(whole, driver_version)
        about = (driver_version, tuple((gpu.uuid, gpu.minor) for gpu in whole), self._patient)
        is_outdated = self._outdated()
        may_try = self._asked != (about, self._stamps()) or self._clock() >= self._again_s
        if is_outdated or (lacks and may_try):
            try:
                self._why = self._make_under_lock(whole, driver_version, anew=is_outdated)
                self._again_s = self._clock() + AGAIN_S
            except OSError as error:
                self._why = dict.fromkeys([DRIVER, *_uuids(whole)], f"{self._path} cannot be written: {error}")
                self._again_s = self._clock() + SOON_S
            lacks = self._missing_in_file(whole, driver_version)
            self._asked = (about, self._stamps()) if lacks else None
            if lacks == {DRIVER}:
                logger.warning("Shares and MIG slices cannot be prepared: %s", self._reason(DRIVER))

        # 2. Remove copies of the toolkit that no specification names any more.
        if self._own_toolkit is not None and self._clock() >= self._tidy_s:
            self._own_toolkit.tidy(self._path)
            self._tidy_s = self._clock() + STAYS_S
        return {uuid: self._reason(uuid) for uuid in self._left_out(lacks, whole, driver_version)}

    def withdraw(self) -> None:
        """Remove the CDI file of whole GPUs: its device numbers may be outdated.

        A number may belong to another GPU now, so no container must start with the file.

        Raises:
            OSError: The file could not be removed.
        """
        atomic_files.remove(self._path, durable=False)

    def _outdated(self) -> bool:
        """Return whether the file must be made again because it names hook programs of another version of the agent.

        The file is checked when the agent starts. If it is outdated, it is checked again after five minutes
        (``AGAIN_S``). An older agent that runs next to this agent does not change the file back.
        """
        if self._own_toolkit is None or self._clock() < self._renew_s:
            return False
        outdated = self._own_toolkit.outdated(self._path)
        self._renew_s = self._clock() + AGAIN_S if outdated else math.inf
        return outdated

    def _missing_in_file(self, gpus: list[Gpu], driver_version: str, *, on_paper: bool = False) -> set[str]:
        """Return the uuids of GPUs that the present file lacks or describes wrongly.

        The result also has ``driver`` if the file lacks the device with the libraries.

        Args:
            gpus: GPUs that containers get as a whole: those not in MIG mode.
            driver_version: The running driver's version; empty if unknown.
            on_paper: Whether to assume, without a check, that the host has all files that the specification names.
        """
        ours = self._own(on_paper=on_paper)
        if ours is None:
            return {DRIVER, *_uuids(gpus)}
        has_driver = ours.has(DRIVER) and ours.driver(DRIVER, driver_version) is not None
        return ours.devices(gpus, driver_version)[1].keys() | (set() if has_driver else {DRIVER})

    def _left_out(self, lacks: set[str], gpus: list[Gpu], driver_version: str) -> list[str]:
        """Return the uuids of GPUs that containers cannot get because of the CDI file.

        If only files on the host are missing that the CDI file names, the GPUs are not in the result for ten minutes.
        The cause may be an update of the host's toolkit.

        Args:
            lacks: Uuids of the GPUs that the file lacks or describes wrongly; also ``driver`` if it lacks the device
                with the libraries.
            gpus: GPUs that containers get as a whole: those not in MIG mode.
            driver_version: The running driver's version; empty if unknown.
        """
        on_paper = self._missing_in_file(gpus, driver_version, on_paper=True) if lacks else lacks
        if on_paper == lacks:
            if self._gone_s is not None:
                self._note(gone=False)
            self._gone_s = None
        elif self._gone_s is None:
            self._gone_s = self._clock()
            self._note(gone=True)
            if (ours := self._own(on_paper=False)) is not None:
                why = ours.unfit(driver_version) or "; ".join(ours.devices(gpus, driver_version)[1].values())
                logger.warning("%s stays unchanged for up to %.0f minutes: %s", self._path, ALONE_S / 60, why)
        return sorted((on_paper if self._patient else lacks) - {DRIVER})

    def _remember(self) -> None:
        """Read since when the host has lacked files that the CDI file names.

        An earlier agent stored the time (``_note``).
        """
        self._remembered = True
        with contextlib.suppress(OSError):
            self._gone_s = self._clock() - max(0.0, self._wall() - self._gone.stat().st_mtime)

    def _note(self, *, gone: bool) -> None:
        """Store on disk whether the host lacks files that the CDI file names.

        An agent that starts later reads from this record how long the files have been missing.

        Args:
            gone: True if the files are missing from now on; False if the host has them again.
        """
        with contextlib.suppress(OSError):
            if gone:
                self._gone.touch()
                os.utime(self._gone, (self._wall(), self._wall()))
            else:
                self._gone.unlink(missing_ok=True)

    def _reason(self, name: str) -> str:
        return self._why.get(name, f"{self._path} does not hold it")

    @property
    def _patient(self) -> bool:
        return self._gone_s is None or self._clock() - self._gone_s < ALONE_S

    def _make_under_lock(self, gpus: list[Gpu], driver_version: str, *, anew: bool) -> dict[str, str]:
        """Make the file under a lock, which excludes another agent in a rolling update.

        The lock is on the folder, so no lock file has to be written. This matters on a full disk.

        Args:
            gpus: GPUs that containers get as a whole: those not in MIG mode.
            driver_version: The running driver's version; empty if unknown.
            anew: Whether to make the file even if it lacks nothing.

        Returns:
            What was wrong with the sources, by GPU uuid, and by ``DRIVER`` for the device with the libraries. A reason
            counts only if the new file lacks this device. Empty if nothing had to be made.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            until = time.monotonic() + PATIENCE_S
            while not try_lock(descriptor):
                if time.monotonic() >= until:
                    raise OSError(errno.EAGAIN, "another agent is still making it", str(self._path))
                time.sleep(_LOOK_S)
            return self._make(gpus, driver_version) if anew or self._missing_in_file(gpus, driver_version) else {}
        finally:
            os.close(descriptor)

    def _make(self, gpus: list[Gpu], driver_version: str) -> dict[str, str]:
        """Write the file from the best source; return what was wrong with the sources.

        The result has reasons by GPU uuid, and by ``DRIVER`` for the device with the driver's libraries. A reason
        counts only if the file then lacks this device. The best source is the first that has all GPUs and the device
        with the libraries, else the source with the most GPUs.
        """
        # 1. Try the sources in order. ``wrong`` has the reasons of all of them, by uuid, ``DRIVER``, or empty for all.
        best: _Candidate | None = None
        wrong: dict[str, str] = {}
        for specification in self._sources(gpus, driver_version, wrong):
            by_uuid, reasons = specification.devices(gpus, driver_version)
            candidate = _Candidate(specification, by_uuid, specification.driver(DRIVER, driver_version))
            if candidate.common is None:
                reasons[DRIVER] = (
                    specification.unfit(driver_version) or f"{specification.source} has no nodes for every container"
                )
            wrong = reasons | wrong
            if best is None or candidate.rank > best.rank:
                best = candidate
            if candidate.rank == (len(gpus), True):
                break

        # 2. Write the best one under this driver's own kind, so that names of devices stay whatever others do to
        # theirs.
        if best is not None and (best.gpus or best.common is not None):
            devices = [best.gpus[uuid] for uuid in sorted(best.gpus)]
            devices += [best.common] if best.common is not None else []
            source = best.specification
            made = source.raw | {"kind": GPU_KIND, "devices": devices, "containerEdits": source.edits}
            data = msgspec.json.encode(made)
            if not _holds(self._path, data):
                atomic_files.write(self._path, data)
                logger.info("%s has %d GPUs, from %s", self._path, len(best.gpus), source.source)

        # 3. The reasons, with what the administrator can do.
        advice = ctk.advice(ctk.find(self._host_root), driver=self._driver() or ctk.Driver("/", "/", ""))
        no_specification = f"no CDI specification in {' or '.join(map(str, self._folders))}"
        reason_for_all = wrong.get("", "")
        return {
            name: "; ".join(filter(None, (reason_for_all, wrong.get(name, no_specification), advice)))
            for name in (DRIVER, *_uuids(gpus))
        }

    def _own(self, *, on_paper: bool) -> Specification | None:
        with contextlib.suppress(OSError, ValueError):
            return Specification(
                str(self._path),
                self._path.read_bytes(),
                json=True,
                host_root=self._host_root,
                on_paper=on_paper,
                ours=True,
            )
        return None

    def _sources(self, gpus: list[Gpu], driver_version: str, wrong: dict[str, str]) -> Iterator[Specification]:
        """Yield the specifications to choose from: new ones by toolkits, existing ones, and the present file.

        Each toolkit first runs in its automatic mode. This mode may fail, for example in releases from 1.18 on if there
        is no whole GPU and no MIG instance. Then the toolkit makes a specification without GPUs.

        Args:
            gpus: GPUs that containers get as a whole: those not in MIG mode.
            driver_version: The running driver's version; empty if unknown.
            wrong: This method adds the reasons of failures.
        """
        # Each toolkit in its automatic mode, then in the one that brings no GPU. All together have ``ROUND_S``.
        driver, until, is_new = self._driver(), self._clock() + ctk.ROUND_S, False
        for toolkit in self._toolkits(gpus, driver_version, wrong):
            for mode in (ctk.AUTO, ctk.MANAGEMENT):
                left_s = min(ctk.TIMEOUT_S, until - self._clock())
                if driver is None or left_s < _LEAST_RUN_S:
                    break
                try:
                    made = ctk.generate(toolkit, driver, mode=mode, run=self._run, timeout_s=left_s)
                    yield Specification(toolkit.program, made, json=True, host_root=self._host_root)
                    is_new = True
                    break
                except (SetupError, ValueError) as error:
                    wrong.setdefault("", str(error))
                    level = logging.WARNING if gpus or mode == ctk.MANAGEMENT else logging.INFO
                    logger.log(level, "The CDI specification cannot be generated: %s", error)
        yield from read_all(self._folders, host_root=self._host_root)
        # What the host lacks of ours may come back; but a toolkit that has just looked knows better.
        if (ours := self._own(on_paper=self._patient and not is_new)) is not None:
            yield ours

    def _toolkits(self, gpus: list[Gpu], driver_version: str, wrong: dict[str, str]) -> Iterator[ctk.Toolkit]:
        """Yield the host's toolkit, then the image's toolkit if the caller continues the iteration.

        The toolkits make CDI specifications (``nvidia-ctk``). While the host's toolkit is being replaced, the image's
        toolkit is not used. ``gpus`` are the GPUs not in MIG mode, ``driver_version`` is the running driver's. This
        method adds its failures to ``wrong``.
        """
        if (toolkit := ctk.find(self._host_root)) is not None:
            yield toolkit
        if self._own_toolkit is not None and not self._awaited(gpus, driver_version):
            try:
                yield self._own_toolkit.ready()
            except OSError as error:
                said = f"The NVIDIA container toolkit of the agent's image cannot be used: {error}"
                wrong.setdefault("", said)
                logger.warning("%s", said)

    def _awaited(self, gpus: list[Gpu], driver_version: str) -> bool:
        """Return whether to wait for the host's toolkit before the image's toolkit is used.

        The agent waits for up to ten minutes if only files on the host are missing. An update of the host's toolkit may
        bring them back, and then the present CDI file is complete again. ``gpus`` are the GPUs not in MIG mode,
        ``driver_version`` is the running driver's.
        """
        own = self._own_toolkit is not None and self._own_toolkit.named(self._path)
        return not own and self._patient and not self._missing_in_file(gpus, driver_version, on_paper=True)

    def _driver(self) -> ctk.Driver | None:
        """Return where the driver is on the host; None if the driver's root is not below the host's file system."""
        root = below(self._host_root, self._driver_root)
        if root is None:
            return None
        dev = below(self._host_root, dev_root(self._host_root, self._driver_root))
        return ctk.Driver(root, dev or "/", real_folder(self._driver_root or self._host_root) or "")

    def _stamps(self) -> _Stamp:
        """Return a value that changes when a specification on the host, or the host's toolkit, changes.

        So the agent sees when a new attempt to make the base specification can succeed.
        """
        toolkit = ctk.find(self._host_root)
        others = (path for folder in self._folders for path in specifications(folder))
        program = inside(self._host_root, toolkit.program.lstrip("/")) if toolkit else None
        return tuple(map(_stamp, filter(None, (program, self._path, *others))))


def _uuids(gpus: Iterable[Gpu]) -> list[str]:
    return [gpu.uuid for gpu in gpus]


def _holds(path: Path, data: bytes) -> bool:
    with contextlib.suppress(OSError):
        return path.read_bytes() == data
    return False


def _stamp(path: Path) -> object:
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return str(path), status.st_mtime_ns, status.st_ino, status.st_size
    return str(path)
