"""What is left on nodes, as kube-scheduler counts."""

from __future__ import annotations

import pytest

from dradriver.api.base.objects import Condition, Metadata, Node, NodeStatus
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.cluster.nodes.pod_demands import Ask, Constraints, listed

ALLOCATABLE = {"cpu": "4", "memory": "8Gi", "pods": "2", "rdma/hca": "1", "example.com/none": "0"}
READY = [Condition(type="Ready", status="True")]


def node(name: str = "n", allocatable: dict[str, str] | None = None) -> Node:
    given = ALLOCATABLE if allocatable is None else allocatable
    return Node(metadata=Metadata(name=name), status=NodeStatus(allocatable=given, conditions=READY))


def with_node() -> NodeTable:
    table = NodeTable()
    table.offer("n", True)
    table.set_node("n", node())
    return table


def ask(**wanted: int) -> Ask:
    return Ask(listed({key.replace("_", "/"): amount for key, amount in wanted.items()}), Constraints())


def fits(table: NodeTable, wanted: Ask, *, besides: tuple[str, dict[str, int]] | None = None) -> bool:
    freed = {} if besides is None else dict([besides])
    found = bool(table.eligible(wanted, freed)[table.row("n")])
    assert found == (not table.causes(wanted, freed))
    return found


@pytest.mark.parametrize(
    ("wanted", "lacking"),
    [
        ({"cpu": 2000}, None),
        ({"cpu": 2001}, "cpu"),
        ({"memory": 2**33}, None),
        ({"memory": 2**33 + 1}, "memory"),
        ({"rdma_hca": 1}, None),
        ({"rdma_hca": 2}, "rdma/hca"),
        ({"example.com_fpga": 1}, "example.com/fpga"),
        ({"example.com_fpga": 0}, None),
        ({"example.com_none": 1}, "example.com/none"),
        ({"cpu": 2001, "memory": 2**63 - 1, "example.com_fpga": 1}, "cpu"),
        ({"memory": 2**80}, "memory"),
    ],
)
def test_what_is_left_decides_for_every_resource(wanted: dict[str, int], lacking: str | None) -> None:
    table = with_node()
    table.take("n", {"cpu": 2000, "pods": 1})
    assert fits(table, ask(**wanted)) == (lacking is None)
    assert table.causes(ask(**wanted)) == (() if lacking is None else (f"too little {lacking}",))


def test_pods_themselves_are_counted() -> None:
    table = with_node()
    table.take("n", {"pods": 1})
    assert fits(table, ask(pods=1))
    table.take("n", {"pods": 1})
    assert table.causes(ask(pods=1)) == ("too little pods",)


def test_a_pod_gives_back_what_it_had() -> None:
    table = with_node()
    table.take("n", {"cpu": 4000, "pods": 1})
    assert not fits(table, ask(cpu=1))
    assert table.give("n", {"cpu": 4000, "pods": 1})
    assert fits(table, ask(cpu=4000, pods=2))


def test_what_pods_use_is_remembered_for_a_node_that_is_not_known_yet_or_no_more() -> None:
    table = NodeTable()
    table.take("n", {"cpu": 3000})
    table.offer("n", True)
    table.set_node("n", node())
    assert not fits(table, ask(cpu=1001))
    table.set_node("n", None)
    table.take("n", {"cpu": 500})
    table.offer("n", False)
    table.offer("n", True)
    table.set_node("n", node())
    assert not fits(table, ask(cpu=501))
    assert fits(table, ask(cpu=500))


def test_the_pod_that_is_placed_again_does_not_stand_in_its_own_way() -> None:
    table = with_node()
    mine = {"cpu": 3000, "pods": 1}
    table.take("n", mine)
    assert not fits(table, ask(**mine))
    assert fits(table, ask(**mine), besides=("n", mine))
    assert not fits(table, ask(**mine), besides=("elsewhere", mine))
    assert not fits(table, ask(**mine)), "asking must leave no trace"
    assert not fits(table, ask(example=1), besides=("n", mine))


def test_more_than_64_bits_are_counted_exactly() -> None:
    table, most = with_node(), 2**63 - 1
    for _ in range(3):
        table.take("n", {"cpu": most})
    assert not fits(table, ask(cpu=1))
    for _ in range(3):
        table.give("n", {"cpu": most})
    assert fits(table, ask(cpu=4000))
    assert not fits(table, ask(cpu=4001))


def test_what_a_device_class_serves_is_not_checked_on_nodes_that_have_none_of_it() -> None:
    table = with_node()
    assert table.causes(ask(fpga=1)) == ("too little fpga",)
    table.claimable = {"fpga", "rdma/hca", "example.com/none"}
    assert fits(table, ask(fpga=1))
    assert fits(table, ask(**{"example.com_none": 1}))  # as a device plugin that is gone leaves it
    assert not fits(table, ask(rdma_hca=2))
    table.take("n", {"rdma/hca": 1, "fpga": 5})
    assert not fits(table, ask(rdma_hca=1)), "what the node has is counted, even if nothing is left"
    table.set_node("n", node(allocatable={"fpga": "1", "pods": "1"}))
    assert not fits(table, ask(fpga=1))
    table.claimable = ()
    assert not fits(table, ask(rdma_hca=1))


def test_what_pods_make_up_never_fits_and_does_no_harm() -> None:
    table = with_node()
    table.take("n", {f"example.com/{i}": 1 for i in range(1000)})
    assert not fits(table, Ask(tuple((f"example.com/{i}", 1) for i in range(1000)), Constraints()))
    assert fits(table, ask(cpu=4000))
