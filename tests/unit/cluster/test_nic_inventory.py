"""The book of NICs: what is read of their slices, and when a NIC is taken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest

from dradriver.api.base.objects import Metadata, Node
from dradriver.api.vocabulary import simple_cel
from dradriver.api.vocabulary.nic_requests import NicAsk, NicRequest
from dradriver.api.vocabulary.simple_cel import Other
from dradriver.cluster.gpus.taint_rules import TaintRules, read_rule
from dradriver.cluster.nics.nic_devices import Nic, NicSlice, read_slice
from dradriver.cluster.nics.nic_inventory import Nics
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.kube.codec import BadJson
from dradriver.kube.reflector import Change
from tests.fakes import nics
from tests.fakes.nics import DRANET, DRANET_CLASS, SRIOV
from tests.kept import entries

Object = dict[str, Any]
A, B = "0000:18:00.0", "0000:40:00.0"
ONE = NicAsk(requests=(NicRequest("nic", DRANET_CLASS, DRANET, 1),))


def read(obj: Object) -> NicSlice | None:
    return read_slice(msgspec.Raw(json.dumps(obj).encode()))


def made(*devices: Object, node: str = "a", driver: str = DRANET, name: str = "", **pool: Any) -> NicSlice:
    piece = nics.published(node, devices, driver=driver)
    piece["spec"]["pool"] |= pool
    piece["metadata"]["name"] = name or piece["metadata"]["name"]
    found = read(piece)
    assert found is not None
    return found


class Book(Nics):
    """The NICs of two nodes.

    Attributes:
        table: The nodes.
        rules: The administrators' rules.
        looks: The nodes whose NICs were counted, each as often as they were.
        woken_at: The clock of the nodes when ``woken`` was asked last.
    """

    def __init__(self) -> None:
        self.table, self.rules, self.looks = NodeTable(), TaintRules(), list[str]()
        for node in ("a", "b"):
            self.table.set_node(node, Node(metadata=Metadata(name=node)))
            self.table.offer(node, True)
        super().__init__(self.table, lambda _: None, self.rules)
        self.woken_at = self.table.clock

    def untaken(self, node: str) -> Iterator[Nic]:
        self.looks.append(node)
        return super().untaken(node)

    def woken(self) -> list[str]:
        """Return the nodes on which something may have become free since this was asked last."""
        before, self.woken_at = self.woken_at, self.table.clock
        return [node for node in self.table.names() if self.table.freed[self.table.row(node)] > before]


def book() -> Book:
    made = Book()
    made.class_changed(DRANET_CLASS, ())
    return made


def see(nics: Nics, new: NicSlice | None, old: NicSlice | None = None) -> None:
    piece = new or old
    assert piece is not None
    nics.slice_changed(Change(("", piece.metadata.name), old, new, 0.0))


def free(nics: Nics, node: str = "a") -> list[str]:
    return [nic.address for nic in nics.free(node)]


def fitting(nics: Nics) -> list[str]:
    return [nic.address for nic in nics.free("a") if any(nics.counts.judge(ONE.requests).of(nic))]


def enough(nics: Book, ask: NicAsk) -> set[str]:
    counts = nics.counts.of(ask, nics.table.named(("a", "b")))
    return {node for node in ("a", "b") if counts[nics.table.row(node)]}


def test_what_is_no_nic_of_these_drivers_is_not_read() -> None:
    other = nics.published("a", [nics.device(A)], driver="example.com")
    assert read(other) is None
    nowhere = nics.published("a", [nics.device(A)])
    del nowhere["spec"]["nodeName"]
    assert read(nowhere) is None
    with pytest.raises(BadJson):
        read({"metadata": {"name": "x"}, "spec": {"driver": DRANET, "nodeName": "a", "devices": 3}})


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"dra.net/pciAddress": {"int": 3}},
        {"dra.net/pciAddress": {"string": ""}},
        {"dra.net/pciAddress": {}},
        {"dra.net/pciAddress": {"string": None}},
        {"dra.net/pciAddress": {"strings": [A]}},
    ],
)
def test_a_device_without_an_address_cannot_be_pinned(attributes: Object) -> None:
    assert [nic.address for nic in made({"name": "eth0v1", "attributes": attributes}, nics.device(A)).nics] == [A]


def test_names_without_a_domain_are_the_drivers_own_and_no_value_is_left_out() -> None:
    said = {"pciAddress": {"string": A}, "numaNode": {"int": -1}, "rdma": {"bool": True}, "v": {"version": "1.0.0"}}
    odd = {"many": {"ints": [1]}, "null": {"string": None, "int": 2}, "new": {"float": 1.5}, "bad": {"int": "1"}}
    (nic,) = made({"name": "x", "attributes": said | odd}).nics
    assert nic.attributes == {
        "dra.net/pciAddress": A,
        "dra.net/numaNode": -1,
        "dra.net/rdma": True,
        "dra.net/v": Other("version", "'1.0.0'"),
        "dra.net/many": Other("ints", "[1]"),
        "dra.net/null": 2,
        "dra.net/new": Other("", ""),
        "dra.net/bad": Other("", "'1'"),
    }
    assert (nic.numa, nic.root, nic.taints) == (None, None, ())
    (own,) = made(nics.function("0000:18:00.1", A), driver=SRIOV).nics
    assert (own.address, own.parent, own.numa) == ("0000:18:00.1", A, None)


def test_a_tainted_nic_is_no_candidate() -> None:
    tainted = nics.device(A) | {"taints": [{"key": "k", "effect": "NoSchedule"}]}
    mine = book()
    see(mine, made(tainted, nics.device(B)))
    assert fitting(mine) == [B]


@pytest.mark.parametrize("slice_first", [True, False])
def test_a_rule_counts_whichever_is_seen_first_and_wakes_only_whom_it_concerns(slice_first: bool) -> None:
    mine = book()

    def ruled(name: str, **selector: str) -> None:
        spec = {"deviceSelector": selector, "taint": {"key": "k", "effect": "NoSchedule"}}
        rule = read_rule(msgspec.Raw(json.dumps({"metadata": {"name": name}, "spec": spec}).encode()))
        mine.rules.rule_changed(Change(("", name), None, rule))
        mine.rule_changed(Change(("", name), None, rule))

    if slice_first:
        see(mine, made(nics.device(A), nics.device(B)))
    mine.asked = True
    for number, selector in enumerate(({"driver": SRIOV}, {"pool": "b"}, {"device": "other"})):
        ruled(f"of-others-{number}", **selector)
    assert mine.woken() == []
    ruled("ill", device=str(nics.device(A)["name"]))
    assert mine.woken() == ["a"] * slice_first
    if not slice_first:
        see(mine, made(nics.device(A), nics.device(B)))
    assert fitting(mine) == [B]


def test_of_a_pool_the_newest_whole_generation_counts() -> None:
    mine = book()
    first = made(nics.device(A), name="one", generation=1)
    see(mine, first)
    half = made(nics.device(B), name="two", generation=2, resourceSliceCount=2)
    see(mine, half)
    assert free(mine) == [], "what is in force now is not there yet"
    see(mine, made(nics.device(A), name="three", generation=2, resourceSliceCount=2))
    assert free(mine) == [A, B]
    see(mine, None, half)
    assert free(mine) == []


def test_one_card_of_two_drivers_counts_once() -> None:
    mine = book()
    see(mine, made(nics.device(A)))
    see(mine, made(nics.function(A, B), driver=SRIOV))
    assert free(mine) == [A, A]
    mine.hold(("x", "claim"), [(DRANET, "a", "pci-0000-18-00-0")])
    assert free(mine) == []


def test_what_was_given_before_its_slice_is_seen_counts_once_it_is() -> None:
    mine = book()
    mine.hold(("x", "claim"), [(DRANET, "a", "pci-0000-18-00-0")])
    piece = made(nics.device(A), nics.device(B))
    see(mine, piece)
    assert free(mine) == [B]
    without = made(nics.device(B))
    see(mine, without, piece)
    see(mine, piece, without)
    assert (free(mine), mine.sound(("x", "claim"))) == ([B], True)
    mine.hold(("x", "claim"), ())
    assert free(mine) == [A, B]


def test_who_has_the_same_nic_is_known_by_where_it_is() -> None:
    mine = book()
    see(mine, made(nics.device(A), nics.device(B)))
    mine.hold(("x", "ours"), [("a", A)])
    mine.hold(("x", "theirs"), [(DRANET, "a", "pci-0000-18-00-0")])
    assert mine.others(("x", "ours")) == {("x", "theirs")}
    assert mine.others(("x", "new"), [("a", A), ("a", B), ("b", A)]) == {("x", "ours"), ("x", "theirs")}
    assert [nic.address for nic in mine.free("a", ("x", "ours"))] == [B]


def test_another_version_of_the_same_slice_wakes_no_pod() -> None:
    mine = book()
    mine.asked = True
    first = made(nics.device(A))
    see(mine, first)
    assert mine.woken() == ["a"]
    again = made(nics.device(A))
    see(mine, again, first)
    assert mine.woken() == []
    see(mine, made(nics.device(A), nics.device(B)), again)
    assert mine.woken() == ["a"]
    see(mine, None, made(nics.device(A), nics.device(B)))
    assert (mine.woken(), free(mine)) == (["a"], [])


def test_which_nodes_have_enough_follows_what_happens() -> None:
    mine = book()
    two = NicAsk(requests=(NicRequest("nic", DRANET_CLASS, DRANET, 2),))
    assert enough(mine, two) == set()
    see(mine, made(nics.device(A), nics.device(B)))
    see(mine, made(nics.device(A), node="b"))
    assert (enough(mine, two), enough(mine, ONE)) == ({"a"}, {"a", "b"})
    mine.hold(("x", "claim"), [("a", B)])
    assert (enough(mine, two), enough(mine, ONE)) == (set(), {"a", "b"})
    mine.class_changed(DRANET_CLASS, ('device.attributes["dra.net"].rdma == false',))
    assert enough(mine, ONE) == set()
    mine.class_changed(DRANET_CLASS, ())
    mine.hold(("x", "claim"), ())
    assert enough(mine, two) == {"a"}


def test_a_class_that_cannot_be_read_leaves_its_requests_to_the_scheduler() -> None:
    mine = book()
    for driver in (DRANET, SRIOV):
        mine.read(driver)
    mine.class_changed("odd", ('device.attributes["dra.net"].ifName.matches("x")',))
    ask = NicAsk(requests=(NicRequest("nic", DRANET_CLASS, DRANET, 1), NicRequest("odd", "odd", DRANET, 1)))
    found = mine.readable(ask)
    assert [one.name for one in found.requests] == ["nic"]
    assert dict(found.left) == {"odd": "only the scheduler can evaluate a selector of its DeviceClass"}
    assert mine.readable(ONE) is ONE


def test_nothing_is_kept_of_nodes_that_went_while_a_claim_had_a_nic_of_theirs() -> None:
    mine = Nics(NodeTable(), lambda _: None, TaintRules())
    before = entries(mine)
    for at in range(20):
        node = f"n{at}"
        piece = made(nics.device(A), nics.device(B), node=node)
        see(mine, piece)
        mine.hold(("x", node), [(DRANET, node, "pci-0000-18-00-0")])
        see(mine, None, piece)
        assert mine.held(("x", node))
        assert entries(mine) > before
        mine.hold(("x", node), ())
    assert entries(mine) == before


def test_when_the_last_claim_of_a_pool_ends_what_its_slices_show_is_still_known() -> None:
    mine = book()
    both, one = made(nics.device(A), nics.device(B)), made(nics.device(B))
    see(mine, both)
    mine.hold(("x", "first"), [(DRANET, "a", "pci-0000-18-00-0")])
    see(mine, one, both)
    mine.hold_anew(("x", "first"), [(DRANET, "a", "pci-0000-18-00-0")])
    assert mine.others(("x", "new"), [("a", A)]) == {("x", "first")}, "though no slice shows it"
    mine.hold(("x", "first"), ())
    mine.hold(("x", "second"), [(DRANET, "a", "pci-0000-40-00-0")])
    assert (free(mine), mine.others(("x", "new"), [("a", A), ("a", B)])) == ([], {("x", "second")})


def wish(text: str, name: str = "nic") -> NicAsk:
    return NicAsk(
        requests=(NicRequest(name, DRANET_CLASS, DRANET, 1, (f'device.attributes["dra.net"].x == "{text}"',)),)
    )


def test_nics_are_counted_once_for_however_many_wishes_while_nothing_changes() -> None:
    mine = book()
    see(mine, made(nics.device(A)))
    see(mine, made(nics.device(A), node="b"))
    for at in range(200):
        enough(mine, wish(str(at)))
    assert len(mine.looks) == 400
    mine.looks.clear()
    for at in range(200):
        enough(mine, wish(str(at), name=f"another-{at}"))
    assert mine.looks == []
    mine.hold(("x", "claim"), [("b", A)])
    for at in range(200):
        enough(mine, wish(str(at)))
    assert mine.looks == ["b"] * 200


def test_only_nodes_that_are_of_interest_are_counted_and_the_others_when_they_are() -> None:
    mine = book()
    see(mine, made(nics.device(A)))
    see(mine, made(nics.device(A), node="b"))
    table = mine.table
    assert np.flatnonzero(mine.counts.of(ONE, table.named(["b"]))).tolist() == [table.row("b")]
    assert mine.looks == ["b"]
    assert enough(mine, ONE) == {"a", "b"}
    assert mine.looks == ["b", "a"]


def test_a_node_in_the_place_of_another_is_counted_again() -> None:
    mine = book()
    see(mine, made(nics.device(A)))
    assert enough(mine, ONE) == {"a"}
    table = mine.table
    row = table.row("a")
    table.offer("a", False)
    table.set_node("a", None)
    table.offer("c", True)
    mine.counts.changed("c")
    assert table.row("c") == row
    assert not mine.counts.of(ONE, table.named(["c"])).any()


def test_requests_that_share_nics_need_as_many_as_all_of_them_want(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = Mock(side_effect=simple_cel.hold)
    monkeypatch.setattr(simple_cel, "hold", judged)
    mine = book()
    text = 'device.attributes["dra.net"].rdma == true'
    same = tuple(NicRequest(f"nic-{at}", DRANET_CLASS, DRANET, 1, (text,)) for at in range(2))
    other = NicRequest("any", DRANET_CLASS, DRANET, 1)
    see(mine, made(*(nics.device(f"0000:{at:02x}:00.0") for at in range(8)), node="b"))
    see(mine, made(nics.device(A), nics.device(B)))
    assert enough(mine, NicAsk(requests=same)) == {"a", "b"}
    assert judged.call_count == 1, "ten NICs of which the same is said, and two requests that ask the same"
    assert enough(mine, NicAsk(requests=(*same, other))) == {"b"}
    table = mine.table
    counts = mine.counts.of(NicAsk(requests=same), table.named("ab"), counts_all=True)
    assert [counts[table.row(node)] for node in "ab"] == [2, 8]
