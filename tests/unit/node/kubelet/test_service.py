from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from prometheus_client import REGISTRY

from dradriver.node.claims.checkpoint import PreparedClaim, PreparedDevice
from dradriver.node.claims.prepare import Preparer
from dradriver.node.container_edits import DeviceNode, Edits
from dradriver.node.errors import ClaimError, DeviceBusyError
from dradriver.node.kubelet.service import DraService
from dradriver.node.protos.dra.v1 import dra_pb2


class FakePreparer:
    """Does what a claim's name says."""

    def __init__(self) -> None:
        self.unprepared: list[str] = []
        self.released = asyncio.Event()

    async def prepare(self, namespace: str, name: str, uid: str) -> PreparedClaim:
        if name == "busy":
            raise DeviceBusyError("GPU x is still held by claim ns/old")
        if name == "bug":
            raise ZeroDivisionError("secret detail")
        if name == "waits":
            await self.released.wait()
        if name == "releases":
            self.released.set()

        def edits(number: int) -> Edits:
            return Edits(nodes=(DeviceNode(f"/dev/nvidia{number}", "/dev/null"),))

        shared = PreparedDevice(request="a", pool="n", device="d1", uuid="u1", edits=edits(1), share_id="s")
        whole = PreparedDevice(request="b", pool="n", device="d2", uuid="u2", edits=edits(2))
        return PreparedClaim(uid=uid, namespace=namespace, name=name, devices=(shared, whole))

    async def unprepare(self, uid: str) -> None:
        if uid == "uid-stuck":
            raise ClaimError("cannot remove")
        self.unprepared.append(uid)


def claims(*names: str) -> list[dra_pb2.Claim]:
    return [dra_pb2.Claim(namespace="ns", name=name, uid=f"uid-{name}") for name in names]


async def prepare(*names: str) -> dict[str, dra_pb2.NodePrepareResourceResponse]:
    service = DraService(cast("Preparer", FakePreparer()))
    return dict(
        (await service.NodePrepareResources(dra_pb2.NodePrepareResourcesRequest(claims=claims(*names)), None)).claims
    )


async def test_every_device_has_its_request_pool_name_cdi_id_and_share() -> None:
    found = [
        (list(d.request_names), d.pool_name, d.device_name, list(d.cdi_device_ids), d.share_id, d.HasField("share_id"))
        for d in (await prepare("c"))["uid-c"].devices
    ]
    assert found == [
        (["a"], "n", "d1", ["gpu.topology/claim=uid-c-a-d1-s"], "s", True),
        (["b"], "n", "d2", ["gpu.topology/claim=uid-c-b-d2"], "", False),
    ]


async def test_one_claims_trouble_is_that_claims_error() -> None:
    answers = await prepare("good", "busy", "bug")
    assert {uid: a.error for uid, a in answers.items()} == {
        "uid-good": "",
        "uid-busy": "GPU x is still held by claim ns/old",
        "uid-bug": "the node agent failed. Read its log.",
    }
    assert {uid: len(a.devices) for uid, a in answers.items()} == {"uid-good": 2, "uid-busy": 0, "uid-bug": 0}


async def test_claims_of_one_call_do_not_wait_for_each_other() -> None:
    answers = await asyncio.wait_for(prepare("waits", "releases"), 5)
    assert [a.error for a in answers.values()] == ["", ""]


async def test_unprepare_answers_for_every_claim() -> None:
    fake = FakePreparer()
    request = dra_pb2.NodeUnprepareResourcesRequest(claims=claims("c", "stuck", "unknown"))
    answers = (await DraService(cast("Preparer", fake)).NodeUnprepareResources(request, None)).claims
    assert {uid: a.error for uid, a in answers.items()} == {
        "uid-c": "",
        "uid-stuck": "cannot remove",
        "uid-unknown": "",
    }
    assert sorted(fake.unprepared) == ["uid-c", "uid-unknown"]


@pytest.mark.parametrize(("name", "result"), [("c", "ok"), ("busy", "DeviceBusy"), ("bug", "Unknown")])
async def test_calls_are_counted_by_result_and_no_label_holds_a_pods_words(name: str, result: str) -> None:
    def count() -> float:
        labels = {"call": "prepare", "result": result}
        return REGISTRY.get_sample_value("gpu_topology_node_call_duration_seconds_count", labels) or 0.0

    before = count()
    await prepare(name)
    assert count() == before + 1


async def test_an_empty_call_is_answered() -> None:
    assert await prepare() == {}


def test_the_method_paths_are_the_kubelets() -> None:
    methods: Any = dra_pb2.DESCRIPTOR.services_by_name["DRAPlugin"]
    assert methods.full_name == "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
    assert [m.name for m in methods.methods] == ["NodePrepareResources", "NodeUnprepareResources"]
