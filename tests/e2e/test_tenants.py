"""Who is next on a real Kubernetes: by priority, then by what each team has had, through a change of leader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from dradriver.api.base import names
from dradriver.api.claims import usage_config_maps
from tests import deploy
from tests.cluster import Cluster
from tests.e2e.kubectl import Namespace, eventually, gputopo, pod, told_why
from tests.e2e.parts import another_leads, kill_leader

CLASS: Final = "tenants-urgent"
TEAMS: Final = ("a", "b", "capped", "free")
pytestmark = pytest.mark.chart(
    *(f"policies.tenants.{team}.namespaces[0]=t-team-{team}" for team in TEAMS),
    "policies.tenants.capped.cap[0].gpus=4",
)


@pytest.fixture(scope="module")
def teams(driver: Cluster) -> Iterator[dict[str, Namespace]]:
    """A namespace for each tenant of the policies file."""
    teams = {team: Namespace(driver, f"t-team-{team}") for team in TEAMS}
    for namespace in teams.values():
        driver.kubectl("create", "namespace", namespace.name)
    urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": CLASS}, "value": 1000}
    driver.kubectl("apply", "-f", "-", input=yaml.safe_dump(urgent))
    yield teams
    # The names are fixed, because the chart's settings have them: the next run needs these namespaces to be gone.
    driver.kubectl("delete", "namespace", *(namespace.name for namespace in teams.values()), "--timeout=120s")
    driver.kubectl("delete", "priorityclass", CLASS)


def queue(cluster: Cluster) -> list[dict[str, Any]]:
    """Return what ``gputopo queue`` tells."""
    done = gputopo(cluster.kubeconfig, "queue", "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def kept(cluster: Cluster) -> dict[str, float]:
    """Return the GPU-seconds by namespace that the API has."""
    found = cluster.api.objects("configmaps", namespace=deploy.NAMESPACE)
    total: dict[str, float] = {}
    for one in found:
        if one["metadata"]["name"] in usage_config_maps.every_name():
            for rows in usage_config_maps.read(one).hours.values():
                for bucket, seconds in rows.items():
                    total[bucket.namespace] = total.get(bucket.namespace, 0.0) + seconds
    return total


def test_who_has_had_less_is_first_and_the_next_leader_knows_it(teams: dict[str, Namespace]) -> None:
    had, new = teams["a"], teams["b"]
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
    had.delete("first")


def test_a_cap_parks_only_its_own(teams: dict[str, Namespace]) -> None:
    capped, free = teams["capped"], teams["free"]
    capped.apply(pod("within", gpus=3, words={names.POLICY: "best-effort"}, node="node-a"))
    capped.wait_running("within")
    capped.apply(pod("beyond", gpus=2, words={names.POLICY: "best-effort"}, node="node-a"))
    said = told_why(capped, "beyond")
    assert said.startswith(
        f'Waiting for quota: tenant "capped" may use 4 GPUs, this pod requests 2. In use: 3 ({capped.name}/within 3)'
    )
    capped.apply(pod("small", gpus=1, words={names.POLICY: "best-effort"}, node="node-a"))
    free.apply(pod("other", gpus=2, words={names.POLICY: "best-effort"}, node="node-a"))
    capped.wait_running("small")
    free.wait_running("other")
    told = json.loads(gputopo(capped.cluster.kubeconfig, "tenants", "-o", "json").stdout)
    assert {one["tenant"]: one["gpus"] for one in told if one["tenant"] in ("capped", "free")} == {
        "capped": 4,
        "free": 2,
    }
    capped.delete("within")
    capped.wait_running("beyond")
    capped.delete("beyond", "small")
    free.delete("other")
