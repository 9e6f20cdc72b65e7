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
    pods = [one["metadata"]["name"] for one in gangs.pods_of(namespace, "gang-job", 2).values()]
    gangs.run_whole(namespace, pods, container="train", barrier=minor_of(namespace.cluster.version) >= "1.36")
    assert [namespace.annotation(name, names.RANK_HINT) for name in pods] == ["0", "1"]
    assert no_gpu_is_owned_twice(namespace.cluster)
