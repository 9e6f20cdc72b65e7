"""Who is next on a real Kubernetes: by priority, then by what each team has had, through a change of leader."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from dradriver.api import names, usage
from tests import deploy
from tests.cluster import Cluster
from tests.e2e.kubectl import Namespace, eventually, gputopo, pod, told_why
from tests.e2e.parts import another_leads, kill_leader

CLASS: Final = "tenants-urgent"


@pytest.fixture
def teams(driver: Cluster) -> Iterator[tuple[Namespace, Namespace]]:
    """Two namespaces, each a tenant of the policies file."""
    both = tuple(Namespace(driver, f"t-team-{name}-{uuid.uuid4().hex[:6]}") for name in "ab")
    for one in both:
        driver.kubectl("create", "namespace", one.name)
    urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": CLASS}, "value": 1000}
    driver.kubectl("apply", "-f", "-", input=yaml.safe_dump(urgent))
    tenants = [f"policies.tenants.{name}.namespaces[0]={one.name}" for name, one in zip("ab", both, strict=True)]
    deploy.install(driver, *tenants)
    yield both[0], both[1]
    for one in both:
        driver.kubectl("-n", one.name, "delete", "pods", "--all", "--timeout=120s")
        driver.kubectl("delete", "namespace", one.name, "--wait=false")
    driver.kubectl("delete", "priorityclass", CLASS)
    deploy.install(driver)


def queue(cluster: Cluster) -> list[dict[str, Any]]:
    """Return what ``gputopo queue`` tells."""
    done = gputopo(cluster.kubeconfig, "queue", "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def kept(cluster: Cluster) -> dict[str, float]:
    """Return the GPU-seconds by namespace that the API has."""
    found = json.loads(cluster.kubectl("-n", deploy.NAMESPACE, "get", "configmaps", "-o", "json").stdout)["items"]
    total: dict[str, float] = {}
    for one in found:
        if one["metadata"]["name"] in usage.every_name():
            for rows in usage.read(one).hours.values():
                for bucket, seconds in rows.items():
                    total[bucket.namespace] = total.get(bucket.namespace, 0.0) + seconds
    return total


def test_who_has_had_less_is_first_and_the_next_leader_knows_it(teams: tuple[Namespace, Namespace]) -> None:
    had, new = teams
    cluster = had.cluster
    had.apply(pod("all-of-it", gpus=8, words={names.POLICY: "best-effort"}, node="node-a"))
    had.wait_running("all-of-it")
    eventually("its GPU time is kept", lambda: kept(cluster).get(had.name), timeout_s=100)
    killed = kill_leader(cluster)

    had.apply(pod("first", gpus=8, words={names.POLICY: "best-effort"}, node="node-a"))
    told_why(had, "first")
    new.apply(pod("second", gpus=8, words={names.POLICY: "best-effort"}, node="node-a"))
    urgent = pod("third", gpus=8, words={names.POLICY: "best-effort"}, node="node-a")
    urgent["spec"]["priorityClassName"] = CLASS
    had.apply(urgent)
    another_leads(cluster, killed)
    told_why(new, "second")
    told_why(had, "third")
    waiting = [one["name"].partition("/")[2] for one in queue(cluster)]
    assert waiting == ["third", "second", "first"]

    had.delete("all-of-it")
    had.wait_running("third")
    had.delete("third")
    new.wait_running("second")
    assert told_why(had, "first")
    new.delete("second")
    had.wait_running("first")


def test_a_cap_parks_its_own_and_nobody_else(teams: tuple[Namespace, Namespace]) -> None:
    capped, free = teams
    cluster = capped.cluster
    tenants = [f"policies.tenants.{name}.namespaces[0]={one.name}" for name, one in zip("ab", teams, strict=True)]
    deploy.install(cluster, *tenants, "policies.tenants.a.cap[0].gpus=4")
    capped.apply(pod("within", gpus=3, words={names.POLICY: "best-effort"}, node="node-a"))
    capped.wait_running("within")
    capped.apply(pod("beyond", gpus=2, words={names.POLICY: "best-effort"}, node="node-a"))
    said = told_why(capped, "beyond")
    assert said.startswith(f"its tenant's cap: tenant a holds 3 of 4 GPUs; this asks for 2: {capped.name}/within 3")
    capped.apply(pod("small", gpus=1, words={names.POLICY: "best-effort"}, node="node-a"))
    free.apply(pod("other", gpus=2, words={names.POLICY: "best-effort"}, node="node-a"))
    capped.wait_running("small")
    free.wait_running("other")
    told = json.loads(gputopo(cluster.kubeconfig, "tenants", "-o", "json").stdout)
    assert {one["tenant"]: one["gpus"] for one in told if one["tenant"] in ("a", "b")} == {"a": 4, "b": 2}
    capped.delete("within")
    capped.wait_running("beyond")
