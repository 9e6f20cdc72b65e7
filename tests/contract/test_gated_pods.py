"""What may change of a pod: its nodes get fewer while it is gated, nothing about them afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from dradriver.api.base.jsonpatch import Patch
from dradriver.kube.resources import PODS
from tests.contract.conftest import Object, Server, refused

GATES = [{"name": "example.com/a"}, {"name": "example.com/b"}]
REQUIRED = ("spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
ZONE: Object = {"key": "zone", "operator": "In", "values": ["a"]}
DISK: Object = {"key": "disk", "operator": "Exists"}
NODE: Object = {"key": "metadata.name", "operator": "In", "values": ["n1"]}


def affinity(*terms: Object) -> Object:
    return {"nodeAffinity": {REQUIRED[-1]: {"nodeSelectorTerms": list(terms)}}}


def terms(pod: Object) -> Any:
    found = pod
    for key in REQUIRED:
        found = found[key]
    return found["nodeSelectorTerms"]


def set_terms(*terms: Object) -> Patch:
    return Patch().replace(*REQUIRED, "nodeSelectorTerms", value=list(terms))


async def test_a_gate_can_only_be_taken_away(server: Server) -> None:
    await server.pod(schedulingGates=GATES)

    third = Patch().add("spec", "schedulingGates", "-", value={"name": "example.com/c"})
    assert (await refused(server.patch(PODS, "p", third))).invalid
    lifted = await server.patch(PODS, "p", Patch().remove("spec", "schedulingGates", 0))
    assert lifted["spec"]["schedulingGates"] == GATES[1:]
    lifted = await server.patch(PODS, "p", Patch().remove("spec", "schedulingGates", 0))
    assert not lifted["spec"].get("schedulingGates")
    assert (await refused(server.patch(PODS, "p", {"spec": {"schedulingGates": GATES}}))).invalid


async def test_a_pod_on_a_node_has_no_gate(server: Server) -> None:
    assert (await refused(server.pod(schedulingGates=GATES, nodeName="n1"))).invalid


async def test_a_gated_pod_without_affinity_takes_any(server: Server) -> None:
    await server.pod(schedulingGates=GATES)

    wanted = affinity({"matchFields": [NODE]}, {"matchExpressions": [ZONE]})
    changed = await server.patch(PODS, "p", Patch().add("spec", "affinity", value=wanted))
    assert terms(changed) == [{"matchFields": [NODE]}, {"matchExpressions": [ZONE]}]


@pytest.mark.parametrize(
    ("news", "allowed"),
    [
        ([{"matchExpressions": [ZONE, DISK]}, {"matchExpressions": [DISK], "matchFields": [NODE]}], True),
        ([{"matchExpressions": [ZONE]}], False),
        ([{"matchExpressions": [ZONE]}, {"matchExpressions": [DISK]}, {"matchFields": [NODE]}], False),
        ([{"matchExpressions": [DISK, ZONE]}, {"matchExpressions": [DISK]}], False),
        ([{"matchExpressions": [ZONE | {"values": ["b"]}]}, {"matchExpressions": [DISK]}], False),
        ([{"matchFields": [NODE]}, {"matchExpressions": [DISK]}], False),
    ],
    ids=["narrowed", "term gone", "term more", "before", "changed", "replaced"],
)
async def test_terms_of_a_gated_pod_are_only_added_to(server: Server, news: list[Object], *, allowed: bool) -> None:
    await server.pod(
        schedulingGates=GATES, affinity=affinity({"matchExpressions": [ZONE]}, {"matchExpressions": [DISK]})
    )

    if allowed:
        assert terms(await server.patch(PODS, "p", set_terms(*news))) == news
    else:
        assert (await refused(server.patch(PODS, "p", set_terms(*news)))).invalid


async def test_required_affinity_of_a_gated_pod_does_not_go(server: Server) -> None:
    await server.pod(schedulingGates=GATES, affinity=affinity({"matchExpressions": [ZONE]}))

    assert (await refused(server.patch(PODS, "p", Patch().remove(*REQUIRED)))).invalid
    assert (await refused(server.patch(PODS, "p", Patch().remove("spec", "affinity")))).invalid


async def test_the_node_selector_of_a_gated_pod_is_only_added_to(server: Server) -> None:
    await server.pod(schedulingGates=GATES, nodeSelector={"a": "1"})

    changed = await server.patch(PODS, "p", {"spec": {"nodeSelector": {"b": "2"}}})
    assert changed["spec"]["nodeSelector"] == {"a": "1", "b": "2"}
    for selector in ({"a": "2"}, {"a": None}):
        assert (await refused(server.patch(PODS, "p", {"spec": {"nodeSelector": selector}}))).invalid


async def test_one_patch_narrows_and_lifts(server: Server) -> None:
    await server.pod(schedulingGates=GATES[:1], affinity=affinity({"matchExpressions": [ZONE]}))
    patch = Patch().add(*REQUIRED, "nodeSelectorTerms", 0, "matchFields", value=[NODE])

    changed = await server.patch(PODS, "p", patch.remove("spec", "schedulingGates", 0))
    assert terms(changed) == [{"matchExpressions": [ZONE], "matchFields": [NODE]}]
    assert not changed["spec"].get("schedulingGates")


async def test_nothing_about_the_nodes_of_a_lifted_pod_changes(server: Server) -> None:
    await server.pod("none")
    await server.pod("some", affinity=affinity({"matchExpressions": [ZONE]}))

    wanted = Patch().add("spec", "affinity", value=affinity({"matchFields": [NODE]}))
    assert (await refused(server.patch(PODS, "none", wanted))).invalid
    assert (await refused(server.patch(PODS, "some", set_terms({"matchExpressions": [ZONE, DISK]})))).invalid
    assert (await refused(server.patch(PODS, "some", {"spec": {"nodeSelector": {"a": "1"}}}))).invalid


@pytest.mark.parametrize("gates", [GATES, []], ids=["gated", "lifted"])
async def test_the_rest_of_a_spec_does_not_change(server: Server, gates: list[Object]) -> None:
    claims = [{"name": "gpu", "resourceClaimName": "c"}]
    await server.pod(schedulingGates=gates, resourceClaims=claims)

    for change in (
        {"resourceClaims": [{"name": "gpu", "resourceClaimName": "d"}]},
        {"resourceClaims": None},
        {"containers": [{"name": "main", "image": "example.com/image", "resources": {"requests": {"cpu": "1"}}}]},
        {"schedulerName": "another"},
        {"priority": 7},
    ):
        assert (await refused(server.patch(PODS, "p", {"spec": change}))).invalid, change


async def test_words_on_a_lifted_pod_may_change(server: Server) -> None:
    await server.pod()

    changed = await server.patch(PODS, "p", {"metadata": {"annotations": {"a": "1"}, "labels": {"b": "2"}}})
    assert changed["metadata"]["annotations"] == {"a": "1"}
    assert changed["metadata"]["labels"] == {"b": "2"}
