"""Warns and ends pods whose GPUs are idle, if the pods request that and the cluster allows it.

The state is kept on the pods' claims, so that it outlasts this process. The node agents write there since when a claim
is idle. The controller writes there when it will end the pod. A new leader continues once each agent has confirmed
again that the claim is idle. ``registry`` runs it.

A *workload* is a gang, all pods of an owner that can be suspended (such as a Job), or a single pod.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal, NoReturn

from dradriver.api.base.pods import Pod
from dradriver.api.claims import idleness
from dradriver.api.claims.pins import Key
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.derived.workloads import Workload, WorkloadPod
from dradriver.controller import metrics
from dradriver.controller.features.idle_step import Quiet, Step, end_of, step
from dradriver.controller.features.idle_workloads import idle_workloads, timeout_s
from dradriver.controller.owners.idle_writer import IdleWriter
from dradriver.controller.owners.owner_kinds import OwnerKinds
from dradriver.controller.writing.write_outcome import RefusedError
from dradriver.errors import DriverError
from dradriver.kube.client import ApiError, Client
from dradriver.kube.event_recorder import Recorder, Reference

logger = logging.getLogger(__name__)

PERIOD_S: Final = 30.0
NOTICE_S: Final = 2700.0  # of no work after which any pod is told
MOST_MARKED: Final = 64  # workloads in one pass; two writes for each of their pods
MOST_ENDED: Final = 8
ANSWER_S: Final = 60.0  # for all that is written for one workload
LONGEST_ASKED_S: Final = 600.0  # that the server's wish to wait is heeded for
LOOKED_S: Final = 30.0  # for which the server's answer counts: ending other workloads may take long meanwhile
RUNNING: Final = "Running"

Say = Callable[[Pod, Literal["Normal", "Warning"], str], Awaitable[None]]
"""Writes an Event about a pod."""


def recorder(client: Client, *, instance: str) -> Say:
    """Return the function that writes an Event about a pod with idle GPUs.

    ``instance`` is the name of this replica, which the Event shows.
    """
    events = Recorder(client, component="gpu-topology", instance=instance)

    async def say(pod: Pod, kind: Literal["Normal", "Warning"], text: str) -> None:
        about = Reference("Pod", pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)
        await events.record(about=about, type=kind, reason="IdleGPUs", message=text, action="Watching")

    return say


class IdlePods:
    """Warns and ends pods with idle GPUs. The node agents report which claims are idle."""

    def __init__(
        self,
        client: Client,
        picture: Picture,
        say: Say | None,
        *,
        ends: bool,
        clock: Callable[[], float] | None = None,
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        """Begin without idle pods.

        Args:
            client: The API server.
            picture: The cluster cache.
            say: Writes an Event about a pod; None for no Events.
            ends: Whether pods that request an idle timeout are warned and ended. If False, they only get Events.
            clock: Gives seconds since the epoch; by default the system's.
            monotonic: Gives seconds that never go back; by default the system's.
        """
        self._picture, self._say, self._ends = picture, say, ends
        self._clock, self._monotonic = clock or time.time, monotonic or time.monotonic
        self._writer = IdleWriter(client, OwnerKinds(client), picture.pods, clock=self._clock)
        # By a claim's uid: its last report of idleness, and when it came.
        self._heard: dict[str, tuple[float, float | None]] = {}
        self._tried: dict[Key, float] = {}  # by workload: when its last step was tried
        self._told: dict[str, str] = {}  # by a pod's uid: the text of its last Event
        # By the uid of a workload's first pod: until when the server asks to leave the workload alone.
        self._not_before: dict[str, float] = {}

    async def run(self) -> NoReturn:
        """Check for idle pods regularly, until cancelled.

        A confirmation by a node agent counts only if this process has seen it since this process began to lead.
        """
        self._heard.clear()
        while True:
            self.hear()
            await self.once()
            await asyncio.sleep(PERIOD_S)

    def hear(self) -> None:
        """Note which claims the node agents have reported as idle again since the last call."""
        now, heard = self._monotonic(), dict[str, tuple[float, float | None]]()
        for claim in self._picture.claims.values():
            if claim.idle is not None:
                before = self._heard.get(claim.uid)
                same = before is not None and before[0] == claim.idle.seen
                # Of the first that this process sees nobody knows how old it is.
                heard[claim.uid] = (
                    before if before is not None and same else (claim.idle.seen, None if before is None else now)
                )
        self._heard = heard

    async def once(self) -> None:
        """Do the next step of each workload with idle pods.

        An error with one workload does not stop the work for the other workloads.

        One call warns, or revokes the warnings of, at most ``MOST_MARKED`` workloads. It ends at most ``MOST_ENDED``.
        """
        # 1. The next step of each workload. Those that the server asked to leave alone have none, but the warning of a
        #    pod that works again is always revoked.
        self._not_before = {uid: at for uid, at in self._not_before.items() if self._monotonic() < at}
        workloads = idle_workloads(self._picture)  # also those with a warned pod that works again
        next_steps = ((workload, self._step(workload)) for workload in workloads)
        steps = {
            workload.key: next_step
            for workload, next_step in next_steps
            if next_step is Step.TAKE_BACK or _uid(workload) not in self._not_before
        }
        # Workloads that were tried before come last: those that cannot be ended must not delay others.
        workloads.sort(key=lambda workload: self._tried.get(workload.key, 0.0))
        to_mark = [workload for workload in workloads if steps.get(workload.key) in (Step.WARN, Step.TAKE_BACK)]
        keys_to_end = [workload.key for workload in workloads if steps.get(workload.key) is Step.END][:MOST_ENDED]

        # 2. Write warnings, or revoke them. ``_guarded`` sets ``_tried``, logs errors and limits the time.
        for workload in to_mark[:MOST_MARKED]:
            await self._guarded(workload, self._mark(workload, steps[workload.key]))

        # 3. Ask the server whether those to end are idle: the cluster cache may be late.
        confirmed: dict[Key, float] = {}  # by workload that the server calls idle: when it was asked (``_monotonic``)
        for workload in [workload for workload in workloads if workload.key in keys_to_end]:
            await self._guarded(workload, self._look_again(workload, confirmed))

        # 4. End them. Each end takes time, in which pods of the next ones can begin to work. So who must end is found
        #    again before each. An owner can have pods of several workloads and is suspended only if all of them must
        #    end: ``_end`` is given the uids of all pods that must.
        for key in keys_to_end:
            current = {workload.key: workload for workload in idle_workloads(self._picture)}
            ending = {
                other: current[other]
                for other in keys_to_end
                if other in current and self._must_end(current[other], confirmed)
            }
            if key in ending:
                uids = {member.pod.metadata.uid for workload in ending.values() for member in workload.pods}
                await self._guarded(ending[key], self._end(ending[key], uids))

        # 5. Tell pods that have been idle for long, and forget what is known of workloads that are not idle any more.
        for workload in workloads:
            if steps.get(workload.key) is Step.UNHEARD:
                logger.debug(
                    "%s/%s is not ended: the agent of its node has not reported again that it is idle", *workload.key
                )
            await self._notice(workload)
        self._tried = {workload.key: self._tried[workload.key] for workload in workloads if workload.key in self._tried}
        uids = {member.pod.metadata.uid for workload in workloads for member in workload.pods}
        self._told = {uid: text for uid, text in self._told.items() if uid in uids}

    def _step(self, workload: Workload) -> Step:
        if self._ends:
            return step(map(self._quiet, workload.pods), self._clock())
        claims = (member.claim for member in workload.pods)
        is_warned = any(claim is not None and claim.idle_end is not None for claim in claims)
        return Step.TAKE_BACK if is_warned else Step.NOTHING

    def _quiet(self, member: WorkloadPod) -> Quiet:
        pod, claim = member.pod, member.claim
        if claim is None:
            return Quiet(None, None, None, None)
        _, at = self._heard.get(claim.uid, (0.0, None))
        return Quiet(
            idle=claim.idle if pod.status.phase == RUNNING else None,
            timeout_s=timeout_s(pod),
            end=claim.idle_end,
            heard_s=None if at is None else self._monotonic() - at,
        )

    async def _mark(self, workload: Workload, what: Step) -> None:
        """Warn all pods of a workload, or revoke their warnings.

        ``what`` is ``Step.WARN`` or ``Step.TAKE_BACK``.
        """
        if what is Step.TAKE_BACK:
            for pod, claim in ((member.pod, member.claim) for member in workload.pods):
                if claim is not None and claim.idle_end is not None:
                    await self._writer.mark(pod, claim, None)
                    await self._tell(
                        pod,
                        "Normal",
                        "The controller does not end the pod: some GPUs of the pod, its gang or its job are not "
                        "idle any more, or "
                        "it is unknown whether they are.",
                    )
            return
        # A pod that was warned before the others is warned again: all end together.
        end = datetime.datetime.fromtimestamp(end_of(map(self._quiet, workload.pods), self._clock()), datetime.UTC)
        for pod, claim in ((member.pod, member.claim) for member in workload.pods):
            if claim is not None and claim.idle is not None:
                await self._writer.mark(pod, claim, end)
                await self._tell(
                    pod,
                    "Warning",
                    f"The GPUs of this pod have been idle since {idleness.moment(claim.idle.since)}. The "
                    f"controller ends "
                    f"the pod at {idleness.written(end)}, unless it uses them before.",
                )

    async def _look_again(self, workload: Workload, confirmed: dict[Key, float]) -> None:
        asked_at = self._monotonic()
        if await self._writer.still_idle(workload):
            confirmed[workload.key] = asked_at

    def _must_end(self, workload: Workload, confirmed: Mapping[Key, float]) -> bool:
        """Return whether a workload must end now.

        ``confirmed`` has, for each workload that the API server showed as idle, when the server was asked (monotonic
        seconds). The result is False if that was more than ``LOOKED_S`` seconds ago, or never.
        """
        asked_at = confirmed.get(workload.key)
        return asked_at is not None and self._monotonic() - asked_at <= LOOKED_S and self._step(workload) is Step.END

    async def _end(self, workload: Workload, ending: set[str]) -> None:
        claims = (member.claim for member in workload.pods)
        since = max(claim.idle.since for claim in claims if claim is not None and claim.idle is not None)
        why = f"its GPUs have been idle since {idleness.moment(since)}"
        try:
            if not await self._writer.end(workload, why, ending=ending):
                return
        except RefusedError as error:
            self._wait(workload, error.retry_after_s)
            for member in workload.pods:
                await self._tell(member.pod, "Warning", f"The controller cannot end the pod, although {why}: {error}")
            return
        metrics.IDLE_ENDED.inc(len(workload.pods))
        for member in workload.pods:
            await self._tell(member.pod, "Warning", f"The controller ended the pod, because {why}.")

    async def _notice(self, workload: Workload) -> None:
        """Write an Event about each pod idle for ``NOTICE_S`` seconds, once for each idle period."""
        for pod, claim in ((member.pod, member.claim) for member in workload.pods):
            idle = None if claim is None else claim.idle
            if idle is not None and self._clock() - idle.since >= NOTICE_S and pod.metadata.uid not in self._told:
                await self._tell(
                    pod, "Normal", f"The GPUs of this pod have been idle since {idleness.moment(idle.since)}."
                )

    async def _tell(self, pod: Pod, kind: Literal["Normal", "Warning"], text: str) -> None:
        if self._told.get(pod.metadata.uid) != text:
            self._told[pod.metadata.uid] = text
            if self._say is not None:
                await self._say(pod, kind, text)

    def _wait(self, workload: Workload, seconds: float | None) -> None:
        """Do not process a workload for as many seconds as the API server asks for.

        Nothing is skipped if ``seconds`` is None or 0. The pause lasts at most ``LONGEST_ASKED_S`` seconds.
        """
        if seconds:
            self._not_before[_uid(workload)] = self._monotonic() + min(seconds, LONGEST_ASKED_S)

    async def _guarded(self, workload: Workload, work: Awaitable[None]) -> None:
        self._tried[workload.key] = self._monotonic()
        try:
            async with asyncio.timeout(ANSWER_S):
                await work
        except (DriverError, TimeoutError) as error:
            if isinstance(error, ApiError):
                self._wait(workload, error.retry_after_s)
            if not (isinstance(error, ApiError) and (error.conflict or error.not_found)):
                logger.warning(
                    "Idle workload %s/%s: it cannot be warned or ended: %s. The controller tries again.",
                    *workload.key,
                    str(error) or "no answer",
                )
        except Exception:
            logger.exception("Idle workload %s/%s: internal error. The controller goes on.", *workload.key)


def _uid(workload: Workload) -> str:
    return workload.pods[0].pod.metadata.uid
