"""A Job with more completions than parallelism, whose pods are a gang: which of them start as a whole."""

from __future__ import annotations

from dradriver.kube.resources import PODS
from tests.fakes.control_plane.jobs import JOBS
from tests.fakes.gang_pods import lifted, nodes
from tests.fakes.gpucluster import GpuCluster

UID = "job"


class Rounds:
    """A Job with more completions than parallelism: it creates a pod for each that has ended, as Kubernetes does."""

    def __init__(self, cluster: GpuCluster, parallelism: int, completions: int) -> None:
        self.cluster = cluster
        self.spec = {"parallelism": parallelism, "completions": completions}

    def end(self, *names: str) -> None:
        for name in names:
            pod = self.cluster.get_pod(name)
            pod["status"]["phase"] = "Succeeded"
            self.cluster.put(PODS, pod)
        self.cluster.collect()

    def begin(self, *names: str, done: int) -> None:
        metadata = {"name": "train", "namespace": "default", "uid": UID}
        self.cluster.put(JOBS, {"metadata": metadata, "spec": self.spec, "status": {"succeeded": done}})
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": UID, "controller": True}
        for name in names:
            pod = self.cluster.admitted(name, 8, wishes={"gang": "auto"})
            pod["metadata"]["ownerReferences"] = [owner]
            self.cluster.put(PODS, pod)


async def test_a_round_of_a_job_whose_pods_have_all_ended_is_followed_by_a_whole_one_and_the_last_is_what_is_left() -> (
    None
):
    cluster = nodes("abc")
    job = Rounds(cluster, 3, 8)
    job.begin("j-0", "j-1", "j-2", done=0)
    await cluster.settle()
    cluster.schedule()
    job.end("j-0", "j-1", "j-2")
    await cluster.settle()
    job.begin("j-3", "j-4", done=3)
    await cluster.settle()
    assert lifted(cluster, ["j-3", "j-4"]) == []
    job.begin("j-5", done=3)
    await cluster.settle()
    assert lifted(cluster, ["j-3", "j-4", "j-5"]) == ["j-3", "j-4", "j-5"]
    cluster.schedule()
    job.end("j-3", "j-4", "j-5")
    await cluster.settle()
    job.begin("j-6", "j-7", done=6)
    await cluster.settle()
    assert lifted(cluster, ["j-6", "j-7"]) == ["j-6", "j-7"]


async def test_while_pods_of_a_job_run_the_next_ones_are_placed_one_by_one() -> None:
    cluster = nodes("abc")
    job = Rounds(cluster, 3, 8)
    job.begin("j-0", "j-1", "j-2", done=0)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    job.end("j-0", "j-1")
    node = cluster.gpus("j-2")[0]
    taken, free = sorted({"a", "b", "c"} - {node})
    cluster.rival("theirs", taken, range(8))
    job.begin("j-3", "j-4", done=2)
    await cluster.settle()
    assert lifted(cluster, ["j-3", "j-4"]) == ["j-3"], "it does not wait for the other one, which has no place"
    assert cluster.gpus("j-3")[0] == free
    assert (
        cluster.note("j-4", "reason") == "Waiting for 3 pods with 8 GPUs each: there is no place now for 1 of the pods."
    )
