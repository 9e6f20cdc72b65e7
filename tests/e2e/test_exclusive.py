"""GPUs whose parts are of one namespace at a time, by every way in which a pod may ask for a part."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from dradriver.api.base import names
from dradriver.api.claims import exclusive
from tests import deploy
from tests.cluster import Cluster
from tests.e2e.kubectl import Namespace, claim_template, eventually, pod, pod_of_template, told_why

Object = dict[str, Any]
NODE = deploy.SHARED[0]
SHARE = {names.SHARE_CORES: "25", names.SHARE_MEMORY: "4Gi"}
AMOUNTS = {names.CAPACITY_CORES: "25", names.CAPACITY_MEMORY: "4Gi"}
SHAREABLE = 'device.driver == "gpu.topology" && has(device.attributes["gpu.topology"].shareable)'
REFUSED = "the policies file limits each divided GPU to one namespace (exclusiveTo)"


def part(name: str, words: dict[str, str]) -> Object:
    return pod(name, gpus=1, words=words, node=NODE)


@pytest.fixture
def neighbour(driver: Cluster) -> Iterator[Namespace]:
    """Another tenant's namespace."""
    other = Namespace(driver, "t-neighbour")
    driver.kubectl("create", "namespace", other.name)
    yield other
    driver.kubectl("delete", "namespace", other.name, "--timeout=120s")


@pytest.fixture
def own_class(driver: Cluster) -> Iterator[str]:
    """A class of an administrator's own over the same devices: nobody but the node agent knows what it has."""
    made = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "shares-of-ours"},
        "spec": {"selectors": [{"cel": {"expression": SHAREABLE}}]},
    }
    driver.kubectl("apply", "-f", "-", input=yaml.safe_dump(made))
    yield "shares-of-ours"
    driver.kubectl("delete", "deviceclass", "shares-of-ours")


def test_a_gpu_has_shares_of_one_namespace_at_a_time(namespace: Namespace, neighbour: Namespace) -> None:
    namespace.apply(part("first", {names.SHARE: "0.25"}))
    namespace.wait_running("first")
    neighbour.apply(part("stranger", {names.SHARE: "0.25"}))
    told_why(neighbour, "stranger")
    namespace.apply(part("second", {names.SHARE: "0.25"}))
    namespace.wait_running("second")

    namespace.delete("first", "second")
    neighbour.wait_running("stranger")
    namespace.apply(part("third", {names.SHARE: "0.25"}))
    told_why(namespace, "third")
    neighbour.delete("stranger")
    namespace.wait_running("third")


def test_no_way_leads_another_namespace_onto_the_gpu(
    namespace: Namespace, neighbour: Namespace, own_class: str
) -> None:
    namespace.apply(part("first", SHARE))
    namespace.wait_running("first")

    for word in ({names.PLACEMENT: "static"}, {names.WHEN_FULL: "hand-over"}):
        done = neighbour.apply(part("left-to-the-scheduler", SHARE | word), check=False)
        assert "lets kube-scheduler place the share" in done.stderr
    template = claim_template("share", names.SHARE_CLASS, AMOUNTS)
    spec = template["spec"]["spec"]
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "own"}, "spec": spec}
    assert REFUSED in neighbour.apply(claim, check=False).stderr
    warning = "claims from this template are refused unless the driver places the pod, because the policies file has "
    assert f"{warning}exclusiveTo" in neighbour.apply(template).stderr, "the controller may make its claims"

    neighbour.apply(pod_of_template("by-template", "share", node=NODE))
    limits = {f"deviceclass.resource.kubernetes.io/{names.SHARE_CLASS}": "1"}
    extended = pod("extended", node=NODE)
    extended["spec"]["containers"][0]["resources"]["limits"] = limits
    neighbour.apply(extended)
    elsewhere = claim_template("elsewhere", names.SHARE_CLASS, AMOUNTS, exclusive.ELSEWHERE)
    neighbour.apply(elsewhere, claim_template("ours", own_class, AMOUNTS))
    neighbour.apply(pod_of_template("keeps-off", "elsewhere", node=NODE), pod_of_template("bound", "ours", node=NODE))

    eventually("the claim of a template is refused", lambda: REFUSED in events(neighbour, "by-template"))
    eventually("the scheduler finds none", lambda: "cannot allocate all claims" in events(neighbour, "keeps-off"))
    # Without amounts it takes a whole GPU, which one with a share on it is not.
    eventually("nor for an extended resource", lambda: "nodes are available" in events(neighbour, "extended"))
    said = "GPU-.* belong to one namespace at a time, and now to " + namespace.name
    eventually("the node agent refuses", lambda: re.search(said, events(neighbour, "bound")), timeout_s=120)
    waiting = ("by-template", "extended", "keeps-off", "bound")
    assert {name: neighbour.get("pod", name)["status"]["phase"] for name in waiting} == dict.fromkeys(
        waiting, "Pending"
    )
    assert len(namespace.devices("first")) == 1


def events(namespace: Namespace, name: str) -> str:
    """What the events of a pod say."""
    return "\n".join(one["message"] for one in namespace.list("events") if one["involvedObject"]["name"] == name)
