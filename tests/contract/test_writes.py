"""Creating, changing and deleting: what is refused, and with which words."""

from __future__ import annotations

from typing import Any

import pytest

from dradriver.api.base.jsonpatch import Patch
from dradriver.kube.resources import LEASES, PODS, RESOURCE_CLAIMS
from tests.contract.conftest import Server, refused


async def test_an_object_is_created_once(server: Server) -> None:
    created = await server.claim()

    assert created["metadata"]["uid"]
    assert created["metadata"]["resourceVersion"]
    assert created["metadata"]["creationTimestamp"].endswith("Z")
    assert await server.get(RESOURCE_CLAIMS, "c") == created
    error = await refused(server.claim())
    assert error.already_exists
    assert not error.conflict


async def test_a_name_can_be_left_to_the_server(server: Server) -> None:
    body = {"metadata": {"generateName": "x-"}, "spec": {}}
    first = await server.client.create(RESOURCE_CLAIMS, body, namespace=server.namespace)
    second = await server.client.create(RESOURCE_CLAIMS, body, namespace=server.namespace)

    names = {one["metadata"]["name"] for one in (first, second)}
    assert len(names) == 2
    assert all(name.startswith("x-") for name in names)


async def test_what_is_not_there_is_not_found(server: Server) -> None:
    assert (await refused(server.get(PODS, "p"))).not_found
    assert (await refused(server.patch(PODS, "p", {"metadata": {"labels": {"a": "b"}}}))).not_found
    assert (await refused(server.patch(PODS, "p", Patch().test("metadata", "name", value="p")))).not_found
    assert not await server.delete(PODS, "p")


async def test_an_update_of_an_older_version_is_a_conflict(server: Server) -> None:
    lease = await server.client.create(LEASES, {"metadata": {"name": "l"}, "spec": {}}, namespace=server.namespace)
    newer = await server.client.update(LEASES, lease | {"spec": {"holderIdentity": "me"}})

    assert newer["spec"]["holderIdentity"] == "me"
    assert (await refused(server.client.update(LEASES, lease | {"spec": {"holderIdentity": "you"}}))).conflict
    other = newer | {"metadata": newer["metadata"] | {"uid": "another"}}
    assert (await refused(server.client.update(LEASES, other))).conflict


@pytest.mark.parametrize("condition", ["uid", "resource_version"])
async def test_a_deletion_can_be_of_one_state_only(server: Server, condition: str) -> None:
    created = (await server.claim())["metadata"]
    changed = (await server.patch(RESOURCE_CLAIMS, "c", {"metadata": {"labels": {"a": "b"}}}))["metadata"]
    wrong = {"uid": "another", "resource_version": created["resourceVersion"]}
    right = {"uid": changed["uid"], "resource_version": changed["resourceVersion"]}

    assert (await refused(server.delete(RESOURCE_CLAIMS, "c", **{condition: wrong[condition]}))).conflict
    assert await server.delete(RESOURCE_CLAIMS, "c", **{condition: right[condition]})
    assert not await server.delete(RESOURCE_CLAIMS, "c", **{condition: right[condition]})


async def test_finalizers_hold_what_was_deleted(server: Server) -> None:
    await server.claim(finalizers=["example.com/hold"])

    assert await server.delete(RESOURCE_CLAIMS, "c")
    held = await server.get(RESOURCE_CLAIMS, "c")
    assert held["metadata"]["deletionTimestamp"]
    assert (await refused(server.claim())).already_exists
    assert await server.delete(RESOURCE_CLAIMS, "c")
    more: dict[str, Any] = {"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}}
    assert (await refused(server.patch(RESOURCE_CLAIMS, "c", more))).invalid

    await server.patch(RESOURCE_CLAIMS, "c", {"metadata": {"finalizers": None}})
    assert (await refused(server.get(RESOURCE_CLAIMS, "c"))).not_found


async def test_a_json_patch_applies_as_a_whole_or_not_at_all(server: Server) -> None:
    version = (await server.pod(metadata={"annotations": {"a": "1"}}))["metadata"]["resourceVersion"]
    change = Patch().test("metadata", "resourceVersion", value=version).add("metadata", "annotations", "b/c", value="2")

    changed = await server.patch(PODS, "p", change)
    assert changed["metadata"]["annotations"] == {"a": "1", "b/c": "2"}
    again = change.add("metadata", "annotations", "d", value="3")
    assert (await refused(server.patch(PODS, "p", again))).invalid
    missing = Patch().add("metadata", "annotations", "d", value="3").remove("metadata", "annotations", "e")
    assert (await refused(server.patch(PODS, "p", missing))).invalid
    assert (await server.get(PODS, "p"))["metadata"] == changed["metadata"]


async def test_a_json_patch_needs_the_parent_of_what_it_adds(server: Server) -> None:
    await server.pod()

    assert (await refused(server.patch(PODS, "p", Patch().add("metadata", "annotations", "a", value="1")))).invalid


async def test_a_merge_patch_can_be_of_one_object_or_state_only(server: Server) -> None:
    created = (await server.pod())["metadata"]
    labels = {"labels": {"a": "b"}}

    assert (await refused(server.patch(PODS, "p", {"metadata": labels | {"uid": "another"}}))).invalid
    changed = await server.patch(PODS, "p", {"metadata": labels | {"uid": created["uid"]}})
    assert changed["metadata"]["labels"] == {"a": "b"}
    outdated = {"metadata": {"labels": {"a": None}, "resourceVersion": created["resourceVersion"]}}
    assert (await refused(server.patch(PODS, "p", outdated))).conflict
    removed = await server.patch(PODS, "p", {"metadata": {"labels": {"a": None}}})
    assert not removed["metadata"].get("labels")


async def test_a_patch_that_changes_nothing_makes_no_version(server: Server) -> None:
    before = await server.pod(metadata={"labels": {"a": "b"}})

    assert await server.patch(PODS, "p", {"metadata": {"labels": {"a": "b"}}}) == before


async def test_values_of_annotations_are_texts(server: Server) -> None:
    await server.pod()

    error = await refused(server.patch(PODS, "p", {"metadata": {"annotations": {"a": 1}}}))
    assert error.status in (400, 422)


async def test_annotations_have_a_limit(server: Server) -> None:
    await server.pod()
    await server.patch(PODS, "p", {"metadata": {"annotations": {"a": "x" * 250_000}}})

    error = await refused(server.patch(PODS, "p", {"metadata": {"annotations": {"b": "x" * 13_000}}}))
    assert error.invalid
