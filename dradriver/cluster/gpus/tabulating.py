"""Computes the allocator's tables for new kinds of machines, in another process.

Tables are made one after another. They have the bandwidth of each set of a machine's GPUs. For 16 GPUs with unequal
links they take two seconds, and a node can describe a new machine every second. A thread would hold the interpreter's
lock for half of that time, and could not be stopped. The process runs only while tables must be made, so it uses memory
only then. It is replaced if it dies or takes too long.

The node for which the fewest tables were made in the last hour comes first. After its n-th table a node waits 2**n
seconds for the next one, at most ten minutes. The count starts again after an hour without a table for the node.
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
    """Lets the allocator make tables when it needs them, for the command line and tests.

    The tables have the bandwidth of each set of a machine's GPUs.

    Attributes:
        made: Is called with a node for which ``ready`` returned False, once the tables of its machine are made.
    """

    def __init__(self) -> None:
        """Make an object that starts no other process.

        The allocator then computes its tables (the bandwidth of each GPU set) at their first use.
        """
        self.made: Event[[str]] = Event()

    def ready(self, node: str, machine: Machine) -> bool:  # noqa: ARG002  # what others need to know
        """Return whether the bandwidths of a machine's GPU sets are computed; here always True.

        A subclass can return False. Then it calls ``made`` with the node once they are computed.
        """
        return True

    def forget(self, node: str) -> None:
        """Cancel a node's request for tables (bandwidths of GPU sets).

        Here there is nothing to do.
        """

    async def run(self) -> None:
        """Make tables (bandwidths of GPU sets) of machines until cancelled.

        This class makes them at their first use, so there is nothing to do here.
        """
        await asyncio.get_running_loop().create_future()


class _Turns(msgspec.Struct):
    """How many tables (bandwidths of GPU sets) were made for a node lately.

    The node with the fewest comes first.

    Attributes:
        made: The number of tables. It starts again after an hour without any.
        last: When the last table was begun, in seconds of the ``Tabulator``'s clock.
    """

    made: int = 0
    last: float = 0.0

    @property
    def not_before(self) -> float:
        return self.last + wait_s(self.made, first_s=1.0, longest_s=MOST_PAUSE_S) if self.made else 0.0


class Tabulator(AtOnce):
    """Computes the allocator's tables in another process, one kind of machine after another.

    The tables have the bandwidth of each set of a machine's GPUs. Then ``made`` is called with the nodes on which pods
    can be placed from now on.
    """

    def __init__(
        self,
        *,
        command: Sequence[str] = _COMMAND,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make an object that has not started the process yet.

        Args:
            command: Starts a process that makes tables, like ``allocator/fleet/machine_kinds.py``.
            timeout_s: How long the process may take for one kind of machine, in seconds.
            clock: Returns the present time in seconds; by default the monotonic clock.
        """
        super().__init__()
        self._command, self._timeout_s, self._clock = command, timeout_s, clock
        self._wanted: dict[str, MachineKind] = {}  # by node, those first that have waited longest
        self._turns: dict[str, _Turns] = {}
        self._woken = asyncio.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def ready(self, node: str, machine: Machine) -> bool:
        """Return whether the bandwidths of a machine's GPU sets (its tables) are computed.

        If not, the other process is asked to compute them for this node.
        """
        if machine_kinds.known(machine) or (kind := machine_kinds.kind_of(machine)) is None:
            self.forget(node)
            return True
        if self._wanted.get(node) != kind:
            self._wanted[node] = kind  # in the place that it has
            self._woken.set()
        return False

    def forget(self, node: str) -> None:
        """Cancel a node's request for the tables (bandwidths of GPU sets) of its machine.

        Tables that are being made for it are finished, because the node may come back soon.
        """
        self._wanted.pop(node, None)

    async def run(self) -> NoReturn:
        """Get tables for new kinds of machines from another process, until cancelled.

        Tables have the bandwidths of all GPU sets. They are made one after another.
        """
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
        """Return the node for whose machine tables are made next; None if no node is due.

        A node is due if it waits for tables, and its pause after its last table is over. Of these nodes, the one with
        the fewest tables lately is returned. ``now`` is this object's clock, in seconds.
        """
        for node in [node for node, turns in self._turns.items() if now - turns.last > CALM_S]:
            del self._turns[node]
        due = [node for node in self._wanted if self._turns_of(node).not_before <= now]
        return min(due, key=lambda node: self._turns_of(node).made, default=None)

    def _turns_of(self, node: str) -> _Turns:
        return self._turns.get(node, _Turns())

    async def _make(self, node: str, now: float) -> None:
        """Get the tables for a node's kind of machine from the other process.

        Afterwards ``made`` is called with all nodes of this kind. If the process fails or takes too long, it is ended,
        and the nodes are tried again later. ``now`` is the time of this object's clock, in seconds.
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
                "Node %s: the tables of this kind of machine (%d GPUs) cannot be computed: %s. No pod is "
"placed on this node and on %d others of the same kind. The controller tries again.",
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
        """Return the tables (bandwidths of GPU sets) of a kind of machine, as bytes.

        The other process computes them. The function runs in a thread, which only waits.

        Raises:
            OSError: The process cannot be started, or is gone.
            EOFError: The process ended, or sent an invalid answer.
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
        """Kill the process that makes tables, even while it makes one.

        Its answer is not needed any more.
        """
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()
