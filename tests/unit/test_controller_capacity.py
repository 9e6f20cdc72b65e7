"""What a pod takes from its node and what is left, as kube-scheduler counts."""

from __future__ import annotations

import msgspec
import pytest

from dradriver.api import names
from dradriver.api.objects import (
    Container,
    Gate,
    Metadata,
    Node,
    NodeStatus,
    Pod,
    PodSpec,
    PodStatus,
    ResourceRequirements,
)
from dradriver.controller.capacity import Usage, node_of, request_of

ALLOCATABLE = {"cpu": "4", "memory": "8Gi", "pods": "2", "rdma/hca": "1"}


def container(restart_policy: str | None = None, **requests: str) -> Container:
    asked = {key.replace("_", "/"): value for key, value in requests.items()}
    return Container(name="c", resources=ResourceRequirements(requests=asked), restart_policy=restart_policy)


def pod(
    *containers: Container,
    init: list[Container] | None = None,
    node: str = "",
    phase: str = "Running",
    overhead: dict[str, str] | None = None,
    gated: bool = False,
    promised: str | None = None,
) -> Pod:
    ours = {"labels": {names.LABEL: names.LABEL_PLACED}, "annotations": {names.NODE: promised}} if promised else {}
    return Pod(
        metadata=Metadata(name="p", **ours),  # type: ignore[arg-type]
        spec=PodSpec(
            node_name=node,
            containers=list(containers),
            init_containers=init or [],
            overhead=overhead or {},
            scheduling_gates=[Gate(name=names.GATE)] if gated else [],
        ),
        status=PodStatus(phase=phase),
    )


def with_node() -> Usage:
    usage = Usage()
    usage.set_node("n", Node(metadata=Metadata(name="n"), status=NodeStatus(allocatable=ALLOCATABLE)))
    return usage


def test_a_request_is_the_sum_of_the_containers_and_the_overhead() -> None:
    asked = request_of(pod(container(cpu="500m", memory="1Gi"), container(cpu="1"), overhead={"cpu": "250m"}))
    assert asked == {"cpu": 1750, "memory": 2**30, "pods": 1}


def test_an_init_container_counts_where_it_needs_more_than_all_others_together() -> None:
    init = [container(cpu="3", memory="1Mi"), container(cpu="1")]
    asked = request_of(pod(container(cpu="1", memory="1Gi"), container(cpu="1"), init=init))
    assert asked == {"cpu": 3000, "memory": 2**30, "pods": 1}


def test_a_sidecar_runs_beside_the_containers_and_beside_later_init_containers_only() -> None:
    init = [container(cpu="5"), container(cpu="2", restart_policy="Always"), container(cpu="4")]
    assert request_of(pod(container(cpu="1"), init=init))["cpu"] == 6000
    assert request_of(pod(container(cpu="7"), init=init))["cpu"] == 9000
    assert request_of(pod(container(cpu="1"), init=init[:2]))["cpu"] == 5000


def test_what_a_pod_requests_as_a_whole_counts_instead_of_its_containers() -> None:
    several = pod(container(cpu="1", memory="1Gi"), container(cpu="1", rdma_hca="1"), overhead={"cpu": "250m"})
    whole = ResourceRequirements(requests={"cpu": "6"})
    asked = request_of(msgspec.structs.replace(several, spec=msgspec.structs.replace(several.spec, resources=whole)))
    assert asked == {"cpu": 6250, "memory": 2**30, "rdma/hca": 1, "pods": 1}


@pytest.mark.parametrize(
    ("wanted", "lacking"),
    [
        ({"cpu": "2"}, None),
        ({"cpu": "2001m"}, "cpu"),
        ({"memory": "8Gi"}, None),
        ({"memory": "8193Mi"}, "memory"),
        ({"rdma_hca": "1"}, None),
        ({"rdma_hca": "2"}, "rdma/hca"),
        ({"example.com_fpga": "1"}, "example.com/fpga"),
        ({"example.com_fpga": "0"}, None),
    ],
)
def test_what_is_left_decides_for_every_resource(wanted: dict[str, str], lacking: str | None) -> None:
    usage = with_node()
    usage.set_pod(None, pod(container(cpu="2"), node="n"))
    assert usage.lacking("n", request_of(pod(container(**wanted)))) == lacking


def test_pods_themselves_are_counted() -> None:
    usage = with_node()
    usage.set_pod(None, pod(node="n"))
    assert usage.lacking("n", {"pods": 1}) is None
    usage.set_pod(None, pod(node="n"))
    assert usage.lacking("n", {"pods": 1}) == "pods"


def test_a_node_that_is_not_known_has_nothing() -> None:
    assert Usage().lacking("n", {"pods": 1}) == "pods"


def test_a_pod_gives_back_what_it_had_when_it_ends_moves_or_goes() -> None:
    usage = with_node()
    running = pod(container(cpu="4"), node="n")
    assert usage.set_pod(None, running)
    assert not usage.set_pod(running, running)
    finished = pod(container(cpu="4"), node="n", phase="Succeeded")
    assert usage.set_pod(running, finished)
    assert usage.lacking("n", {"cpu": 4000}) is None
    assert not usage.set_pod(finished, None)
    usage.set_pod(None, running)
    usage.set_pod(running, None)
    assert usage.lacking("n", {"cpu": 4000}) is None


def test_a_lifted_pod_counts_on_the_node_it_was_promised_and_a_gated_one_nowhere() -> None:
    assert node_of(pod(promised="n")) == "n"
    assert node_of(pod(promised="n", node="m")) == "m"
    assert node_of(pod(promised="n", gated=True)) == ""
    assert node_of(pod(promised="n", phase="Failed")) == ""
    assert node_of(pod()) == ""


def test_the_pod_that_is_placed_again_does_not_stand_in_its_own_way() -> None:
    usage = with_node()
    lifted = pod(container(cpu="3"), promised="n")
    usage.set_pod(None, lifted)
    assert usage.lacking("n", request_of(lifted)) == "cpu"
    assert usage.lacking("n", request_of(lifted), besides=lifted) is None


def test_a_quantity_that_is_none_counts_as_nothing_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    assert request_of(pod(container(cpu="many", memory="1Ki"))) == {"cpu": 0, "memory": 1024, "pods": 1}
    assert "cpu" in caplog.text
