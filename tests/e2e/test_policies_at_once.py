"""New policies are in force when ``helm upgrade --wait`` returns, whatever the mounted files say by then."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from dradriver.api.base import names
from tests import deploy
from tests.cluster import Cluster
from tests.e2e.installation import Installation
from tests.e2e.kubectl import Namespace, eventually, gputopo, no_gpu_is_owned_twice, pod

PODS: Final = 50
CAP: Final = 4
CLOSED: Final = "node-a"

Upgrade = Callable[..., None]


@pytest.fixture
def upgrade(driver: Cluster, installation: Installation) -> Iterator[Upgrade]:
    """Upgrade the release with more settings, without waiting for the mounted files as ``installation`` does."""

    def run(*settings: str) -> None:
        installation.forget()
        driver.helm(
            *("upgrade", deploy.RELEASE, str(deploy.CHART), "--namespace", deploy.NAMESPACE, "--reuse-values"),
            "--force-conflicts",
            *(word for setting in settings for word in ("--set", setting)),
            *("--wait", "--timeout", "180s"),
        )

    yield run
    installation.forget()
    installation.install()


def waits_or_is_placed(found: dict[str, Any]) -> bool:
    reason = found["metadata"].get("annotations", {}).get(names.REASON, "")
    return not found["spec"].get("schedulingGates") or "quota: tenant" in reason


def test_pods_that_come_right_after_an_upgrade_keep_to_its_policies(
    driver: Cluster, namespace: Namespace, upgrade: Upgrade
) -> None:
    upgrade(
        f"policies.tenants.late.namespaces[0]={namespace.name}",
        f"policies.tenants.late.cap[0].gpus={CAP}",
        "policies.tenants.owner.namespaces[0]=t-nobodys",
        f"policies.tenants.owner.partition.nodes[0]={CLOSED}",
        "policies.tenants.owner.exclusive=true",
    )
    namespace.apply(*(pod(f"p{number:02}", gpus=1, words={names.POLICY: "best-effort"}) for number in range(PODS)))
    eventually(
        "each pod has its GPU, or knows of the cap",
        lambda: all(map(waits_or_is_placed, namespace.list("pods"))),
        timeout_s=120,
    )
    eventually(
        "as many pods as the cap allows are bound",
        lambda: sum(bool(one["spec"].get("nodeName")) for one in namespace.list("pods")) == CAP,
        timeout_s=120,
    )
    placed = [one for one in namespace.list("pods") if not one["spec"].get("schedulingGates")]
    assert len(placed) == CAP
    assert CLOSED not in {one["spec"].get("nodeName") for one in placed}
    assert len(namespace.list("resourceclaims")) == CAP
    assert no_gpu_is_owned_twice(driver)
    # The kubelet takes more than a minute to bring the ConfigMap into the pods of webhook and node agents.
    eventually("all processes use the policies", lambda: verified(driver) == "PASS", timeout_s=180)


def verified(cluster: Cluster) -> str:
    """Return what ``gputopo verify`` says of the controller's policies."""
    done = gputopo(cluster.kubeconfig, "verify", "-o", "json")
    found: list[dict[str, str]] = json.loads(done.stdout)["findings"]
    return next(one["status"] for one in found if one["check"] == "policies")
