"""With ``exclusiveTo`` in the policies the API server itself refuses fractions of GPUs that the scheduler would choose.

No webhook runs here: what is refused, the chart's policy refuses.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pytest

from dradriver.api.base import names
from dradriver.api.claims import claim_builder, exclusive
from dradriver.kube.client import ApiError, Client
from dradriver.kube.config import ServerConfig, from_kubeconfig
from dradriver.kube.resources import RESOURCE_CLAIMS
from dradriver.topology.versions import numbers
from tests import kubernetes_versions
from tests.cluster.api import Api
from tests.contract import admitted
from tests.contract.conftest import ACCOUNTS, ensure_namespace
from tests.contract.planes import Planes
from tests.deploy import NAMESPACE as OURS
from tests.fakes import chart

pytestmark = [pytest.mark.cluster, pytest.mark.helm]

Object = dict[str, Any]

TEAM: Final = "team"
CONTROLLER: Final = "gpu-topology-controller"
KINDS: Final = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
IN_FORCE_S: Final = 60
LIMIT_S: Final = 60
NIC_CLASS: Final = "dranet.net"
REFUSED: Final = "limits each divided GPU to one namespace"
KEEPS_OFF: Final = {"cel": {"expression": exclusive.ELSEWHERE}}
OTHER: Final = {"cel": {"expression": f'device.driver == "{names.DRIVER}" && "x" != ""'}}


class Served(NamedTuple):
    """An API server.

    Attributes:
        config: How its admin reaches it.
        keeps_amounts: Whether it keeps the amounts of requests. An older one drops them before a policy sees them.
    """

    config: ServerConfig
    keeps_amounts: bool


@pytest.fixture(scope="module", params=kubernetes_versions.params())
def server(request: pytest.FixtureRequest, planes: Planes) -> Iterator[Served]:
    """An API server with the chart's accounts, and its policies in force for GPUs with ``exclusiveTo``."""
    with planes.restored("contract", request.param) as plane:
        config = from_kubeconfig(plane.folder / "kubeconfig")
        asyncio.run(_install(config, plane.api, request.param))
        yield Served(config, keeps_amounts=(numbers(request.param) or ()) >= (1, 36))


async def _install(config: ServerConfig, api: Api, version: str) -> None:
    async with Client(config, user_agent="contract", timeout_s=LIMIT_S) as admin:
        for name in (OURS, TEAM):
            await ensure_namespace(admin, name)
        for obj in chart.objects(*chart.VARIANTS["exclusive"], kubernetes=version).values():
            if obj["kind"] in KINDS or obj["kind"].startswith("ValidatingAdmissionPolicy"):
                await admin.create(api.resource(obj), obj)
        async with asyncio.timeout(IN_FORCE_S):
            while REFUSED not in await said(admin, exactly(names.SHARE_CLASS)):
                await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def clients(server: Served) -> AsyncIterator[tuple[Client, Client]]:
    """Give the admin's client, and one with the token of the controller's account."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    async with Client(server.config, user_agent="contract", timeout_s=LIMIT_S) as admin:
        answer = await admin.connection.request("POST", ACCOUNTS.path(OURS, CONTROLLER) + "/token", body=body)
        token = json.loads(answer)["status"]["token"]
        config = replace(server.config, token=token, client_cert=b"", client_key=b"")
        async with Client(config, user_agent="contract", timeout_s=LIMIT_S) as controller:
            yield admin, controller


# What another policy of the chart demands of each request of a class of fractions.
AMOUNTS: Final[dict[str, Object]] = {
    names.SHARE_CLASS: {names.CAPACITY_CORES: "25", names.CAPACITY_MEMORY: "4Gi"},
    names.MIG_CLASS: {names.CAPACITY_MEMORY_SLICES: "1", names.CAPACITY_COMPUTE_SLICES: "1"},
}


def way(device_class: str, *selectors: Object, **more: Any) -> Object:
    amounts = {"capacity": {"requests": AMOUNTS[device_class]}} if device_class in AMOUNTS else {}
    return {"deviceClassName": device_class, "selectors": [*selectors]} | amounts | more


def exactly(device_class: str, *selectors: Object, **more: Any) -> list[Object]:
    return [{"name": "r0", "exactly": way(device_class, *selectors, **more)}]


def first(*ways: Object) -> list[Object]:
    return [{"name": "r0", "firstAvailable": [{"name": f"s{number}"} | one for number, one in enumerate(ways)]}]


def of(capacity: str) -> Object:
    return {"capacity": {"requests": {capacity: "25"}}}


_COUNT: Final = itertools.count()


async def said(client: Client, requests: list[Object] | None, namespace: str = TEAM, *, label: str = "") -> str:
    """Return how a claim with these requests is refused; empty where it is not.

    Args:
        client: Creates the claim.
        requests: The claim's requests; None for a claim without devices.
        namespace: The claim's namespace.
        label: The value of the driver's label. A claim with the label belongs to a pod, as the controller's claims do.
    """
    spec: Object = {} if requests is None else {"devices": {"requests": requests}}
    metadata: Object = {"name": f"c{next(_COUNT)}"}
    if label:
        owner = claim_builder.owner("p", "00000000-0000-4000-8000-000000000001")
        metadata |= {"labels": {names.LABEL: label}, "ownerReferences": [owner]}
    body = {"metadata": metadata, "spec": spec}
    try:
        await client.create(RESOURCE_CLAIMS, body, namespace=namespace)
    except ApiError as error:
        assert error.status in (403, 422), error
        return error.message
    return ""


@pytest.mark.parametrize(
    "requests",
    [
        exactly(names.SHARE_CLASS),
        exactly(names.SHARE_CLASS, OTHER),
        exactly(names.DEVICE_CLASS, **of(names.CAPACITY_CORES)),
        exactly(names.DEVICE_CLASS, **of(f"{names.DRIVER}/{names.CAPACITY_CORES}")),
        first(way(NIC_CLASS), way(names.SHARE_CLASS)),
        first(way(names.SHARE_CLASS, KEEPS_OFF), way(names.SHARE_CLASS)),
        exactly(names.SHARE_CLASS, {"cel": {"expression": f"{exclusive.ELSEWHERE} || true"}}),
        exactly(names.SHARE_CLASS, {"cel": {"expression": f"true // {exclusive.ELSEWHERE}"}}),
        [{"name": "r1", "exactly": way(NIC_CLASS)}, *exactly(names.SHARE_CLASS)],
    ],
)
async def test_a_claim_that_may_get_a_fraction_is_refused_unless_the_controller_pinned_it(
    server: Served, requests: list[Object]
) -> None:
    async with clients(server) as (admin, controller):
        by_amount = requests[0].get("exactly", {}).get("deviceClassName") == names.DEVICE_CLASS
        is_seen = server.keeps_amounts or not by_amount
        assert (REFUSED in await said(admin, requests)) == is_seen
        assert (REFUSED in await said(controller, requests, label=names.LABEL_HANDED_OVER)) == is_seen
        assert REFUSED not in await said(controller, requests, label=names.LABEL_PLACED)


@pytest.mark.parametrize("device_class", AMOUNTS)
async def test_a_fraction_that_the_controller_pinned_is_let_in(server: Served, device_class: str) -> None:
    pinned = exactly(device_class, {"cel": {"expression": claim_builder.uuid_selector(["GPU-1"])}})
    async with clients(server) as (_, controller):
        assert await said(controller, pinned, label=names.LABEL_PLACED) == ""


@pytest.mark.parametrize(
    "requests",
    [
        None,
        exactly(names.DEVICE_CLASS),
        exactly(names.MIG_CLASS),
        exactly("example.com", **of(names.CAPACITY_CORES)),
        exactly(names.SHARE_CLASS, OTHER, KEEPS_OFF),
        exactly(names.SHARE_CLASS, {"cel": {"expression": f"{exclusive.ELSEWHERE}\n"}}),
        first(way(NIC_CLASS), way(names.SHARE_CLASS, KEEPS_OFF)),
    ],
)
async def test_what_is_no_fraction_or_keeps_off_is_stored(server: Served, requests: list[Object] | None) -> None:
    async with clients(server) as (admin, controller):
        assert await said(admin, requests) == ""
        assert REFUSED not in await said(controller, requests, label=names.LABEL_HANDED_OVER)


async def test_what_the_controller_hands_over_keeps_off(server: Served) -> None:
    async with clients(server) as (_, controller):
        for body in admitted.handed_over(""):
            await controller.create(RESOURCE_CLAIMS, body, namespace=TEAM, dry_run=True)


async def test_the_largest_claim_costs_no_more_than_the_server_allows(server: Served) -> None:
    """The largest that the chart's other policies let pass."""
    ways = [way(names.SHARE_CLASS, *(OTHER for _ in range(31)), KEEPS_OFF) for _ in range(8)]
    async with clients(server) as (admin, _):
        assert await said(admin, first(*ways)) == ""
