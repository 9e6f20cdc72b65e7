"""Changes the hardware for a claim: makes the MIG instances and shares that its devices need, and undoes them.

The agent records each change in the hardware journal, a folder on disk: before the change as an intent, after it with
the result. During a change the agent does not hold the node's lock, which calls for other claims need. The node's lock
protects the ledgers: the hardware journal, the checkpoint (the prepared claims on disk) and the files of claims. A
change of a GPU takes seconds, and a broken GPU may never answer.

The lock of the hardware is a second lock. It keeps two instances of the agent from changing hardware at the same time.
The agent holds it until the GPUs' kernel driver (below: the driver) has answered or the agent's process has ended, even
if no caller waits any more.

If a caller stops waiting, the work continues to its end and keeps the claim's lock. The next call, in either instance
of the agent, finds the result.
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
    """Makes and undoes the hardware changes for claims. The changes run one after the other."""

    def __init__(self, state_dir: Path, lock: Path, ledgers: Ledgers, device_manager: DeviceManager) -> None:
        """Store the arguments; change no hardware yet.

        Args:
            state_dir: Folder that contains the lock of the hardware.
            lock: The node's lock, which protects the files of ``ledgers``.
            ledgers: The checkpoint and the hardware journal, which store intents and results.
            device_manager: Makes and undoes devices.
        """
        self._hardware = state_dir / "hardware.lock"
        self._lock = lock
        self._ledgers = ledgers
        self._device_manager = device_manager
        self._tasks: set[asyncio.Task[Any]] = set()  # else nobody holds one that was given up
        self._said: set[str] = set()

    async def prepare(self, plan: Plan, held: int) -> Entry[PreparedClaim]:
        """Make the planned hardware for a claim, store the claim as prepared, and return its checkpoint entry.

        The work continues if the caller is cancelled.

        Args:
            plan: The plan to prepare the claim.
            held: The open file descriptor that holds the claim's lock.

        Raises:
            DriverError: The hardware could not be made. Everything that was made for the claim is undone, now or later.
            OSError: A file could not be written.
        """
        return await self._shielded(plan.claim.uid, lambda: self._prepare(plan), held)

    async def unprepare(self, uid: str, held: int) -> None:
        """Undo the hardware changes of a claim and remove its entry.

        The work continues if the caller is cancelled. The claim stays prepared only if a process uses one of its
        devices. If the driver refuses a change or does not answer, the entry is removed, and ``clean`` tries the change
        again later. The claim does not wait for the driver, because the driver may need a reboot, and pods must end
        before a reboot.

        Args:
            uid: The claim's uid.
            held: The open file descriptor that holds the claim's lock.

        Raises:
            InUseError: A process uses one of the claim's devices. The claim is still prepared.
            OSError: A file could not be removed.
        """
        await self._shielded(uid, lambda: self._unprepare(uid), held)

    async def clean(self) -> dict[str, str]:
        """Undo hardware changes of claims that are not prepared; return failures by GPU uuid.

        A failure is a text that says why a change could not be undone. Changes of this kind are left in two cases: an
        agent was killed, or the hardware refused to undo the change when the claim was unprepared.
        """
        left: list[Made] = []
        try:
            async with locked(self._lock):
                left = self._ledgers.changes_without_claim()
            refused = await self._shielded("", self._clean) if left else {}
        except (DriverError, OSError) as error:
            refused = {one.uuid: str(error) for one in left}
            if not left:
                logger.error("MIG instances and GPU settings of ended claims cannot be listed now: %s", error)
        for failures_text in sorted(set(refused.values()) - self._said):
            logger.error("MIG instances and GPU settings of ended claims cannot be undone now: %s", failures_text)
        self._said = set(refused.values())
        return refused

    async def check(self, uid: str) -> None:
        """Check that all hardware that was made for the claim ``uid`` can be used now.

        Calls for other claims do not wait for this check.

        Raises:
            NotYetError: Some hardware cannot be used yet; the message says why.
        """
        try:
            async with locked(self._lock):
                made = self._ledgers.made.of(uid)
        except OSError as error:
            raise NotYetError(
                f"the node agent cannot read its record of the hardware that it set up for the claim: {error}"
            ) from error
        for change in made:
            self._device_manager.check(change)

    async def look(self, uid: str) -> bool:
        """Ask the hardware whether devices of the claim ``uid`` are missing; return whether any are.

        If so, the journal entries of these devices are marked as changes to undo, because parts of the devices may be
        left. The claim's CDI spec is removed, so that no container starts with it.

        Raises:
            DriverError: The hardware does not answer the question.
            OSError: The hardware journal cannot be read or written.
        """
        return await self._shielded(uid, lambda: self._look(uid))

    async def rest(self, gpus: Sequence[str]) -> dict[str, str]:
        """Restore the normal state of GPUs without MIG instances and shares, for example end MIG mode.

        Args:
            gpus: Uuids of GPUs. GPUs with an entry in the hardware journal are skipped, because they may have instances
                or shares.

        Returns:
            By GPU uuid: why the normal state could not be restored. GPUs that are in their normal state now are left
                out.

        Raises:
            DriverError: Another instance of the agent is changing hardware.
            OSError: The hardware journal cannot be read.
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
        """Hold the lock of the hardware during an ``async with`` body.

        If the driver has not answered a call of the body yet, the lock is held until the driver has answered. So other
        instances of the agent cannot change hardware while a call hangs.
        """
        try:
            descriptor = await take(self._hardware, patience_s=_PATIENCE_S)
        except NotYetError as error:
            raise NotYetError(
                "the node agent is still changing hardware for another claim, or the GPU driver does not answer"
            ) from error
        try:
            yield
        finally:
            self._device_manager.afterwards(lambda: os.close(descriptor))

    async def _prepare(self, plan: Plan) -> Entry[PreparedClaim]:
        """Make the devices of a planned claim on the hardware, and return the claim's checkpoint entry.

        Each change is recorded in the hardware journal before it is made. So an agent that starts after a crash can
        undo it.

        There are two locks. ``_alone`` is the lock of the hardware: it is held during the whole change, which takes
        seconds. ``self._lock`` is the node's lock: it is held only for moments, because calls for other claims wait for
        it.
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
        """Undo the hardware changes of a claim, and remove the claim from the checkpoint.

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
            logger.warning(
                "Claim %s is unprepared. The changes of its devices are undone later: %s", uid, failures_text
            )
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
        """Restore the normal state of GPUs without MIG instances and shares, for example end MIG mode.

        GPUs with an entry in the hardware journal are skipped. If the driver does not answer for one GPU, this method
        does not ask the driver about the remaining GPUs. The result says, by GPU uuid, why the normal state could not
        be restored.
        """
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
        """Undo hardware changes, the last first, and remove their entries in the hardware journal.

        ``made`` are the entries of the changes. A change that could not be undone keeps its entry. After the first
        change for which the driver does not answer, the driver is not asked about the remaining changes.

        Returns:
            The errors by the keys of the entries.
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
