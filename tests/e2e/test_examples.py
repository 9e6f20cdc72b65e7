"""Every example does on a real cluster what its comment says: at the least, all its pods run at the same time."""

from __future__ import annotations

from dradriver.api import names
from tests.cluster.settings import minor_of
from tests.demo.examples import EXAMPLES
from tests.e2e import gangs
from tests.e2e.kubectl import Namespace, no_gpu_is_owned_twice, owners


def test_examples(namespace: Namespace) -> None:
    namespace.kubectl("apply", "-f", str(EXAMPLES))
    namespace.kubectl("wait", "--for=create", "pod", "-l", "app=single-gpu", "--timeout=60s")
    pods = [item["metadata"]["name"] for item in namespace.list("pods")]
    namespace.wait_running(*pods)

    assert len(owners(namespace.cluster)) == 15
    assert no_gpu_is_owned_twice(namespace.cluster)
    assert namespace.annotation("nvlink-quad", names.LEVEL) == "nvlink"
    assert len(namespace.devices("claim-template", "train")) == 4
    assert namespace.devices("two-containers", "encode").isdisjoint(namespace.devices("two-containers", "decode"))


def test_the_job_whose_pods_are_a_gang(namespace: Namespace) -> None:
    namespace.kubectl("apply", "-f", str(EXAMPLES / "gangs" / "job.yaml"))
    namespace.kubectl(
        "wait", "--for=create", "pod", "-l", "batch.kubernetes.io/job-completion-index=1", "--timeout=60s"
    )
    namespace.kubectl("wait", "--for=condition=Ready", "pod", "-l", "app=gang-job", "--timeout=120s")
    pods = namespace.list("pods")
    assert sorted(pod["metadata"]["annotations"][names.RANK_HINT] for pod in pods) == ["0", "1"]
    assert no_gpu_is_owned_twice(namespace.cluster)


def test_the_example_of_a_gang(namespace: Namespace) -> None:
    namespace.kubectl("apply", "-f", str(EXAMPLES / "gangs" / "job.yaml"))
    pods = gangs.pods_of(namespace, "gang-job", 2)
    barrier = minor_of(namespace.cluster.version) >= "1.36"
    gangs.run_whole(namespace, [one["metadata"]["name"] for one in pods.values()], container="train", barrier=barrier)
