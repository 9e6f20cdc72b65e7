"""A cluster whose nodes' agents say of claims that their GPUs do nothing, on one clock."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Literal, cast

from dradriver.api.base import names
from dradriver.api.base.pods import Pod
from dradriver.api.claims import idleness
from dradriver.controller.features.idle_pods import PERIOD_S, IdlePods
from dradriver.kube.client import Client
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS, Resource
from tests.fakes.apistore import Object, key_of
from tests.fakes.control_plane.jobs import JOBS, JOBSETS, Jobs
from tests.fakes.gpucluster import GpuCluster

START = datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.UTC).timestamp()
WISH = {"idle-timeout": "1h"}
SINCE = "2026-01-02T03:00:00Z"
END = "2026-01-02T04:00:00Z"
WARNED = (
    f"The GPUs of this pod have been idle since {SINCE}. The controller ends the pod at {END}, unless it uses them "
    "before."
)
AGENT_S = 60  # between two looks of an agent


class Idling:
    """Pods, agents and what ends idle pods.

    Attributes:
        quiet: Since when the GPUs of each pod do nothing, by its name; who is not in it works.
        dead: Whether the agents say nothing any more.
        said: The Events, as pod and text.
    """

    def __init__(self, *, ends: bool = True) -> None:
        self.cluster = GpuCluster()
        for node in "abc":
            self.cluster.node(node)
        self.now, self.ends = START, ends
        self.quiet: dict[str, float] = {}
        self.dead = False
        self.said: list[tuple[str, str]] = []
        self._skew = 0.0
        self.jobs: Jobs | None = None
        self.lead()

    def lead(self) -> None:
        """Let another replica lead."""
        self.cluster.restart()
        self.idle = IdlePods(
            cast("Client", self.cluster.client), self.cluster.worker.picture, self._say, ends=self.ends,
            clock=lambda: self.now, monotonic=lambda: self.now,
        )  # fmt: skip

    def skew(self, seconds: float) -> None:
        """Set the agents' clocks, beside the controller's."""
        self._skew = seconds

    async def _say(self, pod: Pod, kind: Literal["Normal", "Warning"], text: str) -> None:
        assert kind
        self.said.append((pod.metadata.name, text))

    async def start(self, *pods: Object) -> None:
        """Have pods run."""
        for pod in pods:
            self.cluster.put(PODS, pod)
        for _ in range(4):
            if self.jobs is not None:
                self.jobs.act()
            await self.cluster.settle()
            self.cluster.schedule()
        await self.cluster.settle()

    async def job(self, resource: Resource = JOBS, *, pods: int = 2, wishes: Mapping[str, str] = WISH) -> None:
        """Have a Job, or a JobSet of two Jobs, run, each of so many pods of a GPU."""

        def make(_: Object, name: str, __: int) -> Object:
            return self.cluster.admitted(name, 1, wishes=wishes)

        self.jobs = Jobs(self.cluster.store, make)
        spec: Object = {"parallelism": pods, "completions": pods, "completionMode": "Indexed"}
        if resource is JOBSETS:
            roles = [{"name": name, "template": {"spec": spec}} for name in ("v", "w")]
            spec = {"replicatedJobs": roles}
        self.cluster.put(resource, {"metadata": {"name": "train", "namespace": "default"}, "spec": spec})
        await self.start()

    @property
    def names(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.cluster.all(PODS)]

    def rest(self, *pods: str) -> None:
        """Let pods' GPUs do nothing from now on."""
        self.quiet |= dict.fromkeys(pods or self.names, self.now)

    async def later(self, minutes: float, *, deliver: bool = True) -> None:
        """Let time go by, with all that agents and the controller do in it."""
        for _ in range(round(minutes * 60 / PERIOD_S)):
            self.now += PERIOD_S
            if not self.dead and (self.now - START) % AGENT_S == 0:
                self.agents()
            if deliver:
                self.cluster.deliver()
            self.idle.hear()
            await self.idle.once()
            if self.jobs is not None:
                self.jobs.act()
            self.cluster.collect()

    def agents(self) -> None:
        """Let each agent say what it should: that a claim is idle, that it works, and as long as it is asked again."""
        for pod in self.cluster.all(PODS):
            claim = self.cluster.claim(pod["metadata"]["name"])
            if claim is None or "allocation" not in claim.get("status", {}):
                continue
            since = self.quiet.get(pod["metadata"]["name"])
            idle = since is not None and self.now - since >= 300
            said = any(idleness.SINCE in one["data"] for one in claim["status"].get("devices", ()))
            asked = names.IDLE_END in claim["metadata"]["annotations"]
            if idle and (asked or not said):
                assert since is not None
                self.tell(claim, idleness.told(self._moment(since), now=self._moment(self.now)))
            elif said and not idle:
                self.tell(claim, {})

    def tell(self, claim: Object, data: Mapping[str, Any]) -> None:
        """Write what an agent says of each device of a claim."""

        def change(claim: Object) -> None:
            results = claim["status"]["allocation"]["devices"]["results"]
            kept = ("driver", "pool", "device", "shareID")
            claim["status"]["devices"] = [
                {key: one[key] for key in kept if key in one} | {"data": dict(data)} for one in results
            ]

        self.cluster.store.edit(RESOURCE_CLAIMS, key_of(claim), change)

    def _moment(self, seconds: float) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(seconds + self._skew, datetime.UTC)


async def notebook(world: Idling, name: str = "nb", *, wishes: Any = WISH, **changes: Any) -> None:
    await world.start(world.cluster.admitted(name, 1, wishes=wishes, **changes))
    world.rest(name)


def budget(label: str, value: str) -> Any:
    """Return one that lets no pod with a label end."""
    return {
        "metadata": {"name": "keep", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {label: value}}},
        "status": {"disruptionsAllowed": 0},
    }


def end(world: Idling, pod: str = "nb") -> tuple[str | None, str | None]:
    """Return when a pod is ended, as it and its claim say."""
    claim = world.cluster.claim(pod)
    assert claim is not None
    return world.cluster.note(pod, "idle-end"), claim["metadata"]["annotations"].get(names.IDLE_END)
