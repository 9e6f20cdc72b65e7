"""What the controller keeps of pods."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from typing import Any

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.api.base.pods import Pod
from dradriver.cluster.nodes.pod_resources import request_of
from dradriver.cluster.records import pod_records
from dradriver.cluster.records.pod_records import Foreign
from dradriver.kube import codec
from dradriver.kube.client import Client
from dradriver.kube.reflector import Change, Reflector
from dradriver.kube.resources import PODS
from tests.fakes.apiserver import FakeApiServer

OURS = {names.LABEL: names.LABEL_PLACED}


def pod(name: str = "p", *, labels: Any = None, node: str = "n1", phase: str = "Running", **spec: Any) -> Any:
    containers = [{"name": "c", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}}]
    return {
        "metadata": {
            "name": name,
            "namespace": "a",
            "uid": f"uid-{name}",
            "resourceVersion": "7",
            "labels": labels or {"app": "x"},
            "annotations": {"somebody/else": "y" * 1000, names.POLICY: "nvlink"},
        },
        "spec": {"containers": containers} | ({"nodeName": node} if node else {}) | spec,
        "status": {"phase": phase},
    }


def read(obj: Any) -> Pod | Foreign | None:
    return pod_records.read(msgspec.Raw(json.dumps(obj).encode()))


def test_of_a_foreign_pod_only_its_share_of_its_node_is_kept() -> None:
    assert read(pod()) == Foreign(
        namespace="a",
        name="p",
        uid="uid-p",
        resource_version="7",
        node="n1",
        takes={"cpu": 1500, "memory": 2**30, "pods": 1},
        labels='{"app": "x"}',
    )


def test_alike_foreign_pods_share_labels_and_host_ports() -> None:
    ports = [{"containerPort": 80}, {"hostPort": 9100, "containerPort": 9100}, {"hostPort": 53, "protocol": "UDP"}]
    sidecar = {"name": "s", "restartPolicy": "Always", "ports": [{"hostPort": 8080, "hostIP": "10.0.0.1"}]}
    first_only = {"name": "i", "ports": [{"hostPort": 22}]}

    def agent(name: str) -> Any:
        return pod(name, containers=[{"name": "c", "ports": ports}], initContainers=[sidecar, first_only])

    one, other = read(agent("a")), read(agent("b"))
    assert isinstance(one, Foreign)
    assert isinstance(other, Foreign)
    assert one.ports == (("TCP", 8080, "10.0.0.1"), ("TCP", 9100, "0.0.0.0"), ("UDP", 53, "0.0.0.0"))
    assert one.ports is other.ports
    assert one.labels is other.labels


@pytest.mark.parametrize("labels", [None, {"": ""}, {"a": "x" * 10_000}])
def test_labels_that_no_pod_has_are_not_kept(labels: Any) -> None:
    sent = pod()
    sent["metadata"]["labels"] = labels
    kept = read(sent)
    assert isinstance(kept, Foreign)
    assert len(kept.labels) < 10


def test_of_ours_all_is_kept_that_is_looked_at_and_no_long_text_of_others() -> None:
    sent = pod(labels=OURS | {"app": "x"})
    sent["spec"]["containers"][0]["env"] = [{"name": f"X{i}"} for i in range(30_000)] + [{"name": "NCCL_ALGO"}]
    kept = read(sent)

    assert isinstance(kept, Pod)
    assert kept.placed
    assert kept.metadata.labels == OURS | {"app": "x"}
    assert [variable.name for variable in kept.spec.containers[0].env] == ["NCCL_ALGO"]
    assert kept.metadata.annotations == {names.POLICY: "nvlink"}
    assert kept.spec.containers[0].resources.requests == {"cpu": "1500m", "memory": "1Gi"}


@pytest.mark.parametrize("value", ["placed", "", "other"])
def test_our_label_makes_a_pod_ours_with_any_value(value: str) -> None:
    assert isinstance(read(pod(labels={names.LABEL: value})), Pod)


@pytest.mark.parametrize("changes", [{"node": ""}, {"phase": "Succeeded"}, {"phase": "Failed"}])
def test_of_a_foreign_pod_that_takes_nothing_nothing_is_kept(changes: Any) -> None:
    assert read(pod(**changes)) is None
    assert isinstance(read(pod(labels=OURS, **changes)), Pod)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"containers": [{"name": "a"}, {"name": "b", "resources": {}}]},
        {"containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "5Gi"}}}] * 3},
        {"initContainers": [{"name": "i", "resources": {"requests": {"cpu": "9"}}}]},
        {
            "initContainers": [
                {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "2", "a/b": "1"}}},
                {"name": "i", "resources": {"requests": {"cpu": "3", "memory": "1Mi"}}},
            ],
            "overhead": {"memory": "120Mi"},
        },
        {"resources": {"requests": {"cpu": "7"}}},
    ],
)
def test_the_share_is_counted_as_for_every_pod(spec: Any) -> None:
    kept = read(pod(**spec))

    assert isinstance(kept, Foreign)
    whole = codec.decode(json.dumps(pod(**spec)).encode(), Pod)
    assert dict(kept.takes) == {key: amount for key, amount in request_of(whole).items() if amount}


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"allocatedResources": {"cpu": "1", "memory": "1Gi"}},
        {"resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"cpu": "5"}}},
        {"allocatedResources": {"cpu": "1"}, "resources": {"requests": {"cpu": "3"}}},
    ],
)
@pytest.mark.parametrize("whole", [{}, {"resources": {"requests": {"cpu": "7"}}, "overhead": {"cpu": "1"}}])
@pytest.mark.parametrize("reason", ["", "Deferred", "Infeasible"])
def test_a_resize_is_counted_as_for_every_pod(status: Any, whole: Any, reason: str) -> None:
    sidecar = {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "9"}}}
    sent = pod(initContainers=[sidecar], **whole)
    sent["status"] |= {"containerStatuses": [{"name": "c"} | status], "initContainerStatuses": [{"name": "s"} | status]}
    sent["status"] |= status if whole else {}
    sent["status"]["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else []
    kept = read(sent)

    assert isinstance(kept, Foreign)
    decoded = codec.decode(json.dumps(sent).encode(), Pod)
    assert dict(kept.takes) == {key: amount for key, amount in request_of(decoded).items() if amount}
    ours = read(sent | {"metadata": sent["metadata"] | {"labels": OURS}})
    assert isinstance(ours, Pod)
    assert request_of(ours) == request_of(decoded)
    if reason == "Infeasible" and status and not whole:
        assert kept.takes["cpu"] < 9000


def test_alike_pods_share_what_they_take_and_no_pod_can_change_it() -> None:
    one, other = read(pod("p1")), read(pod("p2", node="n2"))
    limited = [{"name": "c", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"cpu": "2"}}}]
    written_otherwise = read(pod("p3", containers=limited))

    assert isinstance(one, Foreign)
    assert isinstance(other, Foreign)
    assert isinstance(written_otherwise, Foreign)
    assert one.takes is other.takes
    assert one.takes is written_otherwise.takes
    with pytest.raises(TypeError):
        one.takes["cpu"] = 0  # type: ignore[index]


@pytest.mark.slow
def test_resources_of_a_megabyte_are_counted_and_not_remembered() -> None:
    def megabyte(name: str) -> list[dict[str, Any]]:
        nothing = {f"example.com/{name * 200}{number:04d}": "0" for number in range(5000)}
        assert len(json.dumps(nothing)) > 1_000_000
        return [{"name": "c", "resources": {"requests": nothing | {"cpu": "1"}}}]

    remembered = []
    tracemalloc.start()
    try:
        for name in "abc":
            kept = read(pod(containers=megabyte(name)))
            assert isinstance(kept, Foreign)
            assert dict(kept.takes) == {"cpu": 1000, "pods": 1}
            gc.collect()
            remembered.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert remembered[-1] - remembered[0] < 1_000_000, "two megabytes have been read since"


@pytest.mark.looptime
@pytest.mark.parametrize("watch_list", [True, False])
async def test_a_pod_that_changes_sides_or_ends_comes_through_as_changes(*, watch_list: bool) -> None:
    changes: list[Change[Pod | Foreign]] = []
    async with FakeApiServer(watch_list=watch_list) as api, Client(api.config, user_agent="t") as client:
        api.put(PODS, pod(node=""))
        reflector = Reflector(client, PODS, pod_records.read, on_change=changes.append)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(reflector.run())
            await reflector.synced.wait()
            for state in (
                pod(),  # bound
                pod(labels=OURS),  # becomes ours
                pod(),  # is not ours any more
                pod(phase="Succeeded"),
                pod(labels=OURS, phase="Succeeded"),
                pod(phase="Succeeded"),
            ):
                api.put(PODS, state)
            await asyncio.sleep(1)
            running.cancel()

    kinds = [tuple(None if one is None else type(one) for one in (change.old, change.new)) for change in changes]
    assert kinds == [(None, Foreign), (Foreign, Pod), (Pod, Foreign), (Foreign, None), (None, Pod), (Pod, None)]
    assert {one.metadata.uid for change in changes for one in (change.old, change.new) if one} == {"uid-p"}
    assert reflector.store == {}
