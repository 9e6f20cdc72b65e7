"""Parts of a GPU that pods of several namespaces may have at a time: then the scheduler may choose alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dradriver.api.base import names
from tests import deploy
from tests.cluster import Cluster
from tests.e2e import parts
from tests.e2e.kubectl import Namespace, claim_template, pod, pod_of_template
from tests.e2e.test_claims import STATIC
from tests.e2e.test_parts import NODE, capabilities

pytestmark = pytest.mark.chart(exclusive=False)


def test_a_static_share_is_the_schedulers(namespace: Namespace) -> None:
    words = STATIC | {names.SHARE_CORES: "25", names.SHARE_MEMORY: "10Gi"}
    both = pod("one", gpus=1, words=words), pod("two", gpus=1, words=words)
    namespace.apply(*both)
    namespace.wait_running("one", "two")

    assert namespace.devices("one") == namespace.devices("two")


@pytest.fixture
def no_controller(driver: Cluster) -> Iterator[None]:
    deployment = f"deployment/{deploy.RELEASE}-controller"
    scale = ("-n", deploy.NAMESPACE, "scale", deployment)
    driver.kubectl(*scale, "--replicas=0")
    driver.kubectl(
        *("-n", deploy.NAMESPACE, "wait", "--for=delete", "pod", "--timeout=60s"),
        *("-l", "app.kubernetes.io/component=controller"),
    )
    yield
    driver.kubectl(*scale, "--replicas=2")
    parts.wait_ready(driver)


@pytest.mark.usefixtures("no_controller")
def test_claims_of_templates_need_no_controller(namespace: Namespace) -> None:
    asked = {
        "share": (names.SHARE_CLASS, {names.CAPACITY_CORES: "25", names.CAPACITY_MEMORY: "10Gi"}),
        "slice": (names.MIG_CLASS, {names.CAPACITY_MEMORY_SLICES: "1", names.CAPACITY_COMPUTE_SLICES: "1"}),
    }
    users = {f"{name}-{number}": name for name in asked for number in "12"}
    namespace.apply(*(claim_template(name, *of) for name, of in asked.items()))
    namespace.apply(*(pod_of_template(user, template, node=NODE) for user, template in users.items()))
    namespace.wait_running(*users)

    assert namespace.devices("share-1", "main") == namespace.devices("share-2", "main")
    assert "/dev/nvidia-caps" not in namespace.devices("share-1")
    first, second = (capabilities(namespace, f"slice-{number}", "main") for number in "12")
    assert (len(first), len(second), first & second) == (2, 2, set())
