"""Preparing and unpreparing claims.

Everything that changes state happens under the node's lock in one piece without an await, so the kubelet's cancellation
after 45 s finds it undone or done. The checkpoint is written before the CDI spec and removed after it: what a kill
leaves between the two is put right by ``recover``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from dradriver.api.objects import ResourceClaim
from dradriver.kube.errors import ApiError, Unreachable
from dradriver.node import metrics
from dradriver.node.claims.allocation import plan
from dradriver.node.claims.cdi import CdiFolder
from dradriver.node.claims.checkpoint import Checkpoint, Entry, PreparedClaim, checked_uid
from dradriver.node.claims.lock import locked
from dradriver.node.errors import ClaimError, DeviceBusyError, NotYetError
from dradriver.topology.machine import Machine

logger = logging.getLogger(__name__)

BUDGET_S: Final = 40.0  # the kubelet gives up after 45 s, and an error costs the pod more than a minute
RETRY_S: Final = 1.0
GET_S: Final = 10.0
_LEAST_GET_S: Final = 1.0
GONE_S: Final = 5.0  # the kubelet has just read the claim: one that is not found may be met by a lagging server

GetClaim = Callable[[str, str], Awaitable[ResourceClaim]]


class Preparer:
    """The prepared claims of this node.

    Two instances of the agent may work on the same folders; nothing is remembered between calls but on disk.
    """

    def __init__(
        self,
        *,
        node: str,
        state_dir: Path,
        cdi_root: Path,
        get_claim: GetClaim,
        machine: Callable[[], Machine | None],
        host_path: str | None = None,
        budget_s: float = BUDGET_S,
    ) -> None:
        """Keep what is needed; no file is touched.

        Args:
            node: This node's name.
            state_dir: Holds the checkpoint and the lock; shared with other instances on this node.
            cdi_root: The runtime's folder of CDI specs.
            get_claim: Reads a claim from the API server by namespace and name.
            machine: Gives the machine as it is now; None until it was read.
            host_path: What stands behind every device node; None where NVIDIA's own CDI specification brings the nodes.
            budget_s: How long a prepare goes on trying.
        """
        self._node = node
        self._lock = state_dir / "serialize.lock"
        self._checkpoint = Checkpoint(state_dir / "claims")
        self._cdi = CdiFolder(cdi_root)
        self._get_claim = get_claim
        self._machine = machine
        self._host_path = host_path
        self._budget_s = budget_s
        self._changed = asyncio.Event()

    async def recover(self) -> None:
        """Put right what a crash or a reboot left: every prepared claim has its CDI spec, and no other has one.

        Raises:
            DriverError: A newer version of the agent wrote the checkpoint.
            OSError: A file cannot be read, written or removed.
        """
        async with locked(self._lock):
            self._checkpoint.sweep()
            entries = self._checkpoint.read()
            for entry in entries.values():
                self._cdi.write(entry.claim)
            gone = self._cdi.sweep(keep=entries.keys() | self._checkpoint.kept())
        metrics.CLAIMS_PREPARED.set(len(entries))
        logger.info("%d claims are prepared; removed CDI specs of %s", len(entries), gone or "none other")

    def poke(self) -> None:
        """Let every prepare that waits try again now: a device came free, or the machine changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def prepare(self, namespace: str, name: str, uid: str) -> PreparedClaim:
        """Make the claim's devices ready and return them; a claim that is ready already gives the same again.

        What can come right by itself is tried until the budget is spent: an API server that does not answer, a device
        that another claim still holds, a GPU that is lost.

        Raises:
            DriverError: The claim cannot be prepared; the message is for the pod's owner.
        """
        checked_uid(uid)
        loop = asyncio.get_running_loop()
        started = loop.time()
        said = ""
        while True:
            changed = self._changed
            try:
                return await self._attempt(namespace, name, uid, until=started + self._budget_s)
            except NotYetError as error:
                left = started + min(self._budget_s, error.patience_s) - loop.time()
                if left <= 0:
                    raise
                if str(error) != said:
                    said = str(error)
                    logger.info("claim %s/%s waits: %s", namespace, name, said)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(RETRY_S, left)):
                    await changed.wait()

    async def unprepare(self, uid: str) -> None:
        """Give the claim's devices back; a claim that is not prepared is fine.

        Raises:
            ClaimError: The uid is none, or a file could not be removed.
        """
        checked_uid(uid)
        async with locked(self._lock):
            self._remove(uid)
        self.poke()

    async def prepared(self) -> dict[str, Entry]:
        """Return all prepared claims by uid.

        Raises:
            DriverError: A newer version of the agent wrote the checkpoint.
        """
        async with locked(self._lock):
            return self._checkpoint.read()

    async def unprepare_if(self, uid: str, entry: Entry) -> bool:
        """Give the claim's devices back unless it was prepared again since ``entry`` was read; return whether it was.

        Raises:
            DriverError: A file could not be read or removed.
        """
        async with locked(self._lock):
            found = self._checkpoint.read().get(uid)
            if found is None or found.stamp != entry.stamp:
                return False
            self._remove(uid)
        self.poke()
        return True

    async def _attempt(self, namespace: str, name: str, uid: str, *, until: float) -> PreparedClaim:
        claim = await self._read(namespace, name, until=until)
        if claim.metadata.uid != uid:
            raise ClaimError(f"claim {namespace}/{name} is another one now: uid {claim.metadata.uid}, not {uid}")
        machine = self._machine()
        if machine is None:
            raise NotYetError("the node's GPUs have not been read yet; the node agent's log says more if that lasts")
        planned = plan(claim, machine, node=self._node, host_path=self._host_path)
        if not planned.devices:
            return planned
        try:
            async with locked(self._lock):
                entries = self._checkpoint.read()
                _refuse_taken(planned, entries)
                self._checkpoint.write(planned)
                self._cdi.write(planned)
                metrics.CLAIMS_PREPARED.set(len(entries.keys() | {uid}))
        except OSError as error:
            raise NotYetError(f"the node cannot write what it prepares: {error}") from error
        return planned

    async def _read(self, namespace: str, name: str, *, until: float) -> ResourceClaim:
        left = until - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(max(min(GET_S, left), _LEAST_GET_S)):
                return await self._get_claim(namespace, name)
        except ApiError as error:
            if error.not_found:
                raise NotYetError(f"claim {namespace}/{name} does not exist", patience_s=GONE_S) from error
            raise NotYetError(f"claim {namespace}/{name} cannot be read: {error}") from error
        except (Unreachable, TimeoutError) as error:
            raise NotYetError(f"claim {namespace}/{name} cannot be read: no answer from the API server") from error

    def _remove(self, uid: str) -> None:
        try:
            self._cdi.remove(uid)
            self._checkpoint.remove(uid)
            metrics.CLAIMS_PREPARED.set(len(self._checkpoint.read()))
        except OSError as error:
            raise ClaimError(f"the node cannot remove what it prepared: {error}") from error


def _refuse_taken(planned: PreparedClaim, entries: Mapping[str, Entry]) -> None:
    for entry in entries.values():
        if entry.claim.uid == planned.uid:
            continue
        for theirs in entry.claim.devices:
            if any(ours.excludes(theirs) for ours in planned.devices):
                raise DeviceBusyError(
                    f"GPU {theirs.device} is still held by claim {entry.claim.namespace}/{entry.claim.name} "
                    f"(uid {entry.claim.uid})"
                )
