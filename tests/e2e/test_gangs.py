"""Gangs on a real Kubernetes: their pods start together or not at all, whatever happens meanwhile."""

from __future__ import annotations

import pytest

from dradriver.api.base import names
from tests.cluster import Cluster
from tests.cluster.settings import minor_of
from tests.e2e import gangs
from tests.e2e.kubectl import Namespace, eventually, no_gpu_is_owned_twice, owners, pod, told_why
from tests.e2e.parts import another_leads, kill_leader


@pytest.fixture(autouse=True)
def _barrier(driver: Cluster) -> None:
    if minor_of(driver.version) < "1.36":
        pytest.skip("seats are from Kubernetes 1.36 on; test_older_kubernetes.py has gangs without them")


def test_a_job_starts_once_all_its_pods_are_there(namespace: Namespace) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "3"}}}
    namespace.apply(quota)
    namespace.apply(gangs.job("train", pods=4, gpus=3))
    for one in gangs.pods_of(namespace, "train", 3).values():
        name = one["metadata"]["name"]
        eventually("it is told", lambda name=name: "3 of 4" in (namespace.annotation(name, names.REASON) or ""))  # type: ignore[misc]
    assert not namespace.list("resourceclaims")
    assert not owners(namespace.cluster)

    namespace.kubectl("delete", "resourcequota", "few")
    by_index = {index: one["metadata"]["name"] for index, one in gangs.pods_of(namespace, "train", 4).items()}
    claims = gangs.run_whole(namespace, list(by_index.values()))
    assert len({gangs.planned(claim)["plan"] for claim in claims.values()}) == 1
    for index, name in by_index.items():
        assert namespace.annotation(name, names.RANK_HINT) == str(index)
        assert namespace.annotation(name, names.GANG_NODES) == "node-a,node-b"
        assert namespace.annotation(name, names.REASON) is None
        assert len(namespace.devices(name)) == 3
    assert no_gpu_is_owned_twice(namespace.cluster)
    assert len(owners(namespace.cluster)) == 12


def test_of_two_gangs_one_runs_whole_and_the_other_holds_nothing(namespace: Namespace) -> None:
    both = {name: gangs.members(name, pods=3, gpus=4) for name in ("a", "b")}
    namespace.apply(*(one for pair in zip(*both.values(), strict=True) for one in pair))
    of = {gang: [one["metadata"]["name"] for one in made] for gang, made in both.items()}

    def first() -> str | None:
        whole = [gang for gang, pods in of.items() if len(gangs.claims_of(namespace, pods)) == 3]
        return whole[0] if whole else None

    winner = eventually("one has a plan", first)
    loser = next(gang for gang in of if gang != winner)
    gangs.run_whole(namespace, of[winner])
    for name in of[loser]:
        told_why(namespace, name)
    assert not gangs.claims_of(namespace, of[loser])
    assert len(owners(namespace.cluster)) == 12
    namespace.apply(pod("single", gpus=4, words={names.POLICY: "nvlink"}))
    namespace.wait_running("single")
    namespace.delete(*of[winner])
    gangs.run_whole(namespace, of[loser])


def test_what_only_the_scheduler_sees_has_all_given_back_and_no_pod_bound(namespace: Namespace) -> None:
    """One of two members is kept from its node by another pod's anti-affinity."""
    namespace.apply(gangs.shunning(pod("blocker", node="node-b")))
    namespace.wait_running("blocker")
    namespace.apply(*gangs.members("gang", pods=2, gpus=5, is_avoided=True))
    both = ["gang-0", "gang-1"]
    before = gangs.uids({name: namespace.get("pod", name) for name in both})
    planned = eventually("a plan", lambda: gangs.uids(gangs.claims_of(namespace, both)))

    def given_back() -> bool:
        return set(planned.values()).isdisjoint(gangs.uids(gangs.claims_of(namespace, both)).values())

    eventually("its claims are gone", given_back)
    namespace.delete("blocker")
    claims = gangs.run_whole(namespace, both)
    assert set(planned.values()).isdisjoint(gangs.uids(claims).values())
    assert gangs.uids({name: namespace.get("pod", name) for name in both}) == before
    reasons = [event["message"] for event in namespace.list("events") if event["reason"] == "WaitsForGPUs"]
    assert any("1 of 2 pods of the gang had a place in time" in reason for reason in reasons), reasons


def test_a_stateful_set_that_makes_its_pods_at_once(namespace: Namespace) -> None:
    spec = {"serviceName": "workers", "replicas": 3, "podManagementPolicy": "Parallel"}
    template = gangs.template(4)
    template["spec"]["restartPolicy"] = "Always"
    template["metadata"]["labels"] = {"app": "workers"}
    stateful_set = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "workers", "annotations": gangs.AUTO},
        "spec": spec | {"selector": {"matchLabels": {"app": "workers"}}, "template": template},
    }
    namespace.apply(stateful_set)
    pods = [f"workers-{number}" for number in range(3)]
    # One by one: kubectl fails if it waits for several objects of which only some are there.
    for name in pods:
        namespace.kubectl("wait", "--for=create", f"pod/{name}")
    gangs.run_whole(namespace, pods)
    assert [namespace.annotation(name, names.RANK_HINT) for name in pods] == ["0", "1", "2"]


def test_the_leader_is_killed_once_the_first_claim_is_there(namespace: Namespace) -> None:
    cluster, names_of = namespace.cluster, [f"gang-{number}" for number in range(4)]
    namespace.apply(*gangs.members("gang", pods=4, gpus=3))
    eventually("a claim", lambda: namespace.list("resourceclaims"))
    another_leads(cluster, kill_leader(cluster))
    gangs.run_whole(namespace, names_of)


def test_the_leader_is_killed_between_the_lift_and_the_last_seat(namespace: Namespace) -> None:
    """What is seated stays so, and the next leader goes on with the same claims."""
    cluster, both = namespace.cluster, ["gang-0", "gang-1"]
    namespace.apply(gangs.shunning(pod("blocker", node="node-b")))
    namespace.wait_running("blocker")
    namespace.apply(*gangs.members("gang", pods=2, gpus=5, is_avoided=True))

    def one_is_seated() -> dict[str, str] | None:
        claims = gangs.claims_of(namespace, both)
        return gangs.uids(claims) if any(map(gangs.seated, claims.values())) else None

    claims = eventually("one is seated", one_is_seated)
    killed = kill_leader(cluster)
    namespace.delete("blocker")
    another_leads(cluster, killed)
    assert gangs.uids(gangs.run_whole(namespace, both)) == claims
