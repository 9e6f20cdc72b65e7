"""Which pod and container a prepared GPU is told of, for monitoring."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY

from dradriver.allocator.request import Amount, Choice, Level, MigPart, PartChoice, SharePart
from dradriver.api.base import names
from dradriver.api.base.objects import Metadata
from dradriver.api.base.pods import Pod, PodClaim, PodSpec
from dradriver.api.claims import claim_builder as claims_of
from dradriver.node import metrics
from dradriver.node.claims import prepared_gpu_info
from dradriver.node.claims.checkpoint import PreparedClaim, PreparedDevice
from tests.fakes.node import NODE, Object, a_node, claim, device, eventually, result, typed, uuid

Row = tuple[str, ...]


def prepared(obj: Object) -> PreparedClaim:
    """The entry of a claim as its results say."""
    devices = tuple(
        PreparedDevice(
            request=one["request"].partition("/")[0],
            pool=NODE,
            device=one["device"],
            uuid=next(uuid(gpu) for gpu in range(8) if device(gpu) == one["device"]),
            admin=one.get("adminAccess", False),
        )
        for one in obj["status"]["allocation"]["devices"]["results"]
    )
    metadata = obj["metadata"]
    return PreparedClaim(uid=metadata["uid"], namespace="default", name=metadata["name"], devices=devices)


def rows(obj: Object) -> list[Row]:
    return list(prepared_gpu_info.rows(typed(obj), prepared(obj), node=NODE))


def ours(obj: Object, choice: Choice | PartChoice, uuids: dict[str, list[str]]) -> Object:
    """The claim as the controller would have written it."""
    claim_of = PodClaim(name=names.POD_CLAIM, resource_claim_name=obj["metadata"]["name"])
    pod = Pod(metadata=Metadata(name="pod", namespace="default", uid="u"), spec=PodSpec(resource_claims=[claim_of]))
    made = claims_of.pinned(pod, choice, uuids=uuids, compute={"1g.10gb": 1})
    return obj | {"metadata": made["metadata"] | obj["metadata"]}


def whole(*containers: tuple[int, ...]) -> Choice:
    gpus = tuple(gpu for each in containers for gpu in each)
    return Choice(
        gpus=gpus,
        containers=containers,
        ring=gpus,
        busbw_gbps=1,
        bandwidth_gbps=1,
        level=Level.NVLINK,
        score=1,
        node=NODE,
    )


def test_each_gpu_of_our_claims_has_its_container() -> None:
    obj = claim("c", {"left": [0, 3], "right-1": [5]})
    uuids = {"left": [uuid(0), uuid(3)], "right-1": [uuid(5)]}
    assert rows(ours(obj, whole((0, 3), (5,)), uuids)) == [
        (uuid(0), NODE, "default", "pod", "left", "c"),
        (uuid(3), NODE, "default", "pod", "left", "c"),
        (uuid(5), NODE, "default", "pod", "right-1", "c"),
    ]


def test_several_parts_of_one_container_have_its_name() -> None:
    obj = claim("c", {"main-1": [0], "main-2": [0], "other-7": [1]})
    parts = tuple(MigPart(gpu=0, profile="1g.10gb", start=start, size=1) for start in (0, 1))
    share = SharePart(gpu=1, amount=Amount(50, 1024))
    choice = PartChoice(node=NODE, containers=(parts, (share,)))
    found = rows(ours(obj, choice, {"main-1": [uuid(0)], "main-2": [uuid(0)], "other-7": [uuid(1)]}))
    assert [row[4] for row in found] == ["main", "main", "other-7"]


def test_of_others_claims_the_container_is_not_known_and_of_damaged_ones_neither() -> None:
    assert [row[4] for row in rows(claim("c", [2]))] == [""]
    damaged = ours(claim("c", {"main": [2]}), whole((2,)), {"main": [uuid(2)]})
    damaged["metadata"]["annotations"][names.CHOICE] = "{"
    assert [row[4] for row in rows(damaged)] == [""]


def test_monitoring_has_no_gpu_and_a_claim_of_many_pods_tells_some_of_them() -> None:
    results = [result("gpu", device(0)), result("gpu", device(1), adminAccess=True)]
    obj = claim("c", results=results)
    obj["status"]["reservedFor"] = [{"resource": "pods", "name": f"p{n:03}", "uid": str(n)} for n in range(200)]
    assert [row[3] for row in rows(obj)] == [f"p{n:03}" for n in range(prepared_gpu_info.MOST_PODS)]
    obj["status"]["reservedFor"] = []
    assert rows(obj) == [(uuid(0), NODE, "default", "", "", "c")]


@pytest.fixture
def nothing_told() -> Iterator[None]:
    """The metric is the process's: others' tests leave claims prepared."""
    metrics.DEVICE_INFO.clear()
    yield
    metrics.DEVICE_INFO.clear()


def told() -> set[Row]:
    order = ("uuid", "node", "namespace", "pod", "container", "claim")
    (family,) = [family for family in REGISTRY.collect() if family.name == "gpu_topology_device"]
    return {tuple(sample.labels[label] for label in order) for sample in family.samples}


@pytest.mark.usefixtures("nothing_told")
async def test_the_agent_tells_while_a_claim_is_prepared_and_again_after_its_restart() -> None:
    expected = {(uuid(gpu), NODE, "default", "pod", "", "c") for gpu in (0, 3)}
    async with a_node() as node:
        async with node.agent():
            await node.published()
            assert told() == set()
            asked = node.put_claim(claim("c", [0, 3]))
            await eventually(lambda: node.kubelet.seen)
            await node.kubelet.prepare(asked)
            assert told() == expected
        metrics.DEVICE_INFO.clear()
        async with node.agent("pod-2"):
            await eventually(lambda: told() == expected)
            await eventually(lambda: node.kubelet.seen)
            await node.kubelet.unprepare(asked)
            assert told() == set()
