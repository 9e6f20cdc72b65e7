"""What the controller may write for gangs, on a real API server of each version: that, and nothing beside it.

The accounts are the chart's: the controller's, an agent's with the token of its pod, and one without any right.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import itertools
import json
import string
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import msgspec
import pytest

from dradriver.api.base import gang_barrier_device, names
from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.api.base.pods import Pod
from dradriver.api.claims import claim_builder
from dradriver.api.gangs import suspendable_owners
from dradriver.api.slices import resource_slices
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.controller.owners.evict_pods import evict
from dradriver.controller.owners.owner_kinds import OwnerKinds
from dradriver.controller.owners.owner_restarts import OwnerRestarts
from dradriver.controller.owners.owner_suspension import left_suspended
from dradriver.controller.writing.commit import MANAGER
from dradriver.controller.writing.gang_barrier_slice import SeatSlice
from dradriver.controller.writing.write_outcome import RefusedError
from dradriver.kube.client import ApiError, Client, PatchKind
from dradriver.kube.resources import (
    DEVICE_CLASSES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from tests.contract.conftest import ACCOUNTS
from tests.contract.test_policies import (
    HERE,
    IN_FORCE_S,
    LIMIT_S,
    TEAM,
    Guarded,
    change,
    entry,
    guarded,
    pod,
    result,
    said,
    tell,
)
from tests.deploy import NAMESPACE as OURS
from tests.fakes import chart

__all__ = ["guarded"]
pytestmark = [pytest.mark.cluster, pytest.mark.helm]

Object = dict[str, Any]

CONTROLLER: Final = "gpu-topology-controller"
SHARE: Final = "11111111-2222-4333-8444-555555555555"
SEAT: Final = result(names.SEAT_POOL, gang_barrier_device.DEVICE) | {"request": "seat", "shareID": SHARE}
NAMED: Final = [{"cel": {"expression": claim_builder.uuid_selector(["GPU-1"])}}]
GPU: Final = {"name": "main", "exactly": {"deviceClassName": names.DEVICE_CLASS, "selectors": NAMED}}
PLACED: Final = {names.LABEL: names.LABEL_PLACED}
STATEFUL_SETS: Final = Resource("apps", "v1", "statefulsets", "StatefulSet", namespaced=True)
JOBS: Final = Resource("batch", "v1", "jobs", "Job", namespaced=True)
JOBSETS: Final = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet", namespaced=True)
DEFINITIONS: Final = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
SUSPENDING: Final = tuple(f"controller.gangOwners.{kind}.suspend=true" for kind in ("Job", "JobSet", "StatefulSet"))
POLICYS: Final = ("tells of a GPU", "tells of a claim that is not its own", "is an agent that lets a pod go")
_KEYS: Final = map("".join, itertools.product(string.ascii_letters, repeat=3))
MOST: Final = dict.fromkeys(itertools.islice(_KEYS, 40_000), "")  # annotations, as any tenant may send


@contextlib.asynccontextmanager
async def as_account(guarded: Guarded, namespace: str, name: str) -> AsyncIterator[Client]:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    async with guarded.admin() as admin:
        answer = json.loads(
            await admin.connection.request("POST", ACCOUNTS.path(namespace, name) + "/token", body=body)
        )
    config = replace(guarded.config, token=answer["status"]["token"], client_cert=b"", client_key=b"")
    async with Client(config, user_agent="contract", timeout_s=LIMIT_S) as client:
        yield client


@pytest.fixture(scope="module")
def suspending(guarded: Guarded) -> Guarded:
    """The chart's policies in force, with the right to suspend Jobs, and its device class."""
    asyncio.run(_install(guarded))
    return guarded


async def _install(guarded: Guarded) -> None:
    before, after = (chart.objects(*some, kubernetes=guarded.version) for some in ((), SUSPENDING))
    async with guarded.admin() as admin:
        for key, obj in after.items():
            if key not in before or key == ("DeviceClass", gang_barrier_device.CLASS):
                await admin.create(guarded.api.resource(obj), obj)
        role = guarded.api.resource(after["ClusterRole", CONTROLLER])
        now = await admin.get(role, CONTROLLER)
        await admin.update(role, now | {"rules": after["ClusterRole", CONTROLLER]["rules"]})
        await admin.create(JOBS, job("probe"), namespace=TEAM)
        async with as_account(guarded, OURS, CONTROLLER) as controller, asyncio.timeout(IN_FORCE_S):
            await claim(admin, controller, "probe-seat")
            for turn in itertools.count():
                await admin.create(PODS, pod(f"probe-{turn}"), namespace=TEAM)
                refused = [
                    await said(change(controller, PODS, "probe", {"status": {"message": str(turn)}})),
                    await said(change(controller, RESOURCE_CLAIMS, "probe-seat", {"status": {"devices": []}})),
                    await said(controller.create(RESOURCE_SLICES, offering("probe"), dry_run=True)),
                    await said(suspend(controller, "probe", {"backoffLimit": 3 + turn})),
                    await said(controller.delete(PODS, f"probe-{turn}", namespace=TEAM)),
                    await said(suspend(admin, "probe", {}, labels={names.RESTARTING: str(turn)})),
                ]
                if all("gpu-topology-" in text and "denied" in text for text in refused[::2] + refused[3:]) and (
                    refused[1] and not await said(go(controller, admin, "probe-seat"))
                ):
                    return
                await asyncio.sleep(0.2)


async def claim(admin: Client, controller: Client, name: str, **metadata: Any) -> Object:
    """Create a claim of the controller with a GPU, a seat, and another driver's device, of which its status tells."""
    requests = [GPU, gang_barrier_device.request()]
    user = await admin.get(PODS, "probe", namespace=TEAM)
    head = {"name": name, "labels": PLACED, "ownerReferences": [claim_builder.owner("probe", user["metadata"]["uid"])]}
    body = {"metadata": head | metadata, "spec": {"devices": {"requests": requests}}}
    await controller.create(RESOURCE_CLAIMS, body, namespace=TEAM)
    results = [result(HERE), SEAT, result(HERE, driver="other.example.com")]
    where = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [HERE]}]}
    allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [where]}}
    used = [{"resource": "pods", "name": "probe", "uid": user["metadata"]["uid"]}]
    await change(admin, RESOURCE_CLAIMS, name, {"status": {"allocation": allocation, "reservedFor": used}})
    told = {"devices": [entry(HERE, "other.example.com")]}
    return await change(admin, RESOURCE_CLAIMS, name, {"status": told})


async def go(controller: Client, admin: Client, name: str, condition: str = gang_barrier_device.GO) -> Object:
    """Have the controller tell a seat's pod to go, as it does."""
    found = await admin.get(RESOURCE_CLAIMS, name, namespace=TEAM, type=ResourceClaim)
    seat = gang_barrier_device.of(found)
    assert seat is not None
    body = gang_barrier_device.status(found.metadata, seat, condition, now=datetime.datetime.now(datetime.UTC))
    if not seat.share_id:  # dropped before Kubernetes 1.36
        del body["status"]["devices"][0]["shareID"]
    return await controller.patch(
        RESOURCE_CLAIMS, name, body, kind=PatchKind.APPLY, namespace=TEAM, subresource="status", field_manager=MANAGER
    )


def offering(name: str, **spec: Any) -> Object:
    """Return the slice of the seats under some name, or with something else in its spec."""
    made = gang_barrier_device.resource_slice()
    return made | {"metadata": {"name": name}, "spec": made["spec"] | spec}


def job(name: str) -> Object:
    template = {"spec": {"containers": [{"name": "main", "image": "x"}], "restartPolicy": "Never"}}
    return {"metadata": {"name": name}, "spec": {"suspend": True, "backoffLimit": 2, "template": template}}


async def suspend(client: Client, name: str, spec: Object, **metadata: Any) -> Object:
    return await client.patch(JOBS, name, {"metadata": metadata, "spec": spec}, kind=PatchKind.MERGE, namespace=TEAM)


async def test_the_controller_and_an_agent_tell_of_one_claim_side_by_side(suspending: Guarded) -> None:
    async with (
        suspending.admin() as admin,
        suspending.agent(HERE) as here,
        as_account(suspending, OURS, CONTROLLER) as controller,
    ):
        before = await claim(admin, controller, "both", annotations=MOST)
        await go(controller, admin, "both")
        await tell(here, admin, "both", profile="1g.10gb")
        told = await go(controller, admin, "both", gang_barrier_device.OFF)
        by = {(one["driver"], one["pool"]): one for one in told["status"]["devices"]}
        assert [one["type"] for one in by[names.DRIVER, names.SEAT_POOL]["conditions"]] == [gang_barrier_device.OFF]
        assert by[names.DRIVER, HERE]["data"]["profile"] == "1g.10gb"
        assert by["other.example.com", HERE] == before["status"]["devices"][0]
        for key in ("allocation", "reservedFor"):
            assert told["status"][key] == before["status"][key]


async def test_a_stolen_token_of_the_controller_changes_nothing_else_of_a_claim(suspending: Guarded) -> None:
    async with (
        suspending.admin() as admin,
        suspending.agent(HERE) as here,
        as_account(suspending, OURS, CONTROLLER) as controller,
        as_account(suspending, TEAM, "default") as stranger,
    ):
        own = (await claim(admin, controller, "own-seat"))["status"]
        user = [{"resource": "pods", "name": "q", "uid": str(uuid.uuid4())}]
        others = own["devices"]
        plain: Object = {"spec": {"devices": {"requests": [GPU]}}}
        await admin.create(RESOURCE_CLAIMS, plain | {"metadata": {"name": "plain"}}, namespace=TEAM)
        unmarked = {"allocation": own["allocation"] | {"devices": {"results": [SEAT | {"request": "main"}]}}}
        await change(admin, RESOURCE_CLAIMS, "plain", {"status": unmarked})
        there = (await admin.get(RESOURCE_CLAIMS, "plain", namespace=TEAM))["status"]
        probe = await admin.get(PODS, "probe", namespace=TEAM)
        owners = [claim_builder.owner("probe", probe["metadata"]["uid"])]
        ours = {"metadata": {"name": "fresh", "labels": PLACED, "ownerReferences": owners}}
        await controller.create(RESOURCE_CLAIMS, plain | ours, namespace=TEAM)
        share = {key: SEAT[key] for key in ("shareID",) if suspending.version >= "1.36"}
        seat = {key: SEAT[key] for key in ("driver", "pool", "device")} | share
        forged: dict[str, tuple[Client, str, Object]] = {
            "gives a claim's GPUs back": (
                controller,
                "own-seat",
                {"allocation": None, "reservedFor": None, "devices": None},
            ),
            "takes it from its pods": (controller, "own-seat", {"reservedFor": None}),
            "gives it to another pod": (controller, "own-seat", {"reservedFor": own["reservedFor"] + user}),
            "allocates a claim": (controller, "fresh", unmarked),
            "tells of another driver's device": (
                controller,
                "own-seat",
                {"devices": [one | {"data": {"x": 1}} for one in others]},
            ),
            "tells of a GPU": (controller, "own-seat", {"devices": [*others, entry(HERE)]}),
            "drops what others told": (controller, "own-seat", {"devices": []}),
            "tells of a claim that is not its own": (controller, "plain", {"devices": [seat]}),
            "is an agent that lets a pod go": (here, "own-seat", {"devices": [*others, seat]}),
            "is nobody in particular": (stranger, "own-seat", {"devices": [*others, seat]}),
        }
        for what, (client, name, body) in forged.items():
            refusal = await said(change(client, RESOURCE_CLAIMS, name, {"status": body}))
            assert refusal, f"it {what}"
            policy = "gpu-topology-statuses" if client is here else "gpu-topology-seat-statuses"
            # Kubernetes 1.36 asks for more rights before it asks the policy.
            sooner = suspending.version >= "1.36" and what not in POLICYS
            assert policy in refusal or sooner or client is stranger, f"it {what}: {refusal}"
        for name, was in (("own-seat", own), ("plain", there)):
            assert (await admin.get(RESOURCE_CLAIMS, name, namespace=TEAM))["status"] == was
        kept = await change(controller, RESOURCE_CLAIMS, "own-seat", {"status": {"devices": [*others, seat]}})
        assert len(kept["status"]["devices"]) == 2, "the same of its seat is its own to say"


async def test_the_controller_offers_seats_and_nothing_else_and_agents_offer_none(suspending: Guarded) -> None:
    async with (
        suspending.admin() as admin,
        suspending.agent(HERE) as here,
        as_account(suspending, OURS, CONTROLLER) as controller,
        as_account(suspending, TEAM, "default") as stranger,
    ):
        picture = Picture(lambda _: None, lambda: None)
        keeper = SeatSlice(controller, picture)
        assert await keeper.look()
        assert picture.barrier == (suspending.version >= "1.36")
        published, _ = await admin.list(RESOURCE_SLICES)
        assert [one["metadata"]["name"] for one in published] == (
            [gang_barrier_device.SLICE] if picture.barrier else []
        )
        if not picture.barrier:
            await controller.create(RESOURCE_SLICES, gang_barrier_device.resource_slice())
        made = await admin.get(RESOURCE_SLICES, gang_barrier_device.SLICE)
        (seat,) = made["spec"]["devices"]
        gpu = {"attributes": {"type": {"string": "gpu"}}}
        forged = {
            "another slice": offering("other"),
            "a node's pool": offering(gang_barrier_device.SLICE, pool=made["spec"]["pool"] | {"name": HERE}),
            "another driver's": offering(gang_barrier_device.SLICE, driver="other.example.com"),
            "a GPU": offering(gang_barrier_device.SLICE, devices=[seat | gpu]),
            "one more": offering(gang_barrier_device.SLICE, devices=[seat, seat | gpu | {"name": "gpu-0"}]),
        }
        for what, body in forged.items():
            assert "gpu-topology-seats" in await said(controller.create(RESOURCE_SLICES, body)), what
        changed = made | {"spec": made["spec"] | {"devices": [seat | gpu]}}
        assert "gpu-topology-seats" in await said(controller.update(RESOURCE_SLICES, changed))

        agents = resource_slices.slice_name(0, HERE)
        theirs = offering(agents, nodeName=HERE, pool={"name": HERE, "generation": 1, "resourceSliceCount": 1})
        del theirs["spec"]["allNodes"]
        node = await here.create(RESOURCE_SLICES, theirs)
        assert await said(controller.update(RESOURCE_SLICES, node | {"spec": node["spec"] | {"devices": [seat | gpu]}}))
        assert await said(controller.delete(RESOURCE_SLICES, agents))

        for client, policy in ((here, "gpu-topology-slices"), (stranger, "cannot")):
            assert policy in await said(client.create(RESOURCE_SLICES, offering("gang-seats-of-mine")))
            assert policy in await said(client.update(RESOURCE_SLICES, made | {"metadata": made["metadata"]}))
            assert policy in await said(client.delete(RESOURCE_SLICES, gang_barrier_device.SLICE))
        assert await admin.get(RESOURCE_SLICES, gang_barrier_device.SLICE) == made
        assert await controller.delete(RESOURCE_SLICES, gang_barrier_device.SLICE), (
            "one that cannot be mended is made anew"
        )
        await admin.delete(RESOURCE_SLICES, agents)


async def test_what_an_administrator_did_to_the_slice_is_undone(suspending: Guarded) -> None:
    if suspending.version < "1.36":
        pytest.skip("there is none before Kubernetes 1.36")
    async with suspending.admin() as admin, as_account(suspending, OURS, CONTROLLER) as controller:
        picture = Picture(lambda _: None, lambda: None)
        keeper = SeatSlice(controller, picture)
        await keeper.look()
        made = await admin.get(RESOURCE_SLICES, gang_barrier_device.SLICE)
        assert await keeper.look()
        assert await admin.get(RESOURCE_SLICES, gang_barrier_device.SLICE) == made, (
            "the server adds nothing that would be undone"
        )
        taint = {"key": "a.example.com/b", "effect": "NoSchedule"}
        spec = made["spec"] | {"devices": [made["spec"]["devices"][0] | {"taints": [taint]}]}
        await admin.update(RESOURCE_SLICES, made | {"spec": spec})
        assert await keeper.look()
        assert (await admin.get(RESOURCE_SLICES, gang_barrier_device.SLICE))["spec"] == made["spec"]

        await admin.delete(RESOURCE_SLICES, gang_barrier_device.SLICE)
        squatting = offering(gang_barrier_device.SLICE, driver="other.example.com")
        await admin.create(RESOURCE_SLICES, squatting)
        assert await keeper.look()
        assert (await admin.get(RESOURCE_SLICES, gang_barrier_device.SLICE))["spec"] == made["spec"]
        assert picture.barrier


async def test_the_slice_goes_with_the_chart(suspending: Guarded) -> None:
    if suspending.version < "1.36":
        pytest.skip("there is none before Kubernetes 1.36")
    async with suspending.admin() as admin, as_account(suspending, OURS, CONTROLLER) as controller:
        picture = Picture(lambda _: None, lambda: None)
        keeper = SeatSlice(controller, picture)
        assert await keeper.look()
        await admin.delete(DEVICE_CLASSES, gang_barrier_device.CLASS)
        try:
            async with asyncio.timeout(60):
                with contextlib.suppress(ApiError):
                    while await admin.get(RESOURCE_SLICES, gang_barrier_device.SLICE):
                        await asyncio.sleep(0.2)
            assert await keeper.look()
            assert not picture.barrier
        finally:
            objects = chart.objects(kubernetes=suspending.version)
            await admin.create(DEVICE_CLASSES, objects["DeviceClass", gang_barrier_device.CLASS])


async def test_the_controller_nominates_nodes_of_its_pods_and_writes_nothing_else_of_their_status(
    suspending: Guarded,
) -> None:
    async with (
        suspending.admin() as admin,
        as_account(suspending, OURS, CONTROLLER) as controller,
        as_account(suspending, TEAM, "default") as stranger,
    ):
        gated = pod("gated", annotations=MOST)
        gated["spec"]["schedulingGates"] = [{"name": names.GATE}]
        await admin.create(PODS, gated, namespace=TEAM)
        before = (await change(admin, PODS, "gated", {"status": {"message": "x"}}))["status"]
        for node in (HERE, "n2"):
            told = await change(controller, PODS, "gated", {"status": {"nominatedNodeName": node}})
            assert told["status"] == before | {"nominatedNodeName": node}
        conditions = [{"type": "Ready", "status": "True"}]
        address = {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}
        for body in ({"phase": "Failed"}, {"message": None}, {"conditions": conditions}, {"reason": "y"}, address):
            refusal = await said(change(controller, PODS, "gated", {"status": body | {"nominatedNodeName": HERE}}))
            assert "gpu-topology-nominations" in refusal, body
        assert await said(change(stranger, PODS, "gated", {"status": {"nominatedNodeName": HERE}}))
        assert (await admin.get(PODS, "gated", namespace=TEAM))["status"] == told["status"]

        await admin.create(PODS, pod("others", labels={}), namespace=TEAM)
        refusal = await said(change(controller, PODS, "others", {"status": {"nominatedNodeName": HERE}}))
        assert "gpu-topology-nominations" in refusal
        gone = await change(controller, PODS, "gated", {"status": {"nominatedNodeName": None}})
        assert gone["status"] == before


async def test_the_controller_suspends_jobs_where_the_values_say_and_changes_nothing_else_of_them(
    suspending: Guarded,
) -> None:
    async with suspending.admin() as admin, as_account(suspending, OURS, CONTROLLER) as controller:
        made = await admin.create(JOBS, job("trains"), namespace=TEAM)
        note = {names.PREFIX + "suspended": "x"}
        for suspended in (False, True):
            told = await suspend(controller, "trains", {"suspend": suspended}, annotations=note)
            assert told["spec"] == made["spec"] | {"suspend": suspended}
            assert told["metadata"]["annotations"] == note
        for spec in ({"parallelism": 0}, {"backoffLimit": 9}, {"activeDeadlineSeconds": 1}, {"manualSelector": True}):
            assert "gpu-topology-suspends-jobs" in await said(suspend(controller, "trains", spec)), spec
        assert (await controller.list(JOBS, namespace=TEAM))[0]
        assert await said(controller.delete(JOBS, "trains", namespace=TEAM))


RECORD: Final = '{"uid":"%s","gang":"gang/g","loss":"0","why":"for a test","at":"2026-01-02T03:04:05Z"}'
"""A record as commit f73f0e72 wrote it."""


def record(owner: Object) -> Object:
    return {names.RESTART: RECORD % owner["metadata"]["uid"]}


async def test_only_the_controller_marks_an_owner_as_suspended_by_it(suspending: Guarded) -> None:
    marked = {names.RESTARTING: "true"}
    async with suspending.admin() as admin, as_account(suspending, OURS, CONTROLLER) as controller:
        made = await admin.create(JOBS, job("forged"), namespace=TEAM)
        note = record(made)
        forged: dict[str, Object] = {
            "the label": {"labels": marked},
            "the label and the record": {"labels": marked, "annotations": note},
            "the record": {"annotations": note},
            "a record that is over": {"annotations": {names.RESTART: note[names.RESTART][:-1] + ',"over":true}'}},
            "an empty record": {"annotations": {names.RESTART: ""}},
            "the note of an idle owner": {"annotations": {names.IDLE: "{}"}},
        }
        for what, metadata in forged.items():
            for subresource in ("", "status"):
                body = {"metadata": metadata}
                refusal = await said(change(admin, JOBS, "forged", body, subresource=subresource))
                assert "gpu-topology-owner-marks" in refusal, f"{what} by {subresource or 'an update'}"
        born = job("born") | {"metadata": {"name": "born", "labels": marked}}
        assert "gpu-topology-owner-marks" in await said(admin.create(JOBS, born, namespace=TEAM))
        left, whole = await left_suspended(controller, OwnerKinds(controller))
        assert (left, whole) == ([], True)


async def test_owners_of_a_kind_that_is_installed_after_the_policy_are_guarded_too(suspending: Guarded) -> None:
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": free, "status": free}}}
    version = {"name": JOBSETS.version, "served": True, "storage": True, "schema": schema}
    version |= {"subresources": {"status": {}}}
    spec: Object = {"group": JOBSETS.group, "scope": "Namespaced", "versions": [version]}
    spec |= {"names": {"kind": "JobSet", "plural": "jobsets", "singular": "jobset", "listKind": "JobSetList"}}
    name = f"{JOBSETS.plural}.{JOBSETS.group}"
    async with suspending.admin() as admin, as_account(suspending, OURS, CONTROLLER) as controller:
        await admin.create(DEFINITIONS, {"metadata": {"name": name}, "spec": spec})
        try:
            async with asyncio.timeout(IN_FORCE_S):
                while not await admin.serves(JOBSETS):
                    await asyncio.sleep(0.2)
            body: Object = {"apiVersion": JOBSETS.api_version, "kind": JOBSETS.kind}
            body |= {"metadata": {"name": "sets"}, "spec": {"x": 1}}
            made = await admin.create(JOBSETS, body, namespace=TEAM)
            marks: Object = {"labels": {names.RESTARTING: "true"}, "annotations": record(made)}
            async with asyncio.timeout(IN_FORCE_S):
                while "gpu-topology-owner-marks" not in await said(
                    change(admin, JOBSETS, "sets", {"metadata": marks}, subresource="")
                ):
                    await asyncio.sleep(0.2)
                    await change(admin, JOBSETS, "sets", {"metadata": {"labels": None}}, subresource="")
            await change(admin, JOBSETS, "sets", {"metadata": marks, "status": {"y": 1}})
            now = await admin.get(JOBSETS, "sets", namespace=TEAM)
            assert now["status"] == {"y": 1}
            assert names.RESTARTING not in now["metadata"].get("labels", {}), "a status changes no metadata"
            told = await controller.patch(
                JOBSETS, "sets", {"metadata": marks, "spec": {"suspend": True}}, kind=PatchKind.MERGE, namespace=TEAM
            )
            assert told["spec"] == {"x": 1, "suspend": True}
        finally:
            await admin.delete(DEFINITIONS, name)
            async with asyncio.timeout(IN_FORCE_S):
                while await admin.serves(JOBSETS):
                    await asyncio.sleep(0.2)


async def test_a_restored_or_copied_owner_may_have_the_record_of_another_and_is_not_resumed(
    suspending: Guarded,
) -> None:
    async with suspending.admin() as admin, as_account(suspending, OURS, CONTROLLER) as controller:
        other = await admin.create(JOBS, job("original"), namespace=TEAM)
        notes = record(other) | {names.IDLE: "{}"}
        copied = await admin.create(
            JOBS, job("copied") | {"metadata": {"name": "copied", "annotations": notes}}, namespace=TEAM
        )
        assert copied["metadata"]["annotations"] == notes
        assert suspendable_owners.record_of(msgspec.convert(copied, suspendable_owners.Suspendable)) is None
        body = {"metadata": {"annotations": record(copied)}}
        assert "gpu-topology-owner-marks" in await said(change(admin, JOBS, "copied", body, subresource=""))
        left, _ = await left_suspended(controller, OwnerKinds(controller))
        assert left == []


async def at_rest(act: Callable[[], Awaitable[object]]) -> None:
    """Act on a Job until no other has written it in the same moment, as the Job's controller does."""
    while True:
        try:
            await act()
        except ApiError as error:
            if not error.conflict:
                raise
        else:
            return


async def replace_marks(admin: Client, name: str) -> None:
    """Replace a Job by one without labels and annotations."""
    job = await admin.get(JOBS, name, namespace=TEAM)
    job["metadata"] |= {"labels": {}, "annotations": {}}
    await admin.update(JOBS, job)


async def test_others_may_change_and_take_over_an_owner_that_the_controller_suspended(suspending: Guarded) -> None:
    async with suspending.admin() as admin, as_account(suspending, OURS, CONTROLLER) as controller:
        for name in ("label", "all", "replaced"):
            made = await admin.create(JOBS, job(name), namespace=TEAM)
            told = await suspend(
                controller, name, {"suspend": True}, labels={names.RESTARTING: "true"}, annotations=record(made)
            )
            for metadata in (
                {"labels": {names.RESTARTING: "other"}},
                {"annotations": {names.RESTART: RECORD % "x"}},
            ):
                assert "gpu-topology-owner-marks" in await said(suspend(admin, name, {}, **metadata))
            await suspend(admin, name, {"parallelism": 0}, labels={"a": "b"}, annotations={"c": "d"})
            await change(admin, JOBS, name, {"status": {"active": 0}})
            if name == "replaced":
                await at_rest(functools.partial(replace_marks, admin, name))
            else:
                taken: Object = {"labels": {names.RESTARTING: None}}
                if name == "all":
                    taken |= {"annotations": {names.RESTART: None}}
                await suspend(admin, name, {}, **taken)
            again = await said(suspend(admin, name, {}, labels={names.RESTARTING: "true"}))
            assert "gpu-topology-owner-marks" in again, "whoever took it over does not hand it back"
            assert told["metadata"]["labels"][names.RESTARTING] == "true"
        left, _ = await left_suspended(controller, OwnerKinds(controller))
        assert left == []


async def test_an_owner_that_the_previous_release_suspended_is_resumed(suspending: Guarded) -> None:
    async with suspending.admin() as admin, as_account(suspending, OURS, CONTROLLER) as controller:
        made = await admin.create(JOBS, job("older"), namespace=TEAM)
        marks = {"labels": {names.RESTARTING: "true"}, "annotations": record(made)}
        await suspend(controller, "older", {"suspend": True}, **marks)
        restarts = OwnerRestarts(controller, OwnerKinds(controller), pods={}, touch=lambda _: None)
        running = asyncio.create_task(restarts.run())
        try:
            async with asyncio.timeout(60):
                while names.RESTARTING in (now := await admin.get(JOBS, "older", namespace=TEAM))["metadata"].get(
                    "labels", {}
                ):
                    await asyncio.sleep(0.2)
        finally:
            running.cancel()
        assert now["spec"]["suspend"] is False
        assert '"over":true' in now["metadata"]["annotations"][names.RESTART]


async def test_a_dry_run_says_whether_an_owner_can_be_suspended_and_suspends_nothing(suspending: Guarded) -> None:
    async with suspending.admin() as admin, as_account(suspending, OURS, CONTROLLER) as controller:
        body = job("tried")
        body["spec"] |= {"suspend": False, "parallelism": 0}
        made = await admin.create(JOBS, body, namespace=TEAM)
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "tried", "controller": True}
        metadata = {"name": "member", "namespace": TEAM, "ownerReferences": [owner | {"uid": made["metadata"]["uid"]}]}
        member = msgspec.convert({"metadata": metadata, "spec": {}}, Pod)
        restarts = OwnerRestarts(controller, OwnerKinds(controller), pods={}, touch=lambda _: None)
        await at_rest(lambda: restarts.check((TEAM, "gang/g"), [member], "for a test"))
        now = await admin.get(JOBS, "tried", namespace=TEAM)
        assert now["spec"]["suspend"] is False
        assert names.RESTARTING not in now["metadata"].get("labels", {})
        others = OwnerRestarts(admin, OwnerKinds(admin), pods={}, touch=lambda _: None)
        with pytest.raises(RefusedError, match="The controller cannot suspend 'Job tried'"):
            await at_rest(lambda: others.check((TEAM, "gang/g"), [member], "for a test"))


async def test_a_dry_run_says_whether_a_pod_can_be_evicted_and_evicts_none(suspending: Guarded) -> None:
    async with suspending.admin() as admin:
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}
        await admin.create(POD_DISRUPTION_BUDGETS, {"metadata": {"name": "kept"}, "spec": spec}, namespace=TEAM)
        for name in ("kept", "free"):
            await admin.create(PODS, pod(name, labels={"app": name}), namespace=TEAM)
            await change(admin, PODS, name, {"status": {"phase": "Running"}})

            async def tried(name: str = name) -> bool:
                known = await admin.get(PODS, name, namespace=TEAM, type=Pod)
                return await evict(admin, known, as_seen=True, chart_value="x", refused="no", dry_run=True)

            if name == "kept":
                with pytest.raises(RefusedError, match="disruption budget"):
                    await tried()
            else:
                assert await tried()
            assert "deletionTimestamp" not in (await admin.get(PODS, name, namespace=TEAM))["metadata"]


async def test_the_controller_deletes_pods_of_stateful_sets_and_no_others(suspending: Guarded) -> None:
    async with suspending.admin() as admin, as_account(suspending, OURS, CONTROLLER) as controller:
        for name, marks in (("ours", PLACED), ("theirs", {})):
            labels = {"app": name}
            template = {"metadata": {"labels": labels | marks}, "spec": pod("x")["spec"]}
            spec = {"selector": {"matchLabels": labels}, "serviceName": name, "template": template}
            await admin.create(STATEFUL_SETS, {"metadata": {"name": name}, "spec": spec}, namespace=TEAM)
            async with asyncio.timeout(60):
                while not await there(admin, f"{name}-0"):
                    await asyncio.sleep(0.1)
        for name in ("theirs-0", "probe"):
            assert "gpu-topology-deletions" in await said(controller.delete(PODS, name, namespace=TEAM))
            assert await there(admin, name)
        assert await controller.delete(PODS, "ours-0", namespace=TEAM)


async def there(admin: Client, name: str) -> bool:
    pods, _ = await admin.list(PODS, namespace=TEAM)
    return name in {one["metadata"]["name"] for one in pods}
