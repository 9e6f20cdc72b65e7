"""One gated pod: what it gets, what it is told, and what a crash in between leaves behind."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dradriver.allocator.request import Amount, Share
from dradriver.api.base import names
from dradriver.api.pod import resolved
from dradriver.kube.client import ApiError
from dradriver.kube.resources import NODES, PODS, RESOURCE_SLICES
from tests.fakes.gpucluster import GpuCluster, claim_of, note

QUADS = ([0, 1, 2, 3], [4, 5, 6, 7])


async def test_a_pod_gets_an_nvlink_quad_of_a_dgx1_and_is_told_so() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", wishes={"policy": "nvlink"})
    await cluster.settle()
    node, gpus = cluster.gpus("p")
    assert node == "a"
    assert gpus in QUADS
    pod = cluster.get_pod("p")
    assert pod["spec"]["schedulingGates"] == []
    machine = cluster.machines["a"]
    assert cluster.note("p", "allocated") == ",".join(machine.gpus[index].uuid for index in gpus)
    assert cluster.note("p", "level") == "nvlink"
    assert sorted((cluster.note("p", "ring-order") or "").split(",")) == [str(index) for index in gpus]
    assert cluster.note("p", "affinity") is None
    assert cluster.note("p", "reason") is None


async def test_placing_is_one_claim_and_one_patch() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p")
    await cluster.settle()
    assert cluster.client.writes == [("create", claim_of("p")), ("patch", "p")]


async def test_each_container_has_a_request_of_its_own_and_the_pod_owns_the_claim() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", {"left": 2, "right": 2})
    await cluster.settle()
    claim = cluster.claim("p")
    assert claim is not None
    assert [request["name"] for request in claim["spec"]["devices"]["requests"]] == ["left", "right"]
    (owner,) = claim["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (cluster.get_pod("p")["metadata"]["uid"], True)


async def test_the_second_gets_the_other_quad_and_the_third_waits_until_the_first_is_gone() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    for name in ("one", "two", "three"):
        cluster.pod(name, wishes={"policy": "nvlink"})
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    assert sorted(cluster.gpus(name)[1] for name in ("one", "two")) == list(QUADS)
    reason = cluster.note("three", "reason")
    assert reason is not None
    assert "nvlink" in reason
    assert cluster.get_pod("three")["spec"]["schedulingGates"] == [{"name": names.GATE}]
    assert cluster.claim("three") is None
    given = cluster.gpus("one")
    cluster.remove(PODS, "one", "default")
    cluster.collect()
    await cluster.settle()
    assert cluster.gpus("three") == given
    assert cluster.note("three", "reason") is None


async def test_a_reason_is_written_once() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 9)
    await cluster.settle()
    writes = list(cluster.client.writes)
    cluster.node("b", None)
    await cluster.settle()
    assert cluster.client.writes == writes == [("patch", "p")]


async def test_pods_are_placed_in_the_order_of_their_creation() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    for name in ("z", "y", "x"):
        cluster.pod(name)
    await cluster.settle()
    assert cluster.claim("z") is not None
    assert cluster.claim("y") is not None
    assert cluster.claim("x") is None


async def test_a_pod_without_a_place_does_not_hold_up_the_next() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("large", 9)
    cluster.pod("small", 2)
    await cluster.settle()
    assert cluster.claim("small") is not None


@pytest.mark.slow
async def test_among_many_full_nodes_the_one_that_becomes_free_is_found() -> None:
    cluster = GpuCluster()
    for number in range(70):
        cluster.node(f"n{number:02d}", "rtx-a6000-x4-pairs")
        cluster.pod(f"p{number:02d}", 4)
    await cluster.settle()
    cluster.schedule()
    cluster.pod("late", 4)
    await cluster.settle()
    assert cluster.claim("late") is None
    cluster.remove(PODS, "p69", "default")
    given = cluster.gpus("p69")
    cluster.collect()
    await cluster.settle()
    assert cluster.gpus("late") == given


async def test_a_node_with_good_links_but_no_cpu_left_is_not_chosen() -> None:
    cluster = GpuCluster()
    cluster.node("a", "dgx-h100", allocatable={"cpu": "4"})
    cluster.node("b", "dgx1-v100")
    cluster.pod("p", requests={"cpu": "8"})
    await cluster.settle()
    assert cluster.gpus("p")[0] == "b"


async def test_a_resize_that_its_node_cannot_do_takes_no_cpu_from_others() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    container = {"name": "c", "resources": {"requests": {"cpu": "64"}}}
    had = {"name": "c", "allocatedResources": {"cpu": "2"}, "resources": {"requests": {"cpu": "2"}}}
    pending = {"type": "PodResizePending", "status": "True", "reason": "Deferred"}
    resized: dict[str, Any] = {
        "metadata": {"name": "resized", "namespace": "other"},
        "spec": {"nodeName": "a", "containers": [container]},
        "status": {"phase": "Running", "containerStatuses": [had], "conditions": [pending]},
    }
    cluster.put(PODS, resized)
    cluster.pod("p", 1, requests={"cpu": "6"})
    await cluster.settle()
    assert cluster.claim("p") is None
    resized["status"] |= {"conditions": [pending | {"reason": "Infeasible"}]}
    cluster.put(PODS, resized)
    await cluster.settle()
    assert cluster.gpus("p")[0] == "a"


async def test_cpu_promised_to_a_lifted_pod_is_not_promised_again() -> None:
    cluster = GpuCluster()
    cluster.node("a", allocatable={"cpu": "10"})
    cluster.pod("one", 1, requests={"cpu": "6"})
    cluster.pod("two", 1, requests={"cpu": "6"})
    await cluster.settle()
    assert cluster.claim("one") is not None
    assert cluster.claim("two") is None
    assert cluster.note("two", "reason") == "No node with GPUs can run this pod: too little cpu."


async def test_a_pod_counts_where_it_is_promised_then_where_it_is_bound_and_nowhere_else() -> None:
    cluster = GpuCluster()
    cluster.node("a", allocatable={"cpu": "8"})

    def counted() -> tuple[str, int] | None:
        taken = cluster.worker.picture.node_usage.by(("default", "p"))
        return None if taken is None else (taken[0], taken[1]["cpu"])

    cluster.pod("p", 1, requests={"cpu": "6"})
    cluster.deliver()
    assert counted() is None, "a gated pod without a promise takes nothing"
    await cluster.settle()
    assert counted() == ("a", 6000)
    cluster.node("b", allocatable={"cpu": "8"})
    pod = cluster.get_pod("p")
    cluster.put(PODS, pod | {"spec": pod["spec"] | {"nodeName": "b"}})
    cluster.deliver()
    assert counted() == ("b", 6000)
    cluster.put(PODS, cluster.get_pod("p") | {"status": {"phase": "Failed"}})
    cluster.deliver()
    assert counted() is None


async def test_the_reason_names_why_nodes_were_left_out() -> None:
    cluster = GpuCluster()
    cluster.node("a", taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}])
    cluster.node("b", ready="Unknown")
    cluster.node("c", unschedulable=True)
    cluster.node("d", "rtx4090-x8")
    cluster.pod("p", wishes={"policy": "nvlink"})
    await cluster.settle()
    reason = cluster.note("p", "reason") or ""
    assert reason.endswith(" Nodes left out: cordoned, not ready, tainted.")
    assert "nvlink" in reason


async def test_a_tainted_node_takes_a_pod_that_tolerates_it() -> None:
    cluster = GpuCluster()
    cluster.node("a", taints=[{"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}])
    cluster.pod("p", tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}])
    await cluster.settle()
    assert cluster.gpus("p")[0] == "a"


async def test_both_terms_of_the_authors_affinity_are_tightened() -> None:
    cluster = GpuCluster()
    for name in ("a", "b", "c"):
        cluster.node(name, labels={"kubernetes.io/hostname": f"host-{name}", "zone": "1" if name == "c" else "2"})
    author = [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["2"]}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]},
    ]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": author}}}
    cluster.pod("p", affinity=affinity)
    await cluster.settle()
    spec = cluster.get_pod("p")["spec"]["affinity"]["nodeAffinity"]
    first, second = spec["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    ours = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["host-a", "host-b"]}
    assert first == {"matchExpressions": [*author[0]["matchExpressions"], ours]}
    assert second == author[1] | {"matchExpressions": [ours]}
    assert len(json.loads(cluster.note("p", "affinity") or "")["nodeSelectorTerms"]) == 2


async def test_a_lifted_pod_is_kept_on_eight_nodes_the_chosen_one_first() -> None:
    cluster = GpuCluster()
    for number in range(10):
        cluster.node(f"n{number}")
    cluster.pod("p")
    await cluster.settle()
    affinity = cluster.get_pod("p")["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [term["matchFields"][0]["values"] for term in terms] == [
        [f"n{number}"] for number in (0, 1, 2, 3, 4, 6, 7, 9)
    ]
    assert cluster.gpus("p")[0] == "n0"


async def test_another_controllers_gate_is_waited_for() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}, {"name": names.GATE}])
    await cluster.settle()
    assert cluster.claim("p") is None
    assert "kueue.x-k8s.io/admission" in (cluster.note("p", "reason") or "")


LATER = resolved.NEWEST + 1
PARTS = resolved.write(resolved.Resolved(containers=("main",), request=Share(amounts=(Amount(cores=50),))))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[", "create it again"),
        (note({"other": 2}, {}), "no container 'other'"),
        (note({"main": 2}, {}).replace('"version":2', f'"version":{LATER}'), f"its version is {LATER}"),
        (note({"main": 2}, {}).replace(":[2]", ":[" + "9" * 5000 + "]"), "create it again"),
        ("[" * 100_000, "more than 16384"),
        (PARTS, "no node offers GPUs as shares"),
    ],
)
async def test_a_pod_whose_note_was_changed_is_told_and_the_next_goes_on(text: str, told: str) -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p")
    pod = cluster.get_pod("p")
    pod["metadata"]["annotations"][names.REQUEST] = text
    cluster.put(PODS, pod)
    cluster.pod("q")
    await cluster.settle()
    assert told in (cluster.note("p", "reason") or "")
    assert cluster.claim("p") is None
    assert cluster.claim("q") is not None


async def test_a_refused_claim_is_told_and_the_next_pod_goes_on() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("one")
    cluster.pod("two")
    cluster.deliver()
    cluster.client.refuse["create"] = [ApiError(403, "Forbidden", "exceeded quota: gpus")]
    await cluster.worker.rest()
    assert cluster.note("one", "reason") == (
        "The API server refuses the pod's claim: exceeded quota: gpus. End pods of the namespace, or raise the "
        "ResourceQuota."
    )
    assert cluster.claim("two") is not None


async def test_nothing_is_given_of_an_incomplete_pool_or_a_tainted_device() -> None:
    cluster = GpuCluster()
    cluster.node("a", "dgx1-v100")
    (piece,) = cluster.all(RESOURCE_SLICES)
    piece["spec"]["pool"]["resourceSliceCount"] = 2
    cluster.put(RESOURCE_SLICES, piece)
    cluster.pod("p", 8)
    await cluster.settle()
    assert cluster.note("p", "reason") == "No node offers GPUs of this driver."
    piece["spec"]["pool"]["resourceSliceCount"] = 1
    piece["spec"]["devices"][0]["taints"] = [{"key": "sick", "effect": "NoSchedule"}]
    cluster.put(RESOURCE_SLICES, piece)
    await cluster.settle()
    assert "no eligible node has such a free set" in (cluster.note("p", "reason") or "")
    del piece["spec"]["devices"][0]["taints"]
    cluster.put(RESOURCE_SLICES, piece)
    await cluster.settle()
    assert cluster.claim("p") is not None


async def test_variables_of_the_authors_are_noted_in_the_claim() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    env = [{"name": "NCCL_ALGO", "value": "Ring"}, {"name": "HOME", "value": "/"}]
    claims = [{"name": names.POD_CLAIM, "request": "main"}]
    cluster.pod("p", containers=[{"name": "main", "env": env, "resources": {"claims": claims}}])
    await cluster.settle()
    claim = cluster.claim("p")
    assert claim is not None
    assert claim["spec"]["devices"]["config"][0]["opaque"]["parameters"]["keepEnv"] == ["NCCL_ALGO"]


async def test_what_nccl_is_told_is_noted_in_the_claim() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", wishes={"nccl": "off"})
    cluster.pod("q")
    await cluster.settle()
    told = []
    for name in ("p", "q"):
        claim = cluster.claim(name)
        assert claim is not None
        told.append(claim["spec"]["devices"]["config"][0]["opaque"]["parameters"].get("nccl"))
    assert told == ["off", None]


async def test_a_node_that_goes_takes_its_gpus_along() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.remove(NODES, "a")
    cluster.pod("p")
    await cluster.settle()
    assert cluster.claim("p") is None


async def test_the_nccl_that_jobs_run_decides_and_may_change() -> None:
    cluster = GpuCluster()
    cluster.node("a", "l40s-x8")  # between whose sockets NCCL counts 22 GB/s from 2.26 on, 10 before
    cluster.worker.picture.nccl_changed("2.23.4")
    cluster.pod("p", 5, wishes={"min-busbw": "15"})  # five are on both sockets
    await cluster.settle()
    assert cluster.claim("p") is None
    assert "at least 15 GB/s of bus bandwidth: no" in (cluster.note("p", "reason") or "")
    cluster.worker.picture.nccl_changed("")
    await cluster.settle()
    assert cluster.gpus("p")[0] == "a"


async def test_a_machine_that_names_its_nccl_keeps_it() -> None:
    cluster = GpuCluster()
    cluster.node("a", "l40s-x8")
    cluster.publish("a", msgspec.structs.replace(cluster.machines["a"], nccl_version="2.30.7"))
    cluster.worker.picture.nccl_changed("2.23.4")
    cluster.pod("p", 5, wishes={"min-busbw": "15"})
    await cluster.settle()
    assert cluster.gpus("p")[0] == "a"
