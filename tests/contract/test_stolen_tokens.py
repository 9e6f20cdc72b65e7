"""What the tokens of the controller, a node agent and the webhook are good for, on a real API server of each version.

Each policy is asked both ways: what the code of this release writes passes, and what a thief would write does not.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import re
import string
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest

from dradriver.allocator.request import Choice, Level
from dradriver.api.base import gang_barrier_device, names
from dradriver.api.base.allocating_driver import OTHERS
from dradriver.api.base.jsonpatch import Patch
from dradriver.api.base.pods import Pod
from dradriver.api.claims import claim_builder, reservation_config_map, usage_config_maps
from dradriver.api.pod import claim_alternatives
from dradriver.api.slices import resource_slices, slice_features
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.records.placement import Placement
from dradriver.controller.main import LEASE
from dradriver.controller.writing.pod_writer import PodWriter
from dradriver.kube.client import ApiError, Client, PatchKind
from dradriver.kube.event_recorder import Recorder, Reference
from dradriver.kube.resources import (
    CONFIG_MAPS,
    EVENTS,
    LEASES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    SECRETS,
    VALIDATING_WEBHOOKS,
    Resource,
)
from dradriver.node.agent import COMPONENT
from tests.contract import built
from tests.contract.conftest import OF_NO_SCHEDULER, ensure_namespace
from tests.contract.test_gang_policies import CONTROLLER, JOBS, SUSPENDING, as_account, job, suspend
from tests.contract.test_policies import HERE, IN_FORCE_S, TEAM, THERE, Guarded, change, guarded, said
from tests.deploy import NAMESPACE as OURS
from tests.fakes import chart

__all__ = ["guarded"]
pytestmark = [pytest.mark.cluster, pytest.mark.helm]

Object = dict[str, Any]
Request = Callable[[Client], Awaitable[Any]]

WEBHOOK: Final = "gpu-topology-webhook"
EXEMPT: Final = "kube-system"
EXCLUDED: Final = "excluded-later"
SETTINGS: Final = (*SUSPENDING, "controller.idleEviction=true", f"webhook.excludedNamespaces[0]={EXCLUDED}")
ROLES: Final = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
GATES: Final = [{"name": names.GATE}]
LABELS: Final = {names.LABEL: names.LABEL_PLACED}
NAMED: Final = {"selectors": [{"cel": {"expression": claim_builder.uuid_selector(["GPU-1"])}}]}
GPU: Final = {"deviceClassName": names.DEVICE_CLASS}
NIC: Final = {"deviceClassName": "dranet.net"}
REQUESTS: Final = [{"name": "main", "exactly": GPU | NAMED}]
ANNOTATION_BYTES: Final = 256 * 1024
"""What the annotations of an object may have at most, keys and values together."""
CHOICE: Final = Choice(
    gpus=(0,), containers=((0,),), ring=(0,), busbw_gbps=0, bandwidth_gbps=0, level=Level.NVLINK, score=100, node=HERE
)


@dataclass(frozen=True)
class Accounts:
    """The accounts of the chart on a server with its policies in force, and its administrator."""

    guarded: Guarded
    admin: Client
    controller: Client
    agent: Client
    webhook: Client


@pytest.fixture(scope="module")
def bounded(guarded: Guarded) -> Guarded:
    """The chart's policies and rights, with those to suspend and to evict."""
    asyncio.run(_install(guarded))
    return guarded


@pytest.fixture
async def accounts(bounded: Guarded) -> AsyncIterator[Accounts]:
    async with (
        bounded.admin() as admin,
        as_account(bounded, OURS, CONTROLLER) as controller,
        bounded.agent(HERE) as agent,
        as_account(bounded, OURS, WEBHOOK) as webhook,
    ):
        yield Accounts(bounded, admin, controller, agent, webhook)


async def _install(guarded: Guarded) -> None:
    before = chart.objects(*chart.VARIANTS["partitions"], kubernetes=guarded.version)
    async with guarded.admin() as admin:
        for namespace in (EXEMPT, EXCLUDED):
            await ensure_namespace(admin, namespace)
        for (kind, name), obj in chart.objects(*SETTINGS, kubernetes=guarded.version).items():
            if kind in ROLES and name in (CONTROLLER, WEBHOOK):
                with contextlib.suppress(ApiError):
                    await admin.delete(guarded.api.resource(obj), name, namespace=obj["metadata"].get("namespace"))
                await admin.create(guarded.api.resource(obj), obj)
            elif kind.startswith("ValidatingAdmissionPolicy") and (kind, name) not in before:
                await admin.create(guarded.api.resource(obj), obj)
        await admin.create(JOBS, job("in-force"), namespace=TEAM)
        await admin.create(PODS, body_of("in-force"), namespace=TEAM)
        async with as_account(guarded, OURS, CONTROLLER) as controller, asyncio.timeout(IN_FORCE_S):
            for turn in itertools.count():
                refused = [
                    await said(annotate(controller, "in-force", {"a": str(turn)})),
                    await said(controller.create(RESOURCE_CLAIMS, claim("in-force"), namespace=TEAM, dry_run=True)),
                    await said(controller.create(EVENTS, event("in-force"), dry_run=True)),
                    await said(controller.create(CONFIG_MAPS, config_map("in-force"), dry_run=True)),
                    await said(suspend(controller, "in-force", {"suspend": True}, labels={"a": str(turn)})),
                    await said(evict(controller, "in-force", TEAM, dry_run=True)),
                ]
                if all("denied" in text for text in refused):
                    return
                await asyncio.sleep(0.2)


def body_of(name: str, **spec: Any) -> Object:
    """Return a pod of the driver that no scheduler looks at; its metadata can be given, too."""
    metadata = {"labels": LABELS} | spec.pop("metadata", {})
    return {
        "metadata": {"name": name} | metadata,
        "spec": {"containers": [{"name": "main", "image": "x"}]} | OF_NO_SCHEDULER | spec,
    }


def claim(name: str, *, label: str = "", pod: Object | None = None, requests: Sequence[Object] = REQUESTS) -> Object:
    metadata: Object = {"name": name} | ({"labels": {names.LABEL: label}} if label else {})
    if pod is not None:
        metadata["ownerReferences"] = [claim_builder.owner(pod["metadata"]["name"], pod["metadata"]["uid"])]
        metadata["finalizers"] = [names.FINALIZER]
    return {"metadata": metadata, "spec": {"devices": {"requests": list(requests)}}}


def template(name: str, label: str = "") -> Object:
    metadata = {"name": name} | ({"labels": {names.LABEL: label}} if label else {})
    return {"metadata": metadata, "spec": {"spec": {"devices": {"requests": REQUESTS}}}}


def config_map(name: str) -> Object:
    return {"metadata": {"name": name, "namespace": OURS}, "data": {}}


def event(name: str, *, component: str = "kubelet", instance: str = HERE, about: Object | None = None) -> Object:
    about = about or {"apiVersion": "v1", "kind": "Pod", "name": "x", "namespace": TEAM}
    return {
        "metadata": {"name": name, "namespace": about.get("namespace", "default")},
        "involvedObject": about,
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": instance,
        "reason": "Killing",
        "message": "x",
        "type": "Warning",
    }


async def annotate(
    client: Client, name: str, annotations: Mapping[str, str | None], *, namespace: str = TEAM, **body: Any
) -> Object:
    patch = {"metadata": {"annotations": dict(annotations)} | body.pop("metadata", {})} | body
    return await client.patch(PODS, name, patch, kind=PatchKind.MERGE, namespace=namespace)


async def evict(client: Client, name: str, namespace: str, uid: str = "", *, dry_run: bool = False) -> Object:
    options = {"preconditions": {"uid": uid}} if uid else {}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, "deleteOptions": options}
    return await client.create(PODS, body, namespace=namespace, subresource="eviction", dry_run=dry_run)


def placed(*nodes: str, **texts: str | None) -> Placement:
    written = {names.PREFIX + key.replace("_", "-"): text for key, text in texts.items()}
    return Placement(choice=CHOICE, hostnames={node: node for node in nodes}, uuids={}, texts=written)


async def lift(accounts: Accounts, name: str, *, namespace: str = TEAM) -> Object:
    """Have the controller remove a pod's gate, as it does, then write on it; return the pod."""
    writer = PodWriter(accounts.controller, Picture(lambda _: None, lambda: None))
    pod = await accounts.admin.get(PODS, name, namespace=namespace, type=Pod)
    await writer.tell(pod, 'Waiting: 4 GPUs, "quoted", x')
    pod = await accounts.admin.get(PODS, name, namespace=namespace, type=Pod)
    # The last two are what earlier builds wrote.
    await writer.lift(pod, placed(HERE, THERE, allocated=HERE, ring_order="0", reason=None, node=HERE, score="100"))
    pod = await accounts.admin.get(PODS, name, namespace=namespace, type=Pod)
    await writer.annotate(pod, {names.RANK_HINT: "3", names.NODE: None, names.IDLE_END: "2030-01-01T00:00:00Z"})
    return await accounts.admin.get(PODS, name, namespace=namespace)


def letters(size: int) -> Any:
    return map("".join, itertools.product(string.ascii_letters, repeat=size))


REFUSED_ANYWAY: Final = ("a gate twice", "a selector", "an affinity of a lifted pod")
"""What the API server refuses before it asks a policy."""
TERM: Final = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
PREFERRED: Final = [{"weight": 1, "preference": TERM}]
FOREIGN: Final = {
    "a": 'x", "gpu.topology/y": "z',
    "gpu.topology.example.com/a": "b",
    "gpu.zzz": '\\", "',
    "kueue.x-k8s.io/a": "b",
    "z": "é\n\t<",
}
SEVERAL: Final[dict[str, Object]] = {
    "no annotation": {},
    "others' annotations": {"metadata": {"labels": LABELS, "annotations": FOREIGN}},
    "others' behind ours": {"metadata": {"labels": LABELS, "annotations": {"z": "x", names.REQUEST: "{}"}}},
    "others' before ours": {"metadata": {"labels": LABELS, "annotations": {"a": "x", names.TEMPLATE: "a/b"}}},
    "an affinity": {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]},
                "preferredDuringSchedulingIgnoredDuringExecution": PREFERRED,
            }
        }
    },
    "another gate": {"schedulingGates": [{"name": "example.com/a"}, *GATES, {"name": "example.com/b"}]},
}


@pytest.mark.parametrize("what", SEVERAL)
async def test_the_controller_writes_its_pods(accounts: Accounts, what: str) -> None:
    name = f"own-{list(SEVERAL).index(what)}"
    gated: Object = {"schedulingGates": GATES}
    body = body_of(name, **gated | SEVERAL[what])
    before = await accounts.admin.create(PODS, body, namespace=TEAM)
    after = await lift(accounts, name)
    others = {key: text for key, text in after["metadata"]["annotations"].items() if not key.startswith(names.PREFIX)}
    theirs = before["metadata"].get("annotations", {})
    assert others == {key: text for key, text in theirs.items() if not key.startswith(names.PREFIX)}
    assert after["metadata"]["annotations"][names.RANK_HINT] == "3"
    assert GATES[0] not in after["spec"].get("schedulingGates", [])
    assert after["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]


FREE: Final = ANNOTATION_BYTES - 4096
LARGEST: Final[dict[str, Object]] = {
    "many": {"annotations": dict.fromkeys(itertools.islice(letters(3), FREE // 3), "")},
    "quoted": {"annotations": {"a": '"' * (FREE * 3 // 4), "z": "\x01" * (FREE // 4)}},
    "ours": {"annotations": {f"{names.PREFIX}{key}": "" for key in itertools.islice(letters(3), FREE // 16)}},
    "labels": {"labels": LABELS | dict.fromkeys(itertools.islice(letters(3), 20_000), "")},
}


@pytest.mark.parametrize("what", LARGEST)
async def test_the_largest_pods_are_written_too(accounts: Accounts, what: str) -> None:
    """A tenant's pod, however large, does not exhaust what a policy may cost."""
    metadata, name = {"labels": LABELS, "annotations": {}} | LARGEST[what], f"large-{what}"
    variables = [{"name": f"E{i}", "value": "x" * 1000} for i in range(500 if what == "labels" else 1)]
    containers = [{"name": "main", "image": "x", "env": variables}]
    body = body_of(name, schedulingGates=GATES, containers=containers, metadata=metadata)
    await accounts.admin.create(PODS, body, namespace=TEAM)
    after = await lift(accounts, name)
    assert after["metadata"]["annotations"].items() >= metadata["annotations"].items()
    forged = {"z": "changed", "a": None}
    assert "gpu-topology-pod-writes" in await said(annotate(accounts.controller, name, forged))


async def test_a_pod_with_very_many_scheduling_gates_is_written_too(accounts: Accounts) -> None:
    gates = [{"name": f"example.com/{key}"} for key in itertools.islice(letters(3), 20_000)]
    await accounts.admin.create(PODS, body_of("many-gates", schedulingGates=[*gates, *GATES]), namespace=TEAM)
    after = await lift(accounts, "many-gates")
    assert after["spec"]["schedulingGates"] == gates


async def test_the_token_of_the_controller_changes_nothing_else_of_pods(accounts: Accounts) -> None:
    controller, admin = accounts.controller, accounts.admin
    toleration = {"key": "a", "operator": "Exists", "effect": "NoSchedule"}
    metadata = {"labels": LABELS | {"app": "x"}, "annotations": FOREIGN, "finalizers": ["example.com/kept"]}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": PREFERRED}}
    gated = body_of(
        "gated", metadata=metadata, affinity=affinity, schedulingGates=[{"name": "example.com/a"}, *GATES],
        activeDeadlineSeconds=100,
    )  # fmt: skip
    made = await admin.create(PODS, gated, namespace=TEAM)
    await admin.create(PODS, body_of("lifted", metadata=metadata, schedulingGates=[{"name": "a.b/c"}]), namespace=TEAM)
    await admin.create(PODS, body_of("others", metadata={"labels": {}}), namespace=TEAM)
    privileged = {"name": "main", "image": "x", "securityContext": {"privileged": True}}
    await admin.create(PODS, body_of("system", containers=[privileged], schedulingGates=GATES), namespace=EXEMPT)
    image = Patch().replace("spec", "containers", 0, "image", value="evil")
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}}
    note = {names.REASON: "x"}
    forged: dict[str, tuple[str, str, Object | Patch]] = {
        "another's pod": (TEAM, "others", {"metadata": {"annotations": note}}),
        "another's image": (TEAM, "others", image),
        "a system pod": (EXEMPT, "system", {"metadata": {"annotations": note}}),
        "a system pod's gate": (EXEMPT, "system", {"spec": {"schedulingGates": []}}),
        "a system pod's image": (EXEMPT, "system", image),
        "an image": (TEAM, "gated", image),
        "a deadline": (TEAM, "gated", {"spec": {"activeDeadlineSeconds": 1}}),
        "a toleration": (TEAM, "gated", {"spec": {"tolerations": [*made["spec"]["tolerations"], toleration]}}),
        "a selector": (TEAM, "gated", {"spec": {"nodeSelector": {"a": "b"}}}),
        "an affinity of a gated pod": (TEAM, "gated", {"spec": {"affinity": {"nodeAffinity": required}}}),
        "an affinity of a lifted pod": (TEAM, "lifted", {"spec": {"affinity": {"nodeAffinity": required}}}),
        "a preference": (
            TEAM,
            "gated",
            {
                "spec": {
                    "schedulingGates": [{"name": "example.com/a"}],
                    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
                }
            },
        ),
        "another gate": (TEAM, "gated", {"spec": {"schedulingGates": GATES}}),
        "a gate twice": (TEAM, "gated", {"spec": {"schedulingGates": GATES * 2}}),
        "all gates": (TEAM, "gated", {"spec": {"schedulingGates": []}}),
        "another gate of a lifted pod": (TEAM, "lifted", {"spec": {"schedulingGates": []}}),
        "another's label": (TEAM, "gated", {"metadata": {"labels": {"app": "y"}}}),
        "a new label": (TEAM, "gated", {"metadata": {"labels": {"new": "y"}}}),
        "our label": (TEAM, "gated", {"metadata": {"labels": {names.LABEL: None}}}),
        "a new annotation": (TEAM, "gated", {"metadata": {"annotations": {"b": "y"} | note}}),
        "no finalizer": (TEAM, "gated", {"metadata": {"finalizers": []}}),
        "owners": (
            TEAM,
            "gated",
            {"metadata": {"ownerReferences": [claim_builder.owner("x", made["metadata"]["uid"])]}},
        ),
    }
    for key, text in FOREIGN.items():
        forged |= {
            f"annotation {key} changes": (TEAM, "gated", {"metadata": {"annotations": {key: text + "x"} | note}}),
            f"annotation {key} goes": (TEAM, "gated", {"metadata": {"annotations": {key: None} | note}}),
            f"annotation {key} becomes ours": (
                TEAM,
                "gated",
                {"metadata": {"annotations": {key: None, names.PREFIX + "y": f'", "{key}": "{text}'}}},
            ),
        }
    for what, (namespace, name, body) in forged.items():
        kind = PatchKind.JSON if isinstance(body, Patch) else PatchKind.MERGE
        refusal = await said(controller.patch(PODS, name, body, kind=kind, namespace=namespace))
        assert "gpu-topology-pod-writes" in refusal or (refusal and what in REFUSED_ANYWAY), f"{what}: {refusal}"
    now = await admin.get(PODS, "gated", namespace=TEAM)
    assert (now["spec"], now["metadata"]["annotations"]) == (made["spec"], made["metadata"]["annotations"])
    for key in ("annotations", "labels"):
        refusal = await said(change(controller, PODS, "gated", {"metadata": {key: {"new": "x"}}}))
        assert "gpu-topology-nominations" in refusal, "nor by way of its status"
    nominated = {"status": {"nominatedNodeName": HERE}}
    refusal = await said(
        controller.patch(
            PODS, "system", nominated, kind=PatchKind.MERGE, namespace=EXEMPT, subresource="status"
        )
    )  # fmt: skip
    assert "gpu-topology-nominations" in refusal
    await admin.patch(PODS, "gated", {"metadata": {"finalizers": []}}, kind=PatchKind.MERGE, namespace=TEAM)
    await admin.patch(PODS, "lifted", {"metadata": {"finalizers": []}}, kind=PatchKind.MERGE, namespace=TEAM)


async def test_pods_that_wait_in_a_namespace_that_is_excluded_later_are_placed(accounts: Accounts) -> None:
    controller = accounts.controller
    waiting = await accounts.admin.create(PODS, body_of("waiting", schedulingGates=GATES), namespace=EXCLUDED)
    for name, label in (("pinned", names.LABEL_PLACED), ("handed", names.LABEL_HANDED_OVER)):
        await controller.create(RESOURCE_CLAIMS, claim(name, label=label, pod=waiting), namespace=EXCLUDED)
    made = template(claim_alternatives.template_name("a note"), names.LABEL_STATIC)
    await controller.create(RESOURCE_CLAIM_TEMPLATES, made, namespace=EXCLUDED)
    about = {"apiVersion": "v1", "kind": "Pod", "name": "waiting", "namespace": EXCLUDED}
    await controller.create(EVENTS, event("e", component="gpu-topology", about=about))
    assert not (await lift(accounts, "waiting", namespace=EXCLUDED))["spec"].get("schedulingGates")
    await accounts.admin.create(PODS, body_of("others", metadata={"labels": {}}), namespace=EXCLUDED)
    refusal = await said(annotate(controller, "others", {names.REASON: "x"}, namespace=EXCLUDED))
    assert "gpu-topology-pod-writes" in refusal


async def test_pods_end_by_the_controller_only_where_the_driver_works(accounts: Accounts) -> None:
    made = await accounts.admin.create(PODS, body_of("idle"), namespace=TEAM)
    for namespace in (EXEMPT, EXCLUDED):
        needed = await accounts.admin.create(PODS, body_of("needed"), namespace=namespace)
        refusal = await said(evict(accounts.controller, "needed", namespace, needed["metadata"]["uid"]))
        assert "gpu-topology-evictions" in refusal, namespace
        assert namespace in refusal
    assert "gpu-topology-evictions" in await said(evict(accounts.controller, "idle", TEAM))
    assert "gpu-topology-deletions" in await said(accounts.controller.delete(PODS, "needed", namespace=EXEMPT))
    await evict(accounts.controller, "idle", TEAM, made["metadata"]["uid"])


async def test_the_token_of_the_controller_is_good_for_its_own_claims_only(accounts: Accounts) -> None:
    controller, admin = accounts.controller, accounts.admin
    user = await admin.create(PODS, body_of("user"), namespace=TEAM)
    for name, label in (("pinned", names.LABEL_PLACED), ("handed", names.LABEL_HANDED_OVER)):
        await controller.create(RESOURCE_CLAIMS, claim(name, label=label, pod=user), namespace=TEAM)
    await admin.create(RESOURCE_CLAIMS, claim("theirs", pod=user), namespace=TEAM)
    policy = "gpu-topology-claim-writes"

    async def patch(name: str, body: Object | Patch) -> str:
        kind = PatchKind.JSON if isinstance(body, Patch) else PatchKind.MERGE
        return await said(controller.patch(RESOURCE_CLAIMS, name, body, kind=kind, namespace=TEAM))

    foreign = claim("forged", label=names.LABEL_PLACED, pod=user)
    foreign["metadata"]["ownerReferences"][0]["kind"] = "Node"
    for what, namespace, body in (
        ("unmarked", TEAM, claim("forged", pod=user)),
        ("of another mark", TEAM, claim("forged", label="x", pod=user)),
        ("of no pod", TEAM, claim("forged", label=names.LABEL_PLACED)),
        ("of a node", TEAM, foreign),
        ("in a system namespace", EXEMPT, claim("forged", label=names.LABEL_PLACED, pod=user)),
        ("in the driver's namespace", OURS, claim("forged", label=names.LABEL_PLACED, pod=user)),
    ):
        assert policy in await said(controller.create(RESOURCE_CLAIMS, body, namespace=namespace)), what
    note = {"metadata": {"annotations": {names.IDLE_END: "2030-01-01T00:00:00Z"}}}
    sharing = Patch().test("metadata", "uid", value=(await _get(admin, "pinned"))["metadata"]["uid"])
    sharing.add(
        "metadata", "ownerReferences", "-", value=claim_builder.owner("b", "00000000-0000-4000-8000-000000000001")
    )
    assert not await patch("pinned", note)
    assert not await patch("pinned", sharing)
    assert not await patch("pinned", {"metadata": {"annotations": {names.IDLE_END: None}}})
    unprotect = Patch().remove("metadata", "finalizers", 0)
    forged: dict[str, tuple[str, Object | Patch]] = {
        "another's": ("theirs", note),
        "another's finalizer": ("theirs", unprotect),
        "an annotation": ("pinned", {"metadata": {"annotations": {"a": "b"}}}),
        "a label": ("pinned", {"metadata": {"labels": {"a": "b"}}}),
        "our label": ("pinned", {"metadata": {"labels": {names.LABEL: names.LABEL_HANDED_OVER}}}),
        "a finalizer more": ("pinned", {"metadata": {"finalizers": [names.FINALIZER, "orphan"]}}),
        "none": ("pinned", unprotect),
    }
    for what, (name, change_of) in forged.items():
        assert policy in await patch(name, change_of), what
    assert policy in await said(controller.delete(RESOURCE_CLAIMS, "theirs", namespace=TEAM))
    # A claim in use is deleted by the controller, and stays with its finalizer as long as a pod has its devices.
    where = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [HERE]}]}
    device = {"request": "main", "driver": names.DRIVER, "pool": HERE, "device": "gpu-0"}
    allocation = {"devices": {"results": [device]}, "nodeSelector": {"nodeSelectorTerms": [where]}}
    used = [{"resource": "pods", "name": "user", "uid": user["metadata"]["uid"]}]
    status = {"status": {"allocation": allocation, "reservedFor": used}}
    await change(admin, RESOURCE_CLAIMS, "pinned", status)
    await controller.delete(RESOURCE_CLAIMS, "pinned", namespace=TEAM)
    assert policy in await patch("pinned", unprotect), "its GPUs would be given to others"
    free: Object = {"metadata": {"finalizers": []}}
    await admin.patch(RESOURCE_CLAIMS, "pinned", free, kind=PatchKind.MERGE, namespace=TEAM)
    await controller.delete(RESOURCE_CLAIMS, "handed", namespace=TEAM)
    try:
        await controller.patch(RESOURCE_CLAIMS, "handed", unprotect, kind=PatchKind.JSON, namespace=TEAM)
    except ApiError as error:  # the controller manager was faster
        assert policy not in error.message


OF_CLAIMS: Final = (
    "claims of whole GPUs",
    "claims that pods share",
    "claims of shares",
    "claims of slices",
    "claims of slices that are devices",
    "claims by templates",
    "claims handed over",
)


@pytest.mark.parametrize("kind", OF_CLAIMS)
async def test_the_controller_creates_what_its_code_builds(accounts: Accounts, kind: str) -> None:
    for body in built.BUILDERS[kind](accounts.guarded.version):
        body["metadata"]["namespace"] = TEAM
        requests = body["spec"]["devices"]["requests"]
        create = accounts.controller.create(RESOURCE_CLAIMS, body, namespace=TEAM, dry_run=True)
        others = {ledger.device_class for ledger in OTHERS}
        if any(entry.get("exactly", {}).get("deviceClassName") in others for entry in requests):
            assert "only claims for GPUs of gpu.topology" in await said(create)
        else:
            await create


def exactly(*ways: Object) -> list[Object]:
    return [{"name": f"r{number}", "exactly": way} for number, way in enumerate(ways)]


def named(text: str, **more: Any) -> Object:
    return GPU | {"selectors": [{"cel": {"expression": text}}]} | more


SEAT: Final = {"deviceClassName": gang_barrier_device.CLASS}
UUID: Final = claim_builder.uuid_selector(["GPU-1"])
BY_LADDER: Final[list[Object]] = [{"name": "main", "firstAvailable": [GPU | NAMED | {"name": "a"}]}]
FORGED: Final[dict[str, list[Object]]] = {
    "nothing": [],
    "others' devices": exactly({"deviceClassName": "example.com"} | NAMED),
    "GPUs and others' devices": exactly(GPU | NAMED, {"deviceClassName": "example.com"}),
    "NICs alone": exactly(NIC),
    "a gang barrier alone": exactly(SEAT),
    "all GPUs": exactly(GPU | NAMED | {"allocationMode": "All"}),
    "admin access": exactly(GPU | NAMED | {"adminAccess": True}),
}
UNNAMED: Final[dict[str, list[Object]]] = {
    "any GPU": exactly(GPU),
    "one of two": exactly(named(claim_builder.uuid_selector(["GPU-1", "GPU-2"]))),
    "two of one": exactly(named(UUID, count=2)),
    "any of one's kind": exactly(named('device.attributes["gpu.topology"].?type.orValue("") == "gpu"')),
    "this one or any": exactly(named(f"{UUID} || true")),
    "this one or any, by a choice": exactly(named(f"{UUID} ? true : true")),
    "not this one": exactly(named(f"!({UUID})")),
    "one without a name": exactly(named(claim_builder.uuid_selector([""]))),
    "one of a driver that is not there": exactly(
        named(UUID.replace("gpu.topology", "example.com").replace("GPU-1", ""))
    ),
    "one, then any": exactly(GPU | NAMED, GPU),
    "any share": exactly({"deviceClassName": names.SHARE_CLASS}),
    "alternatives": [BY_LADDER[0] | {"firstAvailable": [GPU | NAMED | {"name": "a"}, GPU | {"name": "b"}]}],
    "two gang barriers": exactly(GPU | NAMED, SEAT, SEAT),
}


async def test_the_token_of_the_controller_creates_no_other_claims(accounts: Accounts) -> None:
    user = await accounts.admin.create(PODS, body_of("claimant"), namespace=TEAM)
    # Without this label the API server itself refuses adminAccess.
    watched = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    await accounts.admin.patch(NAMESPACES, TEAM, watched, kind=PatchKind.MERGE)
    refused = re.compile("gpu-topology-(claim-writes|parts)")

    async def create(requests: list[Object], label: str) -> str:
        body = claim("forged", label=label, pod=user, requests=requests)
        return await said(accounts.controller.create(RESOURCE_CLAIMS, body, namespace=TEAM, dry_run=True))

    for what, requests in FORGED.items():
        for label in (names.LABEL_PLACED, names.LABEL_HANDED_OVER):
            assert refused.search(await create(requests, label)), (what, label)
    for what, requests in UNNAMED.items():
        assert refused.search(await create(requests, names.LABEL_PLACED)), what
    for requests in (exactly(GPU | NAMED, SEAT), exactly(GPU | NAMED, NIC)):
        assert await create(requests, names.LABEL_PLACED) == ""
    for requests in (exactly(GPU), BY_LADDER, exactly(GPU, NIC)):
        assert await create(requests, names.LABEL_HANDED_OVER) == ""


async def _get(admin: Client, name: str) -> Object:
    return await admin.get(RESOURCE_CLAIMS, name, namespace=TEAM)


async def test_the_token_of_the_controller_is_good_for_its_own_templates_only(accounts: Accounts) -> None:
    controller = accounts.controller
    own = claim_alternatives.template_name("a note")
    kind, policy = RESOURCE_CLAIM_TEMPLATES, "gpu-topology-template-writes"
    await accounts.admin.create(kind, template("theirs"), namespace=TEAM)
    await controller.create(kind, template(own, names.LABEL_STATIC), namespace=TEAM)
    probe = template("") | {"metadata": {"generateName": names.CLAIM_PREFIX}}
    await controller.create(kind, probe, namespace=TEAM, dry_run=True)
    for what, namespace, body in (
        ("of another name", TEAM, template("theirs-too", names.LABEL_STATIC)),
        ("unmarked", TEAM, template(own)),
        ("a probe that stays", TEAM, probe),
        ("in a system namespace", EXEMPT, template(own, names.LABEL_STATIC)),
    ):
        assert policy in await said(controller.create(kind, body, namespace=namespace)), what
    assert policy in await said(controller.delete(kind, "theirs", namespace=TEAM))
    assert await controller.delete(kind, own, namespace=TEAM)


async def test_the_token_of_the_controller_suspends_and_writes_nothing_else_on_owners(accounts: Accounts) -> None:
    own = {names.RESTART: "{}", names.IDLE: "{}"}
    made = job("owner") | {"metadata": {"name": "owner", "labels": {"app": "x"}, "annotations": FOREIGN}}
    await accounts.admin.create(JOBS, made, namespace=TEAM)
    await accounts.admin.create(JOBS, job("owner"), namespace=EXEMPT)
    told = await suspend(
        accounts.controller, "owner", {"suspend": True}, annotations=own, labels={names.RESTARTING: "true"}
    )
    assert told["metadata"]["annotations"] == FOREIGN | own
    await suspend(accounts.controller, "owner", {"suspend": True}, annotations=own, labels={names.RESTARTING: None})
    for metadata in (
        {"annotations": {"a": "y"}},
        {"annotations": {"new": "y"}},
        {"labels": {"app": "y"}},
        {"labels": {"app": None}},
        {"finalizers": ["example.com/a"]},
    ):
        refusal = await said(suspend(accounts.controller, "owner", {"suspend": True}, **metadata))
        assert "gpu-topology-suspends-jobs" in refusal, metadata
    there = accounts.controller.patch(
        JOBS, "owner", {"spec": {"suspend": False}}, kind=PatchKind.MERGE, namespace=EXEMPT
    )
    assert "gpu-topology-suspends-jobs" in await said(there)


async def test_an_agent_creates_slices_under_names_of_its_own_node_only(accounts: Accounts) -> None:
    def piece(name: str, node: str = HERE) -> Object:
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": names.DRIVER, "nodeName": node, "pool": pool, "devices": [{"name": "gpu-0"}]}
        return {"metadata": {"name": name}, "spec": spec}

    for probe in slice_features.probes(HERE, (await accounts.admin.get(NODES, HERE))["metadata"]["uid"]):
        await accounts.agent.create(RESOURCE_SLICES, probe, dry_run=True)
        assert "gpu-topology-slices" in await said(accounts.agent.create(RESOURCE_SLICES, probe))
    for index in (0, 0xABCDE):
        made = await accounts.agent.create(RESOURCE_SLICES, piece(resource_slices.slice_name(index, HERE)))
        made["spec"]["devices"] = []
        await accounts.agent.update(RESOURCE_SLICES, made)
    for name in (
        resource_slices.slice_name(0, THERE),
        resource_slices.slice_name(1, f"x-{HERE}"),
        resource_slices.slice_name(1, f"{HERE}0"),
        gang_barrier_device.SLICE,
        f"x{resource_slices.slice_name(1, HERE)}",
        f"g0000-{names.DRIVER}-{HERE}",
        f"00001-gpuxtopology-{HERE}",
        HERE,
    ):
        assert "gpu-topology-slices" in await said(accounts.agent.create(RESOURCE_SLICES, piece(name))), name
    for index in (0, 0xABCDE):
        assert await accounts.agent.delete(RESOURCE_SLICES, resource_slices.slice_name(index, HERE))


async def test_a_node_with_the_longest_name_publishes_under_it(accounts: Accounts) -> None:
    long = ".".join(["n" * 60] * 4) + ".abc"
    await accounts.admin.create(NODES, {"metadata": {"name": long}})
    pod = {"nodeName": long, "serviceAccountName": "gpu-topology-node", "containers": [{"name": "main", "image": "x"}]}
    await accounts.admin.create(PODS, {"metadata": {"name": f"agent-{long}"[:253]}, "spec": pod}, namespace=OURS)
    pool = {"name": long, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": names.DRIVER, "nodeName": long, "pool": pool, "devices": []}
    name = resource_slices.slice_name(0, long)
    async with accounts.guarded.agent(long) as agent:
        await agent.create(RESOURCE_SLICES, {"metadata": {"name": name}, "spec": spec})
        for other in (resource_slices.slice_name(0, HERE), name[:-17], name[:-30] + "x" + name[-29:]):
            body = {"metadata": {"name": other}, "spec": spec}
            assert "gpu-topology-slices" in await said(agent.create(RESOURCE_SLICES, body)), other


def reference(kind: str, name: str, namespace: str = "", version: str = "v1") -> Reference:
    return Reference(kind, namespace, name, "00000000-0000-4000-8000-000000000001", version)


async def test_events_are_reported_under_the_own_name_and_about_the_drivers_objects(accounts: Accounts) -> None:
    said_by = {
        "gpu-topology": (
            accounts.controller,
            [
                reference("Pod", "p", TEAM),
                reference("ResourceClaim", "c", TEAM, "resource.k8s.io/v1"),
                reference("Namespace", TEAM),
                reference("DeviceClass", gang_barrier_device.CLASS, "", "resource.k8s.io/v1"),
                reference("ConfigMap", "gpu-topology-policies", OURS),
                reference("DaemonSet", "gpu-topology-node", OURS, "apps/v1"),
            ],
        ),
        COMPONENT: (accounts.agent, [reference("Pod", "p", TEAM), reference("Node", HERE)]),
    }
    for component, (client, abouts) in said_by.items():
        for about in abouts:
            for _ in range(2):  # the second recorder finds the Event there, and counts
                recorder = Recorder(client, component=component, instance=HERE)
                await recorder.record(about=about, type="Warning", reason="X", message="x", action="X")
    found, _ = await accounts.admin.list(EVENTS)
    counts = {
        (one["reportingComponent"], one["involvedObject"]["kind"]): one["count"] for one in found if "count" in one
    }
    for component, (_, abouts) in said_by.items():
        assert [counts.get((component, about.kind)) for about in abouts] == [2] * len(abouts)

    node = {"apiVersion": "v1", "kind": "Node", "name": THERE}
    system = {"apiVersion": "v1", "kind": "Pod", "name": "x", "namespace": EXEMPT}
    secret = {"apiVersion": "v1", "kind": "Secret", "name": "x", "namespace": TEAM}
    other = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "gpu-topology-node", "namespace": TEAM}
    theirs = event("of-the-kubelet")
    await accounts.admin.create(EVENTS, theirs)
    for what, client, body in (
        ("the kubelet's", accounts.agent, event("e")),
        ("the kubelet's", accounts.controller, event("e")),
        ("the controller's", accounts.agent, event("e", component="gpu-topology")),
        ("an agent's", accounts.controller, event("e", component=COMPONENT)),
        ("of another source", accounts.agent, event("e", component=COMPONENT) | {"source": {"component": "kubelet"}}),
        ("of another node", accounts.agent, event("e", component=COMPONENT, instance=THERE)),
        ("about another node", accounts.agent, event("e", component=COMPONENT, about=node)),
        ("about a secret", accounts.agent, event("e", component=COMPONENT, about=secret)),
        ("about a secret", accounts.controller, event("e", component="gpu-topology", about=secret)),
        ("about a node", accounts.controller, event("e", component="gpu-topology", about=node)),
        ("about another DaemonSet", accounts.controller, event("e", component="gpu-topology", about=other)),
        ("about a system pod", accounts.controller, event("e", component="gpu-topology", about=system)),
    ):
        assert "gpu-topology-events" in await said(client.create(EVENTS, body)), what
    for client, component in ((accounts.agent, COMPONENT), (accounts.controller, "gpu-topology")):
        taken = {"source": {"component": component}, "reportingComponent": component, "reportingInstance": HERE}
        for body in ({"count": 7}, taken):
            patch = client.patch(EVENTS, "of-the-kubelet", body, kind=PatchKind.MERGE, namespace=TEAM)
            assert "gpu-topology-events" in await said(patch)


async def test_in_the_drivers_namespace_the_accounts_create_only_what_they_keep_there(accounts: Accounts) -> None:
    secret = "gpu-topology-webhook-certificate"

    def body(name: str, **more: Any) -> Object:
        return {"metadata": {"name": name, "namespace": OURS}} | more

    passes: list[tuple[Client, Resource, Object]] = [
        (accounts.controller, LEASES, body(LEASE, spec={})),
        *(
            (accounts.controller, CONFIG_MAPS, config_map(name))
            for name in (*usage_config_maps.every_name(), reservation_config_map.NAME)
        ),
        (accounts.webhook, SECRETS, body(secret, type="Opaque", data={})),
    ]
    for client, resource, wanted in passes:
        assert not await said(client.create(resource, wanted, dry_run=True)), wanted
    account = {"annotations": {"kubernetes.io/service-account.name": "gpu-topology-node"}}
    token = body(secret, type="kubernetes.io/service-account-token")
    token["metadata"] |= account
    for client, resource, forged in (
        (accounts.controller, LEASES, body("another", spec={})),
        (accounts.controller, CONFIG_MAPS, config_map("another")),
        (accounts.controller, CONFIG_MAPS, config_map("gpu-topology-usage-1000")),
        (accounts.webhook, SECRETS, body("another", type="Opaque")),
        (accounts.webhook, SECRETS, token),
    ):
        assert "gpu-topology-creations" in await said(client.create(resource, forged)), forged


async def test_the_token_of_the_webhook_writes_the_bundles_of_its_configurations_and_nothing_else(
    accounts: Accounts,
) -> None:
    admin, webhook = accounts.admin, accounts.webhook
    rendered = chart.objects(kubernetes=accounts.guarded.version)
    authority = base64.b64encode(accounts.guarded.config.ca).decode()
    for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        made = rendered[kind.kind, WEBHOOK]
        for hook in made["webhooks"]:  # nobody answers, and no other test is to be held up
            hook["objectSelector"] = {"matchLabels": {"nobody": "has-this"}}
        await admin.create(kind, made)
        await admin.create(kind, made | {"metadata": {"name": "another"}})
        try:
            bundle = Patch().test("webhooks", 0, "name", value=made["webhooks"][0]["name"])
            bundle.add("webhooks", 0, "clientConfig", "caBundle", value=authority)
            await webhook.patch(kind, WEBHOOK, bundle, kind=PatchKind.JSON)
            stored = await admin.get(kind, WEBHOOK)
            assert stored["webhooks"][0]["clientConfig"]["caBundle"] == authority
            rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}
            hook = ("webhooks", 0)
            forged = {
                "all kinds": Patch().replace(*hook, "rules", value=[rule]),
                "no condition": Patch().remove(*hook, "matchConditions"),
                "all namespaces": Patch().replace(*hook, "namespaceSelector", value={}),
                "another host": Patch().replace(*hook, "clientConfig", value={"url": "https://evil.example.com/"}),
                "another service": Patch().replace(*hook, "clientConfig", "service", "name", value="evil"),
                "another namespace": Patch().replace(*hook, "clientConfig", "service", "namespace", value="evil"),
                "fails open": Patch().replace(*hook, "failurePolicy", value="Ignore"),
                "one more": Patch().add("webhooks", "-", value=stored["webhooks"][0] | {"name": "more.gpu.topology"}),
                "one less": Patch().remove(*hook),
                "an annotation": Patch().add("metadata", "annotations", value={"example.com/a": "b"}),
                "a finalizer": Patch().add("metadata", "finalizers", value=["example.com/a"]),
            }
            for what, patch in forged.items():
                refusal = await said(webhook.patch(kind, WEBHOOK, patch, kind=PatchKind.JSON))
                assert "gpu-topology-configurations" in refusal or "is invalid" in refusal, f"{what}: {refusal}"
            assert "cannot patch" in await said(webhook.patch(kind, "another", bundle, kind=PatchKind.JSON))
            assert (await admin.get(kind, WEBHOOK))["webhooks"] == stored["webhooks"]
        finally:
            for name in (WEBHOOK, "another"):
                await admin.delete(kind, name)
