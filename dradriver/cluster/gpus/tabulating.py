"""Tables of new kinds of machines, made outside the event loop, in another process and one after another.

A machine of 16 GPUs with links of all widths takes two seconds, and a node may describe another one every second. A
thread would hold the interpreter's lock for half of that, and could not be ended. The process is started when there is
something to do and ended when there is not, so its memory is used only then; it is replaced whenever it dies or takes
too long.

Nodes take turns: first those for which fewest tables were made lately. After its n-th a node has no other turn for
2**n seconds, ten minutes at most, until an hour has gone by without one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

import msgspec

from dradriver.allocator.fleet import machine_kinds
from dradriver.allocator.fleet.machine_kinds import MachineKind
from dradriver.event import Event
from dradriver.kube.backoff import wait_s
from dradriver.topology.machine import Machine

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 30.0  # of one kind's tables: 16 GPUs with links of all widths take 2.5 s on one core
MOST_PAUSE_S: Final = 600.0
CALM_S: Final = 3600.0
_COMMAND: Final = (sys.executable, "-m", machine_kinds.__name__)


class AtOnce:
    """Lets tables be made where they are needed: what the command line and tests do.

    Attributes:
        made: The tables of this node's machine are made now, for which ``ready`` returned False.
    """

    def __init__(self) -> None:
        """Make one that has no tables to make."""
        self.made: Event[[str]] = Event()

    def ready(self, node: str, machine: Machine) -> bool:  # noqa: ARG002  # what others need to know
        """Return whether the tables of a node's machine exist. If they do not, ``made`` tells when they do."""
        return True

    def forget(self, node: str) -> None:
        """Forget which machine a node has: it needs no tables any more."""

    async def run(self) -> None:
        """Make tables of machines until cancelled. This class makes them on first use, so there is nothing to do."""
        await asyncio.get_running_loop().create_future()


class _Turns(msgspec.Struct):
    """Tables that were made for a node.

    Attributes:
        made: How many, since an hour without any.
        last: When the last one was begun.
    """

    made: int = 0
    last: float = 0.0

    @property
    def not_before(self) -> float:
        return self.last + wait_s(self.made, first_s=1.0, longest_s=MOST_PAUSE_S) if self.made else 0.0


class Tabulator(AtOnce):
    """Has tables made, and says which nodes may be placed on since."""

    def __init__(
        self,
        *,
        command: Sequence[str] = _COMMAND,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``command`` starts the process, as ``allocator/fleet/machine_kinds.py`` is one."""
        super().__init__()
        self._command, self._timeout_s, self._clock = command, timeout_s, clock
        self._wanted: dict[str, MachineKind] = {}  # by node, those first that have waited longest
        self._turns: dict[str, _Turns] = {}
        self._woken = asyncio.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def ready(self, node: str, machine: Machine) -> bool:
        """Return whether the tables of a node's machine exist, and have another process make them if they do not."""
        if machine_kinds.known(machine) or (kind := machine_kinds.kind_of(machine)) is None:
            self.forget(node)
            return True
        if self._wanted.get(node) != kind:
            self._wanted[node] = kind  # in the place that it has
            self._woken.set()
        return False

    def forget(self, node: str) -> None:
        """Forget which machine a node has. Tables that are being made for it are finished: it may come back at once."""
        self._wanted.pop(node, None)

    async def run(self) -> NoReturn:
        """Have another process make tables of new kinds of machines, one after another, until cancelled."""
        try:
            while True:
                self._woken.clear()
                now = self._clock()
                node = self.next_node(now)
                if node is not None:
                    await self._make(node, now)
                    continue
                self._end()
                soonest = min((self._turns_of(node).not_before for node in self._wanted), default=None)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if soonest is None else soonest - now):
                        await self._woken.wait()
        finally:
            self._end()

    def next_node(self, now: float) -> str | None:
        """Return the node for whose machine a table is made next; None while no node waits for tables."""
        for node in [node for node, turns in self._turns.items() if now - turns.last > CALM_S]:
            del self._turns[node]
        due = [node for node in self._wanted if self._turns_of(node).not_before <= now]
        return min(due, key=lambda node: self._turns_of(node).made, default=None)

    def _turns_of(self, node: str) -> _Turns:
        return self._turns.get(node, _Turns())

    async def _make(self, node: str, now: float) -> None:
        """Have the other process make the tables of a node's kind of machine.

        All nodes of this kind are then reported as made.

        If it fails or takes too long, the process is ended, and the nodes wait for their next turn.
        """
        machine_kind = self._wanted[node]
        self._count(node, now)
        answer = asyncio.ensure_future(asyncio.to_thread(self._ask, machine_kind))
        try:
            await asyncio.wait([answer], timeout=self._timeout_s)
        finally:
            # A thread cannot be cancelled. Without the process it reads to the end of the pipe, and ends.
            while not answer.done():  # only after a timeout, or if this task is cancelled
                if self._process is not None:
                    self._process.kill()
                await asyncio.wait([answer], timeout=1.0)
            error = answer.exception()
        if isinstance(error, OSError | EOFError):
            self._end()
            # All nodes of the kind count as tried, so that the failure is not repeated for each of them in turn.
            waiting = [other for other, wanted_kind in self._wanted.items() if wanted_kind == machine_kind]
            for other in waiting:
                if other != node:
                    self._count(other, now)
            logger.warning(
                "tables of %s's kind of machine, %d GPUs: %s; nothing is placed on it and %d others of its kind until "
                "they are made; trying again",
                node, machine_kind.shape.size, error, len(waiting) - (node in waiting),
            )  # fmt: skip
            return
        # The tables go to the memory of this process, where ``machine_kinds.known`` and the allocator find them.
        for number, table in enumerate(answer.result()):
            machine_kinds.keep(machine_kind, number, table)
            await asyncio.sleep(0)  # tables are large: let other tasks run between them
        for other in [other for other, wanted_kind in self._wanted.items() if wanted_kind == machine_kind]:
            self.forget(other)
            self.made(other)  # the cluster cache can place pods on it now

    def _count(self, node: str, now: float) -> None:
        turns = self._turns.setdefault(node, _Turns())
        turns.made, turns.last = turns.made + 1, now

    def _ask(self, kind: MachineKind) -> list[bytes]:
        """Return the tables that the process makes of a kind of machine; runs in a thread, which does nothing but wait.

        Raises:
            OSError: The process cannot be started, or is gone.
            EOFError: It ended, or answers nonsense.
        """
        if self._process is None:
            env = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # its threads cost memory, and do nothing here
            self._process = subprocess.Popen(  # noqa: S603  # this program
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(machine_kinds.question(kind))
        process.stdin.flush()
        return list(machine_kinds.answer(process.stdout))

    def _end(self) -> None:
        """End the process, whatever it is doing; nobody waits for its answer any more."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()
