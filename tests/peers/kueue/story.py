"""What Kueue admits and charges of pods with our words, told next to a control plane: `... story MANAGER CHART`.

Real are Kueue with its webhooks, the API server, controllers and scheduler, and the driver's webhook and controller.
Nodes are objects, so pods are bound and never run.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from dradriver.api.base import names
from dradriver.kube.client import Client
from dradriver.kube.config import from_kubeconfig
from tests.bench.throughput.machines import Machines
from tests.cluster.errors import ClusterError
from tests.cluster.nodeless import Nodeless
from tests.peers import beside
from tests.peers.beside import eventually
from tests.peers.kueue import manifests
from tests.peers.kueue.manager import Kueue

Object = dict[str, Any]

CHARGED: Final = {"deviceClassMappings": [{"name": names.GPU_RESOURCE, "deviceClassNames": [names.DEVICE_CLASS]}]}
NVLINK: Final = {names.POLICY: "nvlink"}
STATIC: Final = NVLINK | {names.PLACEMENT: "static"}
NO_CLAIMS: Final = "does not support use of resource claims"
WITH_CLAIMS: Final = ("", "ExtendedResource", "PartitionableDevices")  # its feature gates that stand on one another
UNLESS: Final = "KueueDRARejectWorkloadsWhenDRADisabled"


class Story(beside.Kubectl):
    """A queue of eight GPUs on two machines of eight, in the namespace default."""

    async def workload(self, of: str) -> Object | None:
        """Return what Kueue made of an object: ``pod-NAME`` or ``job-NAME``."""
        return next(iter(await self.found("workloads.kueue.x-k8s.io", f"{of}-")), None)

    async def charged(self, of: str, gpus: int) -> None:
        """Wait until an object is admitted, and hold what it is charged against what it should be."""

        async def admitted() -> Object | None:
            found = await self.workload(of) or {}
            admission: Object | None = found.get("status", {}).get("admission")
            return admission

        (podset,) = (await eventually(f"{of} is admitted", admitted))["podSetAssignments"]
        assert podset.get("resourceUsage", {}) == ({names.GPU_RESOURCE: str(gpus)} if gpus else {}), podset

    async def inadmissible(self, of: str, why: str) -> None:
        """Wait until Kueue says of an object that it will not have it."""

        async def told() -> bool:
            found = await self.workload(of) or {}
            return any(
                one["reason"] == "Inadmissible" and why in one["message"]
                for one in found.get("status", {}).get("conditions", ())
            )

        await eventually(f"{of} is inadmissible: {why}", told)

    async def clear(self) -> None:
        """Delete everything that was admitted, and wait until it is gone."""
        await self.run("delete", "jobs,statefulsets,deployments", "--all", "--wait=false")

        async def gone() -> bool:
            await self.run("delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false")
            kinds = ("pods", "workloads.kueue.x-k8s.io", "resourceclaims")
            return not any([await self.found(kind) for kind in kinds])

        await eventually("nothing is left", gone)

    # ---- what makes pods: Kueue reads its template, where the limits stand

    async def jobs_are_charged_by_their_limits_and_placed(self) -> None:
        await self.apply(*(manifests.job(name, gpus=4, words=NVLINK) for name in ("a", "b")))
        await self.charged("job-a", 4)
        await self.charged("job-b", 4)
        await self.apply(manifests.job("c", gpus=4, words=NVLINK))
        for name in ("a", "b"):
            (pod,) = await self.bound(f"{name}-")
            assert pod["metadata"]["annotations"][names.LEVEL] == "nvlink"
        assert not await self.found("pods", "c-"), "the quota is used up"
        await self.run("delete", "job", "a", "--wait=false")
        await self.run("delete", "pods", "-l", "job-name=a", "--force", "--grace-period=0")
        await self.charged("job-c", 4)
        await self.bound("c-")

    async def a_gang_waits_for_its_quota_as_a_whole_and_is_placed_as_one(self) -> None:
        both = manifests.job("gang", gpus=4, words=NVLINK | {names.GANG: "auto", names.GANG_SIZE: "2"})
        both["spec"] |= {"parallelism": 2, "completions": 2, "completionMode": "Indexed"}
        await self.apply(manifests.job("first", gpus=4, words=NVLINK))
        await self.bound("first-")
        await self.apply(both)
        assert not await self.found("pods", "gang-"), "the quota has room for half of it"
        await self.run("delete", "job", "first", "--wait=false")
        await self.run("delete", "pods", "-l", "job-name=first", "--force", "--grace-period=0")
        await self.charged("job-gang", 8)
        pods = await self.bound("gang-", 2)
        assert {pod["metadata"]["annotations"][names.RANK_HINT] for pod in pods} == {"0", "1"}

    async def a_job_that_is_stopped_gives_its_gpus_back_and_is_placed_again(self) -> None:
        await self.apply(manifests.job("again", gpus=8, words=NVLINK))
        (before,) = await self.bound("again-")
        found = await self.workload("job-again")
        assert found is not None
        for active in (False, True):
            patch = json.dumps({"spec": {"active": active}})
            name = found["metadata"]["name"]
            await self.run("patch", "workloads.kueue.x-k8s.io", name, "--type=merge", "-p", patch)
            if not active:

                async def no_claim() -> bool:
                    await self.run("delete", "pod", before["metadata"]["name"], "--force", "--ignore-not-found")
                    return not await self.found("resourceclaims")

                await eventually("its claim is gone", no_claim)
        await self.bound("again-")

    async def static_jobs_are_charged_once(self) -> None:
        soft = {names.POLICY: "best-effort", names.PLACEMENT: "static"}
        await self.apply(manifests.job("hard", gpus=4, words=STATIC), manifests.job("soft", gpus=2, words=soft))
        await self.charged("job-hard", 4)
        await self.charged("job-soft", 2)
        await self.bound("hard-")
        await self.bound("soft-")

    async def a_job_by_a_template_is_charged_by_it_and_placed(self) -> None:
        await self.apply(manifests.template("quad", 4), manifests.job("quad", words=NVLINK, template="quad"))
        await self.charged("job-quad", 4)
        (pod,) = await self.bound("quad-")
        assert pod["metadata"]["annotations"][names.LEVEL] == "nvlink"

    async def a_statefulset_is_charged_by_its_limits_and_passes_both_gates(self) -> None:
        await self.apply(manifests.set_of("StatefulSet", "sts", gpus=2, replicas=2, words=NVLINK))
        await self.charged("statefulset-sts", 4)
        assert all(names.ALLOCATED in pod["metadata"]["annotations"] for pod in await self.bound("sts-", 2))

    async def gpus_by_an_annotation_alone_are_refused(self) -> None:
        try:
            await self.apply(manifests.job("word", words={names.GPUS: "2"}))
        except ClusterError as error:
            assert "write the limit nvidia.com/gpu: 2" in str(error)
        else:
            raise AssertionError("it was admitted, and would be charged nothing")
        hidden = manifests.job("word", words={})
        hidden["spec"]["template"]["metadata"] = {"annotations": {names.GPUS: "2"}}
        await self.apply(hidden)

        async def told() -> bool:
            events = await self.found("events", "word")
            return any("write the limit nvidia.com/gpu: 2" in one.get("message", "") for one in events)

        await eventually("the Job is told why it has no pod", told)

    # ---- plain pods, and those of Deployments: Kueue reads what the webhook has made of them

    async def plain_pods_with_a_claims_name_are_inadmissible(self) -> None:
        await self.apply(
            manifests.pod("placed", gpus=2, words=NVLINK),
            manifests.set_of("Deployment", "deployed", gpus=1, replicas=1, words=NVLINK),
        )
        await self.inadmissible("pod-placed", NO_CLAIMS)
        await self.inadmissible("pod-deployed", NO_CLAIMS)

        async def reason() -> bool:
            (pod,) = await self.found("pods", "placed")
            return "kueue.x-k8s.io/admission" in pod["metadata"]["annotations"].get(names.REASON, "")

        await eventually("the pod says which gate it waits for", reason)
        assert not await self.found("resourceclaims"), "nothing is held for it"

    async def static_pods_are_charged_by_their_template_if_it_says_exactly(self) -> None:
        soft = {names.POLICY: "best-effort", names.PLACEMENT: "static"}
        await self.apply(manifests.pod("static", gpus=4, words=STATIC), manifests.pod("soft", gpus=2, words=soft))
        await self.apply(manifests.set_of("Deployment", "deployed", gpus=1, replicas=2, words=STATIC))
        await self.charged("pod-static", 4)
        await self.inadmissible("pod-soft", "FirstAvailable device selection is not supported")
        await self.bound("static")
        await self.bound("deployed-", 2)

    async def a_limit_alone_is_charged_as_the_class_is(self) -> None:
        await self.named(names.GPU_RESOURCE)
        await self.apply(manifests.pod("bare", gpus=2), manifests.job("bare", gpus=2))
        for of in ("pod-bare", "job-bare"):
            await self.charged(of, 2)
        await self.bound("bare", 2)
        await self.clear()
        await self.named(None)

    async def named(self, resource: str | None) -> None:
        patch = json.dumps({"spec": {"extendedResourceName": resource}})
        await self.run("patch", "deviceclass", names.DEVICE_CLASS, "--type=merge", "-p", patch)

    async def without_its_part_for_claims_plain_pods_pass_both_gates_uncharged(self) -> None:
        await self.apply(manifests.pod("placed", gpus=2, words=NVLINK))
        await self.charged("pod-placed", 0)
        (pod,) = await self.bound("placed")
        assert pod["metadata"]["annotations"][names.LEVEL] == "nvlink"


async def tell(story: Story, *parts: Callable[[], Awaitable[None]]) -> None:
    for part in parts:
        await part()
        await story.clear()
        print(f"{part.__name__.replace('_', ' ')}", flush=True)


async def main(plane: Nodeless, manager: Path, chart: Path) -> None:
    """Run the driver and Kueue, and tell the story."""
    story = Story(plane)
    off = dict.fromkeys((*(f"KueueDRAIntegration{one}" for one in WITH_CLAIMS), UNLESS), False)
    async with beside.driver(plane), Client(from_kubeconfig(plane.kubeconfig), user_agent="peers") as client:
        await Machines(client, "dgx1-v100", connections=1).grow(2)
        kueue = Kueue(plane, story, manager=manager, chart=chart)
        await kueue.install()
        async with kueue.running(CHARGED):
            await story.apply(*manifests.queue(gpus=8))
            await tell(
                story,
                story.jobs_are_charged_by_their_limits_and_placed,
                story.a_gang_waits_for_its_quota_as_a_whole_and_is_placed_as_one,
                story.a_job_that_is_stopped_gives_its_gpus_back_and_is_placed_again,
                story.static_jobs_are_charged_once,
                story.a_job_by_a_template_is_charged_by_it_and_placed,
                story.a_statefulset_is_charged_by_its_limits_and_passes_both_gates,
                story.gpus_by_an_annotation_alone_are_refused,
                story.plain_pods_with_a_claims_name_are_inadmissible,
                story.static_pods_are_charged_by_their_template_if_it_says_exactly,
                story.a_limit_alone_is_charged_as_the_class_is,
            )
        async with kueue.running({}, **off):
            await tell(story, story.without_its_part_for_claims_plain_pods_pass_both_gates_uncharged)


if __name__ == "__main__":
    asyncio.run(main(Nodeless(beside.PLANE), Path(sys.argv[1]), Path(sys.argv[2])))
