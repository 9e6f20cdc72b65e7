"""The chart's admission policies on a real API server of each version: whom they stop, and whom they do not.

The nodes are objects without kubelets. A node agent is whoever has the token of an agent's pod.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import itertools
import json
import string
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final

import pytest

from dradriver.api.base import names
from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.kube.client import ApiError, Client, PatchKind
from dradriver.kube.config import ServerConfig, from_kubeconfig
from dradriver.kube.resources import NODES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Resource
from dradriver.node.api_server import FIELD_MANAGER
from dradriver.node.claims import status
from dradriver.node.claims.checkpoint import PreparedClaim, PreparedDevice
from dradriver.topology.vendors import AMD
from tests import kubernetes_versions
from tests.cluster.api import Api
from tests.contract.conftest import ACCOUNTS, OF_NO_SCHEDULER, ensure_namespace
from tests.contract.planes import Planes
from tests.deploy import NAMESPACE as OURS
from tests.fakes import chart

pytestmark = [pytest.mark.cluster, pytest.mark.helm]

Object = dict[str, Any]

TEAM: Final = "team"
BOUND: Final = "vision"  # a namespace of the tenant with a partition, see the chart's variant
AGENT: Final = "gpu-topology-node"
HERE, THERE = "n1", "n2"
KINDS: Final = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
MARKS: Final = {"labels": {names.LABEL: names.LABEL_PLACED}, "annotations": {names.REQUEST: '{"main":1}'}}
ANNOTATIONS: Final = 256 * 1024  # bytes of all of an object's
LIMIT_S: Final = 120  # of one request: a pod with all the annotations that it can have costs the server seconds
GPUS: Final = [{"name": "main", "exactly": {"deviceClassName": names.DEVICE_CLASS}}]
EXTENDED: Final = "deviceclass.resource.kubernetes.io/"  # before a DeviceClass: its extended resource (KEP-5004)
IN_FORCE_S: Final = 60  # the API server looks at policies once a second, on a loaded machine less often


@dataclass(frozen=True)
class Guarded:
    """An API server with the chart's policies in force, its admin, and the configuration of whoever has a token."""

    version: str
    api: Api
    config: ServerConfig

    @contextlib.asynccontextmanager
    async def admin(self) -> AsyncIterator[Client]:
        async with Client(self.config, user_agent="contract", timeout_s=LIMIT_S) as client:
            yield client

    @contextlib.asynccontextmanager
    async def agent(self, node: str) -> AsyncIterator[Client]:
        """Give the node agent's account with the token of its pod on a node, or with one of no pod."""
        path = ACCOUNTS.path(OURS, AGENT) + "/token"
        async with self.admin() as admin:
            bound: Object = {}
            if node:
                pod = await admin.get(PODS, f"agent-{node}", namespace=OURS)
                about = {"apiVersion": "v1", "kind": "Pod", "name": f"agent-{node}", "uid": pod["metadata"]["uid"]}
                bound = {"boundObjectRef": about}
            body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": bound}
            answer = json.loads(await admin.connection.request("POST", path, body=body))
        config = replace(self.config, token=answer["status"]["token"], client_cert=b"", client_key=b"")
        async with Client(config, user_agent="contract", timeout_s=LIMIT_S) as client:
            yield client


@pytest.fixture(scope="module", params=kubernetes_versions.params())
def guarded(request: pytest.FixtureRequest, planes: Planes) -> Iterator[Guarded]:
    with planes.restored("contract", request.param) as plane:
        found = Guarded(request.param, plane.api, from_kubeconfig(plane.folder / "kubeconfig"))
        asyncio.run(_install(found))
        yield found
    asyncio.run(_until_without_force(found))


async def _until_without_force(guarded: Guarded) -> None:
    """Return once the server asks none of the policies any more, which were deleted: the next module needs that."""
    marked = {"metadata": {"name": "probe", "labels": {names.LABEL: names.LABEL_STATIC}}, "spec": {"spec": {}}}
    kept = {"metadata": {"name": "probe", "finalizers": ["example.com/a"]}, "spec": {"devices": {"requests": GPUS}}}
    async with guarded.admin() as admin, asyncio.timeout(IN_FORCE_S):
        for resource, body in ((RESOURCE_CLAIM_TEMPLATES, marked), (RESOURCE_CLAIMS, kept)):
            while "gpu-topology-" in await said(admin.create(resource, body, namespace=TEAM, dry_run=True)):
                await asyncio.sleep(0.2)


async def _install(guarded: Guarded) -> None:
    """Install what the chart has of accounts and policies, two nodes, and on each the agent's pod."""
    async with guarded.admin() as admin:
        for name in (OURS, TEAM, BOUND):
            await ensure_namespace(admin, name)
        for obj in chart.objects(*chart.VARIANTS["partitions"], kubernetes=guarded.version).values():
            if obj["kind"] in KINDS or obj["kind"].startswith("ValidatingAdmissionPolicy"):
                await admin.create(guarded.api.resource(obj), obj)
        for node in (HERE, THERE):
            await admin.create(NODES, {"metadata": {"name": node}})
            spec = {"nodeName": node, "serviceAccountName": AGENT, "containers": [{"name": "main", "image": "x"}]}
            await admin.create(PODS, {"metadata": {"name": f"agent-{node}"}, "spec": spec}, namespace=OURS)
        await admin.create(PODS, pod("probe"), namespace=TEAM)
        await claim(admin, "probe", HERE)
        async with guarded.agent(HERE) as here, guarded.agent("") as nowhere, asyncio.timeout(IN_FORCE_S):
            for turn in itertools.count():
                forged = change(admin, PODS, "probe", noted({names.ALLOCATED: str(turn)}))
                refused = [await said(forged), await said(change(nowhere, RESOURCE_CLAIMS, "probe", {"status": {}}))]
                if all("gpu-topology-" in text for text in refused) and not await said(tell(here, admin, "probe")):
                    return
                await asyncio.sleep(0.2)


def pod(name: str, **metadata: Any) -> Object:
    """Return a pod that no scheduler looks at, with the marks of one that the webhook has seen."""
    head = {"name": name} | MARKS | metadata
    return {"metadata": head, "spec": {"containers": [{"name": "main", "image": "x"}]} | OF_NO_SCHEDULER}


def result(pool: str, device: str = "gpu-0", driver: str = names.DRIVER) -> Object:
    return {"request": "main", "driver": driver, "pool": pool, "device": device}


async def claim(admin: Client, name: str, *pools: str) -> Object:
    """Create a claim that has a device of each pool, and another driver's beside it, of which its status tells."""
    requests = [{"name": "main", "exactly": {"deviceClassName": "example.com"}}]
    body = {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}}
    await admin.create(RESOURCE_CLAIMS, body, namespace=TEAM)
    results = [result(pool) for pool in pools] + [result(pools[0], driver="other.example.com")]
    where = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [pools[0]]}]}
    allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [where]}}
    told = [
        entry(one["pool"], one["driver"]) for one in results if one["pool"] != HERE or one["driver"] != names.DRIVER
    ]
    user = await admin.get(PODS, "probe", namespace=TEAM)  # the claim controller takes away who is not there
    used = [{"resource": "pods", "name": "probe", "uid": user["metadata"]["uid"]}]
    await change(admin, RESOURCE_CLAIMS, name, {"status": {"allocation": allocation, "reservedFor": used}})
    return await change(admin, RESOURCE_CLAIMS, name, {"status": {"devices": told}})


def entry(pool: str, driver: str = names.DRIVER, device: str = "gpu-0", **data: Any) -> Object:
    return {"driver": driver, "pool": pool, "device": device, "data": data}


async def change(client: Client, resource: Resource, name: str, body: Object, *, subresource: str = "status") -> Object:
    """Change an object by way of its status, or of another subresource."""
    return await client.patch(resource, name, body, kind=PatchKind.MERGE, namespace=TEAM, subresource=subresource)


async def tell(agent: Client, admin: Client, name: str, pool: str = HERE, **told: Any) -> Object:
    """Have an agent write what it writes of a claim with a device of its own."""
    found = await admin.get(RESOURCE_CLAIMS, name, namespace=TEAM, type=ResourceClaim)
    device = PreparedDevice(request="main", pool=pool, device="gpu-0", uuid="GPU-0", told=told)
    done = PreparedClaim(uid=found.metadata.uid, namespace=TEAM, name=name, devices=(device,))
    body = status.body(found, done, now=datetime.datetime.now(datetime.UTC))
    return await agent.patch(
        RESOURCE_CLAIMS,
        name,
        body,
        kind=PatchKind.APPLY,
        namespace=TEAM,
        subresource="status",
        field_manager=FIELD_MANAGER,
    )


async def said(request: Any) -> str:
    """Return how a request is refused; empty where it is not."""
    try:
        await request
    except ApiError as error:
        assert error.status in (403, 422), error
        return error.message
    return ""


def noted(annotations: Object | None = None, labels: Object | None = None) -> Object:
    found = {"annotations": annotations, "labels": labels}
    return {"metadata": {key: value for key, value in found.items() if value is not None}}


async def test_an_agent_tells_of_the_devices_of_its_own_node(guarded: Guarded) -> None:
    async with guarded.admin() as admin, guarded.agent(HERE) as here:
        before = await claim(admin, "told", HERE)
        for profile in ("1g.10gb", "2g.20gb"):  # the second time it changes what it said
            told = await tell(here, admin, "told", profile=profile)
            ours, others = (
                [one for one in told["status"]["devices"] if (one["driver"] == names.DRIVER) == mine]
                for mine in (True, False)
            )
            assert [(one["pool"], one["data"]["profile"]) for one in ours] == [(HERE, profile)]
            assert others == before["status"]["devices"]
        for key in ("allocation", "reservedFor"):
            assert told["status"][key] == before["status"][key]


async def test_a_stolen_token_of_an_agent_changes_nothing_else_of_a_claim(guarded: Guarded) -> None:
    async with guarded.admin() as admin, guarded.agent(HERE) as here, guarded.agent("") as nowhere:
        own = (await claim(admin, "own", HERE, THERE))["status"]
        theirs = (await claim(admin, "theirs", THERE))["status"]
        requests = [{"name": "main", "exactly": {"deviceClassName": "example.com"}}]
        free = {"metadata": {"name": "free"}, "spec": {"devices": {"requests": requests}}}
        await admin.create(RESOURCE_CLAIMS, free, namespace=TEAM)
        user = [{"resource": "pods", "name": "q", "uid": "00000000-0000-4000-8000-000000000001"}]
        devices = own["devices"]
        forged: dict[str, tuple[Client, str, Object]] = {
            "gives a claim's GPUs back": (here, "own", {"allocation": None, "reservedFor": None, "devices": None}),
            "takes it from its pods": (here, "own", {"reservedFor": None}),
            "gives it to another pod": (here, "own", {"reservedFor": own["reservedFor"] + user}),
            "allocates a claim": (here, "free", {"allocation": own["allocation"]}),
            "tells of another driver's device": (
                here,
                "own",
                {"devices": [one | {"data": {"x": 1}} if one["driver"] != names.DRIVER else one for one in devices]},
            ),
            "tells of another node's device": (
                here,
                "own",
                {"devices": [one | {"data": {"x": 1}} if one["pool"] == THERE else one for one in devices]},
            ),
            "drops what others told": (here, "own", {"devices": []}),
            "takes another node's GPUs": (here, "theirs", {"allocation": None, "reservedFor": None, "devices": None}),
            "tells of another node's claim": (
                here,
                "theirs",
                {"devices": [one | {"data": {"x": 1}} for one in theirs["devices"]]},
            ),
            "comes from no node": (nowhere, "own", {"devices": [*devices, entry(HERE)]}),
        }
        for what, (client, name, body) in forged.items():
            refusal = await said(change(client, RESOURCE_CLAIMS, name, {"status": body}))
            assert refusal, f"it {what}"
            # Kubernetes 1.36 asks for more rights before it asks the policy.
            assert "gpu-topology-statuses" in refusal or guarded.version >= "1.36", refusal
        assert await said(tell(here, admin, "theirs", THERE))
        for name, was in (("own", own), ("theirs", theirs)):
            assert (await admin.get(RESOURCE_CLAIMS, name, namespace=TEAM))["status"] == was


async def test_a_pods_notes_do_not_change_with_its_status(guarded: Guarded) -> None:
    alias = names.ALIAS_PREFIX + "gpus"
    async with guarded.admin() as admin:
        await admin.create(PODS, pod("noted"), namespace=TEAM)
        for what, body in {
            "grows": noted({names.REQUEST: '{"main":8}'}),
            "is taken": noted({names.REQUEST: None}),
            "is added": noted({names.SHARED_CLAIM: "x"}),
            "is added by its other prefix": noted({alias: "8"}),
            "label changes": noted(labels={names.LABEL: names.LABEL_STATIC}),
            "label goes": noted(labels={names.LABEL: None}),
            "all go": {"metadata": {"annotations": None, "labels": None}},
        }.items():
            refusal = await said(change(admin, PODS, "noted", body | {"status": {"message": "x"}}))
            assert "gpu-topology-notes" in refusal, what
        kept = (await admin.get(PODS, "noted", namespace=TEAM))["metadata"]
        assert {key: kept[key] for key in ("annotations", "labels")} == MARKS

        await admin.create(PODS, pod("foreign", annotations={}, labels={}), namespace=TEAM)
        refusal = await said(change(admin, PODS, "foreign", {"metadata": MARKS}))
        assert "gpu-topology-notes" in refusal, "nor does another become one of ours so"


async def test_a_pods_status_is_written_as_ever(guarded: Guarded) -> None:
    async with guarded.admin() as admin:
        await admin.create(PODS, pod("runs"), namespace=TEAM)
        told = await change(admin, PODS, "runs", {"metadata": MARKS, "status": {"message": "x"}})
        assert told["status"]["message"] == "x"
        theirs = {"tenant.example.com/x": "y"}
        told = await change(admin, PODS, "runs", noted(theirs, theirs))
        for key, was in MARKS.items():
            assert told["metadata"][key] == was | theirs


@pytest.mark.parametrize("subresource", ["ephemeralcontainers", "resize"])
async def test_other_subresources_of_a_pod_change_neither_metadata_nor_gates(
    guarded: Guarded, subresource: str
) -> None:
    ours = {"schedulingGates": [{"name": names.GATE}], "resourceClaims": [{"name": "x", "resourceClaimName": "y"}]}
    async with guarded.admin() as admin:
        made = pod(subresource)
        await admin.create(PODS, made | {"spec": made["spec"] | ours}, namespace=TEAM)
        forged = noted({names.REQUEST: '{"main":8}'}, {names.LABEL: None}) | {"spec": dict.fromkeys(ours)}
        await change(admin, PODS, subresource, forged, subresource=subresource)
        kept = await admin.get(PODS, subresource, namespace=TEAM)
        assert {key: kept["metadata"][key] for key in ("annotations", "labels")} == MARKS
        assert {key: kept["spec"][key] for key in ours} == ours


async def test_a_pod_is_bound_without_notes(guarded: Guarded) -> None:
    everywhere = f"/api/v1/namespaces/{TEAM}/bindings"
    async with guarded.admin() as admin:
        for name, path in ("bound", PODS.path(TEAM, "bound") + "/binding"), ("anyhow", everywhere):
            await admin.create(PODS, pod(name), namespace=TEAM)
            metadata = {"name": name, "namespace": TEAM}
            body = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": HERE}}
            for marks in ({"annotations": {names.REQUEST: '{"main":8}'}}, {"labels": {names.LABEL: "x"}}):
                refusal = await said(admin.connection.request("POST", path, body=body | {"metadata": metadata | marks}))
                assert "gpu-topology-notes" in refusal
            theirs = {"scheduler.example.com/x": "y"}
            await admin.connection.request("POST", path, body=body | {"metadata": metadata | {"annotations": theirs}})
            bound = await admin.get(PODS, name, namespace=TEAM)
            assert bound["spec"]["nodeName"] == HERE
            assert bound["metadata"]["annotations"] == MARKS["annotations"] | theirs


ASKED: Final[dict[str, tuple[Object, Object]]] = {
    "a word": ({names.POLICY: "nvlink"}, {}),
    "a word behind others": ({"a": "b", "z": "y", names.POLICY: "nvlink"}, {}),
    "a misspelt word": ({names.PREFIX + "polcy": "nvlink"}, {}),
    "a word by its other prefix": ({names.ALIAS_PREFIX + "required": "numa"}, {}),
    "a limit": ({}, {names.GPU_RESOURCE: "1"}),
    "a limit of AMD": ({}, {"amd.com/gpu": "1"}),
    "a limit of Ascend": ({}, {"cpu": "1", "huawei.com/Ascend910B4-1": "1"}),
    "a limit behind others": ({}, {"cpu": "1", "memory": "1Gi", "nvidia.com/mig-1g.5gb": "1", "x.example.com/y": "1"}),
}
NOT_ASKED: Final[dict[str, tuple[Object, Object]]] = {
    "nothing": ({}, {}),
    "others' words": ({"a": "b", "mygpu.topology/policy": "nvlink", "gpu/x": "y", "topology/policy": "z"}, {}),
    "words in values": (
        {"a": "see gpu.topology/policy", "b": '{"gpu.topology/policy": ""}, "gpu.topology/x', "c": "gpu.topology/"},
        {},
    ),
    "others' limits": ({}, {"cpu": "1", "intel.com/gpu": "1", "xnvidia.com/gpu": "1"}),
}


@pytest.fixture
async def asking(guarded: Guarded) -> AsyncIterator[Client]:
    """Give the admin of a server that asks the chart's mutating webhooks about all pods; nobody answers there."""
    (webhooks,) = (
        obj for obj in chart.objects(kubernetes=guarded.version).values() if obj["kind"].startswith("Mutating")
    )
    for hook in webhooks["webhooks"]:
        hook.pop("namespaceSelector")
    async with guarded.admin() as admin:
        kind = guarded.api.resource(webhooks)
        await admin.create(kind, webhooks)
        try:
            async with asyncio.timeout(IN_FORCE_S):
                while not await asked(admin, *ASKED["a word"]):
                    await asyncio.sleep(0.2)
            yield admin
        finally:
            await admin.delete(kind, webhooks["metadata"]["name"])
            async with asyncio.timeout(IN_FORCE_S):
                while await asked(admin, *ASKED["a word"]):
                    await asyncio.sleep(0.2)


async def asked(admin: Client, annotations: Object, limits: Object, *, containers: int = 1) -> bool:
    """Whether the API server asks a webhook about a pod."""
    own = [{"name": f"c{i}", "image": "x", "resources": {"limits": limits}} for i in range(containers)]
    body = {"metadata": {"name": "asked", "annotations": annotations}, "spec": {"containers": own} | OF_NO_SCHEDULER}
    while True:
        try:
            await admin.create(PODS, body, namespace=TEAM, dry_run=True)
        except ApiError as error:
            if error.status == HTTPStatus.GATEWAY_TIMEOUT:  # the longest text costs a busy server its time
                continue
            assert "failed calling webhook" in error.message, error
            return True
        return False


async def test_webhooks_are_asked_about_pods_with_our_words_or_gpu_limits_and_no_others(asking: Client) -> None:
    for what, (words, limits) in ASKED.items():
        assert await asked(asking, words, limits), what
        assert await asked(asking, words, limits, containers=2), what
    for what, (words, limits) in NOT_ASKED.items():
        assert not await asked(asking, words, limits), what
    assert await asked(asking, {}, {}, containers=1001), "more than it looks through"
    letters = string.ascii_letters + string.digits
    shortest = map("".join, itertools.product(letters, repeat=3))
    most = dict.fromkeys(
        itertools.islice(shortest, ANNOTATIONS // 3 - 20), ""
    )  # their text is the longest there can be
    assert not await asked(asking, most, {})
    assert await asked(asking, most | {names.POLICY: "nvlink"}, {})


async def test_what_only_the_scheduler_places_is_kept_out_of_a_partition(guarded: Guarded) -> None:
    """And nothing of it out of other namespaces."""

    def limited(name: str, limits: Object) -> Object:
        made = pod(name, annotations={}, labels={})
        made["spec"]["containers"][0]["resources"] = {"limits": limits}
        return made

    def claimed(name: str, **exactly: Any) -> Object:
        requests = [{"name": "main", "exactly": exactly}]
        return {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}}

    whole = {"deviceClassName": names.DEVICE_CLASS, "allocationMode": "ExactCount", "count": 1}
    refused: dict[str, tuple[Resource, Object, str]] = {
        "static": (PODS, pod("static", labels={names.LABEL: names.LABEL_STATIC}), names.PLACEMENT),
        "untranslated": (PODS, limited("limited", {names.GPU_RESOURCE: "1"}), "gpu.topology/translate"),
        "a MIG device": (PODS, limited("mig", {"nvidia.com/mig-1g.10gb": "1"}), "gpu.topology/translate"),
        "an NPU": (PODS, limited("npu", {"huawei.com/npu": "1"}), "gpu.topology/translate"),
        "a claim": (RESOURCE_CLAIMS, claimed("whole", **whole), "names the template of the claim"),
        "AMD's": (
            RESOURCE_CLAIMS,
            claimed("amd", **whole | {"deviceClassName": AMD.device_class}),
            "names the template of the claim",
        ),
        "slices": (RESOURCE_CLAIMS, claimed("mig", deviceClassName=names.MIG_CLASS), "names the template of the claim"),
    }
    for number, name in enumerate((names.DEVICE_CLASS, names.MIG_CLASS, AMD.device_class)):
        body = limited(f"extended-{number}", {EXTENDED + name: "1"})
        refused[f"an extended resource of {name}"] = PODS, body, "by the limit nvidia.com/gpu"
    passes: dict[str, tuple[Resource, Object]] = {
        "placed": (PODS, pod("placed")),
        "none": (PODS, limited("none", {names.GPU_RESOURCE: "0", EXTENDED + names.DEVICE_CLASS: "0", "cpu": "1"})),
        "of another's class": (PODS, limited("extended-other", {EXTENDED + "other.example.com": "1"})),
        "another's": (RESOURCE_CLAIMS, claimed("others", deviceClassName="example.com")),
        "of no request": (RESOURCE_CLAIMS, {"metadata": {"name": "empty"}, "spec": {}}),
    }
    async with guarded.admin() as admin:
        for what, (resource, body, cure) in refused.items():
            refusal = await said(admin.create(resource, body, namespace=BOUND))
            if what == "slices" and "gpu-topology-parts" in refusal:
                continue  # another policy wants more of it, and the server tells of one of them, whichever was first
            assert "has a partition" in refusal, what
            assert cure in refusal, what
            if what != "slices":
                assert not await said(admin.create(resource, body, namespace=TEAM)), what
        for what, (resource, body) in passes.items():
            assert not await said(admin.create(resource, body, namespace=BOUND)), what
        static = noted(labels={names.LABEL: names.LABEL_STATIC})
        grown = await said(admin.patch(PODS, "placed", static, kind=PatchKind.MERGE, namespace=BOUND))
        assert names.PLACEMENT in grown, "nor does one that is there become such a pod"
