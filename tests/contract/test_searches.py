"""What bounds the search of a real scheduler for the claims of one pod: its setting ``filterTimeout``.

A policy bounds what one claim asks for. No policy sees all claims of a pod, which the scheduler searches for together.
"""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from dradriver.api.slices import resource_slices
from dradriver.kube.client import ApiError, Client
from dradriver.kube.config import from_kubeconfig
from dradriver.kube.resources import PODS, RESOURCE_CLAIM_TEMPLATES
from dradriver.topology import profiles
from tests import kubernetes_versions, needs
from tests.cluster.nodeless import Nodeless
from tests.cluster.settings import minor_of
from tests.contract import stories
from tests.contract.conftest import ensure_namespace
from tests.contract.held_claims import Object, gpu, plain, template
from tests.contract.stories import NAMESPACE
from tests.fakes import chart

pytestmark = [pytest.mark.cluster, pytest.mark.helm]

TIMEOUT: Final = "20ms"
"""Less than docs/reference/limits.md advises: it ends a search that would end by itself within the default, 10 s."""
SEARCHED_S: Final = 120  # within which the scheduler has looked at a pod, on a loaded machine
IN_FORCE_S: Final = 60
POLICY: Final = "gpu-topology-parts"


@pytest.mark.parametrize("version", kubernetes_versions.params())
def test_the_timeout_ends_a_search_for_claims_that_the_policy_lets_in(version: str, worker_id: str) -> None:
    needs.real_cluster(version)
    plane = Nodeless(f"searches-{minor_of(version)}-{worker_id}", version, devices={"filterTimeout": TIMEOUT})
    with plane.running():
        assert "timed out trying to allocate devices" in asyncio.run(_searched(plane))


async def _searched(plane: Nodeless) -> str:
    """Return what the scheduler says of a pod that asks for nine GPUs by two claims where eight are free.

    It tries all orders of eight GPUs, which takes 0.3 s of CPU time and more. Other pods are bound meanwhile.
    """
    async with Client(from_kubeconfig(plane.folder / "kubeconfig"), user_agent="contract", timeout_s=30) as client:
        await ensure_namespace(client, NAMESPACE)
        for (kind, name), body in chart.objects(kubernetes=plane.version).items():
            if kind == "DeviceClass" or name == POLICY:
                await client.create(plane.api.resource(body), body)
        async with asyncio.timeout(IN_FORCE_S):
            while not await _refused(client, template("nine", *[gpu(1)] * 9)):
                await asyncio.sleep(0.2)
        uid = await stories.add_node(client, "node")
        machine = profiles.load("dgx-h100", seed="node")
        await stories.publish(client, resource_slices.build(machine, node="node", node_uid=uid))
        for name, requests in (("eight", [gpu(1)] * 8), ("one", [gpu(1)])):
            await client.create(RESOURCE_CLAIM_TEMPLATES, template(name, *requests))
        made = plain("nine")
        claims = [{"name": name, "resourceClaimTemplateName": name} for name in ("eight", "one")]
        await client.create(PODS, made | {"spec": made["spec"] | {"resourceClaims": claims}})
        async with asyncio.timeout(SEARCHED_S):
            while not (text := await _verdict(client, "nine")):
                await asyncio.sleep(0.1)
        await client.create(PODS, plain("other"))
        await stories.bound(client, "other")
        return text


async def _refused(client: Client, body: Object) -> bool:
    try:
        await client.create(RESOURCE_CLAIM_TEMPLATES, body, namespace=NAMESPACE, dry_run=True)
    except ApiError as error:
        assert POLICY in error.message, error
        return True
    return False


async def _verdict(client: Client, name: str) -> str:
    """Return why the scheduler does not bind a pod; empty before it has looked at its devices."""
    found = await client.get(PODS, name, namespace=NAMESPACE)
    for condition in found["status"].get("conditions", ()):
        if condition["type"] == "PodScheduled" and "waiting for" not in condition["message"]:
            return str(condition["message"])
    return ""
