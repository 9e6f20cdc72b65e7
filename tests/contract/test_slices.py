"""What becomes of a slice that is only tried, and of fields whose feature is off."""

from __future__ import annotations

import uuid

from dradriver.api.abilities import ALL, probes
from dradriver.kube.resources import RESOURCE_SLICES
from dradriver.node.publishing import asking
from tests.contract.conftest import Server


async def test_a_dry_run_answers_as_a_write_would_and_stores_nothing(server: Server) -> None:
    node = f"node-{uuid.uuid4().hex[:8]}"
    (_, probe) = probes(node, "00000000-0000-0000-0000-000000000001")
    stored = await server.client.create(RESOURCE_SLICES, probe, dry_run=True)

    assert stored["metadata"]["name"].startswith(probe["metadata"]["generateName"])
    assert stored["spec"]["devices"][0]["taints"] == probe["spec"]["devices"][0]["taints"]
    found, _ = await server.client.list(RESOURCE_SLICES, field_selector=f"spec.nodeName={node}")
    assert found == []


async def test_this_kubernetes_keeps_all_that_divides_a_gpu(server: Server) -> None:
    assert await asking.ask(server.client, node="n", node_uid="00000000-0000-0000-0000-000000000001") == ALL
