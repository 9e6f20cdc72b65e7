"""The examples of kinds that these programs bring: in small, but with all their GPUs, their pods start as they say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dradriver.api.base import names
from tests import examples
from tests.cluster import Cluster
from tests.e2e.kubectl import Namespace
from tests.peers.owners import programs
from tests.peers.owners.members import Object, made, named, whole

_LEAF = "network.topology.nvidia.com/leaf"


def apply(namespace: Namespace, name: str) -> list[Object]:
    """Apply an example in small."""
    (path,) = [path for path in examples.TASKS if path.name == name]
    found = examples.runnable(path)
    namespace.apply(*found)
    return found


@contextmanager
def one_leaf(cluster: Cluster) -> Iterator[None]:
    """Have both nodes below one leaf switch for the length of the block."""
    cluster.kubectl("label", "nodes", "--all", f"{_LEAF}=l1")
    try:
        yield
    finally:
        cluster.kubectl("label", "nodes", "--all", f"{_LEAF}-")


def test_the_jobset_has_two_whole_nodes_below_one_leaf(driver: Cluster, namespace: Namespace) -> None:
    with programs.installed(driver, programs.JOB_SET), one_leaf(driver):
        apply(namespace, "jobset.yaml")
        pods = whole(
            namespace, made(namespace, 2, {"jobset.sigs.k8s.io/jobset-name": "jobset"}), gpus=8, container="train"
        )
        assert {one["metadata"]["annotations"][names.GANG_REACH] for one in pods} == {"leaf"}
        namespace.kubectl("delete", "jobset", "jobset", "--timeout=90s")


def test_leader_and_worker_of_a_large_model_start_together(driver: Cluster, namespace: Namespace) -> None:
    with programs.installed(driver, programs.LWS):
        apply(namespace, "leaderworkerset.yaml")
        group = {"leaderworkerset.sigs.k8s.io/name": "large-model"}
        whole(namespace, made(namespace, 2, group), gpus=8, container="vllm")
        namespace.kubectl("delete", "leaderworkerset", "large-model", "--timeout=90s")


def test_workers_of_the_mpijob_start_together_and_its_launcher_after_them(
    driver: Cluster, namespace: Namespace
) -> None:
    with programs.installed(driver, programs.MPI):
        apply(namespace, "mpijob.yaml")
        role = "training.kubeflow.org/job-role"
        pods = whole(namespace, made(namespace, 2, {role: "worker"}), gpus=4, container="worker")
        assert {one["metadata"]["annotations"][names.LEVEL] for one in pods} == {"nvlink"}
        (launcher,) = made(namespace, 1, {role: "launcher"})
        namespace.wait_running(named(launcher))
        namespace.kubectl("delete", "mpijob", "mpijob", "--timeout=90s")
