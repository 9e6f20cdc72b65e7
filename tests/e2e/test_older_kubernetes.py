"""Kubernetes 1.34 and 1.35 keep nothing in slices that divides a GPU: what is safe there is handed out, and said.

1.36 keeps all, and its kubelet asks for health in another way than the newest. Each version has a cluster of its own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from dradriver.api.base import gang_barrier_device, names
from dradriver.api.slices import resource_slices
from dradriver.topology.machine import Gpu
from dradriver.topology.profiles import load
from tests import deploy, kubernetes_versions, needs
from tests.cluster import Cluster
from tests.cluster.settings import DEFAULT_KUBERNETES, KUBERNETES_VERSIONS, minor_of
from tests.e2e import gangs, parts
from tests.e2e.kubectl import (
    Namespace,
    claim_template,
    eventually,
    no_gpu_is_owned_twice,
    owners,
    pod,
    pod_of_template,
    told_why,
)
from tests.e2e.test_gang_losses import MAY_SUSPEND
from tests.e2e.test_node_health import gputopo, taints, unhealthy

Object = dict[str, Any]

NODE, SHARED = deploy.SHARED
STATIC, PLACEMENTS = 4, 5
INSTANCES = (("1g.10gb", 6), ("3g.40gb", 0))
SHARES = 4
SLICE = {names.MIG_PROFILE: "1g.10gb"}
WHOLE = [version for version in KUBERNETES_VERSIONS if minor_of(version) >= "1.36" and version != DEFAULT_KUBERNETES]
OLDER = [version for version in KUBERNETES_VERSIONS if minor_of(version) < "1.36"]


def gpu(number: int) -> Gpu:
    return load(deploy.MACHINES[NODE], seed=NODE).gpus[number]


@pytest.fixture(scope="module", params=kubernetes_versions.params(OLDER))
def older(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    needs.real_cluster(request.param)
    cluster = Cluster(f"e2e-{minor_of(request.param)}", version=request.param)
    cluster.up()
    try:
        rule = "policies.gpus[2]"
        asked = (f"{rule}.nodes[0]={NODE}", f"{rule}.numbers[0]={PLACEMENTS}", f"{rule}.mig=placements")
        of = gpu(STATIC)
        parts.make_instances(parts.simulated(cluster.nodes[NODE], of), of, *INSTANCES)
        deploy.install(cluster, *asked, MAY_SUSPEND, exclusive=False)
        yield cluster
    finally:
        cluster.down()


@pytest.fixture(params=kubernetes_versions.params(WHOLE))
def whole(request: pytest.FixtureRequest) -> Iterator[Namespace]:
    needs.real_cluster(request.param)
    cluster = Cluster(f"e2e-{minor_of(request.param)}", version=request.param)
    cluster.up()
    try:
        deploy.install(cluster)
        cluster.kubectl("create", "namespace", "t-whole")
        yield Namespace(cluster, "t-whole")
    finally:
        cluster.down()


def test_a_version_that_keeps_all_hands_out_every_kind_and_shows_a_fault(whole: Namespace) -> None:
    whole.apply(
        pod("all", gpus=8, words={names.POLICY: "nvlink"}, node="node-a"),
        pod("half", gpus=1, words={names.SHARE: "0.5"}, node=NODE),
        pod("slice", gpus=1, words=SLICE, node=NODE),
    )
    whole.wait_running("all", "half", "slice")
    broken = load(deploy.MACHINES["node-a"], seed="node-a").gpus[5].uuid
    gputopo(whole.cluster.nodes["node-a"], "fail", "gpu-5", "--xid", "79")
    eventually("the GPU has its taint", lambda: broken.lower() in taints(whole.cluster, "node-a"))
    eventually("the kubelet shows it", lambda: (unhealthy(whole, "all") or {}).keys() == {broken})
    whole.delete("all", "half", "slice")
    eventually("every GPU is free again", lambda: not owners(whole.cluster))


def test_what_a_server_cannot_keep_is_not_published_and_said_once(older: Cluster) -> None:
    uuids = [gpu(number).uuid.lower() for number in range(8)]
    published = eventually("the GPUs are published", lambda: devices(older))
    shares = {f"{uuids[SHARED]}-share-{number}" for number in range(SHARES)}
    ids = {profile.name: profile.id for profile in gpu(STATIC).profiles}
    instances = {resource_slices.part_name(uuids[STATIC], ids[profile], start) for profile, start in INSTANCES}
    whole = set(uuids) - {uuids[SHARED], uuids[STATIC]}
    assert Counter(device["name"] for device in published) == Counter(whole | shares | instances)
    kinds = {device["name"]: device["attributes"]["type"]["string"] for device in published}
    assert kinds == {**dict.fromkeys(whole, "gpu"), **dict.fromkeys(shares, "share"), **dict.fromkeys(instances, "mig")}
    assert not [
        key for device in published for key in device if key in ("allowMultipleAllocations", "consumesCounters")
    ]

    agent = parts.agent(older, NODE)["name"]
    ours = ("-n", deploy.NAMESPACE)
    log = older.kubectl(*ours, "logs", agent).stdout
    page = older.kubectl(
        "get", "--raw", f"/api/v1/namespaces/{deploy.NAMESPACE}/pods/{agent}:8081/proxy/metrics"
    ).stdout
    events = older.api.objects("events.events.k8s.io")
    told = Counter(e["note"] for e in events if e["reason"] == "ServerLacks" and e["regarding"]["name"] == NODE)
    for lacking in ("taints", "shares", "counters"):
        said = f"The API server drops the {lacking} of devices in ResourceSlices"
        assert log.count(said) == 1
        assert [count for note, count in told.items() if note.startswith(said)] == [1]
        assert f'gpu_topology_node_server_lacks{{what="{lacking}"}} 1.0' in page


def test_a_gang_starts_whole_without_the_barrier(older: Cluster) -> None:
    older.kubectl("create", "namespace", "t-gang")
    namespace = Namespace(older, "t-gang")
    *first, last = gangs.members("gang", pods=4, gpus=3)
    namespace.apply(*first)
    for one in first:
        assert told_why(namespace, one["metadata"]["name"]) == "Waiting for more pods of the gang: 3 of 4 pods exist."
    assert not namespace.list("resourceclaims")
    namespace.apply(last)
    pods = [one["metadata"]["name"] for one in (*first, last)]
    claims = gangs.run_whole(namespace, pods, barrier=False)
    assert not any(gang_barrier_device.CLASS in json.dumps(claim["spec"]) for claim in claims.values())
    assert {namespace.annotation(name, names.GANG_NODES) for name in pods} == {"node-a,node-b"}
    assert {namespace.annotation(name, names.RANK_HINT) for name in pods} == set("0123")
    assert len(owners(older)) == 12
    assert older.kubectl("get", "resourceslice", gang_barrier_device.SLICE, check=False).returncode, (
        "nothing that cannot keep them"
    )
    older.kubectl("delete", "namespace", "t-gang", "--timeout=120s")
    eventually("every GPU is free again", lambda: not owners(older))


def test_a_gang_of_which_half_is_bound_for_long_is_suspended_and_starts_again_as_a_whole(older: Cluster) -> None:
    """Each of its pods needs a node, and on one of the two nodes the anti-affinity of another pod keeps it away."""
    older.kubectl("create", "namespace", "t-half")
    namespace = Namespace(older, "t-half")
    try:
        namespace.apply(gangs.shunning(pod("holder", node="node-b")))
        namespace.wait_running("holder")
        job = gangs.job("train", pods=2, gpus=5)
        gangs.avoided(job["spec"]["template"])
        namespace.apply(job)
        before = gangs.pods_of(namespace, "train", 2)
        eventually("one of them is bound", lambda: sum(map(is_bound, namespace.list("pods"))) == 2)

        def suspended() -> bool:
            return names.RESTART in namespace.get("job", "train")["metadata"]["annotations"]

        eventually("all are to start anew", suspended, timeout_s=120)
        namespace.delete("holder")

        def anew() -> list[str] | None:
            pods = gangs.pods_of(namespace, "train", 2)
            fresh = set(gangs.uids(pods).values()).isdisjoint(gangs.uids(before).values())
            return [one["metadata"]["name"] for one in pods.values()] if fresh else None

        pods = eventually("all pods are others", anew, timeout_s=180)
        namespace.wait_running(*pods)
        assert {namespace.get("pod", name)["spec"]["nodeName"] for name in pods} == {"node-a", "node-b"}
        found = namespace.get("job", "train")
        assert not found["spec"].get("suspend")
        assert names.RESTARTING not in found["metadata"].get("labels", {})
        assert int(found["status"].get("failed", 0)) == 0, "a Job is never made to count a failure"
    finally:
        older.kubectl("delete", "namespace", "t-half", "--timeout=120s")
    eventually("every GPU is free again", lambda: not owners(older))


def is_bound(made: Object) -> bool:
    return "nodeName" in made["spec"]


def test_a_name_for_limits_alone_is_refused_for_the_server_would_drop_it(older: Cluster) -> None:
    done = deploy.change(older, f"deviceClass.extendedResourceName={names.GPU_RESOURCE}", check=False)
    assert done.returncode
    assert "needs Kubernetes 1.36" in done.stderr
    before = older.kubectl("get", "deviceclass", names.DEVICE_CLASS, "-o", "json").stdout
    patch = json.dumps({"spec": {"extendedResourceName": names.GPU_RESOURCE}})
    kept = older.kubectl("patch", "deviceclass", names.DEVICE_CLASS, "--type=merge", "-p", patch, "-o", "json").stdout
    assert json.loads(kept)["spec"] == json.loads(before)["spec"]


def told(namespace: Namespace, pod: str) -> list[Object]:
    (used,) = namespace.get("pod", pod)["spec"]["resourceClaims"]
    found: list[Object] = namespace.get("resourceclaim", used["resourceClaimName"])["status"].get("devices", [])
    return [one for one in found if one["driver"] == names.DRIVER]


def devices(cluster: Cluster) -> list[Object]:
    pieces = cluster.api.objects("resourceslices")
    return [d for piece in pieces if piece["spec"].get("nodeName") == NODE for d in piece["spec"].get("devices", ())]


def test_whole_gpus_and_instances_are_placed_and_other_parts_wait_or_are_equal_shares(
    older: Cluster,
) -> None:
    name = "t-older"
    older.kubectl("create", "namespace", name)
    namespace = Namespace(older, name)
    namespace.apply(
        pod("whole", gpus=4, words={names.POLICY: "nvlink"}, node=NODE),
        pod("half", gpus=1, words={names.SHARE: "0.5"}, node=NODE),
        pod("slice", gpus=1, words=SLICE, node=NODE),
    )
    namespace.wait_running("whole", "slice")
    assert len(namespace.devices("whole")) == 4
    assert namespace.annotation("slice", names.PART) == "1g.10gb@6"
    for ready, count in ("whole", 4), ("slice", 1):  # which the agent may say, and nothing else
        eventually(f"the claim of {ready} says that it is ready", lambda r=ready, c=count: len(told(namespace, r)) == c)  # type: ignore[misc]
    assert namespace.annotation("slice", names.ALLOCATED) == gpu(STATIC).uuid
    namespace.apply(pod("another", gpus=1, words=SLICE, node=NODE))
    for waiting in ("half", "another"):
        reason = told_why(namespace, waiting)
        lacking = "The API server does not store counters and shares in slices, Kubernetes 1.36 and later do."
        assert reason.endswith(lacking), reason

    amounts = {names.CAPACITY_CORES: "25", names.CAPACITY_MEMORY: "10Gi"}
    namespace.apply(claim_template("share", names.SHARE_CLASS, amounts))
    users = [f"user-{number}" for number in range(SHARES)]
    namespace.apply(*(pod_of_template(one, "share", node=NODE) for one in users))
    namespace.wait_running(*users)
    assert len({tuple(namespace.devices(one)) for one in users}) == 1
    any_gpus = {names.POLICY: "best-effort"}
    namespace.apply(pod_of_template("more", "share", node=NODE), pod("rest", gpus=4, words=any_gpus, node=NODE))
    namespace.kubectl("wait", "--for=jsonpath={.status.conditions[0].reason}=Unschedulable", "pod/more")
    told_why(namespace, "rest")
    namespace.apply(pod("two", gpus=2, words=any_gpus, node=NODE))
    namespace.wait_running("two")
    assert no_gpu_is_owned_twice(older)
    assert len(owners(older)) == 4 + 2 + SHARES + 1
    older.kubectl("delete", "namespace", name, "--timeout=120s")
    eventually("every GPU is free again", lambda: not owners(older))
