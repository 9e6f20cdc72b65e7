"""Pods are in the way of an uninstallation: it is refused with their list, then forced, and the driver comes back."""

from __future__ import annotations

import json
from typing import Any

from dradriver.api.base import names
from dradriver.api.claims.usage_config_maps import name_of
from tests import deploy
from tests.cluster import Cluster
from tests.e2e.installation import Installation
from tests.e2e.kubectl import Namespace, eventually, gputopo, pod
from tests.e2e.load import NVLINK
from tests.e2e.test_releases import RELEASE, installed_afterwards, left

STATIC = NVLINK | {names.PLACEMENT: "static"}
USAGE = name_of(None)
STORED = f"ConfigMap/{USAGE.removesuffix('hour')}"


def job(name: str, made: dict[str, Any]) -> dict[str, Any]:
    """Return a Job of one such pod."""
    template = {"metadata": {"annotations": made["metadata"]["annotations"]}, "spec": made["spec"]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": template}}


def needing(cluster: Cluster) -> list[tuple[str, str]]:
    """Return the state and the owner of each pod that needs the driver, as gputopo lists them."""
    listed = gputopo(cluster.kubeconfig, "uninstall", "-o", "json")
    assert listed.returncode == 1, listed.stderr
    return [(one["state"], one["owner"]) for one in json.loads(listed.stdout)]


def status(cluster: Cluster) -> str:
    """Return the status of the release, as Helm has it."""
    return str(json.loads(cluster.helm("status", *RELEASE, "-o", "json").stdout)["info"]["status"])


def uninstalling_revision(cluster: Cluster) -> str:
    """Return the revision of the release whose uninstallation has begun, as ``helm history`` prints it."""
    revisions = json.loads(cluster.helm("history", *RELEASE, "-o", "json").stdout)
    (number,) = (each["revision"] for each in revisions if each["status"] == "uninstalling")
    return str(number)


def usage_owners(cluster: Cluster) -> list[str] | None:
    """Return the kinds of the objects that the stored GPU time is deleted with; None if none is stored."""
    for found in cluster.api.objects("configmaps", namespace=deploy.NAMESPACE):
        if found["metadata"]["name"] == USAGE:
            return [owner["kind"] for owner in found["metadata"].get("ownerReferences", ())]
    return None


def test_an_uninstallation_waits_for_pods_and_a_forced_one_leaves_them_to_the_next_installation(
    namespace: Namespace, installation: Installation
) -> None:
    cluster = namespace.cluster
    namespace.apply(
        pod("runs", gpus=2, words=NVLINK, node="node-b"), pod("static", gpus=1, words=STATIC, node="node-b")
    )
    namespace.wait_running("runs", "static")
    namespace.apply(job("waits", pod("waits", gpus=8, words=NVLINK, node="node-b")))
    expected = [("has GPUs", ""), ("has GPUs", ""), ("waits at its gate", "Job/waits")]
    eventually("the pod waits at its gate", lambda: len(namespace.list("pod")) == 3)
    assert needing(cluster) == expected
    (template,) = namespace.list("resourceclaimtemplate")
    assert [owner["kind"] for owner in template["metadata"]["ownerReferences"]] == ["ClusterRole"]
    eventually("GPU time is stored", lambda: usage_owners(cluster) == ["ClusterRole"], timeout_s=120)

    with installed_afterwards(installation):
        # 1. It is refused, and nothing is deleted.
        refused = cluster.helm("uninstall", *RELEASE, "--timeout", "120s", check=False)
        shown = refused.stdout + refused.stderr
        assert refused.returncode != 0, shown
        for text in ("3 pods need the driver. So helm uninstall stops", "runs", "waits at its gate", "Job/waits"):
            assert text in shown, shown
        assert f"helm uninstall {deploy.RELEASE} --namespace {deploy.NAMESPACE} --no-hooks" in shown
        assert f"deployment.apps/{deploy.RELEASE}-controller" in left(cluster)
        assert status(cluster) == "uninstalling"

        # 2. It is forced by a value. Helm upgrades no release whose uninstallation has begun: a rollback comes first.
        assert f"helm rollback {deploy.RELEASE} REVISION --namespace {deploy.NAMESPACE}. " in shown, shown
        cluster.helm(
            "rollback", deploy.RELEASE, uninstalling_revision(cluster), *RELEASE[1:], "--force-conflicts", "--wait"
        )
        assert status(cluster) == "deployed"
        deploy.change(cluster, "uninstall.force=true", "uninstall.keepUsage=true")
        eventually("GPU time has no owner", lambda: usage_owners(cluster) == [])
        cluster.helm("uninstall", *RELEASE, "--wait", "--timeout", "120s")
        # GPU time of the current hour; after a full hour also that of the day.
        eventually(
            "GPU time alone is left",
            lambda: f"ConfigMap/{USAGE}" in left(cluster) and all(name.startswith(STORED) for name in left(cluster)),
            timeout_s=90,
            why=lambda: left(cluster),
        )
        eventually("its template is deleted", lambda: not namespace.list("resourceclaimtemplate"))

        # 3. Pods go on, and wait on.
        assert needing(cluster) == expected
        assert namespace.get("pod", "runs")["status"]["phase"] == "Running"
        for name, says in (("runs", "The pod runs on. "), ("job/waits", "The pod keeps its scheduling gate ")):
            explained = gputopo(cluster.kubeconfig, "explain", name, "-n", namespace.name).stdout
            absent = f"No driver is installed: namespace {deploy.NAMESPACE} has no DaemonSet of node agents. "
            assert explained.startswith(absent), explained
            assert says in explained

    # 4. The next installation has all of them.
    assert usage_owners(cluster) == ["ClusterRole"]
    namespace.delete("runs", "static")
    eventually("the pod at its gate is placed", lambda: namespace.list("pod")[0]["status"]["phase"] == "Running")
