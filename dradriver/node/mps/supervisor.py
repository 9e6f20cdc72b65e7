"""Keeps the control daemons that are wanted, and no others.

Each GPU is looked at in a thread of its own: its driver may hang, and no other GPU's clients are to pay for that. As
long as a daemon may be left, its GPU has an answer that is not old: only who saw the end takes it back.
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
from dradriver.node.mps.mps_files import MpsFolder, Server, Wanted

logger = logging.getLogger(__name__)

KEEP_S: Final = 10.0  # between two words that an answer still holds
_FIRST_S: Final = 1.0  # between two tries of what failed
_LATEST_S: Final = 30.0  # and at most
CHECK_S: Final = 60.0  # between two looks at a daemon's limits
_RESTORED: Final = Counter(
    "gpu_topology_mps_limits_restored_total",
    "Limits of MPS daemons that a client had changed, and that were set again.",
)

DaemonOf = Callable[[str, Path], Daemon]  # by the GPU's uuid and the daemon's folder


class _Kept(msgspec.Struct):
    """A daemon that is kept: what it is for, whether it serves that, and what keeps it from more shares."""

    wanted: Wanted
    daemon: Daemon
    serves: bool = False
    trouble: str = ""
    checked_s: float = 0.0


class _Pause(msgspec.Struct):
    """Until when what failed is left alone while the same is wanted, and how long after the next failure."""

    wanted: Wanted | None
    until_s: float
    next_s: float


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
        self._wanted: dict[str, Wanted | None] = {}
        self._kept: dict[str, _Kept] = {}
        self._pauses: dict[str, _Pause] = {}
        self._answers: dict[str, tuple[Wanted, float]] = {}  # and when they were given, or said to hold still
        self._said: dict[str, str] = {}
        self._left = False
        self._answering = threading.Lock()

    def wanted(self) -> dict[str, Wanted | None]:
        """Return the MPS daemons that the supervisor has to keep, by folder name; the last ones if none can be read."""
        try:
            files = self._folder.every()
        except OSError as error:
            self._say("all GPUs", f"what is wanted cannot be read: {error}")
            return self._wanted
        self._said.pop("all GPUs", None)
        by_name = {}
        for name, wanted in files.items():
            what = f"{name}, what is wanted"
            if not isinstance(wanted, Exception):
                self._said.pop(what, None)
                by_name[name] = wanted
                continue
            # A file that cannot be read: its daemon stays as it was wanted before.
            self._say(what, f"{wanted}; all stays as it is")
            if name in self._wanted:
                by_name[name] = self._wanted[name]
        self._wanted = by_name
        return by_name

    def look(self, name: str, wanted: Wanted | None) -> None:
        """Supervise a GPU's MPS daemon once: start it if it is wanted and does not run; end it if it is not wanted.

        Nothing is raised: the end of this process would be that of all GPUs' daemons.
        """
        try:
            if self._pauses_for(name, wanted):
                self._keep_answer(name)
            elif wanted is None or wanted.gpu.lower() != name:
                self._end(name)
            else:
                self._keep(name, wanted)
        except (SetupError, OSError) as error:
            self._pause(name, wanted)
            self._say(name, str(error))
            self._tell(name, wanted, str(error))
        except Exception as error:  # clients have a part in what is read here: it must not end all GPUs' daemons
            self._pause(name, wanted)
            if self._said.get(name) != repr(error):
                self._said[name] = repr(error)
                logger.exception("MPS of %s: look again", name)

    def hangs(self, name: str, wanted: Wanted | None) -> None:
        """Say in the log and to the agent that the supervisor's check of a GPU's MPS daemon does not come back."""
        said = "a call of the driver's program does not come back; it hangs in the driver, and other GPUs go on"
        self._say(name, said)
        self._tell(name, wanted, said)  # a look that comes back after all takes it back

    def leave(self) -> None:
        """Say to the agent that no MPS daemon serves any more: they end with the supervisor's process."""
        with self._answering:
            self._left = True
        for name in {*self._kept, *self._answers}:
            self._folder.answer_none(name)

    def _keep(self, name: str, wanted_daemon: Wanted) -> None:
        """Start, restart or check the daemon of a GPU, and answer the node agent."""
        # 1. What is kept of the daemon: what it serves. A change of what is wanted makes it be started again.
        kept = self._kept.get(name)
        if kept is None or kept.wanted.gpu != wanted_daemon.gpu:
            self._folder.answer_later(name)  # in the place of an answer of a process before this one
            kept = self._kept[name] = _Kept(
                wanted_daemon, self._daemon(wanted_daemon.gpu, self._folder.of(wanted_daemon.gpu))
            )
        elif kept.wanted != wanted_daemon:
            kept.wanted, kept.serves = wanted_daemon, False

        # 2. A daemon that died is started again, after a pause if that happens often.
        if kept.serves and not kept.daemon.alive():
            kept.serves = False
            died = "died, and its clients with it; it is started again"
            logger.error("MPS of GPU %s %s", wanted_daemon.gpu, died)
            self._pause(name, wanted_daemon, first_s=0.0)
            self._tell(name, wanted_daemon, f"the daemon {died}")
            if self._pauses_for(name, wanted_daemon):
                return

        # 3. Start it, or check from time to time that its limits are as they should be.
        if not kept.serves:
            kept.daemon.start(wanted_daemon.server)
            kept.serves, kept.trouble, kept.checked_s = True, "", self._clock()
            logger.info("MPS serves shares of GPU %s: %s", wanted_daemon.gpu, wanted_daemon.server)
        elif self._clock() - kept.checked_s >= CHECK_S:
            self._check(name, kept)

        # 4. Remove what ended clients left, and answer the node agent.
        self._tidy(name, kept)
        self._answer(name, msgspec.structs.replace(wanted_daemon, trouble=kept.trouble))
        if not kept.trouble:
            self._said.pop(name, None)

    def _tidy(self, name: str, kept: _Kept) -> None:
        """Remove what clients left; what keeps from that keeps nobody from serving."""
        what = f"{name}, /dev/shm of its shares"
        try:
            kept.daemon.tidy()
        except OSError as error:
            self._say(what, f"what clients left stays: {error}")
        else:
            self._said.pop(what, None)

    def _check(self, name: str, kept: _Kept) -> None:
        """Give the daemon its limits back; while that fails no further share is served."""
        kept.checked_s = self._clock()
        try:
            changed = kept.daemon.restore(kept.wanted.server)
        except SetupError as error:
            kept.trouble = str(error)
            self._say(name, kept.trouble)
            return
        kept.trouble = ""
        self._pauses.pop(name, None)
        for limit in changed:
            _RESTORED.inc()
            logger.warning("MPS of GPU %s has a limit back that a client had changed: %s", name, limit)

    def _end(self, name: str) -> None:
        kept = self._kept.get(name)
        if kept is None:
            if self._folder.ended(name) and not self._folder.of(name).joinpath("pipe").exists():
                return
            left = Wanted(gpu=name, boot=self._folder.boot, server=Server())  # by a process before this one
            kept = self._kept[name] = _Kept(left, self._daemon(name, self._folder.of(name)))
        kept.serves = False
        kept.daemon.stop()
        self._folder.forget(name)
        for known in (self._kept, self._answers, self._said):
            known.pop(name, None)
        logger.info("MPS of GPU %s has ended after its last share", kept.wanted.gpu)

    def _tell(self, name: str, wanted: Wanted | None, trouble: str) -> None:
        """Say to the agent what is in the way of what is wanted, or of the end of what was."""
        kept = self._kept.get(name)
        about = wanted or (kept.wanted if kept is not None else None)
        if about is not None:
            with contextlib.suppress(OSError):  # a full disk: it is said again
                self._answer(name, msgspec.structs.replace(about, trouble=trouble))

    def _keep_answer(self, name: str) -> None:
        if name in self._answers:
            with contextlib.suppress(OSError):
                self._answer(name, self._answers[name][0])

    def _answer(self, name: str, answer: Wanted) -> None:
        """Write an answer, or say that the one that stands still holds, unless that was done a moment ago."""
        with self._answering:  # a look that hung may come back while that is said of it, or when all is over
            now = self._clock()
            before, said_s = self._answers.get(name, (None, now))
            if self._left or (answer == before and now - said_s < KEEP_S):
                return
            if answer != before or not self._folder.keep_answer(name):
                self._folder.answer(answer)
            self._answers[name] = answer, now

    def _say(self, name: str, error: str) -> None:
        if self._said.get(name) != error:
            self._said[name] = error
            logger.error("MPS of %s: %s", name, error)

    def _pauses_for(self, name: str, wanted: Wanted | None) -> bool:
        """Return whether what failed is left alone now; something else that is wanted is tried at once."""
        pause = self._pauses.get(name)
        return pause is not None and pause.wanted == wanted and self._clock() < pause.until_s

    def _pause(self, name: str, wanted: Wanted | None, first_s: float = _FIRST_S) -> None:
        """Leave what failed alone for a while, longer each time that it fails, until it has served for a minute."""
        before = self._pauses.get(name)
        length_s = first_s if before is None else max(first_s, before.next_s)
        next_s = min(max(_FIRST_S, 2 * length_s), _LATEST_S)
        self._pauses[name] = _Pause(wanted, self._clock() + length_s, next_s)
