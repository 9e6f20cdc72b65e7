"""What a pod takes from its node, as kube-scheduler counts."""

from __future__ import annotations

import msgspec
import pytest

from dradriver.api.objects import Metadata
from dradriver.api.pods import (
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
from dradriver.cluster.nodes.ask import MOST, OVERSIZE, Ask, ask_of
from dradriver.cluster.nodes.requests import request_of


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


def test_a_quantity_that_is_none_counts_as_nothing_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
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
