"""Templates of pods that the scheduler alone places: made for those that name them, and gone once nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec

from dradriver.api.base import names
from dradriver.api.base.pods import Pod
from dradriver.api.claims.claim_templates import Template
from dradriver.api.pod import claim_alternatives
from dradriver.cluster.records import pod_records, records
from dradriver.controller.writing.release_owner import ReleaseOwner
from dradriver.controller.writing.template_writer import TemplateWriter
from dradriver.kube.client import ApiError, Client
from dradriver.kube.reflector import Change
from dradriver.kube.resources import CLUSTER_ROLES, RESOURCE_CLAIM_TEMPLATES
from tests.fakes.admission import NVLINK, admit, defaulted, pod, stored
from tests.fakes.apistore import Store
from tests.fakes.gpucluster import DirectClient

Object = dict[str, Any]
STATIC = NVLINK | {names.PLACEMENT: "static"}


class OneByOne(Mapping[tuple[str, str], Template]):
    """Templates that may be asked for one by one; a look at all of them is an error."""

    def __init__(self, templates: Mapping[tuple[str, str], Template]) -> None:
        self._templates = templates

    def __getitem__(self, key: tuple[str, str]) -> Template:
        return self._templates[key]

    def __len__(self) -> int:
        return len(self._templates)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        raise AssertionError("all templates were looked at")


class Cluster:
    """The keeper, a server, and what reflectors show when they are asked to."""

    def __init__(self, grace_s: float = 0.0, owner: str = "") -> None:
        self.client = DirectClient(Store())
        self.seen: dict[tuple[str, str], Template] = {}
        self.told: list[tuple[str, str]] = []
        self.template_writer = TemplateWriter(
            cast("Client", self.client), OneByOne(self.seen), record=self.record,
            owner=ReleaseOwner(cast("Client", self.client), owner), grace_s=grace_s, pause_s=0.0,
        )  # fmt: skip
        self.pods: dict[tuple[str, str], Pod | pod_records.Foreign] = {}

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
        new = pod_records.read(msgspec.Raw(msgspec.json.encode(made)))
        change: Change[Pod | pod_records.Foreign] = Change(key, self.pods.pop(key, None), new)
        if new is not None:
            self.pods[key] = new
        self.template_writer.pod_changed(change)

    def gone(self, name: str, namespace: str = "team") -> None:
        key = namespace, name
        self.template_writer.pod_changed(Change(key, self.pods.pop(key), None))

    async def act(self) -> float | None:
        """Let it do once what it can do now."""
        async with asyncio.TaskGroup() as group:
            return self.template_writer.begin(group)

    def templates(self) -> list[Object]:
        where = self.client.store.collection("resource.k8s.io", "v1", "resourceclaimtemplates")
        return [obj for _, obj in sorted(where.objects.items())]

    def deliver(self) -> None:
        """Let the reflector show all that has happened to templates."""
        before = dict(self.seen)
        self.seen.clear()
        for obj in self.templates():
            key = obj["metadata"]["namespace"], obj["metadata"]["name"]
            self.seen[key] = records.known_template(msgspec.Raw(msgspec.json.encode(obj)))
        for key in sorted(before.keys() | self.seen.keys()):
            old, new = before.get(key), self.seen.get(key)
            if old is not None and new is not None and old.metadata.uid != new.metadata.uid:
                self.template_writer.template_changed(Change(key, old, None))
                old = None
            if old != new:
                self.template_writer.template_changed(Change(key, old, new))


def template_of(made: Object) -> str:
    return str(made["spec"]["resourceClaims"][0]["resourceClaimTemplateName"])


async def test_alike_pods_get_one_template_in_their_namespace() -> None:
    cluster = Cluster()
    one, two = cluster.pod("a"), cluster.pod("b")
    other = cluster.pod("c", 2, namespace="other")
    await cluster.act()
    assert template_of(one) == template_of(two)
    made = {(t["metadata"]["namespace"], t["metadata"]["name"]): t for t in cluster.templates()}
    assert made.keys() == {("team", template_of(one)), ("other", template_of(other))}
    (request,) = made["team", template_of(one)]["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["count"] == 4
    cluster.deliver()
    writes = list(cluster.client.writes)
    await cluster.act()
    assert cluster.client.writes == writes


async def test_a_template_is_deleted_with_the_release_as_it_is_now() -> None:
    cluster = Cluster(owner="gpu-topology-controller")
    cluster.pod("before")
    await cluster.act()
    for count, uid in ((2, "first"), (3, "installed-again")):
        role = {"metadata": {"name": "gpu-topology-controller", "uid": uid}, "rules": []}
        cluster.client.store.of(CLUSTER_ROLES).objects.clear()
        cluster.client.store.put(CLUSTER_ROLES, role)
        cluster.pod(uid, count)
        await cluster.act()
    owners = [[owner["uid"] for owner in t["metadata"].get("ownerReferences", ())] for t in cluster.templates()]
    assert sorted(owners) == [[], ["first"], ["installed-again"]]


async def test_a_template_that_a_user_deletes_is_made_again() -> None:
    cluster = Cluster()
    cluster.pod("a")
    await cluster.act()
    cluster.deliver()
    (made,) = cluster.templates()
    await cluster.client.delete(RESOURCE_CLAIM_TEMPLATES, made["metadata"]["name"], namespace="team")
    await cluster.act()
    cluster.deliver()
    await cluster.act()
    assert len(cluster.templates()) == 1


async def test_only_what_the_pods_note_says_is_made() -> None:
    cluster = Cluster()
    forged = cluster.pod("a")
    cluster.gone("a")
    forged["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = claim_alternatives.template_name(
        "something else"
    )
    cluster.show(forged)
    await cluster.act()
    assert cluster.templates() == []


async def test_a_refusal_is_told_once_and_tried_again_later_without_holding_up_others() -> None:
    cluster = Cluster()
    cluster.client.refuse["create"] = [ApiError(403, "Forbidden", "exceeded quota: q")]
    cluster.pod("a", namespace="one")
    cluster.pod("b", namespace="two")
    await cluster.act()
    (made,) = cluster.templates()
    assert made["metadata"]["namespace"] == "two"
    cluster.client.refuse["create"] = [ApiError(403, "Forbidden", "exceeded quota: q")]
    await cluster.act()
    await cluster.act()
    assert len(cluster.templates()) == 2
    ((name, reason),) = cluster.told
    assert name == "a"
    assert "exceeded quota: q" in reason


async def test_a_note_that_was_changed_stops_no_pod() -> None:
    cluster = Cluster()
    bad = cluster.pod("a")
    cluster.gone("a")
    note = '{"version":2}'
    bad["metadata"]["annotations"][names.REQUEST] = note
    bad["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = claim_alternatives.template_name(note)
    cluster.show(bad)
    cluster.pod("b")
    await cluster.act()
    assert len(cluster.templates()) == 1
    assert "was changed" in cluster.told[0][1]


async def test_what_no_pod_names_goes_and_others_templates_stay() -> None:
    cluster = Cluster()
    cluster.pod("a")
    cluster.pod("b", 2)
    await cluster.act()
    own = {"metadata": {"name": "own"}, "spec": {"spec": {"devices": {}}}}
    await cluster.client.create(RESOURCE_CLAIM_TEMPLATES, own, namespace="team")
    cluster.deliver()
    await cluster.act()
    assert len(cluster.templates()) == 3
    cluster.gone("a")
    await cluster.act()
    kept = {t["metadata"]["name"] for t in cluster.templates()}
    assert kept == {"own", template_of(cluster.pod("c", 2))}


async def test_a_copy_of_our_template_is_its_authors() -> None:
    """``kubectl get -o yaml``, another name, ``kubectl apply``: the label comes along."""
    cluster = Cluster()
    cluster.pod("a")
    await cluster.act()
    (made,) = cluster.templates()
    copied = {"metadata": {"name": "quad", "labels": made["metadata"]["labels"]}, "spec": made["spec"]}
    await cluster.client.create(RESOURCE_CLAIM_TEMPLATES, copied, namespace="team")
    cluster.deliver()
    cluster.gone("a")
    await cluster.act()
    assert [t["metadata"]["name"] for t in cluster.templates()] == ["quad"]


async def test_one_that_a_finalizer_keeps_is_deleted_once() -> None:
    cluster = Cluster()
    cluster.pod("a")
    await cluster.act()
    (made,) = cluster.templates()
    made["metadata"] |= {"finalizers": ["example.com/slow"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    cluster.deliver()
    cluster.gone("a")
    before = list(cluster.client.writes)
    await cluster.act()
    assert cluster.client.writes == before


async def test_a_finished_pod_needs_its_template_no_more() -> None:
    cluster = Cluster()
    made = cluster.pod("a")
    await cluster.act()
    cluster.deliver()
    cluster.show(made | {"status": {"phase": "Succeeded"}})
    await cluster.act()
    assert cluster.templates() == []


async def test_a_template_is_kept_for_the_grace_period() -> None:
    cluster = Cluster(grace_s=3600)
    cluster.pod("a")
    await cluster.act()
    cluster.deliver()
    cluster.gone("a")
    await cluster.act()
    assert len(cluster.templates()) == 1


def test_a_static_pod_takes_from_its_node_what_a_foreign_one_does() -> None:
    made = stored(admit(defaulted(pod(4, annotations=STATIC))).admitted)
    made["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1"}
    waiting = pod_records.read(msgspec.Raw(msgspec.json.encode(made)))
    assert isinstance(waiting, pod_records.Static)
    assert (waiting.node, waiting.takes) == ("", {})
    bound = pod_records.read(msgspec.Raw(msgspec.json.encode(made | {"spec": made["spec"] | {"nodeName": "n"}})))
    assert isinstance(bound, pod_records.Static)
    assert (bound.node, dict(bound.takes)) == ("n", {"cpu": 1000, "pods": 1})


def foreign(made: Object, **metadata: Any) -> Object:
    """A template of the name that a pod names, which asks for something else."""
    spec = {"devices": {"requests": [{"name": "c0", "exactly": {"deviceClassName": names.DEVICE_CLASS, "count": 8}}]}}
    return {"metadata": {"name": template_of(made)} | metadata, "spec": {"spec": spec}}


OURS = {"labels": {names.LABEL: names.LABEL_STATIC}}


async def test_one_of_its_label_that_asks_for_something_else_is_made_again_once() -> None:
    """Made while no admission policy was there, edited and replaced by hand, or of an older backup."""
    cluster = Cluster()
    made = cluster.pod("a")
    await cluster.client.create(RESOURCE_CLAIM_TEMPLATES, foreign(made, **OURS), namespace="team")
    cluster.deliver()
    await cluster.act()
    (created,) = cluster.templates()
    (request,) = created["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["count"] == 4
    writes = list(cluster.client.writes)
    for _ in range(3):
        cluster.deliver()
        await cluster.act()
    assert cluster.client.writes == writes
    assert cluster.told == []


async def test_anothers_that_asks_for_something_else_is_told_and_left() -> None:
    cluster = Cluster()
    made = cluster.pod("a")
    await cluster.client.create(RESOURCE_CLAIM_TEMPLATES, foreign(made), namespace="team")
    cluster.deliver()
    for _ in range(3):
        await cluster.act()
    ((name, reason),) = cluster.told
    assert name == "a"
    assert "was not created by the controller. Delete it, and the controller creates it again." in reason
    assert [verb for verb, _ in cluster.client.writes] == ["create", "try"]
    await cluster.client.delete(RESOURCE_CLAIM_TEMPLATES, template_of(made), namespace="team")
    cluster.deliver()
    await cluster.act()
    (created,) = cluster.templates()
    assert created["metadata"]["labels"] == OURS["labels"]


async def test_what_the_server_makes_of_a_template_is_right() -> None:
    """It writes amounts its own way, fills in what is empty, and leaves out what it has no feature for."""
    words = {names.PLACEMENT: "static", names.SHARE_CORES: "25", names.SHARE_MEMORY: "10240Mi"}
    for lacks, tries in ((set[str](), 0), ({"capacity"}, 1)):
        cluster = Cluster()
        cluster.client.store.lacks = lacks
        made = stored(admit(defaulted(pod(1, annotations=words))).admitted, uid="a")
        cluster.show(made)
        await cluster.act()
        (stands,) = cluster.templates()
        stands["spec"]["metadata"] = {"creationTimestamp": None}
        if not lacks:
            (request,) = stands["spec"]["spec"]["devices"]["requests"]
            request["exactly"]["capacity"]["requests"]["memory"] = "10Gi"
        again = Cluster()  # another replica
        again.client.store = cluster.client.store
        again.show(made)
        again.deliver()
        for _ in range(3):
            await again.act()
        assert [verb for verb, _ in again.client.writes] == ["try"] * tries
        assert again.told == []


async def test_what_cannot_be_compared_is_left() -> None:
    cluster = Cluster()
    made = cluster.pod("a")
    await cluster.client.create(RESOURCE_CLAIM_TEMPLATES, foreign(made, **OURS), namespace="team")
    cluster.deliver()
    cluster.client.refuse["try"] = [ApiError(403, "Forbidden", "exceeded quota: q")]
    await cluster.act()
    assert [verb for verb, _ in cluster.client.writes] == ["create", "try"]
    await cluster.act()
    assert [verb for verb, _ in cluster.client.writes] == ["create", "try", "try", "delete", "create"]


async def test_one_that_a_finalizer_keeps_is_replaced_when_it_is_gone() -> None:
    cluster = Cluster()
    made = cluster.pod("a")
    kept = foreign(made, **OURS, finalizers=["example.com/slow"])
    await cluster.client.create(RESOURCE_CLAIM_TEMPLATES, kept, namespace="team")
    cluster.deliver()
    for _ in range(3):
        await cluster.act()
        cluster.deliver()
    assert [verb for verb, _ in cluster.client.writes].count("delete") == 1
    (going,) = cluster.templates()
    cluster.client.store.replace(
        cluster.client.store.collection("resource.k8s.io", "v1", "resourceclaimtemplates"),
        ("team", going["metadata"]["name"]),
        going | {"metadata": going["metadata"] | {"finalizers": []}},
    )
    cluster.deliver()
    await cluster.act()
    (created,) = cluster.templates()
    assert created["metadata"]["uid"] != going["metadata"]["uid"]


def of_ladder(cluster: Cluster, version: int | None, name: str = "a") -> Object:
    """A pod as the webhook of another release admits it."""
    made = cluster.pod(name)
    cluster.gone(name)
    note = msgspec.json.decode(made["metadata"]["annotations"][names.REQUEST])
    note = {key: value for key, value in (note | {"ladder": version}).items() if value is not None}
    text = msgspec.json.encode(note).decode()
    made["metadata"]["annotations"][names.REQUEST] = text
    made["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = claim_alternatives.template_name(text)
    cluster.show(made)
    return made


async def test_an_older_note_gets_its_template_by_todays_ladder() -> None:
    cluster = Cluster()
    today, older = cluster.pod("b"), of_ladder(cluster, None)
    assert template_of(older) != template_of(today)
    await cluster.act()
    one, other = cluster.templates()
    assert one["spec"] == other["spec"]


async def test_an_older_releases_template_stays_as_it_was() -> None:
    cluster = Cluster()
    made = of_ladder(cluster, None)
    await cluster.client.create(RESOURCE_CLAIM_TEMPLATES, foreign(made, **OURS), namespace="team")
    cluster.deliver()
    await cluster.act()
    assert [verb for verb, _ in cluster.client.writes] == ["create"]


async def test_a_newer_note_waits_for_its_own_controller_and_says_so() -> None:
    cluster = Cluster()
    made = of_ladder(cluster, claim_alternatives.VERSION + 1)
    await cluster.act()
    assert cluster.templates() == []
    ((_, reason),) = cluster.told
    assert "a newer release than the controller" in reason
    # Once it was there, and was taken back, what it made serves on.
    await cluster.client.create(RESOURCE_CLAIM_TEMPLATES, foreign(made, **OURS), namespace="team")
    cluster.deliver()
    for _ in range(3):
        await cluster.act()
    assert [verb for verb, _ in cluster.client.writes] == ["create"]


async def test_a_pod_that_comes_as_its_template_is_deleted_is_served() -> None:
    cluster = Cluster()
    cluster.pod("a")
    await cluster.act()
    cluster.deliver()
    cluster.gone("a")
    delete = cluster.client.delete

    async def slow(*args: Any, **more: Any) -> bool:
        cluster.pod("b")  # while the server deletes
        return await delete(*args, **more)

    cluster.client.delete = slow  # type: ignore[method-assign]
    await cluster.act()
    assert cluster.templates() == []
    cluster.deliver()
    await cluster.act()
    assert len(cluster.templates()) == 1


async def test_a_pod_costs_no_look_at_other_pods_templates_and_the_loop_goes_on() -> None:
    cluster = Cluster()
    one = cluster.pod("a")
    for number in range(300):  # a new leader finds them there
        cluster.show(one | {"metadata": one["metadata"] | {"name": f"p{number}", "namespace": f"team-{number % 3}"}})
    await cluster.act()
    cluster.deliver()
    turns = 0

    async def beside() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.create_task(beside())
    for number in range(300):
        of_ladder(cluster, number + 2, f"q{number}")
    await cluster.act()
    other.cancel()
    assert turns >= 300
