"""Preemption in stories: who comes, and what must hold whenever somebody is told to end."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Final

from dradriver.api.base import names
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Preemption, Queue
from dradriver.kube.resources import POD_DISRUPTION_BUDGETS, PODS, RESOURCE_CLAIMS
from tests.fakes.apistore import Event, Object
from tests.fakes.control_plane import fit
from tests.fakes.control_plane.jobs import JOBS
from tests.simulator import cast
from tests.simulator.replicas import Replicas
from tests.simulator.server import Server
from tests.simulator.world import Node, World

MARGIN_S: Final = 10.0
GRACE_S: Final = 30.0
ANSWER_S: Final = 0.02
LONGEST_S: Final = GRACE_S + MARGIN_S + 8.0
ON: Final = Policies(
    queue=Queue(
        preemption=Preemption(
            enabled=True, min_run_minutes=0.0, back_off_minutes=0.1, margin_seconds=MARGIN_S, workloads_per_minute=100
        )
    )
)


def contested(world: World, rng: random.Random) -> None:
    """Draw pods of several priorities on few GPUs, budgets, and when preemption is switched off and on."""
    world.follow(ON)
    for _ in range(rng.randint(1, 2)):
        world.add_node(Node(world.name("c"), "rtx-a6000-x4-pairs", cpu=rng.choice((4, 8))))
    until = world.plan.until
    for _ in range(rng.randint(6, 16)):
        spec: Object = {"priority": rng.choice((0, 0, 10, 10, 20, 30))}
        if rng.random() < 0.1:
            spec["preemptionPolicy"] = "Never"
        pod = cast.pod(
            world.name("pre"), rng.choice(("default", "team-a")), {"main": rng.choice((1, 2, 2, 4))}, {}, **spec
        )
        if rng.random() < 0.2:
            pod["metadata"]["labels"]["app"] = "kept"
        world.loop.call_at(rng.uniform(0, until), world.add_pod, pod)
    if rng.random() < 0.5:
        for namespace in ("default", "team-a"):
            world.server.put(
                POD_DISRUPTION_BUDGETS,
                {
                    "metadata": {"name": "kept", "namespace": namespace},
                    "spec": {"selector": {"matchLabels": {"app": "kept"}}},
                    "status": {"disruptionsAllowed": rng.choice((0, 1))},
                },
            )
    for _ in range(rng.choice((0, 0, 1, 2))):
        off = rng.uniform(0, until)
        world.loop.call_at(off, world.follow, Policies())
        world.loop.call_at(off + rng.uniform(1, 10), world.follow, ON)


def victims_of(claim: Object) -> frozenset[str]:
    """Return the uids of pods that have to end for a claim."""
    text = fit.notes_of(claim).get(names.PREEMPTS)
    return frozenset(uid for _, _, uid in json.loads(text)["victims"]) if text else frozenset()


def waits(server: Server, claim: Object) -> bool:
    """Return whether somebody is there still who has to end for a claim."""
    if claim.get("status", {}).get("allocation") or not (victims := victims_of(claim)):
        return False
    pods = (pod for pod in server.all(PODS) if pod["metadata"]["uid"] in victims)
    return any(not fit.finished(pod) for pod in pods)


class PreemptionRules:
    """Looks at every pod that a controller has evicted, and every Job that one has suspended."""

    def __init__(self, world: World, replicas: Replicas, broken: Callable[[str, str], None]) -> None:
        self._world, self._replicas, self._broken = world, replicas, broken
        self._evicted: set[str] = set()
        self._gone: dict[str, tuple[float, Object]] = {}  # promises that ended: when, and what they were
        world.on_policies = lambda policies: replicas.follow(policies, lambda: 0.0)
        world.server.listeners.append(self._happened)

    def _happened(self, event: Event) -> None:
        call, old, new = self._world.server.acting, event.old, event.new
        ended = new is None or "deletionTimestamp" in new["metadata"] or bool(new.get("status", {}).get("allocation"))
        if event.plural == RESOURCE_CLAIMS.plural and old is not None and ended and victims_of(old):
            self._gone.setdefault(old["metadata"]["uid"], (self._world.loop.now, old))
        if (
            event.plural == PODS.plural
            and call is not None
            and call.verb == "evict"
            and old is not None
            and "resourceVersion" in call.body
        ):
            was = "deletionTimestamp" in old["metadata"]
            if not was and (new is None or "deletionTimestamp" in new["metadata"]):
                self._told(old, call.at)
        if event.plural == JOBS.plural and call is not None and new is not None and old is not None:
            said = fit.notes_of(new).get(names.RESTART, "{}")
            record = json.loads(said) if said != fit.notes_of(old).get(names.RESTART) else {}
            if (
                new["spec"].get("suspend")
                and not old["spec"].get("suspend")
                and record.get("why", "").startswith("for ")
            ):
                self._suspended(new, call.at)

    def _told(self, pod: Object, sent: float) -> None:
        metadata = pod["metadata"]
        if metadata["uid"] in self._evicted:
            self._broken("nobody is told twice to end", f"{metadata['name']}")
        self._evicted.add(metadata["uid"])
        self._planned(pod, sent)

    def _suspended(self, job: Object, sent: float) -> None:
        uid = job["metadata"]["uid"]
        for pod in self._world.server.all(PODS):
            owners = pod["metadata"].get("ownerReferences") or ()
            runs = pod["spec"].get("nodeName") and not fit.finished(pod) and "deletionTimestamp" not in pod["metadata"]
            if runs and any(owner["uid"] == uid for owner in owners):
                self._planned(pod, sent)
                return  # others of it may have come since

    def _planned(self, pod: Object, sent: float) -> None:
        """Look whether a promise stands for which a pod has to end, its pod lifted and of a higher priority."""
        uid, namespace = pod["metadata"]["uid"], pod["metadata"]["namespace"]
        standing = [
            claim
            for claim in self._world.server.all(RESOURCE_CLAIMS)
            if uid in victims_of(claim) and claim["metadata"]["uid"] not in self._gone
        ]
        # One that ended while the request was under way nobody could know of, nor while the server said that it stands.
        known = sent - ANSWER_S
        standing += [claim for ended, claim in self._gone.values() if ended > known and uid in victims_of(claim)]
        if not standing:
            self._broken("nobody ends without a promise", f"pod {namespace}/{pod['metadata']['name']}")
        owners = []
        for claim in standing:
            (owner,) = claim["metadata"]["ownerReferences"]
            mine = self._world.server.find(PODS, owner["name"], claim["metadata"]["namespace"])
            if mine is not None and mine["metadata"]["uid"] == owner["uid"]:
                owners.append(mine)
        # Once a gang without a barrier has begun, each pod goes on by itself, also while another's gate is in the way.
        if owners and all(map(fit.gates, owners)):
            self._broken("who preempts is lifted first", f"{owners[0]['metadata']['name']}")
        for mine in owners:
            if mine["spec"].get("priority", 0) <= pod["spec"].get("priority", 0):
                self._broken("nobody ends for an equal", f"{pod['metadata']['name']} for {mine['metadata']['name']}")
