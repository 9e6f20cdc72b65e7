"""Gangs of a PyTorchJob: its master and its workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from tests.cluster import Cluster
from tests.e2e import gangs
from tests.e2e.kubectl import Namespace
from tests.e2e.test_node_health import gpus_of
from tests.peers.owners import members, programs
from tests.peers.owners.members import made, named, uids, whole

Object = dict[str, Any]

_KEY: Final = "training.kubeflow.org/"
ROLE, INDEX = _KEY + "replica-type", _KEY + "replica-index"
ALL: Final = {_KEY + "job-name": "train"}
IN_ORDER: Final = [("master", "0"), ("worker", "0"), ("worker", "1"), ("worker", "2")]


@pytest.fixture(scope="module", autouse=True)
def _programs(driver: Cluster) -> Iterator[None]:
    with programs.installed(driver, programs.TRAINING):
        yield


def pytorch_job(*, words: Mapping[str, str] = gangs.AUTO) -> Object:
    """Return a PyTorchJob of four pods of three GPUs, one of them the master."""
    template = members.template(3, container="pytorch")
    roles = {
        role: {"replicas": count, "restartPolicy": "OnFailure", "template": template}
        for role, count in (("Master", 1), ("Worker", 3))
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "train", "annotations": dict(words)},
        "spec": {"pytorchReplicaSpecs": roles},
    }


def order(pods: list[Object]) -> list[tuple[str, str]]:
    return [(one["metadata"]["labels"][ROLE], one["metadata"]["labels"][INDEX]) for one in pods]


def test_it_starts_as_one_and_another_pod_takes_a_lost_ones_place(namespace: Namespace) -> None:
    namespace.apply(pytorch_job())
    before = whole(namespace, made(namespace, 4, ALL), gpus=3, container="pytorch")
    assert order(before) == IN_ORDER
    members.holds(namespace, 12)

    had = len(gpus_of(namespace, named(before[2])))
    namespace.delete(named(before[2]))
    after = made(namespace, 4, ALL, instead_of=uids(before[2:3]))
    namespace.wait_running(*map(named, after))
    # The old claim may still have its GPUs when the new pod is placed.
    assert len(gpus_of(namespace, named(before[2]))) == had
    assert uids(after) >= uids([*before[:2], before[3]])
    members.holds(namespace, 12)


def test_all_start_again_where_its_author_wants_it(namespace: Namespace) -> None:
    namespace.apply(pytorch_job(words=members.RESTART))
    before = whole(namespace, made(namespace, 4, ALL), gpus=3, container="pytorch")
    namespace.delete(named(before[3]))
    after = whole(namespace, made(namespace, 4, ALL, instead_of=uids(before)), gpus=3, container="pytorch")
    assert order(after) == IN_ORDER
    assert not namespace.get("pytorchjob", "train")["spec"]["runPolicy"].get("suspend")
    members.holds(namespace, 12)
