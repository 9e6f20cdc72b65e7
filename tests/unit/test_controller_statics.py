"""Templates of pods that the scheduler alone places: made for those that name them, and gone once nobody does."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec

from dradriver.api import ladder, names
from dradriver.api.objects import Pod
from dradriver.api.templates import Template
from dradriver.controller import pods, records
from dradriver.controller.statics import Statics
from dradriver.kube.client import ApiError, Client
from dradriver.kube.reflector import Change
from dradriver.kube.resources import RESOURCE_CLAIM_TEMPLATES
from tests.fakes.admission import NVLINK, admit, defaulted, pod, stored
from tests.fakes.apistore import Store
from tests.fakes.gpucluster import DirectClient

Object = dict[str, Any]
STATIC = NVLINK | {names.PLACEMENT: "static"}


class Cluster:
    """The keeper, a server, and what reflectors show when they are asked to."""

    def __init__(self, grace_s: float = 0.0) -> None:
        self.client = DirectClient(Store())
        self.seen: dict[tuple[str, str], Template] = {}
        self.told: list[tuple[str, str]] = []
        self.statics = Statics(cast("Client", self.client), self.seen, record=self.record, grace_s=grace_s)
        self.pods: dict[tuple[str, str], Pod | pods.Foreign] = {}

    async def record(self, about: Pod, reason: str) -> None:
        self.told.append((about.metadata.name, reason))

    def pod(self, name: str, gpus: int = 4, *, namespace: str = "team", **changes: Any) -> Object:
        made = stored(admit(defaulted(pod(gpus, annotations=STATIC), namespace=namespace)).admitted, uid=name)
        made["metadata"]["name"] = name
        made |= changes
        self.show(made)
        return made

    def show(self, made: Object) -> None:
        key = made["metadata"]["namespace"], made["metadata"]["name"]
        new = pods.read(msgspec.Raw(msgspec.json.encode(made)))
        change: Change[Pod | pods.Foreign] = Change(key, self.pods.pop(key, None), new)
        if new is not None:
            self.pods[key] = new
        self.statics.pod_changed(change)

    def gone(self, name: str, namespace: str = "team") -> None:
        key = namespace, name
        self.statics.pod_changed(Change(key, self.pods.pop(key), None))

    async def make(self) -> float:
        async with asyncio.TaskGroup() as group:
            return self.statics.make(group)

    def templates(self) -> list[Object]:
        where = self.client.store.collection("resource.k8s.io", "v1", "resourceclaimtemplates")
        return [obj for _, obj in sorted(where.objects.items())]

    def deliver(self) -> None:
        self.seen.clear()
        for obj in self.templates():
            key = obj["metadata"]["namespace"], obj["metadata"]["name"]
            self.seen[key] = records.read_template(msgspec.Raw(msgspec.json.encode(obj)))


def template_of(made: Object) -> str:
    return str(made["spec"]["resourceClaims"][0]["resourceClaimTemplateName"])


async def test_alike_pods_get_one_template_in_their_namespace() -> None:
    cluster = Cluster()
    one, two = cluster.pod("a"), cluster.pod("b")
    other = cluster.pod("c", 2, namespace="other")
    await cluster.make()
    assert template_of(one) == template_of(two)
    made = {(t["metadata"]["namespace"], t["metadata"]["name"]): t for t in cluster.templates()}
    assert made.keys() == {("team", template_of(one)), ("other", template_of(other))}
    (request,) = made["team", template_of(one)]["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["count"] == 4
    cluster.deliver()
    writes = list(cluster.client.writes)
    await cluster.make()
    assert cluster.client.writes == writes


async def test_a_template_that_somebody_deletes_is_made_again() -> None:
    cluster = Cluster()
    cluster.pod("a")
    await cluster.make()
    cluster.deliver()
    (made,) = cluster.templates()
    await cluster.client.delete(RESOURCE_CLAIM_TEMPLATES, made["metadata"]["name"], namespace="team")
    await cluster.make()
    cluster.deliver()
    await cluster.make()
    assert len(cluster.templates()) == 1


async def test_only_what_the_pods_note_says_is_made() -> None:
    cluster = Cluster()
    forged = cluster.pod("a")
    cluster.gone("a")
    forged["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = ladder.template_name("something else")
    cluster.show(forged)
    await cluster.make()
    assert cluster.templates() == []


async def test_a_refusal_is_told_once_and_tried_again_later_without_holding_up_others() -> None:
    cluster = Cluster()
    cluster.client.refuse["create"] = [ApiError(403, "Forbidden", "exceeded quota: q")]
    cluster.pod("a", namespace="one")
    cluster.pod("b", namespace="two")
    again_at = await cluster.make()
    assert again_at > asyncio.get_running_loop().time()
    ((name, reason),) = cluster.told
    assert name == "a"
    assert "exceeded quota: q" in reason
    (made,) = cluster.templates()
    assert made["metadata"]["namespace"] == "two"


async def test_a_note_that_was_changed_stops_nobody() -> None:
    cluster = Cluster()
    bad = cluster.pod("a")
    cluster.gone("a")
    note = '{"version":2}'
    bad["metadata"]["annotations"][names.REQUEST] = note
    bad["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = ladder.template_name(note)
    cluster.show(bad)
    cluster.pod("b")
    await cluster.make()
    assert len(cluster.templates()) == 1
    assert "was changed" in cluster.told[0][1]


async def test_what_no_pod_names_goes_and_others_templates_stay() -> None:
    cluster = Cluster()
    cluster.pod("a")
    cluster.pod("b", 2)
    await cluster.make()
    own = {"metadata": {"name": "own"}, "spec": {"spec": {"devices": {}}}}
    await cluster.client.create(RESOURCE_CLAIM_TEMPLATES, own, namespace="team")
    cluster.deliver()
    await cluster.statics.collect()
    assert len(cluster.templates()) == 3
    cluster.gone("a")
    await cluster.statics.collect()
    kept = {t["metadata"]["name"] for t in cluster.templates()}
    assert kept == {"own", template_of(cluster.pod("c", 2))}


async def test_a_copy_of_our_template_is_its_authors() -> None:
    """``kubectl get -o yaml``, another name, ``kubectl apply``: the label comes along."""
    cluster = Cluster()
    cluster.pod("a")
    await cluster.make()
    (made,) = cluster.templates()
    copied = {"metadata": {"name": "quad", "labels": made["metadata"]["labels"]}, "spec": made["spec"]}
    await cluster.client.create(RESOURCE_CLAIM_TEMPLATES, copied, namespace="team")
    cluster.deliver()
    cluster.gone("a")
    await cluster.statics.collect()
    assert [t["metadata"]["name"] for t in cluster.templates()] == ["quad"]


async def test_one_that_a_finalizer_keeps_is_deleted_once() -> None:
    cluster = Cluster()
    cluster.pod("a")
    await cluster.make()
    (made,) = cluster.templates()
    made["metadata"] |= {"finalizers": ["example.com/slow"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    cluster.deliver()
    cluster.gone("a")
    before = list(cluster.client.writes)
    await cluster.statics.collect()
    assert cluster.client.writes == before


async def test_a_finished_pod_needs_its_template_no_more() -> None:
    cluster = Cluster()
    made = cluster.pod("a")
    await cluster.make()
    cluster.deliver()
    cluster.show(made | {"status": {"phase": "Succeeded"}})
    await cluster.statics.collect()
    assert cluster.templates() == []


async def test_a_template_is_kept_for_the_grace_period() -> None:
    cluster = Cluster(grace_s=3600)
    cluster.pod("a")
    await cluster.make()
    cluster.deliver()
    cluster.gone("a")
    await cluster.statics.collect()
    assert len(cluster.templates()) == 1


def test_a_static_pod_takes_from_its_node_what_a_foreign_one_does() -> None:
    made = stored(admit(defaulted(pod(4, annotations=STATIC))).admitted)
    made["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1"}
    waiting = pods.read(msgspec.Raw(msgspec.json.encode(made)))
    assert isinstance(waiting, pods.Static)
    assert (waiting.node, waiting.takes) == ("", {})
    bound = pods.read(msgspec.Raw(msgspec.json.encode(made | {"spec": made["spec"] | {"nodeName": "n"}})))
    assert isinstance(bound, pods.Static)
    assert (bound.node, dict(bound.takes)) == ("n", {"cpu": 1000, "pods": 1})
