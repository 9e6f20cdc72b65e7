"""Which rules of a pod only the scheduler can evaluate."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.cluster.pods.neighbours import MOST_PODS, Neighbours
from dradriver.cluster.pods.unknown_rules import what_only_the_scheduler_knows
from dradriver.kube import codec
from dradriver.kube.resources import RESOURCE_CLAIM_TEMPLATES
from tests.fakes import domains
from tests.fakes.gpucluster import GpuCluster

GPUS = {"name": names.POD_CLAIM, "resourceClaimName": "gpu-topology-p"}
BY_NAME = {"name": "nic", "resourceClaimName": "nic-claim"}
BY_TEMPLATE = {"name": "nic", "resourceClaimTemplateName": "nic-template"}
MADE = [{"name": "nic", "resourceClaimName": "p-nic-x"}]


def pod(status: Any = None, annotations: Any = None, **spec: Any) -> Pod:
    sent = {
        "metadata": {"name": "p", "namespace": "a", "annotations": annotations or {}},
        "spec": spec,
        "status": status or {},
    }
    read: Pod = codec.decode(msgspec.Raw(json.dumps(sent).encode()), Pod)
    return read


def unknown(
    of: Pod,
    *,
    claims: tuple[Key, ...] = (),
    templates: tuple[Key, ...] = (),
    has_too_many: bool = False,
    disk: str = "",
) -> str | None:
    reason = what_only_the_scheduler_knows(
        of,
        is_known_claim=claims.__contains__,
        is_known_template=templates.__contains__,
        has_too_many=lambda _: has_too_many,
        class_of_existing=lambda _: disk,
    )
    return None if reason is None else reason.text


def affinity(kind: str = "podAffinity", **term: Any) -> Any:
    terms = [{"topologyKey": "zone", "labelSelector": {}} | term]
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


@pytest.mark.parametrize(
    "plain",
    [
        pod(),
        pod(resourceClaims=[GPUS]),
        pod(annotations={names.TEMPLATE: "gpus/t"}, resourceClaims=[{"name": "gpus", "resourceClaimName": "c"}]),
        pod(affinity=affinity()),
        pod(affinity=affinity(namespaces=["b"])),
        pod(affinity=affinity(namespaceSelector={})),
        pod(affinity=affinity(namespaceSelector={"matchLabels": {"kubernetes.io/metadata.name": "b"}})),
        pod(volumes=[{"name": str(n), "persistentVolumeClaim": {"claimName": "same"}} for n in range(17)]),
        pod(volumes=[{"name": str(n), "emptyDir": {}} for n in range(17)]),
    ],
)
def test_of_pods_without_such_rules_the_controller_knows_all(plain: Pod) -> None:
    assert unknown(plain) is None


def test_of_volumes_that_exist_already_the_scheduler_alone_knows_the_free_ones() -> None:
    reason = unknown(pod(), disk="local")
    assert reason == "Only the scheduler knows which nodes have a free volume of StorageClass 'local'."


def test_claims_of_other_drivers_are_known_once_they_are_allocated() -> None:
    named, made = (
        pod(resourceClaims=[GPUS, BY_NAME]),
        pod({"resourceClaimStatuses": MADE}, resourceClaims=[BY_TEMPLATE]),
    )
    assert unknown(named) == "Only the scheduler knows which nodes have the devices of ResourceClaim 'nic-claim'."
    assert unknown(named, claims=(("a", "nic-claim"),)) is None
    by_template = "Only the scheduler knows which nodes have the devices of ResourceClaimTemplate 'nic-template'."
    assert unknown(made) == unknown(pod(resourceClaims=[BY_TEMPLATE])) == by_template
    assert unknown(made, claims=(("a", "p-nic-x"),)) is None


def test_templates_of_channels_are_known() -> None:
    assert unknown(pod(resourceClaims=[GPUS, BY_TEMPLATE]), templates=(("a", "nic-template"),)) is None


@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity"])
@pytest.mark.parametrize(
    "selector",
    [
        {"matchLabels": {"team": "x"}},
        {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["b"]}]},
    ],
)
def test_labels_of_namespaces_are_not_known(kind: str, selector: Any) -> None:
    text = unknown(pod(affinity=affinity(kind, namespaceSelector=selector)))
    assert text == "Only the scheduler knows the labels of namespaces, by which the pod's affinity selects pods."


def test_rules_above_the_bounds_are_not_looked_at() -> None:
    values = [{"key": "app", "operator": "In", "values": [str(n) for n in range(200)]}]
    large = pod(affinity=affinity(labelSelector={"matchExpressions": values}))
    assert (
        unknown(large)
        == "Only the scheduler knows what pod affinity and topology spread with more than 8 terms or 200 labels select."
    )
    assert unknown(pod(affinity=affinity()), has_too_many=True) == (
        "Only the scheduler knows on which nodes the many pods are that the pod's affinity and topology spread select."
    )
    ports = pod(containers=[{"name": "c", "ports": [{"hostPort": 1 + n} for n in range(65)]}])
    assert unknown(ports) == "Only the scheduler knows which nodes have more than 64 host ports free."
    many = pod(volumes=[{"name": str(n), "persistentVolumeClaim": {"claimName": f"c{n}"}} for n in range(17)])
    assert unknown(many) == (
        "Only the scheduler knows where the volumes of a pod with more than 16 PersistentVolumeClaims are."
    )


async def test_the_cluster_cache_says_so_of_its_claims_and_templates() -> None:
    cluster = GpuCluster()
    cluster.put(RESOURCE_CLAIM_TEMPLATES, domains.template("t", "domain"))
    await cluster.settle()
    picture = cluster.worker.picture
    channel = {"name": "channel", "resourceClaimTemplateName": "t"}
    of_channel = msgspec.structs.replace(
        pod(resourceClaims=[GPUS, channel]), metadata=msgspec.structs.replace(pod().metadata, namespace="default")
    )
    assert picture.only_scheduler_knows(of_channel) is None
    assert picture.only_scheduler_knows(pod(resourceClaims=[GPUS, channel])) is not None


@pytest.mark.parametrize("count", [MOST_PODS - 1, MOST_PODS])
def test_whether_too_many_pods_are_there_is_known_without_a_look_at_any(count: int) -> None:
    placed: list[Key] = []

    def place_of(key: Key) -> str | None:
        placed.append(key)
        return "n"

    pods: dict[Key, Pod] = {("a", f"p{number}"): pod() for number in range(count)}
    neighbours = Neighbours(NodeTable(), pods, place_of)
    for key, other in pods.items():
        neighbours.pod_changed(key, other)
    waiting = pod(affinity=affinity())
    neighbours.pod_changed(("a", "waiting"), waiting)
    assert neighbours.has_too_many(waiting) == (count == MOST_PODS)
    assert not placed
