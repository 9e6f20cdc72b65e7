"""Who is asked next, and who is not asked at all."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
import numpy as np
import pytest

from dradriver.api.base import names
from dradriver.api.base.objects import Node
from dradriver.api.base.pods import Pod
from dradriver.api.pod import resolved
from dradriver.api.pod.annotations import Annotations
from dradriver.cluster.nodes.columns import Bools
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.cluster.nodes.pod_demands import Ask
from dradriver.cluster.nodes.pod_resources import Amounts
from dradriver.queue.pending import Member, PendingWorkload
from dradriver.queue.rechecks import OLDEST, OTHERS
from dradriver.queue.tenant_turns import MOST_IN_VAIN
from dradriver.queue.waiting import Queue
from dradriver.reason import Cause, Reason
from tests.kept import entries


class Nodes:
    """A table of ready nodes that offer GPUs, and how many of them are free."""

    def __init__(self, *names: str, free: int = 8) -> None:
        self.table = NodeTable()
        for name in names:
            self.table.offer(name, True)
            self.set(name)
        self.free = np.zeros(self.table.rows, dtype=np.int64)
        for name in names:
            self.free[self.table.row(name)] = free

    def set(self, name: str, **labels: str) -> None:
        node = {
            "metadata": {"name": name, "labels": labels},
            "status": {"allocatable": {"cpu": "8", "pods": "9"}, "conditions": [{"type": "Ready", "status": "True"}]},
        }
        self.table.set_node(name, msgspec.convert(node, Node))

    def queue(self) -> Queue:
        return Queue(self.table, lambda: self.free)


def workload(name: str, gpus: int = 1, *, namespace: str = "n", **spec: Any) -> PendingWorkload:
    note = resolved.write(resolved.resolve(Annotations({}), {"main": gpus}))
    pod = {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": name,
            "creationTimestamp": f"2026-01-01T00:00:00Z-{name}",
            "annotations": {names.REQUEST: note},
        },
        "spec": {
            "containers": [{"name": "main"}],
            "resourceClaims": [{"name": names.POD_CLAIM, "resourceClaimName": f"gpus-{name}"}],
            **spec,
        },
    }
    return PendingWorkload(Member(msgspec.convert(pod, Pod)))


FULL: Final = Reason(Cause.GPUS, "full")


def asked(queue: Queue) -> list[str]:
    """Block whoever is asked, one after another, and return their names."""
    found = []
    while queue.rechecks.outdated:
        queue.rechecks.look(1)
    while (head := queue.next()) is not None:
        found.append(head[0].key[1])
        queue.block(head[0], FULL)
    return found


def test_the_oldest_is_first_of_all_kinds() -> None:
    queue = Nodes("a").queue()
    for each in (workload("c"), workload("b", 2), workload("a"), workload("d", 2)):
        queue.put(each)
    order = []
    while (head := queue.next()) is not None:
        order.append(head[0].key[1])
        queue.leave(head[0])
    assert order == ["a", "b", "c", "d"]


def test_the_oldest_is_one_that_is_there() -> None:
    queue = Nodes("a").queue()
    before = entries(queue)
    for each in (workload("a"), workload("b", 2), workload("c", 2)):
        queue.put(each)
    for name in ("a", "b"):
        queue.drop(("n", name))
        head = queue.head()
        assert head is not None
        assert head[3] == {"a": "b", "b": "c"}[name]
    queue.drop(("n", "c"))
    assert queue.head() is None
    assert entries(queue) == before


def test_one_that_finds_no_place_speaks_for_all_of_its_kind() -> None:
    queue = Nodes("a").queue()
    for name in "abc":
        queue.put(workload(name))
    head = queue.next()
    assert head is not None
    assert {e.key[1]: reason for e, reason in queue.block(head[0], FULL)} == dict.fromkeys("abc", FULL)
    assert queue.next() is None
    assert queue.put(workload("d")) == FULL
    assert queue.next() is None


def test_the_same_reason_is_no_news() -> None:
    nodes = Nodes("a")
    queue = nodes.queue()
    queue.put(workload("a"))
    for news in (1, 0):
        nodes.table.helped("a")
        while queue.rechecks.outdated:
            queue.rechecks.look(1)
        head = queue.next()
        assert head is not None
        assert len(queue.block(head[0], FULL)) == news


def test_a_blocked_kind_is_asked_again_about_the_nodes_that_became_available_only() -> None:
    nodes = Nodes("a", "b")
    queue = nodes.queue()
    queue.put(workload("p"))
    assert asked(queue) == ["p"]
    assert asked(queue) == []
    nodes.table.helped("b")
    while queue.rechecks.outdated:
        queue.rechecks.look(1)
    head = queue.next()
    assert head is not None
    assert head[1] is not None
    assert np.flatnonzero(head[1]).tolist() == [nodes.table.row("b")]


def test_what_becomes_available_on_a_node_that_is_too_full_or_not_meant_wakes_no_pod() -> None:
    nodes = Nodes("a", "b")
    queue = nodes.queue()
    queue.put(workload("large", 4))
    queue.put(workload("choosy", 2, nodeSelector={"only": "here"}))
    queue.put(workload("cpu", 1))
    assert sorted(asked(queue)) == ["choosy", "cpu", "large"]
    nodes.free[nodes.table.row("a")] = 2
    nodes.table.helped("a")
    assert asked(queue) == ["cpu"]
    nodes.free[:] = 0
    nodes.table.helped("a")
    nodes.table.helped("b")
    assert asked(queue) == []
    nodes.free[nodes.table.row("a")] = 4
    nodes.set("a", only="here")
    assert sorted(asked(queue)) == ["choosy", "cpu", "large"]


def test_what_became_available_while_others_were_asked_is_not_missed() -> None:
    nodes = Nodes("a", "b")
    queue = nodes.queue()
    for name in "pqr":
        queue.put(workload(name, 1, nodeSelector={"only": name}))
    assert len(asked(queue)) == 3
    nodes.table.helped("a")
    assert queue.rechecks.look(1)
    nodes.set("b", only="p")
    assert asked(queue) == ["p"]


def test_an_entry_that_left_is_never_asked_and_its_kind_goes_on() -> None:
    queue = Nodes("a").queue()
    queue.put(workload("a"))
    queue.put(workload("b"))
    queue.drop(("n", "a"))
    head = queue.next()
    assert head is not None
    assert head[0].key[1] == "b"
    queue.leave(head[0])
    assert queue.next() is None
    assert len(queue) == 0
    assert queue.put(workload("c")) is None, "a kind that nobody is of is forgotten, with its reason"


def test_a_blocked_kind_is_asked_now_and_then_without_any_event() -> None:
    queue = Nodes("a").queue()
    queue.put(workload("a"))
    assert asked(queue) == ["a"]
    assert queue.rechecks.look_anew(1, 100.0)
    assert asked(queue) == ["a"]
    assert not queue.rechecks.look_anew(1, 200.0), "nothing has changed since"
    assert not queue.rechecks.look_anew(2, 105.0), "it was asked a moment ago"
    assert queue.rechecks.look_anew(2, 120.0)


def test_a_kind_that_turns_out_to_be_gone_while_others_are_queued_stops_nothing() -> None:
    queue = Nodes("a").queue()
    queue.put(workload("b"))
    assert asked(queue) == ["b"]
    before = entries(queue)
    queue.put(workload("a", 2))
    queue.drop(("n", "a"))  # its line stands in the queue still
    assert queue.rechecks.look_anew(1, 100.0)
    assert asked(queue) == ["b"]
    assert entries(queue) == before


def test_kinds_that_are_gone_leave_nothing_behind() -> None:
    queue = Nodes("a").queue()
    kept = []
    for number in range(500):
        queue.put(workload(f"p{number}", 1, nodeSelector={"only": str(number)}))
        head = queue.next()
        assert head is not None
        queue.leave(head[0])
        assert queue.next() is None
        kept.append(entries(queue))
    assert len(queue) == 0
    assert kept[-1] == kept[0]


def test_a_namespace_with_thousands_of_kinds_holds_up_no_other() -> None:
    nodes = Nodes("a")
    queue = nodes.queue()
    for number in range(500):
        queue.put(workload(f"p{number:03}", 1, nodeSelector={"only": f"{number}"}))
    queue.put(workload("the-other", 1, namespace="other"))
    assert len(asked(queue)) == 501
    asks: list[Ask] = []
    eligible = nodes.table.eligible

    def counted(ask: Ask, freed: Mapping[str, Amounts] = MappingProxyType({})) -> Bools:
        asks.append(ask)
        return eligible(ask, freed)

    nodes.table.eligible = counted  # type: ignore[method-assign]
    nodes.set("a", only="499")
    while queue.rechecks.look(8):
        pass
    assert len(asks) == OLDEST + OTHERS + 1
    head = queue.next()
    assert head is not None
    assert head[0].key == ("other", "the-other")
    queue.leave(head[0])
    rounds = 0
    while queue.rechecks.outdated:
        nodes.table.helped("a")  # something becomes free all the time
        while queue.rechecks.look(8):
            pass
        rounds += 1
        if (head := queue.next()) is not None:
            break
    assert head is not None
    assert head[0].key == ("n", "p499"), "all have their turn"
    assert rounds <= 500 / OTHERS + 1


def test_of_pods_that_left_while_an_older_one_of_their_kind_waits_nothing_is_kept() -> None:
    queue, alike = Nodes("a").queue(), Nodes("a").queue()
    for each in (queue, alike):
        each.put(workload("a-first"))
        assert asked(each) == ["a-first"]
    for number in range(1, 50, 2):
        alike.put(workload(f"q{number:02}"))
    for number in range(2000):
        queue.put(workload(f"p{number}"))
        queue.drop(("n", f"p{number}"))
    for number in range(50):
        queue.put(workload(f"q{number:02}"))
    for number in range(0, 50, 2):
        queue.drop(("n", f"q{number:02}"))
    assert len(queue) == len(alike) == 26
    assert entries(queue) < 1.5 * entries(alike), "hardly more than if the others had never come"
    order = []
    queue.drop(("n", "a-first"))
    assert queue.rechecks.look_anew(1, 100.0)
    while (head := queue.next()) is not None:
        order.append(head[0].key[1])
        queue.leave(head[0])
    assert order == [f"q{number:02}" for number in range(1, 50, 2)]


def test_a_wish_that_changed_is_another_kind() -> None:
    queue = Nodes("a").queue()
    one = workload("a")
    queue.put(one)
    assert asked(queue) == ["a"]
    newer = workload("a", 2).lead.pod
    one.lead.update(msgspec.structs.replace(newer, metadata=msgspec.structs.replace(
        newer.metadata, resource_version="2")))  # fmt: skip
    assert queue.put(one) is None
    assert asked(queue) == ["a"]


class Capped:
    """A queue in which one tenant, namespace ``n``, is kept from all GPUs while ``shut``."""

    def __init__(self) -> None:
        self.nodes = Nodes("a", "b")
        self.shut = True
        self.says: dict[str, str] = {}
        self.queue = Queue(
            self.nodes.table,
            lambda: self.nodes.free,
            tenant=lambda namespace: namespace,
            closed=lambda each: frozenset({"x"} if self.shut and each.key[0] == "n" else ()),
            open_rows=lambda closed: np.zeros(self.nodes.table.rows, dtype=np.bool_) if closed else None,
        )

    def asked(self, reason: str = "cap 1", stable: str = "cap") -> list[str]:
        """Block whoever is asked, and return their names with those that have to be told; ``says`` has what."""
        found = []
        while self.queue.rechecks.outdated:
            self.queue.rechecks.look(1)
        while (head := self.queue.next()) is not None:
            news = self.queue.block(head[0], Reason(Cause.CAP, reason, stable if stable != reason else ""))
            self.says |= {each.key[1]: str(reason) for each, reason in news}
            found.append(f"{head[0].key[1]}: {''.join(sorted(each.key[1] for each, _ in news))}")
        return found


def test_whom_a_cap_keeps_from_gpus_blocks_no_other_of_its_kind() -> None:
    capped = Capped()
    for each in (workload("a"), workload("b"), workload("c", namespace="m")):
        capped.queue.put(each)
    assert capped.asked() == ["a: ab", "c: c"]
    assert capped.queue.closed(("n", "a")) == {"x"}
    assert capped.queue.closed(("m", "c")) == frozenset()


def test_it_is_not_asked_when_something_becomes_free_but_when_its_tenant_has_less() -> None:
    capped = Capped()
    capped.queue.put(workload("a"))
    assert capped.asked() == ["a: a"]
    capped.nodes.table.helped("a")
    assert capped.asked() == []
    assert capped.queue.widen("m") == []
    assert capped.asked() == []
    assert capped.queue.widen("n") == []
    assert capped.asked() == ["a: "], "and is told nothing new"
    capped.queue.widen("n")
    assert capped.asked("cap 2") == ["a: a"]
    capped.shut = False
    capped.queue.widen("n")
    head = capped.queue.next()
    assert head is not None
    assert (head[0].key[1], head[1]) == ("a", None)


def test_of_many_only_the_first_is_told_figures_and_always_the_newest() -> None:
    capped = Capped()
    for name in "bcd":
        capped.queue.put(workload(name))
    assert capped.asked("cap 1") == ["b: bcd"]
    assert capped.says == {"b": "cap 1", "c": "cap", "d": "cap"}
    capped.queue.widen("n")
    assert capped.asked("cap 2") == ["b: b"]
    assert str(capped.queue.put(workload("e"))) == "cap", "who comes later is told no figures, which it would keep"
    assert str(capped.queue.put(workload("a", priority=1))) == "cap 2", "but for one that is the first by now"
    capped.queue.widen("n")
    assert capped.asked("cap 2") == ["a: ab"]
    assert (capped.says["a"], capped.says["b"]) == ("cap 2", "cap"), "who is the first no more"
    capped.queue.drop(("n", "a"))
    capped.queue.widen("n")
    assert capped.asked("cap 2") == ["b: b"]
    assert capped.says["b"] == "cap 2"
    capped.queue.widen("n")
    assert capped.asked("full", "full") == ["b: bcde"]
    assert capped.queue.widen("n") == []
    assert capped.asked("full", "full") == ["b: "]


def test_once_the_cap_leaves_it_gpus_it_is_as_blocked_as_others_of_its_kind_and_told_so() -> None:
    capped = Capped()
    capped.queue.put(workload("a"))
    assert capped.asked() == ["a: a"]
    capped.queue.put(workload("c", namespace="m"))
    assert capped.asked("full", "") == ["c: c"]
    capped.shut = False
    assert [(each.key[1], str(reason)) for each, reason in capped.queue.widen("n")] == [("a", "full")]
    assert capped.asked() == []
    capped.nodes.table.helped("a")
    assert [one[0] for one in capped.asked()] == ["a"], "one speaks for both again"


def test_nothing_is_left_of_whom_a_cap_kept_from_gpus() -> None:
    capped = Capped()
    before = entries(capped.queue)
    for each in (workload("a"), workload("b", 2)):
        capped.queue.put(each)
    assert len(capped.asked()) == 2
    for name in "ab":
        capped.queue.drop(("n", name))
    assert entries(capped.queue) == before


def gang(name: str, *members: PendingWorkload, namespace: str = "n") -> PendingWorkload:
    """Return the pods of some workloads as a gang."""
    for member in members:
        member.lead.near = name
    return PendingWorkload(*(member.lead for member in members), key=(namespace, f"gang/{name}"))


def test_a_gang_is_asked_again_when_a_node_is_free_that_only_one_of_its_other_pods_may_use() -> None:
    nodes = Nodes("a", "b")
    nodes.set("a", host="a")
    nodes.set("b", host="b")
    queue = nodes.queue()
    first, second = (workload(f"g-{node}", 2, nodeSelector={"host": node}) for node in "ab")
    queue.put(gang("g", first, second))
    assert asked(queue) == ["gang/g"]
    nodes.table.helped("b")
    assert asked(queue) == ["gang/g"]


def test_a_gang_is_not_asked_again_for_a_node_with_fewer_free_gpus_than_any_of_its_pods_needs() -> None:
    nodes = Nodes("a", free=3)
    queue = nodes.queue()
    queue.put(gang("g", workload("g-0", 4), workload("g-1", 8)))
    assert asked(queue) == ["gang/g"]
    nodes.table.helped("a")
    assert asked(queue) == []
    nodes.free[nodes.table.row("a")] = 4
    nodes.table.helped("a")
    assert asked(queue) == ["gang/g"]


def test_a_pod_that_comes_to_a_gang_later_is_asked_again_for_any_node() -> None:
    nodes = Nodes("a", free=0)
    queue = nodes.queue()
    late = workload("g-0", 4)
    late.lead.near = "g"  # GPUs can be kept for it, which do not count as free
    queue.put(late)
    assert asked(queue) == ["g-0"]
    nodes.table.helped("a")
    assert asked(queue) == ["g-0"]


def seen(queue: Queue, most: int, *, work: Mapping[str, int]) -> list[str]:
    """Have workloads looked at, each in vain and for the work of its name's first letter; return their names."""
    found: list[str] = []
    while len(found) < most and (head := queue.next()) is not None:
        found.append(head[0].lead.key[1])
        queue.block(head[0], FULL, work=work[found[-1][0]])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("namespace", ["m", "n"])
def test_looks_at_gangs_that_cost_much_in_vain_let_others_have_their_turn(namespace: str) -> None:
    tenants = {"n": "new", "m": "old"} if namespace == "m" else {}
    nodes = Nodes("a")
    queue = Queue(
        nodes.table, lambda: nodes.free, tenant=lambda space: tenants.get(space, ""),
        share=lambda tenant: {"new": 0.0, "old": 1e6, "": 0.0}[tenant],
    )  # fmt: skip
    for number in range(400):
        queue.put(gang(f"{number:03}", workload(f"g{number:03}", 8)))
    queue.put(workload("possible", namespace=namespace))
    work = {"g": 40_000_000, "p": 40_000}
    assert seen(queue, 3, work=work) == ["g000", "possible", "g001"], "also of the same tenant and namespace"
    assert len(seen(queue, 500, work=work)) == 398, "and they go on"
    freed(nodes, queue)
    again = seen(queue, 500, work=work)
    assert again[:2] == ["g001", "possible"]
    assert len(again) <= 4, "a round has no more than it has time for"
    order = set(again)
    for _ in range(400):
        freed(nodes, queue)  # something becomes free all the time
        order |= set(seen(queue, 500, work=work))
    assert len(order) == 401, "all have their turn"


def test_who_stepped_back_comes_again_while_others_find_places() -> None:
    queue = Nodes("a").queue()
    for number in range(3):
        queue.put(gang(f"{number}", workload(f"g{number}", 8)))
    for number in range(500):
        queue.put(workload(f"p{number:03}", namespace="m"))
    found = []
    while (head := queue.next()) is not None:
        name = head[0].lead.key[1]
        found.append(name)
        if name.startswith("g"):
            queue.block(head[0], FULL, work=40_000_000)
        else:
            queue.leave(head[0], work=40_000)
    assert [number for number, name in enumerate(found) if name.startswith("g")] == [0, 101, 202]


def freed(nodes: Nodes, queue: Queue) -> None:
    """Let GPUs become free, and ask all again whom that may concern."""
    nodes.table.helped("a")
    while queue.rechecks.look(8):
        pass


def test_who_steps_back_is_before_all_of_lower_priority() -> None:
    nodes = Nodes("a")
    queue = nodes.queue()
    queue.put(gang("large", workload("g0", 8, priority=1000)))
    queue.put(gang("small", workload("p1", 4, priority=1000)))
    queue.put(workload("p2", 2, priority=1000, namespace="m"))
    queue.put(workload("p3", 1, namespace="m"))
    work = {"g": 40_000_000, "p": 40_000}
    for _ in range(3):
        order = seen(queue, 9, work=work)
        assert (sorted(order[:3]), order[3:]) == (["g0", "p1", "p2"], ["p3"])
        freed(nodes, queue)


@pytest.mark.parametrize("priority", [0, 1000])
def test_a_class_that_made_its_namespace_step_back_is_not_again_before_its_others(priority: int) -> None:
    nodes = Nodes("a")
    had = {"n": 0.0, "m": 1e6}
    queue = Queue(nodes.table, lambda: nodes.free, tenant=lambda namespace: namespace, share=had.__getitem__)
    for number in range(2):
        queue.put(gang(f"{number}", workload(f"g{number}", 8 - number, priority=priority)))
    queue.put(gang("small", workload("p2", 2, priority=priority)))
    queue.put(workload("p3", priority=priority, namespace="m"))
    work = {"g": MOST_IN_VAIN, "p": 0}
    firsts = []
    for _ in range(6):
        order = seen(queue, 9, work=work)
        assert sorted(order) == ["g0", "g1", "p2", "p3"]
        firsts.append(order[: order.index("p3")])
        freed(nodes, queue)
    assert firsts == [["g0"], ["g1"], *2 * [["p2", "g0"], ["p2", "g1"]]]


def test_a_class_that_made_its_namespace_step_back_is_before_those_that_come_later() -> None:
    nodes = Nodes("a")
    queue = nodes.queue()
    queue.put(gang("large", workload("g0", 8)))
    queue.put(workload("p1", namespace="m"))
    work = {"g": 40_000_000, "p": 40_000}
    assert seen(queue, 9, work=work) == ["g0", "p1"]
    queue.put(gang("small", workload("p2", 2)))
    assert seen(queue, 9, work=work) == ["p2"]
    freed(nodes, queue)
    assert seen(queue, 9, work=work) == ["p1", "g0", "p2"], "its namespace has waited since it stepped back"


@pytest.mark.parametrize("priority", [0, 1000])
def test_gangs_that_cost_much_in_vain_leave_a_small_gang_of_their_namespace_its_turn(priority: int) -> None:
    nodes = Nodes("a")
    queue = nodes.queue()
    for number in range(3):
        queue.put(gang(f"{number}", workload(f"g{number}", 8, priority=priority)))
    queue.put(gang("small", workload("p3", 2, priority=priority)))
    queue.put(workload("p4", priority=priority, namespace="m"))
    work = {"g": 5_000_000, "p": 200_000}
    seen(queue, 9, work=work)
    firsts = []
    for _ in range(9):
        freed(nodes, queue)
        order = seen(queue, 9, work=work)
        assert len([name for name in order if name.startswith("g")]) == 2, "a round has no more than it has time for"
        assert {"p3", "p4"} <= set(order)
        firsts.append(order[0])
    assert firsts[2:] == ["p3"] * 7, "once each of the others has cost its namespace a turn"


def test_a_share_is_asked_for_once_or_twice_for_each_workload_however_many_namespaces_a_tenant_has() -> None:
    asked_for: list[str] = []

    def share(tenant: str) -> float:
        asked_for.append(tenant)
        return len(asked_for) * 1e-6

    nodes = Nodes("a")
    queue = Queue(nodes.table, lambda: nodes.free, tenant=lambda _: "t", share=share)
    for number in range(300):
        queue.put(workload(f"p{number:03}", namespace=f"n{number}"))
    asked_for.clear()
    order = []
    while (head := queue.next()) is not None:
        order.append(head[0].key[1])
        queue.leave(head[0])
        queue.lowered("t")
    assert order == sorted(order)
    assert len(order) == 300
    assert len(asked_for) <= 4 * len(order)


def test_a_tenants_namespaces_are_served_by_age() -> None:
    share = itertools.count()
    nodes = Nodes("a")
    queue = Queue(nodes.table, lambda: nodes.free, tenant=lambda _: "t", share=lambda _: next(share) * 1e-6)
    for number in range(12):
        queue.put(workload(f"p{number:02}", 1 + number % 2, namespace=f"n{number % 3}"))
    order = []
    while (head := queue.next()) is not None:
        order.append(head[0].key[1])
        queue.leave(head[0])
    assert order == sorted(order)


def test_no_node_is_asked_for_gpus_that_it_has_refused_to_another() -> None:
    nodes = Nodes("a", "b")
    queue = nodes.queue()
    for number in range(50):
        cpu = {"resources": {"requests": {"cpu": f"{1000 - number}m"}}}
        queue.put(workload(f"p{number:02}", 2, containers=[{"name": "main"} | cpu]))
    assert len(asked(queue)) == 50, "each is told why once"
    for _ in range(3):
        nodes.table.helped("a")
        assert asked(queue) == ["p00"]
    nodes.table.helped("a")
    while queue.rechecks.outdated:
        queue.rechecks.look(1)
    assert queue.next() is not None
    nodes.table.helped("b")
    assert asked(queue) == ["p00"], "of what became free since then it is asked"


def test_what_a_cap_refuses_is_refused_by_no_node() -> None:
    nodes = Nodes("a")
    queue = nodes.queue()
    for number in range(2):
        cpu = {"resources": {"requests": {"cpu": f"{number + 1}m"}}}
        queue.put(workload(f"p{number}", 2, containers=[{"name": "main"} | cpu]))
    assert len(asked(queue)) == 2
    nodes.table.helped("a")
    while queue.rechecks.outdated:
        queue.rechecks.look(1)
    found = []
    while (head := queue.next()) is not None:
        found.append(head[0].key[1])
        queue.block(head[0], FULL, by_limit=True)
    assert found == ["p0", "p1"]
