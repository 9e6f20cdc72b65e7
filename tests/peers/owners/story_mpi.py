"""Gangs of an MPIJob's workers: its launcher, which has no GPUs, is placed by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from dradriver.api.base import names
from tests.cluster import Cluster
from tests.e2e import gangs
from tests.e2e.kubectl import Namespace
from tests.peers.owners import members, programs
from tests.peers.owners.members import made, named, uids, whole

Object = dict[str, Any]

_KEY: Final = "training.kubeflow.org/"
INDEX: Final = _KEY + "replica-index"
WORKERS: Final = {_KEY + "job-role": "worker"}
LAUNCHER: Final = {_KEY + "job-role": "launcher"}


@pytest.fixture(scope="module", autouse=True)
def _programs(driver: Cluster) -> Iterator[None]:
    with programs.installed(driver, programs.MPI):
        yield


def mpi_job(*, words: Mapping[str, str] = gangs.AUTO, created: str = "AtStartup") -> Object:
    """Return an MPIJob with a launcher and four workers of three GPUs."""
    roles = {
        "Launcher": {"replicas": 1, "template": members.template(0)},
        "Worker": {"replicas": 4, "template": members.template(3)},
    }
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": "train", "annotations": dict(words)},
        "spec": {"slotsPerWorker": 3, "launcherCreationPolicy": created, "mpiReplicaSpecs": roles},
    }


@pytest.mark.parametrize("created", ["AtStartup", "WaitForWorkersReady"])
def test_its_workers_start_as_one_whenever_its_launcher_comes(namespace: Namespace, created: str) -> None:
    namespace.apply(mpi_job(created=created))
    workers = whole(namespace, made(namespace, 4, WORKERS), gpus=3)
    assert members.numbers(workers, INDEX) == [(0,), (1,), (2,), (3,)]
    (launcher,) = made(namespace, 1, LAUNCHER)
    namespace.wait_running(named(launcher))
    assert names.RANK_HINT not in namespace.get("pod", named(launcher))["metadata"].get("annotations", {})
    members.holds(namespace, 12)


def test_all_start_again_where_its_author_wants_it(namespace: Namespace) -> None:
    namespace.apply(mpi_job(words=members.RESTART))
    before = whole(namespace, made(namespace, 4, WORKERS), gpus=3)
    namespace.delete(named(before[1]))
    after = whole(namespace, made(namespace, 4, WORKERS, instead_of=uids(before)), gpus=3)
    assert members.numbers(after, INDEX) == [(0,), (1,), (2,), (3,)]
    assert not namespace.get("mpijob", "train")["spec"]["runPolicy"].get("suspend")
    members.holds(namespace, 12)
