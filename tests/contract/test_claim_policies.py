"""What claims that anybody may write can do to others, on a real API server of each version.

They may not have the scheduler search for long, and no finalizer may keep them once their pods are gone.
"""

from __future__ import annotations

import asyncio
import copy
from typing import Any, Final

import pytest

from dradriver.api.base import gang_barrier_device, names
from dradriver.api.base.errors import WordError
from dradriver.api.claims import claim_builder, search_limits
from dradriver.kube.client import Client, PatchKind
from dradriver.kube.resources import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from tests.contract.test_gang_policies import CONTROLLER, as_account
from tests.contract.test_policies import IN_FORCE_S, TEAM, Guarded, guarded, said
from tests.deploy import NAMESPACE as OURS

__all__ = ["guarded"]
pytestmark = [pytest.mark.cluster, pytest.mark.helm]

Object = dict[str, Any]

AMD: Final = f"amd.{names.DRIVER}"
NIC: Final = {"deviceClassName": "dranet.net"}
ALL: Final = {"allocationMode": "All"}
SELECTED: Final = {"selectors": [{"cel": {"expression": 'device.driver == "x"'}}]}
TOLERANT: Final = {"tolerations": [{"operator": "Exists"}]}
DISTINCT: Final = {"distinctAttribute": "gpu.topology/parentUUID"}
SAME_ROOT: Final = {"matchAttribute": names.PCIE_ROOT}
FINALIZER: Final = "example.com/keep"


def gpu(count: int = 1, device_class: str = names.DEVICE_CLASS, **more: Any) -> Object:
    return {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count} | more


def share(cores: int = 40, count: int = 1, device_class: str = names.SHARE_CLASS) -> Object:
    return gpu(count, device_class, capacity={"requests": {"cores": str(cores), "memory": "1Gi"}})


def mig(count: int = 1, slices: int = 1) -> Object:
    requests = {"memorySlices": str(slices), "computeSlices": str(slices)}
    return gpu(count, names.MIG_CLASS, capacity={"requests": requests})


def spec(*requests: Object | list[Object], constraints: tuple[Object, ...] = ()) -> Object:
    """Return a claim's spec; a list are the alternatives of one request."""
    made = [
        {"name": f"r{i}", "firstAvailable": [way | {"name": f"a{j}"} for j, way in enumerate(ways)]}
        if isinstance(ways, list)
        else {"name": f"r{i}", "exactly": ways}
        for i, ways in enumerate(requests)
    ]
    return {"devices": {"requests": made} | ({"constraints": list(constraints)} if constraints else {})}


PAIRS: Final = tuple(SAME_ROOT | {"requests": [f"r{i}", f"r{i + 8}"]} for i in range(8))
HALVES: Final = tuple(SAME_ROOT | {"requests": [f"r{i}"]} for i in range(2))

TAKEN: Final[dict[str, Object]] = {
    "eight GPUs": spec(gpu(8)),
    "sixteen GPUs": spec(gpu(16)),
    "sixteen GPUs by eight alternatives": spec([gpu(16)] * 8),
    "eight containers": spec(*[gpu()] * 8),
    "eight containers, selected": spec(*[gpu() | SELECTED] * 8),
    "containers of different size": spec(gpu(4), gpu(2), gpu(1), gpu(1)),
    "two halves with links": spec(gpu(4), gpu(4), constraints=HALVES),
    "four containers by three alternatives": spec(*[[gpu()] * 3] * 4),
    "two containers of four GPUs by four alternatives": spec(*[[gpu(4)] * 4] * 2),
    "eight of another vendor": spec(*[gpu(device_class=AMD)] * 8),
    "this product or that": spec([gpu(8) | SELECTED, gpu(16)]),
    "different GPUs": spec(gpu(2) | SELECTED, gpu(2)),
    "all": spec(gpu() | ALL | {"count": 0}),
    "MIG slices": spec(mig(8)),
    "MIG slices of several requests": spec(mig(4), mig(), mig(3)),
    "MIG slices by alternatives": spec([mig(8), mig(2)]),
    "different MIG slices": spec(mig(1, 1), mig(1, 2), mig(1, 3)),
    "MIG slices of different GPUs": spec(mig(4), constraints=(DISTINCT,)),
    "shares": spec(*[share()] * 8),
    "different shares": spec(share(10), share(20), share(30), share(40)),
    "GPUs and NICs": spec(gpu(8), NIC | {"count": 8}),
    "pairs of GPU and NIC": spec(*[gpu()] * 8, *[NIC] * 8, constraints=PAIRS),
    "a share and a NIC": spec(share(), NIC),
    "others' devices": spec(*[NIC] * 32),
    "nothing": {"devices": {}},
}  # fmt: skip
REFUSED: Final[dict[str, Object]] = {
    "seventeen GPUs": spec(gpu(17)),
    "seventeen by an alternative": spec([gpu(1), gpu(17)]),
    "nine containers": spec(*[gpu()] * 9),
    "nine containers, selected": spec(*[gpu() | SELECTED] * 9),
    "twice eight": spec(gpu(8), gpu(8)),
    "nine of another vendor": spec(*[gpu(device_class=AMD)] * 9),
    "many alternatives": spec(*[[gpu()] * 3] * 5),
    "eight alternatives twice": spec([gpu()] * 8, [gpu()] * 8),
    "GPUs of two vendors": spec(*[gpu()] * 4, *[gpu(device_class=AMD)] * 4),
    "different selectors": spec(*[gpu()] * 4, gpu() | SELECTED),
    "different tolerations": spec(*[gpu()] * 4, gpu() | TOLERANT),
    "nine GPUs and a NIC": spec(*[gpu()] * 9, NIC),
    "seventeen shares": spec(*[share()] * 17),
    "nine shares": spec(share(count=9)),
    "nine shares of whole GPUs": spec(*[share(device_class=names.DEVICE_CLASS)] * 9),
    "different amounts": spec(*[share()] * 4, share(90)),
    "shares and a NIC": spec(*[share()] * 5, NIC),
    "shares by alternatives": spec(*[[share(), share(20)]] * 3),
    "shares, and all GPUs": spec(*[share()] * 4, gpu() | ALL | {"count": 0}),
    "shares with a constraint": spec(*[share()] * 5, constraints=(SAME_ROOT | {"requests": ["r4"]},)),
    "shares and GPUs": spec(*[share()] * 3, gpu(2)),
    "nine MIG slices": spec(mig(9)),
    "MIG slices by an alternative": spec([mig(1), mig(9)]),
    "nine of two requests": spec(mig(5), mig(4)),
    "many MIG slices of different GPUs": spec(mig(5), constraints=(DISTINCT,)),
    "many different MIG slices": spec(mig(2, 1), mig(2, 2), mig(1, 3)),
    "a gang barrier": spec(gpu(8), gpu(device_class=gang_barrier_device.CLASS)),
}


# Servers before 1.36 drop tolerations, capacity and distinctAttribute before a policy sees them.
SINCE_136: Final = (
    "MIG slices of different GPUs",
    "different tolerations",
    "different amounts",
    "many MIG slices of different GPUs",
    "many different MIG slices",
)


@pytest.fixture
async def admin(guarded: Guarded) -> Any:
    async with guarded.admin() as client:
        async with asyncio.timeout(IN_FORCE_S):
            while not (await refusal(client, REFUSED["nine containers"]) and await marked(client, [FINALIZER])):
                await asyncio.sleep(0.2)
        yield client


async def refusal(client: Client, claim: Object, *, template: bool = False, **metadata: Any) -> str:
    """Return how the server refuses a claim, or a template of it; empty if it takes it."""
    head = {"metadata": {"generateName": "c-"} | metadata}
    if template:
        body = head | {"spec": {"spec": claim}}
        return await said(client.create(RESOURCE_CLAIM_TEMPLATES, body, namespace=TEAM, dry_run=True))
    return await said(client.create(RESOURCE_CLAIMS, head | {"spec": claim}, namespace=TEAM, dry_run=True))


async def marked(client: Client, finalizers: list[str], claim: Object = TAKEN["eight GPUs"], **metadata: Any) -> str:
    return await refusal(client, claim, finalizers=finalizers, **metadata)


@pytest.mark.parametrize("template", [False, True])
async def test_a_claim_asks_for_what_the_scheduler_can_search(guarded: Guarded, admin: Client, template: bool) -> None:
    kept = {what for what in (*TAKEN, *REFUSED) if guarded.version >= "1.36" or what not in SINCE_136}
    for what in TAKEN.keys() & kept:
        assert await refusal(admin, TAKEN[what], template=template) == "", what
    for what in REFUSED.keys() & kept:
        text = await refusal(admin, REFUSED[what], template=template)
        assert "gpu-topology-parts" in text, what
        assert "at most" in text or "Only the controller" in text, what


def test_the_webhook_has_the_same_limits() -> None:
    """Of claims that the controller makes without a choice: of one class, without constraints of single requests."""
    for what, claim in (TAKEN | REFUSED).items():
        classes = {way["deviceClassName"] for r in claim["devices"].get("requests", ()) for way in ways(r)}
        if classes not in ({names.DEVICE_CLASS}, {AMD}, {names.SHARE_CLASS}) or claim["devices"].get("constraints"):
            continue
        if what == "shares by alternatives":
            continue
        try:
            search_limits.check(claim)
        except WordError:
            assert what in REFUSED, what
        else:
            assert what in TAKEN, what


def ways(request: Object) -> list[Object]:
    return request.get("firstAvailable") or [request["exactly"]]


def pinned(claim: Object) -> Object:
    """Return the spec of a claim with a selector in each request that names as many GPUs as it asks for."""
    made = copy.deepcopy(claim)
    for entry in made["devices"]["requests"]:
        if entry["exactly"]["deviceClassName"] != gang_barrier_device.CLASS:
            uuids = [f"GPU-{number}" for number in range(entry["exactly"]["count"])]
            entry["exactly"]["selectors"] = [{"cel": {"expression": claim_builder.uuid_selector(uuids)}}]
    return made


async def test_the_controllers_pinned_claims_may_ask_for_more(guarded: Guarded, admin: Client) -> None:
    placed, over = {names.LABEL: names.LABEL_PLACED}, {names.LABEL: names.LABEL_HANDED_OVER}
    owners = [claim_builder.owner("p", "00000000-0000-4000-8000-000000000001")]
    async with as_account(guarded, OURS, CONTROLLER) as controller:
        for what in ("nine containers", "nine MIG slices", "a gang barrier"):
            assert await refusal(controller, pinned(REFUSED[what]), labels=placed, ownerReferences=owners) == "", what
            handed_over = await refusal(controller, REFUSED[what], labels=over, ownerReferences=owners)
            assert "gpu-topology-parts" in handed_over, what
    assert "gpu-topology" in await refusal(admin, REFUSED["nine containers"], labels=placed)


@pytest.mark.parametrize("what", ["eight GPUs", "shares", "MIG slices", "eight of another vendor", "GPUs and NICs"])
async def test_only_finalizers_of_kubernetes_are_put_on_claims(admin: Client, what: str) -> None:
    for allowed in ([names.FINALIZER], ["foregroundDeletion"], ["orphan", names.FINALIZER]):
        assert await marked(admin, allowed, TAKEN[what]) == ""
    for finalizers in ([FINALIZER], [*allowed, FINALIZER], ["kubernetes.io/pvc-protection"], ["a.b/c"] * 40_000):
        assert "gpu-topology-finalizers" in await marked(admin, finalizers, TAKEN[what])
    assert await marked(admin, [FINALIZER], TAKEN["others' devices"]) == "", "they are not this driver's to guard"


async def test_a_finalizer_is_refused_in_every_way_to_write_it(guarded: Guarded, admin: Client) -> None:
    async def write(name: str, finalizers: list[str], kind: PatchKind = PatchKind.MERGE, **how: Any) -> str:
        body: Object = {"metadata": {"finalizers": finalizers}}
        if kind is PatchKind.APPLY:
            body |= {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
            body["metadata"]["name"] = name
        return await said(admin.patch(RESOURCE_CLAIMS, name, body, kind=kind, namespace=TEAM, **how))

    async def now(name: str) -> list[str]:
        found = await admin.get(RESOURCE_CLAIMS, name, namespace=TEAM)
        return list(found["metadata"].get("finalizers", ()))

    body = {"spec": TAKEN["eight GPUs"]}
    await admin.create(RESOURCE_CLAIMS, body | {"metadata": {"name": "written"}}, namespace=TEAM)
    probe = await admin.get(PODS, "probe", namespace=TEAM)
    owners = [claim_builder.owner("probe", probe["metadata"]["uid"])]
    async with as_account(guarded, OURS, CONTROLLER) as controller:
        made = {
            "ownerReferences": owners,
            "name": "placed",
            "labels": {names.LABEL: names.LABEL_PLACED},
            "finalizers": [names.FINALIZER],
        }
        own = {"spec": pinned(TAKEN["eight GPUs"])}
        await controller.create(RESOURCE_CLAIMS, own | {"metadata": made}, namespace=TEAM)
    for name in ("written", "placed"):
        before = await now(name)
        for kind, how in (
            (PatchKind.MERGE, {}),
            (PatchKind.APPLY, {"field_manager": "tenant"}),
        ):
            assert "gpu-topology-finalizers" in await write(name, [*before, FINALIZER], kind, **how), (name, kind)
        found = await admin.get(RESOURCE_CLAIMS, name, namespace=TEAM)
        found["metadata"]["finalizers"] = [*before, FINALIZER]
        assert "gpu-topology-finalizers" in await said(admin.update(RESOURCE_CLAIMS, found))
        await write(name, [*before, FINALIZER], subresource="status")
        assert await now(name) == before, "the server keeps them in a write of the status"
        assert await write(name, [names.FINALIZER]) == ""
        assert await write(name, []) == ""
        assert await now(name) == []


async def test_a_claim_that_had_a_finalizer_before_can_lose_it(guarded: Guarded, admin: Client) -> None:
    """It was put there under an older chart: here on a claim that asks for another class and has a GPU since."""
    metadata = {"name": "older", "finalizers": [FINALIZER, "example.com/more"]}
    await admin.create(RESOURCE_CLAIMS, {"metadata": metadata, "spec": spec(NIC)}, namespace=TEAM)
    results = [{"request": "r0", "driver": names.DRIVER, "pool": "n1", "device": "gpu-0"}]
    status = {"status": {"allocation": {"devices": {"results": results}}}}
    await admin.patch(RESOURCE_CLAIMS, "older", status, kind=PatchKind.MERGE, namespace=TEAM, subresource="status")

    async def write(**metadata: Any) -> str:
        body = {"metadata": metadata}
        return await said(admin.patch(RESOURCE_CLAIMS, "older", body, kind=PatchKind.MERGE, namespace=TEAM))

    assert await write(labels={"a": "b"}) == ""
    assert "gpu-topology-finalizers" in await write(finalizers=[FINALIZER, "example.com/third"])
    assert await write(finalizers=[FINALIZER]) == ""
    assert "gpu-topology-finalizers" in await write(finalizers=[FINALIZER, "example.com/more"])
    assert await write(finalizers=[]) == ""
