"""Starts the MPS control daemons that the agent requests, and ends all others; ``mps.main`` calls it.

Each GPU is checked in its own thread: its driver may hang, and that must not affect clients of other GPUs. As long as a
daemon may run, the agent finds an answer for its GPU that is not too old. The supervisor removes the answer only after
it saw that the daemon has ended.

The agent requests a daemon by a file in a GPU's folder, and the supervisor answers by another file there
(``mps_files``). The limits of a daemon are the memory and threads that each of its clients may use.
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
    """A daemon that should run: its request, whether it serves as requested, and its problem.

    A daemon with a problem (``trouble``) gets no further share.
    """

    wanted: Wanted
    daemon: Daemon
    serves: bool = False
    trouble: str = ""
    checked_s: float = 0.0


class _Pause(msgspec.Struct):
    """The pause after a failure: the end of the pause, and the length of the next pause.

    During the pause the supervisor does not try the same request again.
    """

    wanted: Wanted | None
    until_s: float
    next_s: float


class Supervisor:
    """Compares the requested daemons with the running daemons, also with daemons of an earlier supervisor process."""

    def __init__(self, folder: MpsFolder, daemon: DaemonOf, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Store the arguments; start no daemon yet.

        Args:
            folder: The folder with the requests.
            daemon: Returns the daemon of a GPU, by uuid and folder.
            clock: Returns seconds that never go back.
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
        """Return the requested MPS daemons by folder name; None for a folder without a request.

        If requests cannot be read, the result has those of the last call.
        """
        try:
            files = self._folder.every()
        except OSError as error:
            self._say("all GPUs", f"the files that say which daemons to run cannot be read: {error}")
            return self._wanted
        self._said.pop("all GPUs", None)
        by_name = {}
        for name, wanted in files.items():
            what = f"{name}, its wanted.json"
            if not isinstance(wanted, Exception):
                self._said.pop(what, None)
                by_name[name] = wanted
                continue
            # A file that cannot be read: its daemon stays as it was wanted before.
            self._say(what, f"{wanted}. The daemon stays unchanged.")
            if name in self._wanted:
                by_name[name] = self._wanted[name]
        self._wanted = by_name
        return by_name

    def look(self, name: str, wanted: Wanted | None) -> None:
        """Check a GPU's MPS daemon once, and start or end it if needed.

        The daemon must run if it is requested, and must not run otherwise. This method raises no error. An error would
        end this process, and with it the daemons of all GPUs.

        Args:
            name: The name of the GPU's folder, which is its uuid in lower case.
            wanted: The request for the daemon; None if there is none.
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
                logger.exception("MPS of %s: internal error. The supervisor checks it again.", name)

    def hangs(self, name: str, wanted: Wanted | None) -> None:
        """Log, and answer to the agent, that the check of a GPU's MPS daemon hangs.

        ``name`` is the name of the GPU's folder, ``wanted`` the agent's request; None if there is none.
        """
        said = "a call of the control program does not return, because it hangs in the GPU driver. Other GPUs go on"
        self._say(name, said)
        self._tell(name, wanted, said)  # a look that comes back after all takes it back

    def leave(self) -> None:
        """Answer to the agent that no MPS daemon serves, because this process ends.

        The daemons end with this process.
        """
        with self._answering:
            self._left = True
        for name in {*self._kept, *self._answers}:
            self._folder.answer_none(name)

    def _keep(self, name: str, wanted_daemon: Wanted) -> None:
        """Start, restart or check the daemon of a GPU, and write the answer for the node agent.

        ``name`` is the name of the GPU's folder, ``wanted_daemon`` the agent's request.
        """
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
            died = "died together with its clients, and is started again"
            logger.error("The MPS daemon of GPU %s %s.", wanted_daemon.gpu, died)
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
        """Remove files that ended clients left; if that fails, the daemon still serves."""
        what = f"{name}, /dev/shm of its shares"
        try:
            kept.daemon.tidy()
        except OSError as error:
            self._say(what, f"files of ended clients cannot be removed: {error}")
        else:
            self._said.pop(what, None)

    def _check(self, name: str, kept: _Kept) -> None:
        """Set the daemon's limits again if a client changed them.

        While that fails, the daemon gets no further share. ``kept`` is the daemon with its request.
        """
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
            logger.warning("GPU %s: a client of MPS changed a limit. The limit was restored: %s", name, limit)

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
        """Answer to the agent why the daemon does not serve, or does not end.

        ``trouble`` is the reason. ``name`` is the name of the GPU's folder, ``wanted`` the agent's request; None if
        there is none.
        """
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
        """Write an answer to the agent, or only mark the present answer as still valid.

        An unchanged answer is marked from time to time by a new file time, because the agent ignores old answers.
        ``name`` is the name of the GPU's folder.
        """
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
        """Return whether a failed request must wait before it is tried again.

        A changed request does not wait. ``name`` is the name of the GPU's folder, ``wanted`` the agent's request; None
        if there is none.
        """
        pause = self._pauses.get(name)
        return pause is not None and pause.wanted == wanted and self._clock() < pause.until_s

    def _pause(self, name: str, wanted: Wanted | None, first_s: float = _FIRST_S) -> None:
        """Start a pause in which a failed request is not tried again.

        The pause grows with each failure, until the daemon has served for a minute. ``first_s`` is the length of the
        first pause in seconds. ``name`` is the name of the GPU's folder, ``wanted`` the agent's request; None if there
        is none.
        """
        before = self._pauses.get(name)
        length_s = first_s if before is None else max(first_s, before.next_s)
        next_s = min(max(_FIRST_S, 2 * length_s), _LATEST_S)
        self._pauses[name] = _Pause(wanted, self._clock() + length_s, next_s)
