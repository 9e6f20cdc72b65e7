"""Claims: what they want is written once, what they get is written apart."""

from __future__ import annotations

import pytest

from dradriver.api.base import names
from dradriver.api.base.allocating_driver import NVIDIA, bound
from dradriver.api.base.jsonpatch import Patch
from dradriver.api.claims import opaque_config
from dradriver.api.claims.claim_builder import uuid_selector
from dradriver.api.pod import claim_alternatives, resolved
from dradriver.api.pod.annotations import Annotations
from dradriver.cluster.pods.claim_users import MOST
from dradriver.kube.client import PatchKind
from dradriver.kube.resources import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from tests.contract.conftest import Object, Server, refused

RESULT: Object = {"request": "main", "driver": "example.com", "pool": "n1", "device": "gpu-0"}
ALLOCATION: Object = {"devices": {"results": [RESULT]}}


async def test_a_claims_spec_does_not_change(server: Server) -> None:
    created = await server.claim()
    more = created["spec"]["devices"]["requests"] + [{"name": "b", "exactly": {"deviceClassName": "example.com"}}]

    changed = Patch().replace("spec", "devices", "requests", value=more)
    assert (await refused(server.patch(RESOURCE_CLAIMS, "c", changed))).invalid
    spec = created["spec"] | {"devices": {}}
    assert (await refused(server.client.update(RESOURCE_CLAIMS, created | {"spec": spec}))).invalid
    labelled = await server.patch(RESOURCE_CLAIMS, "c", {"metadata": {"labels": {"a": "b"}}})
    assert labelled["spec"] == created["spec"]


@pytest.mark.parametrize(
    "words",
    [
        {"policy": "best-effort", "product": "Tesla V100*", "architecture": "volta", "min-memory": "16Gi"},
        {"policy": "nvlink", "product": "Tesla V100-SXM2-32GB", "min-bandwidth": "50.5"},
        {"required": "nvlink", "preferred": "same-pcie-root,same-numa"},
    ],
)
async def test_a_ladder_is_a_claim_and_a_template(server: Server, words: dict[str, str]) -> None:
    found = resolved.resolve(Annotations({names.PREFIX + key: text for key, text in words.items()}), {"a": 1, "b": 3})
    body = claim_alternatives.template(server.namespace, resolved.write(found), found)
    created = await server.client.create(RESOURCE_CLAIM_TEMPLATES, body, namespace=server.namespace)
    assert len(created["spec"]["spec"]["devices"]["requests"]) == 2
    claim = {"metadata": {"name": "c"}, "spec": body["spec"]["spec"]}
    await server.client.create(RESOURCE_CLAIMS, claim, namespace=server.namespace)


async def test_a_claim_of_anothers_class_may_carry_our_configuration(server: Server) -> None:
    with bound(NVIDIA):
        selector = uuid_selector(["GPU-a", "GPU-b"])
    spec = {
        "devices": {
            "requests": [
                {
                    "name": "main",
                    "exactly": {
                        "deviceClassName": NVIDIA.device_class,
                        "allocationMode": "ExactCount",
                        "count": 2,
                        "selectors": [{"cel": {"expression": selector}}],
                    },
                }
            ],
            "config": [{"opaque": {"driver": names.DRIVER, "parameters": opaque_config.make(order={}, keep_env=[])}}],
        }
    }
    body = {"metadata": {"name": "c"}, "spec": spec}
    created = await server.client.create(RESOURCE_CLAIMS, body, namespace=server.namespace)
    assert created["spec"] == spec


async def test_status_is_written_apart_from_the_rest(server: Server) -> None:
    spec = {"devices": {"requests": [{"name": "main", "exactly": {"deviceClassName": "example.com"}}]}}
    body = {"metadata": {"name": "c"}, "spec": spec, "status": {"allocation": ALLOCATION}}
    created = await server.client.create(RESOURCE_CLAIMS, body, namespace=server.namespace)
    assert not created.get("status")

    words = {"labels": {"a": "b"}, "annotations": {"a": "b"}, "finalizers": ["a/b"]}
    await server.patch_status(RESOURCE_CLAIMS, "c", {"metadata": words, "status": {"allocation": ALLOCATION}})
    allocated = await server.get(RESOURCE_CLAIMS, "c")
    assert allocated["status"]["allocation"]["devices"]["results"] == [RESULT]
    assert allocated["metadata"]["resourceVersion"] != created["metadata"]["resourceVersion"]
    for key in words:
        assert key not in allocated["metadata"]

    await server.client.update(RESOURCE_CLAIMS, allocated | {"status": {}})
    assert (await server.get(RESOURCE_CLAIMS, "c"))["status"] == allocated["status"]


async def test_an_allocation_makes_an_older_deletion_a_conflict(server: Server) -> None:
    seen = (await server.claim())["metadata"]
    await server.patch_status(RESOURCE_CLAIMS, "c", {"status": {"allocation": ALLOCATION}})

    conditions = {"uid": seen["uid"], "resource_version": seen["resourceVersion"]}
    assert (await refused(server.delete(RESOURCE_CLAIMS, "c", **conditions))).conflict


async def test_a_pods_status_is_written_apart_too(server: Server) -> None:
    await server.pod()
    await server.patch(PODS, "p", {"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Failed"}})
    assert (await server.get(PODS, "p"))["status"].get("phase") != "Failed"
    await server.patch_status(PODS, "p", {"metadata": {"labels": {"a": "c"}}, "status": {"phase": "Failed"}})

    pod = await server.get(PODS, "p")
    assert pod["status"]["phase"] == "Failed"


async def test_a_drivers_entries_are_applied_next_to_others(server: Server) -> None:
    created = (await server.claim())["metadata"]
    other = RESULT | {"driver": "other.example.com", "request": "main"}
    await server.patch_status(
        RESOURCE_CLAIMS, "c", {"status": {"allocation": {"devices": {"results": [RESULT, other]}}}}
    )

    async def apply(manager: str, entry: Object, uid: str = created["uid"]) -> Object:
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "c", "namespace": server.namespace, "uid": uid},
            "status": {"devices": [entry]},
        }
        return await server.client.patch(
            RESOURCE_CLAIMS,
            "c",
            body,
            kind=PatchKind.APPLY,
            namespace=server.namespace,
            subresource="status",
            field_manager=manager,
        )

    key = {"driver": "example.com", "pool": "n1", "device": "gpu-0"}
    theirs = key | {"driver": "other.example.com", "data": {"speed": 1}}
    await apply("other", theirs)
    for level in ("nvlink", "pcie"):
        ours = key | {"data": {"level": level}}
        applied = await apply("ours", ours)
        found = [{key: value for key, value in one.items() if value} for one in applied["status"]["devices"]]
        assert sorted(found, key=lambda one: str(one["driver"])) == [ours, theirs]
    assert (await refused(apply("ours", key | {"device": "gpu-1"}))).invalid
    assert (await refused(apply("ours", ours, uid="11111111-2222-3333-4444-555555555555"))).invalid


def _owner(name: str, uid: str) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}


async def test_as_many_pods_as_may_use_a_claim_may_own_it_and_each_once(server: Server) -> None:
    pods = [await server.pod(f"p{number}") for number in range(2)]
    some, other = (_owner(one["metadata"]["name"], one["metadata"]["uid"]) for one in pods)
    many = [_owner("p0", f"{number:08d}-0000-4000-8000-000000000000") for number in range(MOST - 1)]
    uid = (await server.claim("c", ownerReferences=[some, *many], finalizers=[names.FINALIZER]))["metadata"]["uid"]
    for _ in range(2):  # the answer to the first may have been lost
        patch = Patch().test("metadata", "uid", value=uid).add("metadata", "ownerReferences", "-", value=other)
        owned = await server.patch(RESOURCE_CLAIMS, "c", patch)
        found = [one["uid"] for one in owned["metadata"]["ownerReferences"]]
        assert found.count(other["uid"]) == 1


async def test_an_owner_is_added_to_the_claim_that_was_meant_and_to_others_only(server: Server) -> None:
    pod = await server.pod()
    one = _owner("p", pod["metadata"]["uid"])
    uid = (await server.claim())["metadata"]["uid"]
    patch = Patch().test("metadata", "uid", value=uid).add("metadata", "ownerReferences", "-", value=one)
    assert (await refused(server.patch(RESOURCE_CLAIMS, "c", patch))).invalid, "there is no list"
    other = "00000000-0000-4000-8000-000000000000"
    patch = Patch().test("metadata", "uid", value=other).add("metadata", "ownerReferences", value=[one])
    assert (await refused(server.patch(RESOURCE_CLAIMS, "c", patch))).invalid
    assert "ownerReferences" not in (await server.get(RESOURCE_CLAIMS, "c"))["metadata"]
