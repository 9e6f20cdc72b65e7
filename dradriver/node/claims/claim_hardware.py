"""Changes the hardware for a claim: makes the MIG instances and shares that its devices need, and undoes them.

Intents are written before the hardware is touched, the result after it. Between the two no lock is held that others
need: a GPU takes seconds to change, and a broken one for ever. One lock of its own keeps two instances of the agent
from changing hardware at the same time: until the driver has answered, whoever still waits for that, or the process is
gone. Who gives up waiting does not stop the work: it ends as if nobody had, keeps the claim's lock until then, and the
next call, to whichever instance, finds what came of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from dradriver.errors import DriverError
from dradriver.node.claims.checkpoint import PreparedClaim
from dradriver.node.claims.ledgers import Ledgers
from dradriver.node.claims.prepare_plan import Plan
from dradriver.node.devices.device_manager import DeviceManager
from dradriver.node.devices.hardware_journal import Made
from dradriver.node.errors import InUseError, NotYetError
from dradriver.node.journal import Entry
from dradriver.node.lock import locked, take

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PATIENCE_S: Final = 35.0  # for others' work; the kubelet gives up after 45 s


class Making:
    """Changes hardware for claims, one after the other."""

    def __init__(self, state_dir: Path, lock: Path, ledgers: Ledgers, device_manager: DeviceManager) -> None:
        """Change nothing yet.

        Args:
            state_dir: Holds the lock of the hardware.
            lock: The lock of the ledgers.
            ledgers: Where intents and results are written.
            device_manager: What makes and undoes.
        """
        self._hardware = state_dir / "hardware.lock"
        self._lock = lock
        self._ledgers = ledgers
        self._device_manager = device_manager
        self._tasks: set[asyncio.Task[Any]] = set()  # else nobody holds one that was given up
        self._said: set[str] = set()

    async def prepare(self, plan: Plan, held: int) -> Entry[PreparedClaim]:
        """Make the planned hardware for a claim, and the claim prepared; goes on when the caller gives up.

        Args:
            plan: What is to be.
            held: The descriptor that holds the claim's lock.

        Raises:
            DriverError: It could not be made, and nothing of it is left, or will be.
            OSError: A file could not be written.
        """
        return await self._shielded(plan.claim.uid, lambda: self._prepare(plan), held)

    async def unprepare(self, uid: str, held: int) -> None:
        """Undo the hardware of a claim, and make the claim unprepared; goes on when the caller gives up.

        Only a process that is on something of it keeps a claim. What the driver refuses or does not answer to it may
        go on so until a reboot, for which pods have to go: that is left to ``clean``.

        Args:
            uid: The claim's.
            held: The descriptor that holds its lock.

        Raises:
            InUseError: A process is on something of it, and the claim is prepared still.
            OSError: A file could not be removed.
        """
        await self._shielded(uid, lambda: self._unprepare(uid), held)

    async def clean(self) -> dict[str, str]:
        """Undo the hardware changes of claims that are not prepared; return the reasons of failures, by the GPU's uuid.

        A killed agent leaves something, and a claim that was given back while the hardware did not do as it was told.
        """
        left: list[Made] = []
        try:
            async with locked(self._lock):
                left = self._ledgers.changes_without_claim()
            refused = await self._shielded("", self._clean) if left else {}
        except (DriverError, OSError) as error:
            refused = {one.uuid: str(error) for one in left}
            if not left:
                logger.error("what was made for claims that are not prepared is not known now: %s", error)
        for said in sorted(set(refused.values()) - self._said):
            logger.error("what was made for claims that are not prepared cannot be undone now: %s", said)
        self._said = set(refused.values())
        return refused

    async def check(self, uid: str) -> None:
        """Raise unless all hardware that was made for a claim can be used now; no other claim waits for this check.

        Raises:
            NotYetError: Why not.
        """
        try:
            async with locked(self._lock):
                made = self._ledgers.made.of(uid)
        except OSError as error:
            raise NotYetError(f"the node cannot read what was made: {error}") from error
        for change in made:
            self._device_manager.check(change)

    async def look(self, uid: str) -> bool:
        """Ask the hardware whether a claim's devices still exist; note missing ones, and return whether there are any.

        Raises:
            DriverError: The hardware does not say.
            OSError: The ledger cannot be read or written.
        """
        return await self._shielded(uid, lambda: self._look(uid))

    async def rest(self, gpus: Sequence[str]) -> dict[str, str]:
        """Clear what gone devices left on the hardware of free GPUs; return the reasons of failures, by the GPU's uuid.

        Args:
            gpus: Uuids; those of which there is an entry are left alone.

        Raises:
            DriverError: Others go on changing hardware.
            OSError: The ledger cannot be read.
        """
        return await self._shielded("", lambda: self._rest(gpus)) if gpus else {}

    async def _shielded(self, uid: str, work: Callable[[], Coroutine[Any, Any, T]], held: int | None = None) -> T:
        own = None if held is None else os.dup(held)
        task = asyncio.create_task(work())
        self._tasks.add(task)

        def ended(done: asyncio.Task[T]) -> None:
            self._tasks.discard(done)
            if own is not None:
                os.close(own)
            if not done.cancelled() and (error := done.exception()) is not None:  # seen here where nobody waits
                logger.info("hardware for claim %s: %s", uid or "none", error)

        task.add_done_callback(ended)
        return await asyncio.shield(task)

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Hold the lock of the hardware, until the driver has answered to all that it was asked in the block."""
        try:
            descriptor = await take(self._hardware, patience_s=_PATIENCE_S)
        except NotYetError as error:
            raise NotYetError("hardware is still being changed for others, or its driver does not answer") from error
        try:
            yield
        finally:
            self._device_manager.afterwards(lambda: os.close(descriptor))

    async def _prepare(self, plan: Plan) -> Entry[PreparedClaim]:
        """Make the devices of a planned claim on the hardware, and return its entry.

        Each change is noted in the ledger before it is made, so that an agent that starts after a crash can undo it.
        ``_alone`` is the lock of the hardware, which takes seconds to change. ``self._lock`` is the node's lock of the
        ledgers, which other claims wait for: it is held for moments only.
        """
        async with self._alone():
            # 1. Undo what an earlier attempt for this claim left. The first error ends this attempt.
            async with locked(self._lock):
                leftover = self._ledgers.made.of(plan.claim.uid)
            errors = await self._undo(leftover)
            for error in errors.values():
                raise error

            # 2. Choose places next to the devices of others, and note them. The claim's devices are checked again,
            # because other claims may have been prepared in between.
            async with locked(self._lock):
                self._ledgers.raise_if_taken(plan.claim)
                known = self._known()
            intents = await self._device_manager.settle(plan.intents, known)
            async with locked(self._lock):
                self._ledgers.raise_if_taken(plan.claim)
                for intent in intents:
                    self._ledgers.made.write(intent)

            # 3. Make them.
            made = list(intents)
            try:
                for number, intent in enumerate(intents):
                    # Each state of the device on the way (MIG mode is on, the GPU instance is there) is noted at once.
                    async for made[number] in self._device_manager.make(intent):
                        async with locked(self._lock):
                            self._ledgers.made.write(made[number])
                async with locked(self._lock):
                    done = plan.complete(made, self._device_manager)
                    return self._ledgers.put(done, plan.files(done))
            except (DriverError, OSError):
                # A change that cannot be undone now stays noted, and the next attempt begins with it.
                await self._undo(made)
                raise

    async def _unprepare(self, uid: str) -> None:
        """Undo what was made for a claim on the hardware, and remove its entry.

        Raises InUseError if a process uses a device of the claim.
        """
        # 1. Without its spec no container of the claim starts. Its changes are noted as to be undone.
        async with locked(self._lock):
            self._ledgers.cdi.remove(uid)
            made = [change.to_undo() for change in self._ledgers.made.of(uid)]
            try:
                for change in made:
                    self._ledgers.made.write(change)
            except OSError:  # a full disk: without its entry the claim is not taken for prepared either
                self._ledgers.drop(uid)

        # 2. Undo them. Only a device in use keeps the claim: other failures are tried again later.
        try:
            async with self._alone():
                failures = await self._undo(made)
        except NotYetError as error:
            failures = {"": error}
        for failure in failures.values():
            if isinstance(failure, InUseError):
                raise failure
        if failures:
            failures_text = "; ".join(map(str, failures.values()))
            logger.warning("claim %s is given back, and what was made for it undone later: %s", uid, failures_text)
        async with locked(self._lock):
            self._ledgers.drop(uid)

    async def _clean(self) -> dict[str, str]:
        async with self._alone():
            async with locked(self._lock):
                left = self._ledgers.changes_without_claim()
            refused = await self._undo(left)
            return {one.uuid: str(refused[one.key]) for one in left if one.key in refused}

    async def _look(self, uid: str) -> bool:
        async with self._alone():
            async with locked(self._lock):
                made = [change for change in self._ledgers.made.of(uid) if change.done is not None]
            gone = [change for change in made if not await self._device_manager.there(change)]
            async with locked(self._lock):
                noted = self._ledgers.made.of(uid)
                for change in gone:
                    if change in noted:  # not given back meanwhile
                        self._ledgers.made.write(change.to_undo())
                        self._ledgers.cdi.remove(uid)  # no container starts with what has its number now
            return bool(gone)

    async def _rest(self, gpus: Sequence[str]) -> dict[str, str]:
        """Clear what is left on these GPUs that nobody has; a driver that does not answer for one is asked no more."""
        refused: dict[str, str] = {}
        hangs: NotYetError | None = None
        async with self._alone():
            async with locked(self._lock):
                owned = {one.uuid for one in self._known()}
            for gpu in gpus:
                if gpu in owned:
                    continue
                try:
                    if hangs is not None:
                        raise hangs
                    await self._device_manager.rest(gpu)
                except NotYetError as error:
                    refused[gpu] = str(error)
                    hangs = error if isinstance(error.__cause__, TimeoutError) else hangs
        return refused

    async def _undo(self, made: Sequence[Made]) -> dict[str, NotYetError]:
        """Undo all, the last first, and forget each; what cannot be undone stays noted. Returns why, by key.

        A driver that does not answer answers to none, and is asked no more.
        """
        failures: dict[str, NotYetError] = {}
        hangs: NotYetError | None = None
        for change in reversed(made):
            async with locked(self._lock):
                known = self._known()
            try:
                if hangs is not None:
                    raise hangs
                await self._device_manager.undo(change, known)
            except NotYetError as error:
                failures[change.key] = error
                # A timeout: the driver hangs, and the others are not asked of it.
                hangs = error if isinstance(error.__cause__, TimeoutError) else hangs
                continue
            async with locked(self._lock):
                self._ledgers.made.remove(change.key)
        return failures

    def _known(self) -> list[Made]:
        return [entry.value for entry in self._ledgers.made.read().values()]
