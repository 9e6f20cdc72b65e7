"""Rows, the classes of pods, and when trying again may help."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from dradriver.api.base.objects import Condition, Metadata, Node, NodeSpec, NodeStatus, Taint
from dradriver.api.base.pods import Pod, PodSpec, Toleration
from dradriver.cluster.nodes.columns import Codes
from dradriver.cluster.nodes.node_table import GONE, NOT_READY, NodeTable
from dradriver.cluster.nodes.pod_demands import MOST, Ask, Constraints, Term, ask_of
from dradriver.cluster.nodes.selector_classes import CORDONED, TAINTED, TOO_MANY, UNSELECTED

TAINT = Taint(key="k", value="v", effect="NoSchedule")
ANY = Ask((), Constraints())


def node(
    name: str = "n",
    *,
    labels: dict[str, str] | None = None,
    taints: list[Taint] | None = None,
    cpu: str = "4",
    ready: str = "True",
    cordoned: bool = False,
) -> Node:
    return Node(
        metadata=Metadata(name=name, labels=labels or {"zone": "a"}),
        spec=NodeSpec(unschedulable=cordoned, taints=taints or []),
        status=NodeStatus(
            allocatable={"cpu": cpu, "pods": "9"},
            conditions=[Condition(type="Ready", status=ready), Condition(type="DiskPressure", status="False")],
        ),
    )


def table_of(*nodes: Node) -> NodeTable:
    table = NodeTable()
    for each in nodes:
        table.set_node(each.metadata.name, each)
        table.offer(each.metadata.name, True)
    return table


def wanting(*tolerations: Toleration, **selector: str) -> Ask:
    spec = PodSpec(tolerations=list(tolerations), node_selector=selector)
    return msgspec.structs.replace(ask_of(Pod(metadata=Metadata(name="p"), spec=spec)), amounts=())


def fit(table: NodeTable, ask: Ask) -> set[str]:
    found = table.eligible(ask)
    assert len(found) == table.rows == len(table.freed)
    return {table.name(int(row)) for row in found.nonzero()[0]}


def test_only_nodes_that_offer_gpus_are_eligible_or_a_cause() -> None:
    table = table_of(node("a"), node("b"))
    table.set_node("cpu-only", node("cpu-only", ready="False"))
    assert fit(table, ANY) == {"a", "b"}
    assert table.causes(ANY) == ()
    table.offer("b", False)
    assert fit(table, ANY) == {"a"}
    table.offer("cpu-only", True)
    assert table.causes(ANY) == (NOT_READY,)


def test_causes_are_told_once_each_in_order_and_without_numbers() -> None:
    table = table_of(
        node("a", ready="Unknown", taints=[TAINT]),
        node("b", cordoned=True, taints=[TAINT]),
        node("c", taints=[TAINT], labels={"zone": "b"}),
        node("d", labels={"zone": "b"}, cpu="0"),
        node("e", labels={"zone": "b"}, cpu="0"),
        node("f", cpu="1"),
        node("g", cpu="5"),
    )
    table.offer("h", True)
    ask = msgspec.structs.replace(wanting(zone="a"), amounts=(("cpu", 5000), ("pods", 10)))
    assert list(table.causes(ask)) == sorted(
        [
            GONE,
            NOT_READY,
            CORDONED,
            TAINTED,
            UNSELECTED,
            "too little cpu",
            "too little pods",
        ]
    )


def test_a_pod_of_endless_selectors_fits_nowhere_and_is_told_so() -> None:
    table = table_of(node())
    many = wanting(*[Toleration(key="a")] * (MOST + 1))
    assert fit(table, many) == set()
    assert table.causes(many) == (TOO_MANY,)


def test_a_row_stays_while_its_node_is_known_or_offers_gpus_and_no_other_node_has_it() -> None:
    table = table_of(node("a"))
    row = table.row("a")
    table.set_node("a", None)
    table.set_node("b", node("b"))
    assert (table.row("a"), table.name(row)) == (row, "a")
    table.set_node("a", node("a"))
    table.offer("a", False)
    table.set_node("c", node("c"))
    assert len({table.row(name) for name in "abc"}) == 3
    assert table.row("a") == row
    table.set_node("a", None)
    with pytest.raises(KeyError):
        table.row("a")
    with pytest.raises(KeyError):
        table.name(row)
    table.set_node("d", node("d"))
    assert table.row("d") == row


def test_a_node_that_offers_gpus_before_the_api_server_shows_it_has_a_row_and_is_not_eligible() -> None:
    table = NodeTable()
    table.offer("n", True)
    assert table.name(table.row("n")) == "n"
    assert fit(table, ANY) == set()
    assert table.causes(ANY) == (GONE,)
    table.offer("n", False)
    with pytest.raises(KeyError):
        table.row("n")
    table.offer("n", False)


def test_a_reused_row_has_nothing_of_the_former_node() -> None:
    table = table_of(node("old", labels={"zone": "a", "disk": "ssd"}, taints=[TAINT], cordoned=True, cpu="64"))
    row = table.row("old")
    open_ = Toleration(operator="Exists")
    assert fit(table, wanting(open_, disk="ssd")) == {"old"}
    table.take("old", {"pods": 8})
    table.set_node("old", None)
    table.offer("old", False)
    table.set_node("new", node("new", ready="False"))
    assert table.row("new") == row
    assert table.freed[row] == 0
    table.set_node("new", node("new"))
    assert table.causes(ANY) == ()
    table.offer("new", True)
    assert fit(table, msgspec.structs.replace(wanting(zone="a"), amounts=(("cpu", 4000), ("pods", 9)))) == {"new"}
    assert fit(table, wanting(open_, disk="ssd")) == set()
    assert fit(table, Ask((("cpu", 4001),), Constraints())) == set()


def test_hundreds_of_nodes_come_and_go() -> None:
    names = [f"n{i}" for i in range(500)]
    table = table_of(*[node(name, labels={"number": name}) for name in names])
    assert fit(table, wanting(number="n321")) == {"n321"}
    assert fit(table, ANY) == set(names)
    assert [table.row(name) for name in names] == list(range(500))
    rows = table.rows
    for turn in range(3):
        for name in names[:-1]:
            table.set_node(name, None)
            table.offer(name, False)
        assert fit(table, ANY) == {"n499"}
        for name in names[:-1]:
            table.set_node(name, node(name, labels={"number": f"{name}-{turn}"}))
            table.offer(name, True)
        assert fit(table, wanting(number=f"n321-{turn}")) == {"n321"}
    assert table.rows == rows


def test_a_hostname_is_the_label_and_else_the_name() -> None:
    table = table_of(node("a", labels={"kubernetes.io/hostname": "a.example.com"}), node("b"))
    assert [table.hostname(name) for name in ("a", "b", "unknown")] == ["a.example.com", "b", "unknown"]


BEFORE = node(taints=[TAINT], cordoned=True)


@pytest.mark.parametrize(
    ("after", "helps"),
    [
        (BEFORE, False),
        (msgspec.structs.replace(BEFORE, status=node().status), False),
        (node(taints=[TAINT], cordoned=True, cpu="5"), True),
        (node(taints=[TAINT], cordoned=True, cpu="3"), False),
        (node(taints=[TAINT]), True),
        (node(cordoned=True), True),
        (node(cordoned=True, taints=[TAINT, Taint(key="j", effect="NoExecute")]), False),
        (node(cordoned=True, taints=[TAINT, Taint(key="j", effect="PreferNoSchedule")]), False),
        (node(cordoned=True, taints=[Taint(key="k", value="w", effect="NoSchedule")]), True),
        (node(cordoned=True, taints=[TAINT], labels={"zone": "b"}), True),
        (node(cordoned=True, taints=[TAINT], ready="False", cpu="5"), False),
    ],
)
def test_a_change_helps_if_it_can_let_a_pod_in(after: Node, helps: bool) -> None:
    table = table_of(BEFORE, node("other"))
    clock, other = table.clock, table.freed[table.row("other")]
    assert table.set_node("n", after) is helps
    assert (table.clock > clock) is helps
    assert bool(table.freed[table.row("n")] > clock) is helps
    assert table.freed[table.row("other")] == other


def test_a_node_helps_when_it_becomes_ready_or_is_new() -> None:
    table = table_of(node(ready="False"))
    clock = table.clock
    assert table.set_node("n", node())
    assert table.freed[table.row("n")] > clock
    table.offer("m", True)
    clock = table.clock
    assert table.set_node("m", node("m"))
    assert table.freed[table.row("m")] > clock
    clock = table.clock
    assert not table.set_node("m", None)
    assert table.clock == clock


@pytest.mark.parametrize(
    "event",
    [
        lambda table: table.set_node("cpu", node("cpu", cpu="64")),
        lambda table: table.set_node("cpu", node("cpu", labels={"zone": "b"})),
        lambda table: table.set_node("new", node("new")),
        lambda table: table.set_node("cpu", None),
        lambda table: table.give("cpu", {"cpu": 1}),
        lambda table: table.give("unknown", {"cpu": 1}),
        lambda table: table.give("gpu", {"cpu": 0}),
        lambda table: table.take("gpu", {"cpu": 1}),
        lambda table: table.helped("cpu"),
        lambda table: table.helped("unknown"),
        lambda table: table.helped("gone"),
        lambda table: table.offer("gpu", True),
        lambda table: table.offer("gpu", False),
        lambda table: table.set_node("gpu", node("gpu")),
    ],
)
def test_what_cannot_help_moves_no_clock(event: Callable[[NodeTable], object]) -> None:
    table = table_of(node("gpu"))
    table.set_node("cpu", node("cpu"))
    table.take("cpu", {"cpu": 1})
    table.offer("gone", True)
    clock, freed = table.clock, table.freed.copy()
    assert not event(table)
    assert table.clock == clock
    assert (table.freed == freed).all()


@pytest.mark.parametrize(
    "event",
    [
        lambda table: table.give("gpu", {"cpu": 1}),
        lambda table: table.helped("gpu"),
        lambda table: table.offer("cpu", True),
        lambda table: setattr(table, "claimable", {"fpga"}),
    ],
)
def test_what_can_help_moves_the_clock(event: Callable[[NodeTable], object]) -> None:
    table = table_of(node("gpu"))
    table.set_node("cpu", node("cpu"))
    table.take("gpu", {"cpu": 1})
    clock = table.clock
    event(table)
    assert table.clock > clock
    assert [table.name(int(row)) for row in (table.freed > clock).nonzero()[0]] in (["gpu"], ["cpu"])


def test_a_node_that_lists_a_claimable_resource_no_more_helps() -> None:
    table = table_of(node())
    listing = msgspec.structs.replace(node().status, allocatable={"cpu": "4", "pods": "9", "fpga": "1"})
    table.claimable = {"fpga"}
    table.set_node("n", msgspec.structs.replace(node(), status=listing))
    assert fit(table, Ask((("fpga", 2),), Constraints())) == set()
    assert table.set_node("n", node())
    assert fit(table, Ask((("fpga", 2),), Constraints())) == {"n"}


def test_resources_that_are_claimable_no_more_or_on_no_node_move_no_clock() -> None:
    table = NodeTable()
    table.set_node("cpu", node("cpu"))
    table.claimable = {"fpga"}
    assert table.clock == 0
    assert table.claimable == {"fpga"}
    table = table_of(node())
    table.claimable = {"fpga"}
    clock = table.clock
    table.claimable = {"fpga"}
    table.claimable = ()
    assert table.clock == clock


def test_masks_follow_what_changes_after_they_were_made() -> None:
    table = table_of(node("a"), node("b", labels={"zone": "b"}))
    assert fit(table, wanting(zone="b")) == {"b"}
    table.set_node("a", node("a", labels={"zone": "b"}))
    assert fit(table, wanting(zone="b")) == {"a", "b"}
    table.set_node("b", node("b", labels={"zone": "b"}, taints=[TAINT]))
    assert fit(table, wanting(zone="b")) == {"a"}
    table.offer("a", False)
    table.set_node("a", node("a", labels={"zone": "c"}))  # nobody looks at it now
    table.offer("a", True)
    assert fit(table, wanting(zone="b")) == set()
    assert fit(table, wanting(Toleration(key="k", operator="Exists"), zone="b")) == {"b"}


@pytest.mark.parametrize("chosen", [1, 2, 3, 4, 5, 6])
def test_any_number_of_values_can_be_chosen(chosen: int) -> None:
    table = table_of(*[node(f"n{i}", labels={"zone": str(i)}) for i in range(7)])
    zones = ("zone", "In", (*map(str, range(chosen)), "none"))
    others = ("zone", "NotIn", zones[2])
    key = Constraints(terms=(Term((zones,), ()),))
    assert fit(table, Ask((), key)) == {f"n{i}" for i in range(chosen)}
    key = Constraints(terms=(Term((others,), ()),))
    assert fit(table, Ask((), key)) == {f"n{i}" for i in range(chosen, 7)}


def test_an_unused_value_gives_its_number_back() -> None:
    codes: Codes[str] = Codes()
    for turn in range(100):
        assert codes.take(f"a{turn}") == codes.find(f"a{turn}") > 0
        assert codes.take(f"a{turn}") == codes.find(f"a{turn}")
        assert codes.release(f"a{turn}") == 0
        assert codes.release(f"a{turn}") > 0
        assert codes.find(f"a{turn}") == 0
    assert codes.size == 2
