"""PodGroups, on a control plane with their feature gates: `python -m tests.contract.native_groups NAME`.

Real are the API server, the scheduler and the Job controller, and the chart's rights, policies, webhook and controller.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from dradriver.api.base import names
from dradriver.kube.client import ApiError, Client, PatchKind
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS, Resource
from tests.bench.throughput.machines import Machines
from tests.cluster.nodeless import Nodeless
from tests.contract import stories
from tests.contract.stories import BOUND_S, NAMESPACE
from tests.fakes.admission import pod
from tests.fakes.control_plane.jobs import JOBS

Object = dict[str, Any]

NODES: Final = 6
PORT: Final = 8080
GROUPS: Final = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup", namespaced=True)
CLASSES: Final = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
WORDS: Final = {names.POLICY: "nvlink"}
SOON_S: Final = 20.0  # the gang's own deadline is 30 s
WATCHED_S: Final = 4.0  # that nothing happens


class Story:
    """Pods of eight GPUs on six nodes."""

    def __init__(self, client: Client, machines: Machines) -> None:
        self._client = client
        self._machines = machines

    async def tell(self) -> None:
        """Tell each of the stories on empty nodes."""
        await self._machines.grow(NODES)
        for story in (
            self.array,
            self.words_on_a_job,
            self.a_job_of_the_policy_gang,
            self.hidden_refusals,
            self.a_gated_pod_that_goes,
            self.preempted_at_the_barrier,
        ):
            await self.clear()
            began = time.monotonic()
            await story()
            sys.stderr.write(f"{story.__name__}: {time.monotonic() - began:.1f} s\n")

    async def array(self) -> None:
        """An array of Job pods in a PodGroup of the policy ``basic`` starts as far as there is room."""
        await self.job("array", NODES + 4)
        await self.until(lambda: self.bound("array"), NODES)
        for made in await self.pods("array"):
            assert "schedulingGroup" not in made["spec"]
        (group,) = await self.groups()
        assert "basic" in group["spec"]["schedulingPolicy"], group

    async def words_on_a_job(self) -> None:
        """A Job whose author asks for a gang starts as one, in a PodGroup of the policy ``basic``."""
        await self.fill("taken", 0)
        await self.job("auto", NODES, words={names.GANG: "auto"})
        await self.until(lambda: self.waiting("auto"), NODES)
        assert await self.bound("auto") == [], "one node too few"
        await self._client.delete(PODS, "taken", namespace=NAMESPACE)
        await self.until(lambda: self.bound("auto"), NODES)
        (group,) = await self.groups()
        assert "basic" in group["spec"]["schedulingPolicy"], group

    async def a_job_of_the_policy_gang(self) -> None:
        """A Job that asks Kubernetes for a gang is one; a succeeded pod of it keeps no replacement from starting."""
        await self.fill("taken", 0)
        await self.job("gang", NODES, policy={"gang": {}})
        await self.until(lambda: self.waiting("gang"), NODES)
        assert await self.bound("gang") == []
        await self._client.delete(PODS, "taken", namespace=NAMESPACE)
        await self.until(lambda: self.bound("gang"), NODES)
        first, second, *_ = await self.pods("gang")
        path = PODS.path(NAMESPACE, first["metadata"]["name"]) + "/status"
        ended = {"status": {"phase": "Succeeded"}}
        await self._client.connection.request("PATCH", path, body=ended, content_type=PatchKind.MERGE.value)
        await self._client.delete(PODS, second["metadata"]["name"], namespace=NAMESPACE)

        async def replaced() -> Sequence[str]:
            old = {made["metadata"]["name"] for made in (first, second)}
            return [name for name in await self.bound("gang") if name not in old]

        await self.until(replaced, NODES - 1)  # of these one is new
        (group,) = await self.groups()
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": NODES}}, group
        managers = {str(entry["manager"]) for entry in group["metadata"]["managedFields"]}
        assert not any(manager.startswith("gpu-topology") for manager in managers), managers

    async def hidden_refusals(self) -> None:
        """What only the scheduler sees of two nodes costs a PodGroup two rounds, and no other node is left out."""
        taken = {self._machines.name(number) for number in range(2)}
        for node in taken:
            await self._client.create(PODS, foreign(f"foreign-{node}", node))
        size = NODES - len(taken)
        await self.group("train", size)
        began = time.monotonic()
        for number in range(size):
            await self.create(f"train-{number}", group="train", port=PORT)
        await self.until(lambda: self.bound("train"), size)
        took_s = time.monotonic() - began
        assert taken.isdisjoint([made["spec"]["nodeName"] for made in await self.pods("train")])
        sys.stderr.write(f"two hidden refusals: all bound after {took_s:.1f} s\n")

    async def a_gated_pod_that_goes(self) -> None:
        """A pod that another gate holds keeps its PodGroup waiting; once it is gone the others start."""
        await self.group("train", 2)
        held = [{"name": "example.com/hold"}]
        for number in range(3):
            await self.create(f"train-{number}", group="train", schedulingGates=held if number == 2 else [])
        await self.until(lambda: self.waiting("train"), 3)
        await asyncio.sleep(WATCHED_S)
        assert await self.bound("train") == []
        await self._client.delete(PODS, "train-2", namespace=NAMESPACE)
        await self.until(lambda: self.bound("train"), 2)

    async def preempted_at_the_barrier(self) -> None:
        """A pod of higher priority gets the place of one at the gang barrier, and the gang starts with another one."""
        metadata = {"name": "urgent"}
        await self._client.create(CLASSES, {"metadata": metadata, "value": 1000, "description": "for a test"})
        words = {names.GANG: "train", names.GANG_SIZE: "3"}
        for number, scheduler in enumerate(("default-scheduler", "default-scheduler", "nobody")):
            await self.create(f"train-{number}", cpu="100", words=words, schedulerName=scheduler)
        await self.until(lambda: self.seated("train"), 2)
        waiter, *_ = await self.seated("train")
        node = (await self._client.get(PODS, waiter, namespace=NAMESPACE))["status"]["nominatedNodeName"]
        began = time.monotonic()
        urgent = pod(
            None,
            name="urgent",
            namespace=NAMESPACE,
            spec={"priorityClassName": "urgent", "terminationGracePeriodSeconds": 0},
        )
        urgent["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        urgent["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "150"}}
        await self._client.create(PODS, urgent)
        await stories.bound(self._client, "urgent")
        took_s = time.monotonic() - began
        sys.stderr.write(f"the pod of higher priority was bound after {took_s:.1f} s\n")
        assert took_s < SOON_S, "nothing but the gang's deadline gave the place back"
        names_left = {made["metadata"]["name"] for made in await self.pods("train")}
        for name in ({"train-0", "train-1"} - names_left) | {"train-2"}:
            if name in names_left:
                await self._client.delete(PODS, name, namespace=NAMESPACE)
            await self.create(name, cpu="100", words=words)
        await self.until(lambda: self.bound("train"), 3)

    # What they are made of.

    async def job(
        self, name: str, count: int, *, words: Mapping[str, str] = WORDS, policy: Object | None = None
    ) -> None:
        """Create a Job of so many pods of eight GPUs."""
        made = pod(8, annotations=dict(words), labels={"app": name}, spec={"restartPolicy": "Never"})
        made["spec"]["terminationGracePeriodSeconds"] = 0
        template = {"metadata": {key: made["metadata"][key] for key in ("annotations", "labels")}, "spec": made["spec"]}
        spec: Object = {"parallelism": count, "completions": count, "completionMode": "Indexed", "template": template}
        spec |= {"scheduling": {"schedulingPolicy": policy}} if policy else {}
        await self._client.create(JOBS, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})

    async def group(self, name: str, least: int) -> None:
        """Create a PodGroup of the policy ``gang``."""
        spec = {"schedulingPolicy": {"gang": {"minCount": least}}}
        await self._client.create(GROUPS, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})

    async def create(
        self,
        name: str,
        *,
        words: Mapping[str, str] = WORDS,
        group: str = "",
        port: int | None = None,
        cpu: str = "",
        **more: Any,
    ) -> None:
        """Create a pod of eight GPUs."""
        spec: Object = {"terminationGracePeriodSeconds": 0} | more
        if group:
            spec["schedulingGroup"] = {"podGroupName": group}
        labels = {"app": name.partition("-")[0]}
        made = pod(8, annotations=dict(words), labels=labels, spec=spec, name=name, namespace=NAMESPACE)
        if port is not None:
            made["spec"]["containers"][0]["ports"] = [{"containerPort": port, "hostPort": port}]
        if cpu:
            made["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu}
        await self._client.create(PODS, made)

    async def fill(self, name: str, number: int) -> None:
        """Take the GPUs of a node."""
        await self.create(name, nodeSelector={"kubernetes.io/hostname": self._machines.name(number)})
        await stories.bound(self._client, name)

    async def pods(self, app: str) -> list[Object]:
        """Return the pods with a label, by name."""
        listed, _ = await self._client.list(PODS, namespace=NAMESPACE)
        mine = [made for made in listed if made["metadata"].get("labels", {}).get("app") == app]
        return sorted(mine, key=lambda made: str(made["metadata"]["name"]))

    async def bound(self, app: str) -> list[str]:
        """Return the names of those of them that are bound."""
        return [made["metadata"]["name"] for made in await self.pods(app) if made["spec"].get("nodeName")]

    async def waiting(self, app: str) -> list[str]:
        """Return the names of those of them that say why they wait."""
        pods = await self.pods(app)
        return [made["metadata"]["name"] for made in pods if names.REASON in made["metadata"]["annotations"]]

    async def seated(self, app: str) -> list[str]:
        """Return the names of those of them that have their GPUs and are not bound."""
        seen = []
        for made in await self.pods(app):
            (entry,) = made["spec"]["resourceClaims"]
            try:
                claim = await self._client.get(RESOURCE_CLAIMS, entry["resourceClaimName"], namespace=NAMESPACE)
            except ApiError as error:
                assert error.not_found, error
                continue
            if claim.get("status", {}).get("allocation") and made["status"].get("nominatedNodeName"):
                seen.append(str(made["metadata"]["name"]))
        return seen

    async def groups(self) -> list[Object]:
        """Return all PodGroups."""
        listed, _ = await self._client.list(GROUPS, namespace=NAMESPACE)
        return list(listed)

    async def until(self, look: Callable[[], Awaitable[Sequence[str]]], count: int) -> None:
        """Wait until so many names are returned."""
        seen: Sequence[str] = ()
        try:
            async with asyncio.timeout(BOUND_S):
                while len(seen := await look()) < count:
                    await asyncio.sleep(0.1)
        except TimeoutError:
            listed, _ = await self._client.list(PODS, namespace=NAMESPACE)
            reasons = {
                m["metadata"]["name"]: (m["metadata"].get("annotations", {}).get(names.REASON), m["status"])
                for m in listed
            }
            raise AssertionError(f"{len(seen)} of {count}: {seen}; {reasons}") from None

    async def clear(self) -> None:
        """Delete what a story made, and return once no GPU is held."""
        for resource in (JOBS, PODS, GROUPS):
            listed, _ = await self._client.list(resource, namespace=NAMESPACE)
            for made in listed:
                await self._client.delete(resource, made["metadata"]["name"], namespace=NAMESPACE)
        async with asyncio.timeout(BOUND_S):
            for resource in (JOBS, PODS, RESOURCE_CLAIMS, GROUPS):
                while [*(await self._client.list(resource, namespace=NAMESPACE))[0]]:
                    await asyncio.sleep(0.1)


def foreign(name: str, node: str) -> Object:
    """Return a pod without GPUs that uses a port of its node."""
    container = {"name": "main", "image": "none", "ports": [{"containerPort": PORT, "hostPort": PORT}]}
    spec = {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 0}
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


async def main(plane: Nodeless) -> None:
    """Tell the story."""
    await stories.on_machines(plane, lambda client, machines: Story(client, machines).tell())


if __name__ == "__main__":
    asyncio.run(main(Nodeless(sys.argv[1])))
