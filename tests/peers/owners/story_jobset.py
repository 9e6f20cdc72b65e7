"""Gangs of a JobSet's replicatedJobs: they start whole, with each attempt anew, and stay whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from dradriver.api.base import names
from tests.cluster import Cluster
from tests.e2e import gangs
from tests.e2e.kubectl import Namespace, eventually
from tests.e2e.test_node_health import gpus_of
from tests.peers.owners import members, programs
from tests.peers.owners.members import fail, made, named, uids, whole

Object = dict[str, Any]

_KEY: Final = "jobset.sigs.k8s.io/"
ORDER: Final = (_KEY + "job-index", gangs.INDEX)
ATTEMPT: Final = _KEY + "restart-attempt"
IN_ORDER: Final = [(0, 0), (0, 1), (1, 0), (1, 1)]
WORKERS: Final = {_KEY + "replicatedjob-name": "worker"}


@pytest.fixture(scope="module", autouse=True)
def _programs(driver: Cluster) -> Iterator[None]:
    with programs.installed(driver, programs.JOB_SET):
        yield


def job_set(*, words: Mapping[str, str] = gangs.AUTO, backoff: int = 6, gpus: int = 3) -> Object:
    """Return a JobSet with a driver without GPUs and two Jobs of two workers; a Job bears ``backoff`` lost pods."""

    def role(name: str, *, replicas: int, pods: int, gpus: int) -> Object:
        spec = {"completionMode": "Indexed", "parallelism": pods, "completions": pods, "backoffLimit": backoff}
        return {"name": name, "replicas": replicas, "template": {"spec": spec | {"template": members.template(gpus)}}}

    roles = [role("driver", replicas=1, pods=1, gpus=0), role("worker", replicas=2, pods=2, gpus=gpus)]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "train", "annotations": dict(words)},
        "spec": {"failurePolicy": {"maxRestarts": 2}, "replicatedJobs": roles},
    }


def test_its_jobs_start_as_one_and_with_each_attempt_as_another(namespace: Namespace) -> None:
    namespace.apply(job_set(backoff=0))
    first = whole(namespace, made(namespace, 4, WORKERS), gpus=3)
    assert members.numbers(first, *ORDER) == IN_ORDER
    members.holds(namespace, 12)

    fail(namespace, named(first[2]))
    second = whole(namespace, made(namespace, 4, WORKERS | {ATTEMPT: "1"}), gpus=3)
    assert members.numbers(second, *ORDER) == IN_ORDER
    assert uids(second).isdisjoint(uids(first))
    assert namespace.get("jobset", "train")["status"]["restarts"] == 1
    members.holds(namespace, 12)


def test_no_pod_of_an_attempt_waits_for_or_stands_in_for_one_of_another(namespace: Namespace) -> None:
    """The second attempt begins while pods of the first are still at their gates."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "4"}}}
    namespace.apply(quota)  # the driver and three of the workers
    namespace.apply(job_set(backoff=0))
    first = made(namespace, 3, WORKERS)
    members.all_say(namespace, first, "3 of 4")
    (driver,) = made(namespace, 1, {_KEY + "replicatedjob-name": "driver"})
    namespace.wait_running(named(driver))
    fail(namespace, named(driver))
    second = made(namespace, 3, WORKERS | {ATTEMPT: "1"})
    members.all_say(namespace, second, "3 of 4")
    members.holds(namespace, 0)
    namespace.kubectl("delete", "resourcequota", "few")
    whole(namespace, made(namespace, 4, WORKERS | {ATTEMPT: "1"}), gpus=3)


def test_another_pod_takes_a_lost_ones_place(namespace: Namespace) -> None:
    namespace.apply(job_set())
    before = whole(namespace, made(namespace, 4, WORKERS), gpus=3)
    had = len(gpus_of(namespace, named(before[1])))
    namespace.delete(named(before[1]))
    after = made(namespace, 4, WORKERS, instead_of=uids(before[1:2]))
    (new,) = (one for one in after if members.uid(one) not in uids(before))
    namespace.wait_running(named(new))
    # The old claim may still have its GPUs when the new pod is placed.
    assert len(gpus_of(namespace, named(new))) == had
    assert namespace.annotation(named(new), names.RANK_HINT) == "1"
    assert uids(after) >= uids([before[0], *before[2:]])
    assert not namespace.get("jobset", "train")["status"].get("restarts")


def test_all_start_again_where_its_author_wants_it(namespace: Namespace) -> None:
    """The JobSet is suspended and resumed: that is no attempt, and no failure of a Job."""
    namespace.apply(job_set(words=members.RESTART))
    before = whole(namespace, made(namespace, 4, WORKERS), gpus=3)
    namespace.delete(named(before[3]))
    after = whole(namespace, made(namespace, 4, WORKERS, instead_of=uids(before)), gpus=3)
    assert members.numbers(after, *ORDER) == IN_ORDER
    found = namespace.get("jobset", "train")
    assert not found["spec"].get("suspend")
    assert not found["status"].get("restarts")
    assert names.RESTART in found["metadata"]["annotations"]
    eventually("it is no longer marked", lambda: not _marked(namespace))
    members.holds(namespace, 12)


def _marked(namespace: Namespace) -> list[str]:
    labels = namespace.get("jobset", "train")["metadata"].get("labels", {})
    return [key for key in labels if key.startswith(names.PREFIX)]


def test_exclusive_topology_is_refused_on_the_jobset_and_told_on_pods(namespace: Namespace) -> None:
    exclusive = {"alpha." + _KEY + "exclusive-topology": "kubernetes.io/hostname"}
    refused = namespace.apply(job_set(words=gangs.AUTO | exclusive), check=False)
    assert refused.returncode
    assert names.NEAR in refused.stderr
    hidden = job_set()
    hidden["spec"]["replicatedJobs"][1]["template"]["metadata"] = {"annotations": exclusive}
    refused = namespace.apply(hidden, check=False)
    assert refused.returncode, "it says the same of one replicatedJob"
    assert names.NEAR in refused.stderr
    members.holds(namespace, 0)
