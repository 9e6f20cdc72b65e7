"""Every example does on a real cluster what its comment says: at the least, all its pods run at the same time."""

from __future__ import annotations

from dradriver.api import names
from tests.demo.examples import EXAMPLES
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
