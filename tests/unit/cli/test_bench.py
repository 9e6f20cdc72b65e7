"""``gputopo bench allreduce``: what nccl-tests print is read, and the Job's pod is compared with its prediction."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dradriver.api.base import names
from dradriver.cli import nccl_tests
from dradriver.cli.bench import run_job
from dradriver.cli.main import main
from dradriver.cli.nccl_tests import NcclTestsError
from dradriver.kube.resources import PODS, Resource
from tests.fakes.admission import admit, defaulted
from tests.fakes.commands import CommandLine
from tests.fakes.gpucluster import GpuCluster

JOBS = Resource("batch", "v1", "jobs", "Job", namespaced=True)
# As src/common.cu of nccl-tests prints it.
PRINTED = """\
# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1
#
# Using devices
#  Rank  0 Group  0 Pid  24755 on      node device  0 [0x0b] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    16.29    0.00    0.00      0    16.07    0.00    0.00      0
    67108864      16777216     float     sum      -1    395.9  169.51  296.64      0    393.9  170.37  298.15      0
   134217728      33554432     float     sum      -1    735.6  182.46  319.31      0    733.7  182.94  320.14      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 152.373
#
"""


def test_the_largest_size_counts() -> None:
    found = nccl_tests.read(PRINTED)
    assert (found.size, found.busbw_gbps, found.average_gbps, found.wrong) == (134_217_728, 320.14, 152.373, False)
    assert nccl_tests.read(PRINTED[-600:]).busbw_gbps == 320.14, "the beginning may be cut off"


def test_what_was_not_looked_at_is_not_wrong_and_what_is_wrong_is() -> None:
    assert not nccl_tests.read(PRINTED.replace("     0\n", "   N/A\n")).wrong
    assert nccl_tests.read(PRINTED.replace("320.14      0", "320.14      7")).wrong
    assert nccl_tests.read(PRINTED.replace("0 OK", "3 FAILED")).wrong


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "its last line is 'nothing'"),
        ("sh: all_reduce_perf: not found\n", "not found"),
        ("node: Test NCCL failure common.cu:958 'unhandled system error'\n", "unhandled system error"),
    ],
)
def test_a_run_that_failed(text: str, said: str) -> None:
    with pytest.raises(NcclTestsError, match=said):
        nccl_tests.read(text)


@given(st.text() | st.lists(st.sampled_from(["8", "nan", "-1", "9" * 400, "float", "N/A", "\n"])).map(" ".join))
def test_any_text_is_a_result_or_an_error(text: str) -> None:
    try:
        found = nccl_tests.read(text)
    except NcclTestsError:
        return
    assert found.busbw_gbps >= 0


def test_a_file_is_read_without_a_cluster() -> None:
    words = ["bench", "allreduce", "--read", "-", "--predicted", "640.28"]
    found = CliRunner().invoke(main, [*words, "-o", "json"], input=PRINTED)
    assert json.loads(found.stdout)["ratio"] == 0.5
    text = CliRunner().invoke(main, words, input=PRINTED).stdout
    assert "measured 320.1 GB/s bus bandwidth at 128 MiB" in text
    assert "predicted 640.3 GB/s: 50% of it was reached: look at" in text
    wrong = CliRunner().invoke(main, words, input=PRINTED.replace("0 OK", "3 FAILED"))
    assert wrong.exit_code == 1


def test_the_job_is_admitted_and_asks_for_what_was_said() -> None:
    words = ["bench", "allreduce", "--image", "nccl", "--gpus", "4", "--policy", "nvlink", "--node", "n1", "--print"]
    made = yaml.safe_load(CliRunner().invoke(main, words).stdout)
    template = made["spec"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", **template["metadata"]},
        "spec": template["spec"],
    }
    assert admit(defaulted(pod)).warnings == []
    assert "-g 4" in template["spec"]["containers"][0]["command"][2]
    (term,) = template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]


@pytest.mark.parametrize("words", [[], ["--image", "x", "--max-size", "8G; rm"], ["--image", "x", "--gpus", "1"]])
def test_wrong_usage(words: list[str]) -> None:
    assert CliRunner().invoke(main, ["bench", "allreduce", *words]).exit_code == 2


async def ended(cluster: GpuCluster, status: dict[str, Any]) -> None:
    """Make the Job's pod, as it has ended, once there is a Job."""
    while not (jobs := cluster.all(JOBS)):
        await asyncio.sleep(0.01)
    name = jobs[0]["metadata"]["name"]
    said = {names.ALLOCATED: "GPU-a,GPU-b", names.LEVEL: "nvlink", names.BUSBW: "340"}
    labels = {"batch.kubernetes.io/job-name": name}
    metadata = {"name": f"{name}-x", "namespace": "default", "labels": labels, "annotations": said}
    cluster.put(PODS, {"metadata": metadata, "spec": {"nodeName": "n1"}, "status": status})


def terminated(message: str) -> dict[str, Any]:
    return {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {"message": message}}}]}


@pytest.mark.slow
async def test_a_run_beside_its_prediction(cluster: GpuCluster, shell: CommandLine) -> None:
    making = asyncio.ensure_future(ended(cluster, terminated(PRINTED[-1500:])))
    found = await shell.data("bench allreduce", "--image", "nccl", "--gpus", "2")
    await making
    assert (found["node"], found["gpus"], found["level"]) == ("n1", ["GPU-a", "GPU-b"], "nvlink")
    assert (found["predicted_gbps"], found["measured"]["busbw_gbps"], found["ratio"]) == (340.0, 320.14, 0.942)


@pytest.mark.slow
async def test_a_pod_that_left_nothing(cluster: GpuCluster, shell: CommandLine) -> None:
    making = asyncio.ensure_future(ended(cluster, {"phase": "Failed", "reason": "Evicted"}))
    result = await shell.run("bench allreduce", "--image", "nccl")
    await making
    assert result.exit_code == 1
    assert "left nothing behind: Evicted" in result.stderr


async def test_a_job_that_does_not_end(cluster: GpuCluster, shell: CommandLine) -> None:
    made = yaml.safe_load((await shell.run("bench allreduce", "--image", "nccl", "--print")).stdout)
    with pytest.raises(NcclTestsError) as refusal:
        await run_job(shell.api.config, made, timeout_s=0)
    (job,) = cluster.all(JOBS)
    name = job["metadata"]["name"]
    assert str(refusal.value) == (
        f"Job {name} has not ended after 0 s: kubectl -n default describe pods -l batch.kubernetes.io/job-name={name} "
        "says more; --timeout gives it longer"
    )


async def test_a_job_that_may_not_be_made(cluster: GpuCluster, shell: CommandLine) -> None:
    shell.api.fail(method="POST", path="/jobs$", status=403, reason="Forbidden", message="no")
    result = await shell.run("bench allreduce", "--image", "nccl")
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
