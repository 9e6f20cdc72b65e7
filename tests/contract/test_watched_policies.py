"""The chart's role lets the controller watch the ConfigMap of the policies, by its name, and no other."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from dradriver.kube.client import ApiError, Client, PatchKind
from dradriver.kube.config import ServerConfig, from_kubeconfig
from dradriver.kube.resources import CONFIG_MAPS
from dradriver.process.watched_policies import WatchedPolicies
from tests import kubernetes_versions
from tests.cluster.api import Api
from tests.contract.conftest import ACCOUNTS, ensure_namespace
from tests.contract.planes import Planes
from tests.deploy import NAMESPACE as OURS
from tests.fakes import chart

pytestmark = [pytest.mark.cluster, pytest.mark.helm]

CONTROLLER: Final = "gpu-topology-controller"
POLICIES: Final = "gpu-topology-policies"
INSTALLED: Final = (
    ("ServiceAccount", CONTROLLER),
    ("Role", CONTROLLER),
    ("RoleBinding", CONTROLLER),
    ("ConfigMap", POLICIES),
)
LIMIT_S: Final = 30
OF_ONE: Final = f"metadata.name={POLICIES}"


@pytest.fixture(scope="module", params=kubernetes_versions.params())
def server(request: pytest.FixtureRequest, planes: Planes) -> Iterator[ServerConfig]:
    """An API server with the controller's account, what the chart lets it do there, and the policies."""
    with planes.restored("contract", request.param) as plane:
        config = from_kubeconfig(plane.folder / "kubeconfig")
        asyncio.run(_install(config, plane.api, request.param))
        yield config


async def _install(config: ServerConfig, api: Api, version: str) -> None:
    objects = chart.objects(kubernetes=version)
    async with Client(config, user_agent="contract", timeout_s=LIMIT_S) as admin:
        await ensure_namespace(admin, OURS)
        for key in INSTALLED:
            await admin.create(api.resource(objects[key]), objects[key], namespace=OURS)


@contextlib.asynccontextmanager
async def clients(server: ServerConfig) -> AsyncIterator[tuple[Client, Client]]:
    """Give the admin's client, and one with the token of the controller's account."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    async with Client(server, user_agent="contract", timeout_s=LIMIT_S) as admin:
        answer = await admin.connection.request("POST", ACCOUNTS.path(OURS, CONTROLLER) + "/token", body=body)
        token = json.loads(answer)["status"]["token"]
        config = replace(server, token=token, client_cert=b"", client_key=b"")
        async with Client(config, user_agent="contract", timeout_s=LIMIT_S) as controller:
            yield admin, controller


async def store(admin: Client, text: str) -> None:
    body = {"data": {"policies.yaml": text}}
    await admin.patch(CONFIG_MAPS, POLICIES, body, kind=PatchKind.MERGE, namespace=OURS)


async def test_what_is_stored_is_in_force_without_a_file(server: ServerConfig, tmp_path: Path) -> None:
    came = asyncio.Event()
    async with clients(server) as (admin, controller), asyncio.TaskGroup() as tasks:
        await store(admin, "weights: {nvlink: 1}")
        policies = WatchedPolicies(
            controller,
            tmp_path / "policies.yaml",
            namespace=OURS,
            name=POLICIES,
            on_change=lambda _: came.set(),
        )
        running = tasks.create_task(policies.run())
        await policies.first_read()
        assert policies.in_force.weights.nvlink == 1
        for weight in (2, 3):
            came.clear()
            await store(admin, f"weights: {{nvlink: {weight}}}")
            async with asyncio.timeout(LIMIT_S):
                await came.wait()
            assert policies.in_force.weights.nvlink == weight
        running.cancel()


@pytest.mark.parametrize(
    ("namespace", "selector"),
    [(OURS, None), (OURS, "metadata.name=kube-root-ca.crt"), ("kube-system", OF_ONE), (None, OF_ONE)],
)
async def test_the_controller_sees_no_other_config_map(
    server: ServerConfig, namespace: str | None, selector: str | None
) -> None:
    async with clients(server) as (_, controller):
        found: list[Any]
        found, _ = await controller.list(CONFIG_MAPS, namespace=OURS, field_selector=OF_ONE)
        assert [one["metadata"]["name"] for one in found] == [POLICIES]
        with pytest.raises(ApiError, match="forbidden") as refused:
            await controller.list(CONFIG_MAPS, namespace=namespace, field_selector=selector)
        assert refused.value.forbidden
        params = {"watch": "true"} | ({"fieldSelector": selector} if selector else {})
        with pytest.raises(ApiError, match="forbidden"):
            async with controller.stream(CONFIG_MAPS, namespace=namespace, params=params, silence_s=LIMIT_S) as lines:
                await anext(aiter(lines))


async def test_the_controller_changes_no_policies(server: ServerConfig) -> None:
    async with clients(server) as (_, controller):
        with pytest.raises(ApiError, match="forbidden"):
            await store(controller, "{}")
        with pytest.raises(ApiError, match="forbidden"):
            await controller.delete(CONFIG_MAPS, POLICIES, namespace=OURS)
