"""Events on the pods that use a GPU with a fault: the fault and the repair.

A fault is in force after it was seen for long enough (``faults_in_force``). A prepared claim is a claim whose devices
the agent has made ready for pods.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, Protocol

from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.api.slices.lost_gpus import LostGpu
from dradriver.errors import DriverError
from dradriver.kube.backoff import wait_s
from dradriver.kube.client import ApiError
from dradriver.kube.event_recorder import Recorder, Reference
from dradriver.node.claims.checkpoint import PreparedClaim
from dradriver.node.faults import Fault
from dradriver.node.health.faults_in_force import Record
from dradriver.node.journal import Entry
from dradriver.node.repairs import located

logger = logging.getLogger(__name__)

GET_S: Final = 10.0
FIRST_RETRY_S: Final = 2.0
LONGEST_RETRY_S: Final = 60.0
_MOST_PODS: Final = 64  # of one claim: it may have 256 consumers


Place = Callable[[str], LostGpu | None]


class GetClaim(Protocol):
    """Reads a claim from the API server."""

    async def __call__(self, namespace: str, name: str) -> ResourceClaim:
        """Return the claim with this namespace and name.

        Raises:
            DriverError: The claim cannot be read.
        """


class PodEvents:
    """Writes an Event on every pod that uses a GPU when a fault of the GPU starts or ends."""

    def __init__(
        self,
        record: Record,
        events: Recorder,
        *,
        prepared: Callable[[], Awaitable[Mapping[str, Entry[PreparedClaim]]]],
        get_claim: GetClaim,
        node: str,
        place: Place,
        retry_s: float = FIRST_RETRY_S,
    ) -> None:
        """Store the arguments; write no Event yet.

        Args:
            record: Provides the faults that are in force.
            events: Writes the Events.
            prepared: Returns the claims that are prepared on this node.
            get_claim: Reads a claim from the API server; its status has the pods that use it.
            node: The node's name.
            place: Returns number and PCI address of a GPU by its UUID; None if they are unknown.
            retry_s: Seconds until a failed Event is tried again; doubles each time.
        """
        self._record = record
        self._events = events
        self._prepared = prepared
        self._get_claim = get_claim
        self._node = node
        self._place = place
        self._retry_s = retry_s
        self._claims: dict[str, PreparedClaim] = {}  # those prepared, by uid, when last looked
        self._told: dict[str, frozenset[tuple[str, Fault]]] = {}  # by claim: GPU and fault that its pods have Events of
        self._telling: set[str] = set()  # claims whose pods are being told: a namespace's webhook may hang on Events
        self._changed = asyncio.Event()

    def poke(self) -> None:
        """Check again which pods need an Event about a fault of their GPU."""
        self._changed.set()

    async def run(self) -> None:
        """Write Events on pods about faults of their GPUs until cancelled."""
        failures = 0
        async with asyncio.TaskGroup() as group:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause_s(failures) if failures else None):
                        await self._changed.wait()
                self._changed.clear()
                if not (self._told or self._record.standing()):
                    failures = 0
                    continue  # nobody has anything to be told, and every prepare asks
                try:
                    self._claims = {uid: entry.value for uid, entry in (await self._prepared()).items()}
                except (DriverError, OSError) as error:
                    logger.warning("Events about unhealthy GPUs cannot be written to pods yet: %s", error)
                    failures += 1
                    continue
                failures = 0
                self._told = {uid: told for uid, told in self._told.items() if uid in self._claims}
                for uid in self._claims.keys() - self._telling:
                    if self._standing(uid) != self._told.get(uid, frozenset()):
                        self._telling.add(uid)
                        group.create_task(self._tell(uid))

    def _pause_s(self, failures: int) -> float:
        return wait_s(failures - 1, first_s=self._retry_s, longest_s=LONGEST_RETRY_S)

    def _standing(self, uid: str) -> frozenset[tuple[str, Fault]]:
        gpus = {device.uuid for device in self._claims[uid].devices}
        standing = self._record.standing()
        return frozenset((gpu, entry.fault) for gpu in gpus for entry in standing.get(gpu, ()))

    async def _tell(self, uid: str) -> None:
        """Write Events on a claim's pods until all are written, or the claim is not prepared any more."""
        failures = 0
        try:
            while uid in self._claims and (current := self._standing(uid)) != (
                told := self._told.get(uid, frozenset())
            ):
                claim = self._claims[uid]
                try:
                    pods = await self._pods(claim)
                except (DriverError, TimeoutError) as error:
                    logger.warning("Claim %s/%s cannot be read: %s", claim.namespace, claim.name, error)
                    failures += 1
                    await asyncio.sleep(self._pause_s(failures))
                    continue
                self._told[uid] = current
                for pod in pods:
                    for gpu, fault in sorted(current - told):
                        await self._write(pod, gpu, fault, is_unhealthy=True)
                    for gpu, fault in sorted(told - current):
                        await self._write(pod, gpu, fault, is_unhealthy=False)
        finally:
            self._telling.discard(uid)

    async def _write(self, pod: Reference, uuid: str, fault: Fault, *, is_unhealthy: bool) -> None:
        gpu = ReportedGpu(self._node, uuid, self._place(uuid))
        await tell(self._events, pod, gpu, fault, is_unhealthy=is_unhealthy)

    async def _pods(self, prepared: PreparedClaim) -> list[Reference]:
        """Return the pods that use a claim; empty if the claim is deleted.

        Raises DriverError if the claim cannot be read.
        """
        try:
            async with asyncio.timeout(GET_S):
                claim = await self._get_claim(prepared.namespace, prepared.name)
        except ApiError as error:
            if error.not_found:
                return []
            raise
        if claim.metadata.uid != prepared.uid:
            return []
        users = [user for user in claim.status.reserved_for if user.resource == "pods"]
        return [Reference("Pod", prepared.namespace, user.name, user.uid) for user in users[:_MOST_PODS]]


class ReportedGpu(NamedTuple):
    """A GPU that an Event is about.

    Attributes:
        node: Its node.
        uuid: Its UUID.
        place: Its number and PCI address; None if they are unknown.
    """

    node: str
    uuid: str
    place: LostGpu | None

    @property
    def named(self) -> str:
        """Return the text that names the GPU in an Event: node, number, PCI address and UUID, as far as known."""
        return f"Node {self.node}, {f'GPU {self.uuid}' if self.place is None else self.place.described}"


async def tell(events: Recorder, about: Reference, gpu: ReportedGpu, fault: Fault, *, is_unhealthy: bool) -> None:
    """Write an Event that a GPU has a fault, with the repair, or that the fault is over.

    Args:
        events: Writes the Event.
        about: The object of the Event: a pod that uses the GPU, or the Node.
        gpu: The GPU. The message starts with its name.
        fault: The fault.
        is_unhealthy: True if the GPU has the fault now; False if the fault is over.
    """
    await events.record(
        about=about,
        type="Warning" if is_unhealthy else "Normal",
        reason="GPUUnhealthy" if is_unhealthy else "GPURecovered",
        message=(
            f"{gpu.named}, fault {fault.kind}: {located(fault.described, node=gpu.node, uuid=gpu.uuid)}"
            if is_unhealthy
            else f"{gpu.named}: the fault {fault.kind} is over. The fault was: {fault.said}."
        ),
        action="Watching",
    )
