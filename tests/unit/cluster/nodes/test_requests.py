"""What a pod takes from its node, as kube-scheduler counts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dradriver.api.base.objects import Metadata
from dradriver.api.base.pods import (
    Affinity,
    Container,
    NodeAffinity,
    NodeRequirement,
    NodeSelector,
    NodeSelectorTerm,
    Pod,
    PodSpec,
    ResourceRequirements,
    Toleration,
)
from dradriver.cluster.nodes.pod_demands import MOST, OVERSIZE, Ask, ask_of
from dradriver.cluster.nodes.pod_resources import request_of


def container(restart_policy: str | None = None, **requests: str) -> Container:
    asked = {key.replace("_", "/"): value for key, value in requests.items()}
    return Container(name="c", resources=ResourceRequirements(requests=asked), restart_policy=restart_policy)


def pod(
    *containers: Container,
    init: list[Container] | None = None,
    overhead: dict[str, str] | None = None,
) -> Pod:
    return Pod(
        metadata=Metadata(name="p"),
        spec=PodSpec(
            containers=list(containers),
            init_containers=init or [],
            overhead=overhead or {},
        ),
    )


def test_a_request_is_the_sum_of_the_containers_and_the_overhead() -> None:
    asked = request_of(pod(container(cpu="500m", memory="1Gi"), container(cpu="1"), overhead={"cpu": "250m"}))
    assert asked == {"cpu": 1750, "memory": 2**30, "pods": 1}


def test_an_init_container_counts_where_it_needs_more_than_all_others_together() -> None:
    init = [container(cpu="3", memory="1Mi"), container(cpu="1")]
    asked = request_of(pod(container(cpu="1", memory="1Gi"), container(cpu="1"), init=init))
    assert asked == {"cpu": 3000, "memory": 2**30, "pods": 1}


def test_a_sidecar_runs_next_to_the_containers_and_next_to_later_init_containers_only() -> None:
    init = [container(cpu="5"), container(cpu="2", restart_policy="Always"), container(cpu="4")]
    assert request_of(pod(container(cpu="1"), init=init))["cpu"] == 6000
    assert request_of(pod(container(cpu="7"), init=init))["cpu"] == 9000
    assert request_of(pod(container(cpu="1"), init=init[:2]))["cpu"] == 5000


def test_what_a_pod_requests_as_a_whole_counts_instead_of_its_containers() -> None:
    several = pod(container(cpu="1", memory="1Gi"), container(cpu="1", rdma_hca="1"), overhead={"cpu": "250m"})
    whole = ResourceRequirements(requests={"cpu": "6"})
    asked = request_of(msgspec.structs.replace(several, spec=msgspec.structs.replace(several.spec, resources=whole)))
    assert asked == {"cpu": 6250, "memory": 2**30, "rdma/hca": 1, "pods": 1}


def resized(status: dict[str, Any], spec: dict[str, Any] | None = None) -> dict[str, int]:
    """Return the request of a pod with this status, whose container c requests 8 CPU."""
    asked = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "8", "memory": "1Gi"}}}]}
    return request_of(msgspec.convert({"metadata": {"name": "p"}, "spec": asked | (spec or {}), "status": status}, Pod))


def has(allocated: str | None, actual: str | None, name: str = "c") -> dict[str, Any]:
    """Return the status of a container with CPU that its node has allocated to it, and that it has."""
    told: dict[str, Any] = {"name": name}
    told |= {} if allocated is None else {"allocatedResources": {"cpu": allocated, "memory": "1Gi"}}
    return told | ({} if actual is None else {"resources": {"requests": {"cpu": actual, "memory": "1Gi"}}})


def pending(reason: str) -> dict[str, Any]:
    """Return the condition of a pod whose resize its node has not begun."""
    return {"type": "PodResizePending", "status": "True", "reason": reason}


@pytest.mark.parametrize(
    ("allocated", "actual", "conditions", "cpu"),
    [
        ("2", "2", [pending("Infeasible")], 2000),
        ("2", "3", [pending("Infeasible")], 3000),  # it is shrinking
        ("2", None, [pending("Infeasible")], 2000),
        (None, "2", [pending("Infeasible")], 2000),
        (None, None, [pending("Infeasible")], 8000),  # its status says nothing
        ("2", "2", [pending("Deferred")], 8000),
        ("8", "2", [{"type": "PodResizeInProgress", "status": "True", "reason": "Infeasible"}], 8000),
        ("8", "9", [], 9000),
        ("9", "8", [], 9000),
        ("8", "8", [], 8000),
        ("2", "2", [{"type": "Ready", "status": "True"}, pending("Infeasible")], 2000),
        ("2", "2", [pending("Deferred"), pending("Infeasible")], 8000),  # the first of them counts
    ],
)
def test_a_resize_that_its_node_cannot_do_takes_nothing(
    allocated: str | None, actual: str | None, conditions: list[dict[str, Any]], cpu: int
) -> None:
    found = resized({"containerStatuses": [has(allocated, actual)], "conditions": conditions})
    assert found == {"cpu": cpu, "memory": 2**30, "pods": 1}


def test_each_container_has_its_own_status_and_sidecars_have_one_too() -> None:
    sidecar = {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "4"}}}
    other = {"name": "d", "resources": {"requests": {"cpu": "1"}}}
    main = {"name": "c", "resources": {"requests": {"cpu": "8"}}}
    status = {
        "containerStatuses": [{"name": "d"}, has("2", "2"), has("64", "64", "nobody")],
        "initContainerStatuses": [has("1", "1", "s")],
        "conditions": [pending("Infeasible")],
    }
    found = resized(status, {"containers": [main, other], "initContainers": [sidecar]})
    assert found["cpu"] == 2000 + 1000 + 1000


@pytest.mark.parametrize(
    ("status", "cpu"),
    [
        ({}, 8000),
        ({"conditions": [pending("Infeasible")]}, 8000),
        ({"allocatedResources": {"cpu": "3"}, "conditions": [pending("Infeasible")]}, 2000),
        ({"resources": {"requests": {"cpu": "4"}}, "conditions": [pending("Infeasible")]}, 3000),
        ({"resources": {"requests": {"cpu": "12"}}}, 11000),
        ({"allocatedResources": {"cpu": "3"}}, 8000),
    ],
)
def test_what_a_pod_requests_as_a_whole_is_resized_as_a_whole(status: dict[str, Any], cpu: int) -> None:
    whole = {"resources": {"requests": {"cpu": "8"}}, "overhead": {"cpu": "1"}}
    assert resized(status, whole)["cpu"] == cpu + 1000


def test_a_quantity_that_is_invalid_counts_as_nothing_and_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    assert request_of(pod(container(cpu="plenty", memory="1Ki"))) == {"cpu": 0, "memory": 1024, "pods": 1}
    assert "cpu" in caplog.text


def test_amounts_beyond_64_bits_are_cut_and_endless_ones_count_as_the_most() -> None:
    most = 2**63 - 1
    assert request_of(pod(container(memory="1e30"), container(memory="1e30")))["memory"] == most
    assert request_of(pod(container(memory="9" * 5000)))["memory"] == most
    assert request_of(pod(container(memory="-1"))) == {"memory": 0, "pods": 1}


def test_thousands_of_containers_with_a_resource_each_are_added_up() -> None:
    many = [container(**{f"example.com_{i}": "1"}) for i in range(3000)]
    sidecars = [container("Always", **{f"example.com_{i}": "2"}) for i in range(3000)]
    asked = request_of(pod(*many, init=[*sidecars, container(cpu="1")]))
    assert asked == {f"example.com/{i}": 3 for i in range(3000)} | {"cpu": 1000, "pods": 1}


def asking(
    *tolerations: Toleration,
    cpu: str = "1",
    terms: list[NodeSelectorTerm] | None = None,
    selector: dict[str, str] | None = None,
) -> Ask:
    required = NodeSelector(node_selector_terms=terms or [])
    affinity = Affinity(node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=required))
    spec = PodSpec(
        containers=[container(cpu=cpu)], tolerations=list(tolerations), affinity=affinity, node_selector=selector or {}
    )
    return ask_of(Pod(metadata=Metadata(name="p"), spec=spec))


def test_pods_that_differ_in_amounts_only_are_of_one_class_and_alike_ones_ask_the_same() -> None:
    assert asking(cpu="1") != asking(cpu="2")
    assert asking(cpu="1").key == asking(cpu="2").key
    one, other = Toleration(key="a", operator="Exists"), Toleration(key="b", value="v")
    left = asking(one, other, selector={"a": "1", "b": "2"})
    assert left == asking(other, one, one, selector={"b": "2", "a": "1"})
    assert hash(left) == hash(asking(other, one, one, selector={"b": "2", "a": "1"}))
    assert left.key != asking(one, selector={"a": "1", "b": "2"}).key
    assert left.key != asking(one, other, selector={"a": "1"}).key


def test_what_a_pod_asks_is_listed_in_order_and_without_what_it_does_not_take() -> None:
    assert ask_of(pod(container(memory="1", cpu="0", rdma_hca="2"))).amounts == (
        ("memory", 1),
        ("pods", 1),
        ("rdma/hca", 2),
    )


def test_a_pod_of_endless_selectors_is_not_read_at_all() -> None:
    values = NodeRequirement(key="zone", operator="NotIn", values=[str(i) for i in range(MOST - 2)])
    assert asking(terms=[NodeSelectorTerm(match_expressions=[values])]).key != OVERSIZE
    assert asking(terms=[NodeSelectorTerm(match_expressions=[values])], selector={"a": "b"}).key == OVERSIZE
    assert asking(terms=[NodeSelectorTerm(match_fields=[values]), NodeSelectorTerm()]).key == OVERSIZE
    assert asking(*[Toleration(key="a")] * (MOST + 1)).key == OVERSIZE
