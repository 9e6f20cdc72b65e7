"""Keeps the control daemons that are wanted, and no others.

Each GPU is looked at in a thread of its own: its driver may hang, and no other GPU's clients are to pay for that.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from prometheus_client import Counter

from dradriver.node.errors import SetupError
from dradriver.node.mps.daemon import Daemon
from dradriver.node.mps.files import MpsFolder, Wanted

logger = logging.getLogger(__name__)

KEEP_S: Final = 10.0  # between two words that an answer still holds
_LATEST_S: Final = 30.0  # between two tries to start a daemon
CHECK_S: Final = 60.0  # between two looks at a daemon's limits
_RESTORED: Final = Counter(
    "gpu_topology_mps_limits_restored_total",
    "Limits of MPS daemons that a client had changed, and that were set again.",
)

DaemonOf = Callable[[str, Path], Daemon]  # by the GPU's uuid and the daemon's folder


class _Kept(msgspec.Struct):
    """A daemon that is kept: what it serves, or what keeps it; when that was last said, and when it is tried again."""

    wanted: Wanted
    daemon: Daemon
    serves: bool = False
    trouble: bool = False
    said_s: float = 0.0
    checked_s: float = 0.0
    again_s: float = 0.0
    wait_s: float = 1.0


class Supervisor:
    """Looks at what is wanted, again and again; what it knows of daemons is what it finds of them."""

    def __init__(self, folder: MpsFolder, daemon: DaemonOf, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Look after no daemon yet.

        Args:
            folder: Where it stands what is wanted.
            daemon: Gives the daemon of a GPU.
            clock: Seconds that only grow.
        """
        self._folder = folder
        self._daemon = daemon
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._said: dict[str, str] = {}
        self._hang: dict[str, Wanted] = {}  # of whom the agent was told so, and what it wanted then
        self._left = False
        self._answering = threading.Lock()

    def wanted(self) -> dict[str, Wanted | None]:
        """Return what is wanted of each GPU that has a folder, by the folder's name.

        Raises:
            OSError: The folder cannot be read.
        """
        return self._folder.every()

    def look(self, name: str, wanted: Wanted | None) -> None:
        """Start a GPU's daemon if it is wanted and does not run, and end what runs and is not wanted.

        Nothing is raised: the end of this process would be that of all GPUs' daemons.
        """
        try:
            if wanted is None or wanted.gpu.lower() != name:
                self._end(name)
            else:
                self._keep(name, wanted)
        except (SetupError, OSError) as error:
            self._say(name, str(error))
        except Exception:  # clients have a part in what is read here: a surprise must not end all GPUs' daemons
            logger.exception("MPS of %s: look again", name)

    def hangs(self, name: str, wanted: Wanted | None) -> None:
        """Say that a look at a GPU does not come back, in the log and to the agent."""
        said = "a call of the driver's program does not come back; it hangs in the driver, and other GPUs go on"
        self._say(name, said)
        if wanted is not None and self._hang.get(name) != wanted:
            with contextlib.suppress(OSError):
                self._answer(msgspec.structs.replace(wanted, trouble=said))
                self._hang[name] = wanted  # a look that comes back after all takes it back

    def _answer(self, wanted: Wanted) -> None:
        with self._answering:  # a look that hung may come back while that is said of it, or when all is over
            if not self._left:
                self._folder.answer(wanted)

    def _say(self, name: str, error: str) -> None:
        if self._said.get(name) != error:
            self._said[name] = error
            logger.error("MPS of %s: %s", name, error)

    def leave(self) -> None:
        """Say that no daemon serves any more: they end with this process."""
        with self._answering:
            self._left = True
        for name in list(self._kept):
            self._folder.answer_none(name)

    def _keep(self, name: str, wanted: Wanted) -> None:
        kept = self._kept.get(name)
        if kept is None or kept.wanted != wanted:
            if kept is None:
                self._folder.answer_none(name)  # of a process before this one
                daemon = self._daemon(wanted.gpu, self._folder.of(wanted.gpu))
            else:
                daemon = kept.daemon
            kept = self._kept[name] = _Kept(wanted, daemon)
        now = self._clock()
        if kept.serves and kept.daemon.alive():
            if name in self._hang:
                self._answer(wanted)
                self._hang.pop(name, None)
            if now - kept.said_s >= KEEP_S:
                self._folder.keep_answer(name)
                kept.said_s = now
            if now - kept.checked_s >= CHECK_S:
                kept.checked_s = now
                self._check(name, kept)
            return
        if kept.serves:
            logger.error("MPS of GPU %s died, and its clients with it; it is started again", wanted.gpu)
            kept.serves = False
            self._folder.answer_none(name)
        if now < kept.again_s:
            return
        try:
            kept.daemon.start(wanted.server)
        except (SetupError, OSError) as error:
            kept.again_s, kept.wait_s = now + kept.wait_s, min(2 * kept.wait_s, _LATEST_S)
            self._answer(msgspec.structs.replace(wanted, trouble=str(error)))
            self._hang.pop(name, None)
            raise
        kept.serves, kept.said_s, kept.checked_s, kept.wait_s = True, now, now, 1.0
        self._answer(wanted)
        self._said.pop(name, None)
        logger.info("MPS serves shares of GPU %s: %s", wanted.gpu, wanted.server)

    def _check(self, name: str, kept: _Kept) -> None:
        """Give the daemon its limits back; while that fails no further share is served."""
        try:
            changed = kept.daemon.restore(kept.wanted.server)
        except SetupError as error:
            self._answer(msgspec.structs.replace(kept.wanted, trouble=str(error)))
            kept.trouble = True
            raise
        for one in changed:
            _RESTORED.inc()
            logger.warning("MPS of GPU %s has a limit back that a client had changed: %s", name, one)
        if kept.trouble:
            self._answer(kept.wanted)
            kept.trouble = False
            self._said.pop(name, None)

    def _end(self, name: str) -> None:
        kept = self._kept.get(name)
        if kept is None and self._folder.ready(name) is None and not self._folder.of(name).joinpath("pipe").exists():
            return
        daemon = kept.daemon if kept is not None else self._daemon(name, self._folder.of(name))
        daemon.stop()
        self._folder.forget(name)
        self._said.pop(name, None)
        if kept is not None:
            del self._kept[name]
            logger.info("MPS of GPU %s has ended after its last share", kept.wanted.gpu)
