"""GPUs of several vendors in one cluster, with a real API server and scheduler: nobody gets another vendor's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dradriver.api.base import names
from dradriver.api.pod import claim_alternatives, resolved
from dradriver.api.pod.annotations import Annotations
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig, from_kubeconfig
from dradriver.kube.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS
from tests import kubernetes_versions
from tests.contract.planes import Planes
from tests.contract.several_vendors import OLD, add_nodes, settled
from tests.contract.stories import NAMESPACE
from tests.fakes import chart

pytestmark = [pytest.mark.cluster, pytest.mark.helm]


@pytest.fixture(scope="module", params=kubernetes_versions.params())
def alone(request: pytest.FixtureRequest, planes: Planes) -> Iterator[tuple[str, ServerConfig]]:
    with planes.restored("contract", request.param) as plane:
        yield request.param, from_kubeconfig(plane.folder / "kubeconfig")


def of_class(device_class: str, count: int, *constraints: dict[str, Any]) -> dict[str, Any]:
    request = {"name": "gpus", "exactly": {"deviceClassName": device_class, "count": count}}
    return {"devices": {"requests": [request], "constraints": list(constraints)}}


def said(**words: str) -> dict[str, Any]:
    """Return what the scheduler alone is asked for a pod with these words and four GPUs."""
    asked = {names.PREFIX + word: text for word, text in words.items()}
    return claim_alternatives.spec(resolved.resolve(Annotations(asked), {"gpus": 4}))


async def test_claims_by_class_get_the_vendors_gpus_alone(alone: tuple[str, ServerConfig]) -> None:
    version, config = alone
    linked = {"requests": ["gpus"], "matchAttribute": "gpu.topology/linkGroup4"}
    async with Client(config, user_agent="contract", timeout_s=30) as client:
        for (kind, _), obj in chart.objects(kubernetes=version).items():
            if kind == "DeviceClass":
                await client.create(DEVICE_CLASSES, obj)
        await add_nodes(client)

        async def place(name: str, spec: dict[str, Any]) -> str:
            metadata = {"name": name, "namespace": NAMESPACE}
            await client.create(RESOURCE_CLAIMS, {"metadata": metadata, "spec": spec}, namespace=NAMESPACE)
            used = {"name": "main", "image": "example.com/image", "resources": {"claims": [{"name": "own"}]}}
            claims = [{"name": "own", "resourceClaimName": name}]
            pod = {"metadata": metadata, "spec": {"containers": [used], "resourceClaims": claims}}
            await client.create(PODS, pod, namespace=NAMESPACE)
            return await settled(client, name)

        assert await place("hive", of_class("amd.gpu.topology", 4, linked)) == "a-amd"
        assert await place("amd-static", said(vendor="amd", required="linked")) == "a-amd"
        assert await place("mesh", of_class("ascend.gpu.topology", 4, linked)) == "b-ascend"
        assert await place("ours-static", said(policy="best-effort")) == OLD, "its slice says of no vendor"
        assert await place("ours", of_class("gpu.topology", 4)) == OLD
        assert await place("no-amd-left", of_class("amd.gpu.topology", 1)) == ""
        assert await place("no-nvidia-left", of_class("gpu.topology", 1)) == "", "though four of Ascend are free"
