"""Two teams with a ClusterQueue each in one cohort: Kueue says who may have how much and when, the driver places.

Both teams are tenants of the policies file whose admission is Kueue's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from dradriver.api.base import names
from tests import deploy
from tests.cluster import Cluster
from tests.e2e import gangs
from tests.e2e.kubectl import Namespace, eventually, owners, pod
from tests.peers.kueue import manifests
from tests.peers.owners import members, programs
from tests.peers.owners.conftest import SETTINGS
from tests.peers.owners.members import made, named, uids, whole

Object = dict[str, Any]

TEAMS: Final = ("left", "right")
GPUS: Final = 8  # of each team; the two nodes have so many each
ANY: Final = {names.PREFIX + "policy": "best-effort"}
_KEY: Final = "kueue.x-k8s.io/"
_NAME: Final = "batch.kubernetes.io/job-name"


def _queues() -> list[Object]:
    """Return a ClusterQueue for each team, which lend each other what they do not use and get it back when they do."""
    flavor, one, local = manifests.queue(gpus=GPUS)
    one["spec"]["resourceGroups"][0]["coveredResources"].append("cpu")
    one["spec"]["resourceGroups"][0]["flavors"][0]["resources"].append({"name": "cpu", "nominalQuota": "9"})
    every = [flavor]
    for team in TEAMS:
        spec = one["spec"] | {"cohortName": "teams", "preemption": {"reclaimWithinCohort": "Any"}}
        every.append(one | {"metadata": {"name": team}, "spec": spec})
        every.append(local | {"metadata": {"name": manifests.QUEUE, "namespace": team}, "spec": {"clusterQueue": team}})
    return every


@pytest.fixture(scope="module", autouse=True)
def _programs(driver: Cluster) -> Iterator[None]:
    tenants = [
        f"policies.tenants.{team}.{word}" for team in TEAMS for word in (f"namespaces[0]={team}", "admission=kueue")
    ]
    deploy.install(driver, *SETTINGS, *tenants)
    for team in TEAMS:
        driver.kubectl("create", "namespace", team)
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": _queues()})
    with programs.installed(driver, programs.JOB_SET, programs.QUEUES):
        driver.kubectl("apply", "-f", "-", input=text)
        yield
        driver.kubectl("delete", "--timeout=60s", "-f", "-", input=text)  # while it is there that lets them go
    for team in TEAMS:
        driver.kubectl("delete", "namespace", team, "--wait=false")
    deploy.install(driver, *SETTINGS)


@pytest.fixture
def teams(driver: Cluster) -> Iterator[Mapping[str, Namespace]]:
    yield {team: Namespace(driver, team) for team in TEAMS}
    for team in TEAMS:
        driver.kubectl("-n", team, "delete", "jobs,pods", "--all", "--timeout=120s")
    eventually("every GPU is free again", lambda: not owners(driver))


def job(name: str, *, pods: int, gpus: int) -> Object:
    found = gangs.job(name, pods=pods, gpus=gpus)
    return found | {"metadata": found["metadata"] | {"labels": {_KEY + "queue-name": manifests.QUEUE}}}


def admitted(team: Namespace, name: str) -> bool:
    """Return whether Kueue lets a Job run."""
    return not team.get("job", name)["spec"].get("suspend")


def test_what_a_team_borrows_it_gives_back_as_a_whole(teams: Mapping[str, Namespace]) -> None:
    left, right = teams["left"], teams["right"]
    left.apply(job("large", pods=4, gpus=3))
    before = whole(left, made(left, 4, {_NAME: "large"}), gpus=3)
    members.holds(left, 12)
    right.apply(job("owed", pods=2, gpus=4))
    whole(right, made(right, 2, {_NAME: "owed"}), gpus=4)
    members.holds(right, GPUS)
    assert not admitted(left, "large"), "Kueue has put it out"
    right.kubectl("delete", "job", "owed", "--timeout=60s")
    whole(left, made(left, 4, {_NAME: "large"}, instead_of=uids(before)), gpus=3)
    members.holds(left, 12)


def test_whom_kueue_let_in_first_is_placed_first_against_past_usage(teams: Mapping[str, Namespace]) -> None:
    left, right = teams["left"], teams["right"]
    right.apply(job("early", pods=2, gpus=4))
    whole(right, made(right, 2, {_NAME: "early"}), gpus=4)
    right.kubectl("delete", "job", "early", "--timeout=60s")
    with_gpus = [pod(f"stranger-{node}", gpus=GPUS, words=ANY, node=node) for node in ("node-a", "node-b")]
    strangers = Namespace(left.cluster, "default")
    strangers.apply(*with_gpus)
    strangers.wait_running(*(one["metadata"]["name"] for one in with_gpus))
    try:
        right.apply(job("first", pods=2, gpus=4))
        eventually("it is let in", lambda: admitted(right, "first"))
        made(right, 2, {_NAME: "first"})
        left.apply(job("second", pods=2, gpus=4))
        eventually("it is let in", lambda: admitted(left, "second"))
        waiting = made(left, 2, {_NAME: "second"})
        strangers.delete("stranger-node-a")
        whole(right, made(right, 2, {_NAME: "first"}), gpus=4)
        assert not any(one["spec"].get("nodeName") for one in (left.get("pod", named(each)) for each in waiting))
    finally:
        strangers.kubectl("delete", "pods", "--all", "--timeout=60s")
    whole(left, made(left, 2, {_NAME: "second"}), gpus=4)
