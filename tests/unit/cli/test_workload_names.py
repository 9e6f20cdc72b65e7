"""Names of workloads: what ``queue`` and ``explain -A`` print is what ``explain`` takes."""

from __future__ import annotations

import click
import pytest

from dradriver.api.gangs.gang_owners import LWS
from dradriver.cli.cluster import workload_names
from dradriver.cli.cluster.workload_names import WorkloadName
from dradriver.kube.resources import PODS
from tests.fakes.commands import CommandLine
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.owners import owned


@pytest.mark.parametrize(
    ("text", "namespace", "kind", "name"),
    [
        ("trainer", None, "pod", "trainer"),
        ("pod/trainer", None, "pod", "trainer"),
        ("pods/trainer", None, "pod", "trainer"),
        ("team-a/trainer", "team-a", "pod", "trainer"),
        ("job/train", None, "job", "train"),
        ("Jobs/train", None, "job", "train"),
        ("deploy/train", None, "deployment", "train"),
        ("team-a/job/train", "team-a", "job", "train"),
        ("team-a/pod/trainer", "team-a", "pod", "trainer"),
        ("team-a/raycluster/ray", "team-a", "raycluster", "ray"),
        ("team-a/newkind/x.y", "team-a", "newkind", "x.y"),
        ("job/pod/trainer", "job", "pod", "trainer"),
    ],
)
def test_every_form_is_read(text: str, namespace: str | None, kind: str, name: str) -> None:
    assert workload_names.read(text) == WorkloadName(namespace, kind, name)
    assert workload_names.read(text, namespace or "team-b") == WorkloadName(namespace or "team-b", kind, name)


@pytest.mark.parametrize("text", ["", "/", "a/", "/a", "a//b", "..", "a/..", "a/b/c/d", "A", "a b", "a\n", "job/"])
def test_what_names_no_workload_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError, match="NAMESPACE/KIND/NAME"):
        workload_names.read(text)


def test_two_namespaces_are_refused() -> None:
    with pytest.raises(click.UsageError, match="is in namespace a, and -n names b"):
        workload_names.read("a/trainer", "b")


@pytest.mark.parametrize("namespace", ["team-a", "job", "jobs", "pods", "deploy"])
def test_the_name_of_a_pod_is_read_as_that_pod(namespace: str) -> None:
    assert workload_names.read(workload_names.of_pod(namespace, "x")) == WorkloadName(namespace, "pod", "x")


@pytest.mark.slow
async def test_what_is_printed_can_be_pasted(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.rival("old", "n1", range(8))
    cluster.pod("alone", 4, namespace="team-a")
    cluster.pod("other", 4, namespace="job")
    for number in range(2):
        cluster.pod(f"train-{number}", 8, namespace="team-b", wishes={"gang": "train", "gang-size": "2"})
    await cluster.settle()
    printed = [one["name"] for one in await shell.data("queue")]
    assert sorted(printed) == ["job/pod/other", "team-a/alone", "team-b/gang/train"]
    explained = [await shell.data("explain", name) for name in printed]
    assert [(one["namespace"], one["pod"]) for one in explained] == [
        ("team-a", "alone"),
        ("job", "other"),
        ("team-b", "train-0"),
    ]
    listed = (await shell.run("explain", "-A")).stdout.splitlines()[1:]
    names = [line.split()[0] for line in listed]
    assert sorted(names) == ["job/pod/other", "team-a/alone", "team-b/train-0", "team-b/train-1"]
    assert [(await shell.run("explain", name)).exit_code for name in names] == [0] * 4


async def test_of_an_owner_the_first_pod_that_waits_is_explained(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    for number in range(3):
        cluster.pod(f"work-{number}", 4)
        cluster.store.edit(
            PODS,
            ("default", f"work-{number}"),
            lambda pod: pod["metadata"].update(ownerReferences=owned("batch/v1", "Job", "work")),
        )
    await cluster.settle()
    cluster.schedule()
    result = await shell.run("explain", "job/work")
    assert "Pod default/work-2\n" in result.stdout
    assert result.stderr == "job work has 3 pods. This is work-2.\n"


async def test_an_owner_without_pods_is_one_line(shell: CommandLine) -> None:
    result = await shell.run("explain", "team-a/job/train")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: namespace team-a has no pod of job train that this driver places")


async def test_gangs_of_one_owner_have_the_names_of_their_pods(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.rival("old", "n1", range(8))
    for group in range(2):
        cluster.pod(f"serve-{group}", 8, wishes={"gang": "auto"})
        pod = cluster.get_pod(f"serve-{group}")
        pod["metadata"]["labels"] |= {
            LWS + "name": "serve",
            LWS + "group-key": f"key-{group}",
            LWS + "worker-index": "0",
        }
        pod["metadata"]["annotations"][LWS + "size"] = "1"
        cluster.put(PODS, pod)
    await cluster.settle()
    assert [one["name"] for one in await shell.data("queue")] == ["default/serve-0", "default/serve-1"]


async def test_a_name_that_is_no_pod_is_that_of_its_gang_or_owner(cluster: GpuCluster, shell: CommandLine) -> None:
    cluster.node("n1")
    cluster.rival("old", "n1", range(8))
    for number in range(2):
        cluster.pod(f"train-{number}", 4, namespace="team-a", wishes={"gang": "train", "gang-size": "2"})
    worker = cluster.admitted("worker-0", 4, namespace="team-a")
    worker["metadata"]["ownerReferences"] = owned("apps/v1", "ReplicaSet", "batch")
    cluster.put(PODS, worker)
    await cluster.settle()
    for name, pod, words in (("team-a/train", "train-0", "gang train has 2 pods"), ("team-a/batch", "worker-0", "")):
        result = await shell.run("explain", name)
        assert result.exit_code == 0, result.output
        assert f"Pod team-a/{pod}" in result.stdout
        assert words in result.stderr
    assert (await shell.run("explain", "team-b/train")).exit_code == 1


async def test_if_a_pod_has_the_name_of_a_gang_the_form_of_the_gang_is_named(
    cluster: GpuCluster, shell: CommandLine
) -> None:
    cluster.node("n1")
    cluster.rival("old", "n1", range(8))
    for name in ("train", "train-1"):
        cluster.pod(name, 4, namespace="team-a", wishes={"gang": "train", "gang-size": "2"})
    await cluster.settle()
    assert (await shell.data("explain", "team-a/train"))["same_name"] == "team-a/gang/train"
    shown = (await shell.run("explain", "team-a/train")).stdout
    assert "A gang has the same name: gputopo explain team-a/gang/train" in shown
    assert (await shell.data("explain", "team-a/train-1"))["same_name"] == ""
