"""What must hold of Jobs that make gangs' pods: who is suspended by a controller is resumed, and nobody else is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from dradriver.api.base import names
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.fakes.apistore import Event, Object
from tests.fakes.control_plane import fit
from tests.fakes.control_plane.jobs import JOBS
from tests.simulator.gangs import Gang, living, plan_of
from tests.simulator.idle_rules import suspended_for_idle
from tests.simulator.state import State
from tests.simulator.world import World

APART_S: Final = 58.9  # between two suspensions: a minute, and the record says whole seconds
EMPTY_S: Final = 45.0  # a new leader looks for what is suspended, and 30 s later again where it was not told of all
LONGEST_S: Final = 165.0  # two minutes although pods remain, and the same
RESTART_S: Final = 25.0


class OwnerRules:
    """Looks at every change of a Job, and says what of Jobs may not last."""

    def __init__(self, world: World, broken: Callable[[str, str], None]) -> None:
        self._world, self._broken = world, broken
        self._suspended: dict[str, float] = {}  # when a controller did that last, by uid
        world.server.listeners.append(self._happened)

    def _happened(self, event: Event) -> None:
        call, old, new = self._world.server.acting, event.old, event.new
        if event.plural != JOBS.plural or call is None:
            return
        if old is None or new is None:
            self._broken("Jobs are made and deleted by others", f"{call}")
            return
        uid, now = new["metadata"]["uid"], self._world.loop.now
        if _suspended(new) and not _suspended(old) and not suspended_for_idle(old, new):
            if not _noted(new):
                self._broken("who is suspended is noted to be resumed", f"{call}")
            if now - self._suspended.get(uid, -APART_S) < APART_S:
                self._broken("a Job is started anew once a minute at most", f"{call}")
            self._suspended[uid] = now
        elif _suspended(old) and not _suspended(new) and not _noted(old):
            self._broken("what others have suspended is theirs to resume", f"{call}")

    def states(self) -> Iterator[State]:
        """Give what may not last."""
        for job in self._world.server.all(JOBS):
            metadata = job["metadata"]
            key = metadata["namespace"], metadata["name"]
            if names.RESTARTING in (metadata.get("labels") or {}):
                limit_s = LONGEST_S if _suspended(job) and self._pods(metadata["uid"]) else EMPTY_S
                yield State("who was suspended is resumed", (metadata["uid"], limit_s), limit_s, f"Job {key}", key)
        for gang in {id(gang): gang for gang in self._world.gangs.values()}.values():
            job_of = self._world.server.find(JOBS, gang.key[1], gang.key[0]) if gang.owner == JOBS.kind else None
            if job_of is not None and gang.restarts and self._lost(gang, job_of):
                yield State(
                    "a gang that lost a pod starts anew", gang.key, RESTART_S, f"{gang.key} lost a pod", gang.key
                )

    def _lost(self, gang: Gang, job: Object) -> bool:
        """Return whether a gang runs in part, a pod came since, and nothing keeps its Job from being suspended."""
        world, uid = self._world, job["metadata"]["uid"]
        forbidden = (gang.key[0], JOBS.plural) in world.plan.unpermitted
        if forbidden or uid in self._suspended or _suspended(job):
            return False
        pods = living(map(world.pod, gang.pods))
        if not all(map(fit.placed, pods)):
            return False
        found = [world.server.find(RESOURCE_CLAIMS, fit.claim_names(pod)[0], gang.key[0]) for pod in pods]
        claims = [claim for claim in found if claim is not None and plan_of(claim)[0]]
        begun = min((claim["metadata"]["creationTimestamp"] for claim in claims), default="")
        bound = [pod for pod in pods if pod["spec"].get("nodeName")]
        late = [pod for pod in pods if pod not in bound and pod["metadata"]["creationTimestamp"] > begun]
        well = sum(world.pod(key) is not None and _well(world.pod(key)) for key in gang.pods)
        planned = max((plan_of(claim)[1] for claim in claims), default=0)
        return bool(bound and late and len(bound) < planned - well)

    def _pods(self, uid: str) -> list[Object]:
        """Return the pods of a Job that have not ended."""
        every = (pod for pod in self._world.server.all(PODS) if not fit.finished(pod))
        return [pod for pod in every if any(o["uid"] == uid for o in pod["metadata"].get("ownerReferences") or ())]


def _suspended(job: Object) -> bool:
    return bool(job["spec"].get("suspend"))


def _noted(job: Object) -> bool:
    """Return whether a Job says that it is to be resumed, and why it was suspended."""
    metadata = job["metadata"]
    return names.RESTARTING in (metadata.get("labels") or {}) and names.RESTART in (metadata.get("annotations") or {})


def _well(pod: Object | None) -> bool:
    return pod is not None and bool(pod.get("status", {}).get("phase") == "Succeeded")
