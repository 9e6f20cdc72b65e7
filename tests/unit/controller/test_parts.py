"""Pods with parts of GPUs, from the note to the claim that the scheduler allocates, and back."""

from __future__ import annotations

import contextlib

import msgspec
import pytest

from dradriver.allocator.request import Amount
from dradriver.api.base import names
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.policies.policies_reader import read
from dradriver.api.slices import resource_slices
from dradriver.api.slices.slice_features import SliceFeatures
from dradriver.api.vocabulary.container_requests import Asked
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.controller.steps import step as steps
from dradriver.controller.steps.actions import Release, Step, Wait
from dradriver.controller.steps.observe import observe
from dradriver.controller.steps.withdraw_reasons import WithdrawReason
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dradriver.queue.pending import Member
from tests.fakes.gpucluster import GpuCluster, Killed, claim_of

SHARED = Mode(shared="time-slicing")
DYNAMIC = Mode(mig="dynamic")
QUARTER = Amount(cores=25)


def bound(cluster: GpuCluster, *pods: str) -> list[bool]:
    return ["nodeName" in cluster.get_pod(name)["spec"] for name in pods]


async def end(cluster: GpuCluster, pod: str) -> None:
    cluster.remove(PODS, pod, "default")
    cluster.collect()
    await cluster.settle()


async def step(cluster: GpuCluster) -> None:
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()


def hold(cluster: GpuCluster, device: str, consumed: dict[str, str]) -> None:
    """Let somebody else's claim have a part of a device of node ``a``."""
    result = {
        "request": "g", "driver": names.DRIVER, "pool": "a", "device": device, "shareID": "s",
        "consumedCapacity": consumed,
    }  # fmt: skip
    status = {"allocation": {"devices": {"results": [result]}}}
    cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": "x", "namespace": "default"}, "status": status})


def tell(cluster: GpuCluster, told: dict[str, object]) -> None:
    """Let the node agent say in its status what somebody else's claim has."""
    claim = cluster.find(RESOURCE_CLAIMS, "x", "default")
    assert claim is not None
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    entry = {key: result[key] for key in ("driver", "pool", "device", "shareID")} | {"data": told}
    claim["status"]["devices"] = [entry]
    cluster.put(RESOURCE_CLAIMS, claim)


async def test_a_share_is_a_claim_of_so_much_of_one_gpu() -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=SHARED)
    cluster.pod("p", Amount(cores=25, memory_mib=20480))
    await step(cluster)
    claim = cluster.claim("p")
    assert claim is not None
    (request,) = claim["spec"]["devices"]["requests"]
    assert request["name"] == "main"
    assert request["exactly"]["deviceClassName"] == "share.gpu.topology"
    assert request["exactly"]["capacity"] == {"requests": {"cores": "25", "memory": "20480Mi"}}
    assert bound(cluster, "p") == [True]
    (gpu,) = cluster.gpus("p")[1]
    assert cluster.note("p", "allocated") == cluster.machines["a"].gpus[gpu].uuid
    assert cluster.note("p", "part") == "25%/20480Mi"
    assert cluster.note("p", "score") is None


async def test_shares_fill_a_gpu_and_the_next_gets_another() -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=SHARED)
    for name, cores in (("p", 50), ("q", 25), ("r", 25), ("s", 1)):
        cluster.pod(name, Amount(cores=cores))
        await step(cluster)
    assert bound(cluster, "p", "q", "r", "s") == [True] * 4
    assert cluster.gpus("p") == cluster.gpus("q") == cluster.gpus("r") != cluster.gpus("s")


async def test_a_gpu_with_a_share_is_not_whole_until_the_last_is_gone() -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=SHARED)
    for name in ("p", "q"):
        cluster.pod(name, QUARTER)
    await step(cluster)
    cluster.pod("all", 8)
    await step(cluster)
    assert cluster.claim("all") is None
    await end(cluster, "p")
    assert cluster.claim("all") is None
    await end(cluster, "q")
    await step(cluster)
    assert bound(cluster, "all") == [True]
    cluster.pod("late", QUARTER)
    await step(cluster)
    assert cluster.claim("late") is None
    assert "no eligible node has room" in (cluster.note("late", "reason") or "")


async def test_a_waiting_share_gets_its_place_when_another_ends_that_was_not_the_last() -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=SHARED)
    cluster.pod("whole", 7)
    for name in ("p", "q", "r", "s"):
        cluster.pod(name, QUARTER)
    await step(cluster)
    cluster.pod("late", QUARTER)
    await step(cluster)
    assert cluster.claim("late") is None
    await end(cluster, "r")
    await step(cluster)
    assert bound(cluster, "late") == [True]


async def test_several_shares_of_one_pod_have_requests_of_their_own() -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=SHARED)
    cluster.pod("p", {"x": Amount(cores=60), "y": Amount(cores=30), "z": Amount(cores=30)})
    await step(cluster)
    claim = cluster.claim("p")
    assert claim is not None
    assert [one["name"] for one in claim["spec"]["devices"]["requests"]] == ["x", "y", "z"]
    assert bound(cluster, "p") == [True]
    assert len(cluster.gpus("p")[1]) == 2
    cluster.pod("all", 6)
    cluster.pod("q", Amount(cores=71))
    await step(cluster)
    assert bound(cluster, "all", "q") == [True, False], "two GPUs have parts, six are whole"


async def test_memory_that_the_policies_promise_twice_is_given_twice() -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=Mode(shared="time-slicing", memory_overcommit=1.5))
    cluster.pod("whole", 7)
    for name, memory in (("p", 60_000), ("q", 60_000), ("r", 3_000), ("big", 81_560)):
        cluster.pod(name, Amount(cores=20, memory_mib=memory))
    await step(cluster)
    assert bound(cluster, "whole", "p", "q", "r", "big") == [True, True, True, False, False]
    assert cluster.gpus("p") == cluster.gpus("q")
    assert "no eligible node has room" in (cluster.note("r", "reason") or "")
    assert "The largest possible share is 100 % and 81559 MiB" in (cluster.note("big", "reason") or "")
    cluster.modes["a"] = Mode(shared="time-slicing", memory_overcommit=2.0)
    cluster.publish("a", cluster.machines["a"])
    await step(cluster)
    assert bound(cluster, "r") == [True], "as soon as the policies promise more"
    cluster.modes["a"] = SHARED
    cluster.publish("a", cluster.machines["a"])
    cluster.pod("s", Amount(cores=1, memory_mib=1))
    await step(cluster)
    assert bound(cluster, "s") == [False], "more than there is was given before"
    await end(cluster, "p")
    await step(cluster)
    assert bound(cluster, "s") == [True]


async def test_equal_shares_are_filled_one_by_one_and_the_gpu_is_whole_again_after() -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=Mode(shared="mps", equal_shares=4))
    cluster.pod("whole", 7)
    cluster.pod("p", {"x": Amount(cores=10), "y": Amount(memory_mib=1024)})
    for name in ("q", "r", "s"):
        cluster.pod(name, QUARTER)
    cluster.pod("half", Amount(cores=50))
    await step(cluster)
    assert bound(cluster, "whole", "p", "q", "r", "s", "half") == [True, True, True, True, False, False]
    assert cluster.note("p", "part") == "25%/20389Mi,25%/20389Mi"
    assert "The largest possible share is 25 % and 20389 MiB" in (cluster.note("half", "reason") or "")
    for name in ("p", "q", "r", "s"):
        await end(cluster, name)
    cluster.pod("one", 1)
    await step(cluster)
    assert bound(cluster, "one") == [True]


async def test_what_others_claims_hold_counts() -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=SHARED)
    hold(cluster, cluster.machines["a"].gpus[3].uuid.lower(), {"cores": "40", "memory": "10Gi"})
    cluster.pod("p", Amount(cores=60))
    cluster.pod("q", Amount(cores=50))
    cluster.pod("all", 7)
    await step(cluster)
    assert cluster.gpus("p") == ("a", [3])
    assert cluster.gpus("q") != cluster.gpus("p")
    assert bound(cluster, "all") == [False]


async def test_a_gpu_of_one_namespace_only_takes_no_shares_of_another() -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=Mode(shared="time-slicing", exclusive_to="namespace"))
    cluster.pod("p", QUARTER)
    await step(cluster)
    cluster.pod("q", QUARTER, namespace="other")
    cluster.pod("r", QUARTER)
    await step(cluster)
    found = cluster.find(RESOURCE_CLAIMS, claim_of("q"), "other")
    assert found is not None
    assert cluster.gpus("r") == cluster.gpus("p")
    assert cluster.machines["a"].gpus[cluster.gpus("p")[1][0]].uuid not in str(found)


@pytest.mark.parametrize("mode", [Mode(shared="time-slicing"), Mode(mig="dynamic"), Mode(mig="placements")])
async def test_a_gpu_is_of_one_namespace_from_when_the_policies_say_so_and_not_when_its_agent_does(mode: Mode) -> None:
    """The agent, which reads the policies later, still publishes the GPUs without ``exclusiveTo``."""
    cluster = GpuCluster()
    labels = {"pool": "blue"}
    cluster.node("a", "hgx-h100", mode=mode, labels=labels)
    cut = "shared: time-slicing" if mode.shared != "none" else f"mig: {mode.mig}"
    part: Asked = QUARTER if mode.shared != "none" else ("1g.10gb",)
    rule = f"gpus: [{{nodeSelector: {{pool: red}}, {cut}, exclusiveTo: namespace}}]"
    cluster.worker.follow(read(rule.encode(), source="x"))

    async def shares_a_gpu(number: int) -> bool:
        pods = [(f"p{number}", "default"), (f"q{number}", "other")]
        found = []
        for pod, namespace in pods:
            cluster.pod(pod, part, namespace=namespace)
            await step(cluster)
            found.append(cluster.find(RESOURCE_CLAIMS, claim_of(pod), namespace))
        gpus = [{gpu.index for gpu in cluster.machines["a"].gpus if gpu.uuid in str(claim)} for claim in found]
        assert all(gpus)
        for pod, namespace in pods:
            cluster.remove(PODS, pod, namespace)
        cluster.collect()
        await step(cluster)
        return gpus[0] == gpus[1]

    assert await shares_a_gpu(0)
    cluster.node("a", "hgx-h100", mode=mode, labels={"pool": "red"})
    assert not await shares_a_gpu(1), "the node's label has changed"
    cluster.worker.follow(read(b"{}", source="x"))
    assert await shares_a_gpu(2)
    cluster.worker.follow(read(f"gpus: [{{{cut}, exclusiveTo: namespace}}]".encode(), source="x"))
    assert not await shares_a_gpu(3)


def next_step(member: Member, picture: Picture, now: float) -> Step:
    return steps.step(observe(member, picture, now), picture, now)


async def refused(amount: Asked, *, mode: Mode) -> tuple[GpuCluster, Member]:
    """Return a cluster with a lifted pod that the scheduler finds no room for, and the pod as a member."""
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=mode)
    cluster.pod("p", amount)
    await cluster.settle()
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    cluster.put(PODS, cluster.get_pod("p") | {"status": {"phase": "Pending", "conditions": [condition]}})
    cluster.deliver()
    return cluster, Member(cluster.worker.picture.pods["default", "p"])


@pytest.mark.parametrize(("part", "mode"), [(QUARTER, SHARED), (("1g.10gb",), DYNAMIC)])
async def test_a_part_that_the_scheduler_overlooks_is_made_again_once(part: Asked, mode: Mode) -> None:
    cluster, member = await refused(part, mode=mode)
    picture = cluster.worker.picture
    assert next_step(member, picture, 10.0) == Wait(until=11.0)
    claim = picture.claim_of(member.pod)
    assert claim is not None
    assert next_step(member, picture, 11.0) == Release((claim,), WithdrawReason.OVERLOOKED)
    member.memory = msgspec.structs.replace(member.memory, is_renewed=True)
    assert next_step(member, picture, 11.0) == Wait(until=15.0), "it is no mistake, then"


async def test_a_share_that_fits_no_more_and_devices_of_one_claim_are_not_thought_overlooked() -> None:
    cluster, member = await refused(8, mode=Mode())
    assert next_step(member, cluster.worker.picture, 10.0) == Wait(until=15.0)
    cluster, member = await refused(("1g.10gb",), mode=Mode(mig="placements"))
    assert next_step(member, cluster.worker.picture, 10.0) == Wait(until=15.0)
    cluster, member = await refused(QUARTER, mode=SHARED)
    claim = cluster.worker.picture.claim_of(member.pod)
    assert claim is not None
    assert claim.pin is not None
    ((device, _),) = claim.pin.taken.items()
    hold(cluster, device[1], {"cores": "80", "memory": "1Gi"})
    cluster.deliver()
    assert next_step(member, cluster.worker.picture, 10.0) == Release((claim,), WithdrawReason.TAKEN)


@pytest.mark.parametrize("kill_at", range(1, 5))
async def test_a_controller_killed_at_any_write_leaves_the_share_to_the_next(kill_at: int) -> None:

    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=SHARED)
    cluster.pod("p", {"x": Amount(cores=60), "y": Amount(cores=30)})
    cluster.client.kill_at = kill_at
    with contextlib.suppress(Killed, BaseExceptionGroup):
        await cluster.settle()
    cluster.restart()
    await step(cluster)
    assert bound(cluster, "p") == [True]
    assert cluster.note("p", "part") == "60%/48935Mi,30%/24467Mi"


async def test_mig_slices_are_pinned_to_their_placement() -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=DYNAMIC)
    cluster.pod("p", {"x": ("1g.10gb", "1g.10gb"), "y": ("3g.40gb",)})
    await step(cluster)
    claim = cluster.claim("p")
    assert claim is not None
    requests = {one["name"]: one["exactly"] for one in claim["spec"]["devices"]["requests"]}
    assert list(requests) == ["x-1", "x-2", "y"]
    assert requests["y"]["deviceClassName"] == "mig.gpu.topology"
    assert requests["y"]["capacity"] == {"requests": {"memorySlices": "4", "computeSlices": "3"}}
    told = claim["spec"]["devices"]["config"][0]["opaque"]["parameters"]["mig"]
    assert [told[name]["profile"] for name in requests] == ["1g.10gb", "1g.10gb", "3g.40gb"]
    assert bound(cluster, "p") == [True]
    starts = [next(iter(one["starts"].values())) for one in told.values()]
    assert cluster.note("p", "part") == ",".join(
        f"{profile}@{start}" for profile, start in zip(("1g.10gb", "1g.10gb", "3g.40gb"), starts, strict=True)
    )


async def test_seven_slices_fill_a_gpu_and_one_may_be_whole_again() -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=DYNAMIC)
    cluster.pod("whole", 7)
    await step(cluster)
    for number in range(8):
        cluster.pod(f"p{number}", ("1g.10gb",))
    await step(cluster)
    assert bound(cluster, *(f"p{number}" for number in range(8))) == [True] * 7 + [False]
    assert "no eligible node has room" in (cluster.note("p7", "reason") or "")
    for number in range(7):
        await end(cluster, f"p{number}")
    await step(cluster)
    assert bound(cluster, "p7") == [True]


async def test_a_gpu_that_is_never_whole_serves_slices_alone() -> None:
    cluster = GpuCluster()
    cluster.node("a", "dgx-a100", mode=DYNAMIC)
    cluster.pod("whole", 1)
    cluster.pod("slice", ("1g.5gb",))
    await step(cluster)
    assert bound(cluster, "whole", "slice") == [False, True]


async def test_of_a_slice_that_the_node_agent_placed_the_position_is_unknown() -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=DYNAMIC)
    hold(cluster, cluster.machines["a"].gpus[0].uuid.lower(), {"memorySlices": "1", "computeSlices": "1"})
    cluster.pod("whole", 7)
    cluster.pod("late", ("1g.10gb",))
    await step(cluster)
    assert bound(cluster, "whole", "late") == [True, False]
    tell(cluster, {"type": "mig", "profile": "1g.10gb", "placement": 0})
    await step(cluster)
    assert bound(cluster, "late") == [True], "the pod that waited gets a place as soon as it is known"
    for number in range(6):
        cluster.pod(f"p{number}", ("1g.10gb",))
    await step(cluster)
    assert bound(cluster, *(f"p{number}" for number in range(6))) == [True] * 5 + [False]
    starts = {(cluster.note(name, "part") or "")[-1] for name in ("late", *(f"p{number}" for number in range(5)))}
    assert starts == set("123456")


@pytest.mark.parametrize(
    ("told", "consumed"),
    [
        ({"type": "mig", "profile": "1g.5gb", "placement": 0}, ("1", "1")),
        ({"type": "mig", "profile": "2g.20gb", "placement": 0}, ("1", "1")),
        ({"type": "mig", "profile": "2g.20gb", "placement": 1}, ("2", "2")),
        ({"type": "mig", "profile": "1g.10gb", "placement": 9}, ("1", "1")),
        ({"type": "mig", "profile": "1g.10gb", "placement": 0}, ("4", "1")),
        ({"type": "mig", "profile": "1g.10gb", "placement": 0}, ("1", "7")),
        ({"type": "mig", "profile": ["1g.10gb"], "placement": 0}, ("1", "1")),
    ],
)
async def test_what_cannot_be_of_a_slice_keeps_its_gpu_closed(
    told: dict[str, object], consumed: tuple[str, str]
) -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=DYNAMIC)
    taken = dict(zip(("memorySlices", "computeSlices"), consumed, strict=True))
    hold(cluster, cluster.machines["a"].gpus[0].uuid.lower(), taken)
    tell(cluster, told)
    cluster.pod("whole", 7)
    cluster.pod("late", ("1g.10gb",))
    await step(cluster)
    assert bound(cluster, "whole", "late") == [True, False]


PLACEMENTS = Mode(mig="placements")


async def test_a_slice_that_is_a_device_is_pinned_by_what_it_is_and_its_pod_to_one_node() -> None:
    cluster = GpuCluster()
    for node in ("a", "b"):
        cluster.node(node, "hgx-h100", mode=PLACEMENTS)
    cluster.node("c", "hgx-h100")
    cluster.pod("p", {"x": ("1g.10gb", "3g.40gb")})
    cluster.pod("whole", 8)
    await step(cluster)
    claim = cluster.claim("p")
    assert claim is not None
    for request in claim["spec"]["devices"]["requests"]:
        assert request["exactly"]["capacity"]["requests"].keys() == {"memorySlices", "computeSlices"}, "policy"
        assert '.?profile.orValue("") == ' in request["exactly"]["selectors"][0]["cel"]["expression"]
    assert "mig" not in claim["spec"]["devices"]["config"][0]["opaque"]["parameters"]
    assert bound(cluster, "p", "whole") == [True, True]
    assert len(nodes_of(cluster, "p")) == 1
    assert len(nodes_of(cluster, "whole")) == 1, "no other pod is looked at there either"


async def test_placements_that_are_devices_fill_a_gpu_and_keep_it_from_being_whole() -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=PLACEMENTS)
    cluster.pod("rest", 7)
    await step(cluster)
    for number in range(8):
        cluster.pod(f"p{number}", ("1g.10gb",))
    await step(cluster)
    assert bound(cluster, *(f"p{number}" for number in range(8))) == [True] * 7 + [False]
    cluster.pod("one", 1)
    await step(cluster)
    for number in range(6):
        await end(cluster, f"p{number}")
    await step(cluster)
    assert bound(cluster, "p7", "one") == [True, False]
    await end(cluster, "p6")
    await end(cluster, "p7")
    await step(cluster)
    assert bound(cluster, "one") == [True]


async def test_a_slice_of_a_template_keeps_its_gpu_from_being_whole_and_its_place_from_others() -> None:
    cluster = GpuCluster()
    cluster.node("a", "dgx-a100", mode=PLACEMENTS)
    cluster.node("b", "hgx-h100", mode=PLACEMENTS)
    (profile,) = [one for one in cluster.machines["b"].gpus[0].profiles if one.name == "4g.40gb"]
    device = resource_slices.part_name(cluster.machines["b"].gpus[0].uuid, profile.id, 0)
    result = {"request": "g", "driver": names.DRIVER, "pool": "b", "device": device}
    status = {"allocation": {"devices": {"results": [result]}}}
    cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": "x", "namespace": "default"}, "status": status})
    cluster.pod("seven", 7)
    cluster.pod("eighth", 1)
    await step(cluster)
    assert bound(cluster, "seven", "eighth") == [True, False], "A100 in MIG mode is never whole"
    cluster.pod("p", ("4g.40gb",))
    cluster.pod("q", ("3g.40gb",))
    await step(cluster)
    assert bound(cluster, "p", "q") == [False, True]
    assert cluster.note("q", "part") == "3g.40gb@4"


def nodes_of(cluster: GpuCluster, pod: str) -> list[str]:
    terms = cluster.get_pod(pod)["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return [v for t in terms["nodeSelectorTerms"] for e in t["matchFields"] for v in e["values"]]


@pytest.mark.parametrize("part", [Amount(cores=50), ("1g.10gb",)])
async def test_a_pod_is_told_that_the_server_keeps_nothing_that_divides_a_gpu(part: Amount | tuple[str, ...]) -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=SHARED)
    unable = SliceFeatures(taints=False, shares=False, counters=False)
    modes = {gpu.uuid: SHARED for gpu in cluster.machines["a"].gpus}
    for built in resource_slices.build(cluster.machines["a"], node="a", node_uid="n", modes=modes, features=unable):
        built["spec"]["pool"]["generation"] = 2
        cluster.put(RESOURCE_SLICES, built)
    cluster.pod("p", part)
    await step(cluster)
    assert (cluster.note("p", "reason") or "").endswith(
        " The API server does not store counters and shares in slices, Kubernetes 1.36 and later do."
    )
    cluster.pod("whole", 9)
    await step(cluster)
    assert "API server" not in (cluster.note("whole", "reason") or "")
