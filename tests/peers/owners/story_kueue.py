"""Gangs in a queue of Kueue's: they wait for their quota as wholes, and give it back and start again as wholes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from tests.cluster import Cluster
from tests.e2e import gangs
from tests.e2e.kubectl import Namespace, eventually, owners, pod
from tests.peers.kueue import manifests
from tests.peers.owners import members, programs
from tests.peers.owners.members import made, named, uids, whole
from tests.peers.owners.story_jobset import ATTEMPT, IN_ORDER, ORDER, WORKERS, job_set

Object = dict[str, Any]

_KEY: Final = "kueue.x-k8s.io/"
_QUEUE: Final = {_KEY + "queue-name": manifests.QUEUE}
_HIGH: Final = {_KEY + "priority-class": "high"}
GPUS: Final = 12
TRAIN: Final = {"batch.kubernetes.io/job-name": "train"}


@pytest.fixture(scope="module", autouse=True)
def _programs(driver: Cluster) -> Iterator[None]:
    flavor, queue, _ = manifests.queue(gpus=GPUS, preemption={"withinClusterQueue": "LowerPriority"})
    (group,) = queue["spec"]["resourceGroups"]
    group["coveredResources"].append("cpu")  # which pods that run ask for, too
    group["flavors"][0]["resources"].append({"name": "cpu", "nominalQuota": "9"})
    high = {
        "apiVersion": queue["apiVersion"],
        "kind": "WorkloadPriorityClass",
        "metadata": {"name": "high"},
        "value": 9,
    }
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [flavor, queue, high]})
    with programs.installed(driver, programs.JOB_SET, programs.QUEUES):
        driver.kubectl("apply", "-f", "-", input=text)
        yield
        driver.kubectl("delete", "--timeout=60s", "-f", "-", input=text)  # while it is there that lets them go


@pytest.fixture(autouse=True)
def _queue(namespace: Namespace) -> None:
    namespace.apply(manifests.queue(gpus=GPUS, namespace=namespace.name)[2])


def queued(one: Object, **labels: str) -> Object:
    """Return an object in the queue."""
    return one | {"metadata": one["metadata"] | {"labels": _QUEUE | labels}}


def job(name: str = "train", words: Mapping[str, str] = gangs.AUTO) -> Object:
    return queued(gangs.job(name, pods=4, gpus=3, words=words))


def numbered(pods: list[Object]) -> list[tuple[int, ...]]:
    return members.numbers(pods, gangs.INDEX)


def test_a_job_waits_for_its_quota_as_a_whole_and_starts_whole(namespace: Namespace) -> None:
    namespace.apply(queued(gangs.job("first", pods=1, gpus=3)))
    (first,) = made(namespace, 1, {"batch.kubernetes.io/job-name": "first"})
    namespace.wait_running(named(first))
    namespace.apply(job())

    def waits() -> bool:
        found = [one for one in namespace.list("workloads.kueue.x-k8s.io") if "train" in one["metadata"]["name"]]
        said = [met for one in found for met in one.get("status", {}).get("conditions", ())]
        return any(met["type"] == "QuotaReserved" and met["status"] == "False" for met in said)

    eventually("it has no quota", waits)
    assert not [one for one in namespace.list("pods") if one["metadata"]["labels"].get("job-name") == "train"]
    members.holds(namespace, 3)
    namespace.kubectl("delete", "job", "first", "--timeout=60s")
    assert numbered(whole(namespace, made(namespace, 4, TRAIN), gpus=3)) == [(0,), (1,), (2,), (3,)]
    members.holds(namespace, GPUS)


def test_a_jobset_of_higher_priority_puts_out_a_job_and_both_are_whole_in_their_turn(namespace: Namespace) -> None:
    namespace.apply(job())
    low = whole(namespace, made(namespace, 4, TRAIN), gpus=3)
    namespace.apply(queued(job_set(backoff=0), **_HIGH))
    high = whole(namespace, made(namespace, 4, WORKERS), gpus=3)
    assert members.numbers(high, *ORDER) == IN_ORDER
    members.holds(namespace, GPUS)
    assert namespace.get("job", "train")["spec"]["suspend"]

    members.fail(namespace, named(high[1]))  # an attempt that fails keeps its quota
    again = whole(namespace, made(namespace, 4, WORKERS | {ATTEMPT: "1"}), gpus=3)
    assert members.numbers(again, *ORDER) == IN_ORDER
    namespace.kubectl("delete", "jobset", "train", "--timeout=60s")
    after = whole(namespace, made(namespace, 4, TRAIN, instead_of=uids(low)), gpus=3)
    assert numbered(after) == [(0,), (1,), (2,), (3,)]
    members.holds(namespace, GPUS)


def test_what_is_stopped_gives_all_back_and_starts_whole_again(namespace: Namespace) -> None:
    namespace.apply(queued(job_set()))
    before = whole(namespace, made(namespace, 4, WORKERS), gpus=3)
    (workload,) = namespace.list("workloads.kueue.x-k8s.io")

    def become(active: bool) -> None:
        patch = json.dumps({"spec": {"active": active}})
        name = workload["metadata"]["name"]
        namespace.kubectl("patch", "workloads.kueue.x-k8s.io", name, "--type=merge", "-p", patch)

    become(active=False)
    eventually("all is given back", lambda: not owners(namespace.cluster) and not namespace.list("pods"))
    become(active=True)
    after = whole(namespace, made(namespace, 4, WORKERS, instead_of=uids(before)), gpus=3)
    assert members.numbers(after, *ORDER) == IN_ORDER


def test_what_it_manages_is_not_started_again_by_the_driver(namespace: Namespace) -> None:
    """The field is Kueue's: the lost pod alone is made anew, whatever its author wants."""
    namespace.apply(job(words=members.RESTART))
    before = whole(namespace, made(namespace, 4, TRAIN), gpus=3)
    namespace.delete(named(before[1]))
    after = made(namespace, 4, TRAIN, instead_of=uids(before[1:2]))
    namespace.wait_running(*map(named, after))
    assert len(uids(after) & uids(before)) == 3
    members.holds(namespace, GPUS)


def test_a_group_of_plain_pods_passes_both_gates_whole(namespace: Namespace) -> None:
    """Releases that look into claims find one with a name inadmissible; this one does not."""
    group = {_KEY + "pod-group-name": "plain"}
    pods = []
    for number in range(3):
        one = queued(pod(f"plain-{number}", gpus=4, words=gangs.AUTO), **group)
        one["metadata"]["labels"][_KEY + "pod-group-pod-index"] = str(number)
        one["metadata"]["annotations"] |= {_KEY + "pod-group-total-count": "3"}
        pods.append(one)
    namespace.apply(*pods)
    found = whole(namespace, made(namespace, 3, group), gpus=4)
    assert [named(one) for one in found] == ["plain-0", "plain-1", "plain-2"]
    members.holds(namespace, GPUS)
    # It keeps pods of a group for others that come in their place, until the group itself is deleted.
    namespace.kubectl("delete", "workloads.kueue.x-k8s.io", "plain", "--timeout=60s")
