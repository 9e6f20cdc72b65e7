"""Whose turn it is among tenants: against all workloads that wait, asked one by one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.allocator.request import Whole
from dradriver.api.base import names
from dradriver.api.base.pods import Gate, Pod
from dradriver.api.pod import resolved
from dradriver.api.pod.annotations import Annotations
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Queue as PolicyOfQueue
from dradriver.api.policies.tenant_policies import Tenant
from dradriver.cluster.nodes.columns import Bools
from dradriver.queue.equivalence_classes import ANYWHERE, Asker, Closed
from dradriver.queue.kueue_entries import Entries
from dradriver.queue.namespace_tenants import Tenants
from dradriver.queue.pending import Member, PendingWorkload
from dradriver.queue.queue_order import line
from dradriver.queue.tenant_shares import Shares
from dradriver.queue.tenant_turns import Turns
from dradriver.queue.waiting import Queue
from dradriver.queue.write_lanes import FIRST_PAUSE_S, Lanes, WaitReason
from dradriver.reason import Cause, Reason
from tests.unit.queue.test_waiting import Nodes


def workload(
    name: str, namespace: str, *, gpus: int = 1, priority: int = 0, since: int = 0, highest: int | None = None
) -> PendingWorkload:
    pod: dict[str, Any] = {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"{name}-{namespace}",
            "creationTimestamp": f"2026-01-01T00:{since // 60:02}:{since % 60:02}Z",
            "annotations": {names.REQUEST: resolved.write(resolved.resolve(Annotations({}), {"main": gpus}))},
        },
        "spec": {
            "priority": priority,
            "containers": [{"name": "main"}],
            "resourceClaims": [{"name": names.POD_CLAIM, "resourceClaimName": f"gpus-{name}"}],
        },
    }
    return PendingWorkload(Member(msgspec.convert(pod, Pod)), highest=highest)


def queue(share: Callable[[str], float]) -> Queue:
    nodes = Nodes("a")
    return Queue(nodes.table, lambda: nodes.free, tenant=lambda namespace: namespace, share=share)


def served(waiting: Queue) -> list[str]:
    found = []
    while (head := waiting.next()) is not None:
        found.append(head[0].key[1])
        waiting.leave(head[0])
    return found


def test_priority_is_above_usage_and_usage_above_age() -> None:
    had = {"a": 100.0, "b": 5.0}
    waiting = queue(had.__getitem__)
    for each in (
        workload("old", "a", since=1),
        workload("urgent", "a", since=9, priority=10),
        workload("second", "b", since=5),
        workload("first", "b", since=3),
    ):
        waiting.put(each)
    assert served(waiting) == ["urgent", "first", "second", "old"]


def test_a_priority_above_the_tenants_limit_counts_less() -> None:
    waiting = queue(lambda _: 0.0)
    waiting.put(workload("greedy", "a", since=2, priority=1_000_000, highest=5))
    waiting.put(workload("modest", "b", since=1, priority=5))
    assert served(waiting) == ["modest", "greedy"]


def test_lines_change_places_while_one_tenant_gets_what_is_free() -> None:
    had = {"a": 0.0, "b": 0.0}
    waiting = queue(had.__getitem__)
    for number in range(3):
        waiting.put(workload(f"a{number}", "a", since=number))
        waiting.put(workload(f"b{number}", "b", since=50 + number))
    found = []
    while (head := waiting.next()) is not None:
        found.append(head[0].key[1])
        had[head[0].key[0]] += 1.0
        waiting.leave(head[0])
    assert found == ["a0", "b0", "a1", "b1", "a2", "b2"]


_OPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "drop", "serve", "block", "use", "less", "free"]),
        st.integers(0, 11),
        st.integers(0, 2),
        st.integers(1, 3),
    ),
    max_size=40,
)


@given(_OPS)
def test_it_is_the_first_of_all_that_may_find_a_place(ops: list[tuple[str, int, int, int]]) -> None:
    nodes = Nodes("a")
    had = {f"n{number}": 0.0 for number in range(3)}
    waiting = Queue(nodes.table, lambda: nodes.free, tenant=lambda namespace: namespace, share=had.__getitem__)
    there: dict[tuple[str, str], tuple[PendingWorkload, int]] = {}
    blocked: set[int] = set()  # kinds, by the GPUs that they ask for

    def first() -> PendingWorkload | None:
        free = [each for each, gpus in there.values() if gpus not in blocked]
        return min(free, key=lambda each: (each.order[0], had[each.key[0]], *each.order[1:]), default=None)

    for op, number, tenant, gpus in ops:
        namespace = f"n{tenant}"
        if op in ("put", "drop"):
            there.pop((namespace, f"p{number}"), None)
        blocked &= {each for _, each in there.values()}  # nobody remembers a kind that has left
        match op:
            case "put":
                one = workload(f"p{number}", namespace, gpus=gpus, priority=number % 2, since=number)
                there[one.key] = one, gpus
                waiting.put(one)
            case "drop":
                waiting.drop((namespace, f"p{number}"))
            case "use":
                had[namespace] += gpus
            case "less":
                had[namespace] -= gpus
                waiting.lowered(namespace)
            case "free":
                nodes.table.helped("a")
                while waiting.rechecks.outdated:
                    waiting.rechecks.look(8)
                blocked.clear()
            case _:
                expected = first()
                head = waiting.next()
                assert (None if head is None else head[0]) is expected
                if expected is None:
                    continue
                if op == "serve":
                    del there[expected.key]
                    waiting.leave(expected)
                else:
                    blocked.add(there[expected.key][1])
                    waiting.block(expected, Reason(Cause.GPUS, "full"))
    assert len(waiting) == len(there)
    assert len(served(waiting)) == sum(gpus not in blocked for _, gpus in there.values())


def test_the_line_is_what_would_be_served_and_charges_count_for_the_next() -> None:
    tenants = Tenants(Shares(lambda: 0.0))
    tenants.follow(
        Policies(
            tenants={"a": Tenant(namespaces=("a",), weight=2.0), "b": Tenant(namespaces=("b",), highest_priority=0)},
            queue=PolicyOfQueue(ahead_minutes=1.0),
        )
    )
    workloads = [workload(f"a{number}", "a", since=number) for number in range(4)]
    workloads += [workload(f"b{number}", "b", since=10 + number, highest=tenants.highest("b")) for number in range(2)]
    found = line(workloads, tenants)
    assert [one.workload.key[1] for one in found] == ["a0", "b0", "a1", "a2", "b1", "a3"]
    assert [one.share for one in found] == [0.0, 0.0, 30.0, 60.0, 60.0, 90.0]
    nodes = Nodes("a")
    waiting = Queue(nodes.table, lambda: nodes.free, tenant=tenants.of, share=tenants.share)
    for each in workloads:
        waiting.put(each)
    order = []
    while (head := waiting.next()) is not None:
        order.append(head[0].key[1])
        tenants.shares.holds(head[0].key[0], 0.0, 1.0)
        waiting.leave(head[0])
    assert order == [one.workload.key[1] for one in found]


def test_without_tenants_the_line_is_by_priority_and_age() -> None:
    tenants = Tenants(Shares(lambda: 0.0))
    tenants.shares.holds("a", 8.0, 8.0)
    workloads = [workload("a", "a", since=1), workload("b", "b", since=2), workload("c", "b", since=3, priority=1)]
    assert [one.workload.key[1] for one in line(workloads, tenants)] == ["c", "a", "b"]


def test_what_a_tenant_has_had_is_told_with_its_weight() -> None:
    tenants = Tenants(Shares(lambda: 0.0))
    tenants.follow(Policies(tenants={"a": Tenant(namespaces=("a",), weight=3.0), "b": Tenant(namespaces=("b",))}))
    tenants.shares.restart({"a": 300.0, "b": 100.0}, {})
    assert tenants.relative("a") == tenants.relative("b") == 1.0
    tenants.shares.restart({"a": 300.0, "b": 300.0}, {})
    assert tenants.relative("a") < 1.0 < tenants.relative("b")


@pytest.mark.looptime
async def test_who_had_to_wait_for_its_quota_goes_on_in_its_tenants_turn() -> None:
    had = {"heavy": 100.0, "light": 0.0}
    waiting = queue(had.__getitem__)
    lanes = Lanes(lambda: None, waiting.turn)
    slot = lanes.take("light", lambda _: None)
    lanes.crowded("light")
    late = workload("late", "light", since=50)
    assert lanes.obstacle(late.key, late.order) is WaitReason.QUOTA
    waiting.put(workload("old", "heavy", since=1))
    assert lanes.next(waiting.head) is None
    slot.give_back()
    await asyncio.sleep(FIRST_PAUSE_S * 1.5)
    assert lanes.next(waiting.head) == late.key, "the other is older, and its tenant has had more"


def kueues(*, weights: bool = False) -> Tenants:
    shares = Shares(lambda: 0.0)
    found = Tenants(shares)
    admitted = {"admission": "kueue", "weight": 5.0} if weights else {"admission": "kueue"}
    policies = {name: Tenant(namespaces=(name,), **admitted) for name in ("red", "blue")}
    found.follow(Policies(tenants=policies | {"ours": Tenant(namespaces=("ours",))}))
    for name, has in (("red", 8.0), ("blue", 1.0), ("ours", 0.5)):
        shares.holds(name, has, has)
    return found


def held(one: PendingWorkload, *gates: str) -> PendingWorkload:
    """Return a workload as it is once its pods have these gates of others."""
    for member in one.members:
        gated = [msgspec.convert({"name": gate}, Gate) for gate in gates]
        spec = msgspec.structs.replace(member.pod.spec, scheduling_gates=gated)
        member.pod = msgspec.structs.replace(member.pod, spec=spec)
    return one


def test_whom_kueue_lets_in_stands_by_when_it_was_let_in_and_no_share_counts() -> None:
    tenants = kueues(weights=True)
    waiting = [
        workload("late", "red", since=5),
        workload("early", "blue", since=1),
        workload("urgent", "red", since=9, priority=7),
        workload("own", "ours", since=0),
    ]
    assert [one.workload.key[1] for one in line(waiting, tenants)] == ["urgent", "early", "late", "own"]
    assert [tenants.share(name) for name in ("red", "blue")] == [0.0, 0.0]


def test_a_pod_at_kueues_gate_is_as_old_as_its_admission() -> None:
    entries, tenants = Entries(kueues()), kueues()
    first, second, third = (workload(f"p{at}", "red", since=at) for at in range(3))
    newest = "2026-01-01T00:01:00Z"
    for one in (first, second):
        entries.look(held(one, "kueue.x-k8s.io/admission"), newest)
    entries.look(held(second), newest)
    entries.look(held(first), newest)
    entries.look(held(third), newest)
    later = workload("later", "red", since=61)
    assert [one.workload.key[1] for one in line((first, second, third, later), tenants)] == ["p2", "p1", "p0", "later"]
    entries.look(held(second), newest)
    assert [one.workload.key[1] for one in line((first, second), tenants)] == ["p1", "p0"], "it was let in once"


def test_gates_of_others_are_no_matter_of_ours_in_other_namespaces() -> None:
    entries, tenants = Entries(kueues()), kueues()
    first, second = workload("first", "ours", since=1), workload("second", "ours", since=2)
    entries.look(held(first, "example.com/budget"), "2026-01-01T00:01:00Z")
    entries.look(held(first), "2026-01-01T00:01:00Z")
    assert [one.workload.key[1] for one in line((first, second), tenants)] == ["first", "second"]


def test_what_tenants_have_may_grow_while_it_is_compared() -> None:
    moments = itertools.count()
    askers = [Asker(tenant, tenant, is_gang=False) for tenant in "abc"]
    turns = Turns(lambda asker: (0, "", 0, asker.tenant), lambda _: float(next(moments)))
    for asker in askers:
        turns.put(asker)
    assert turns.first() == askers[0]


_CAPPED = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "serve", "serve", "serve", "end", "free", "recheck"]),
        st.integers(0, 11),
        st.integers(0, 1),
        st.integers(1, 4),
    ),
    max_size=60,
)


@given(_CAPPED, st.integers(1, 6))
def test_a_cap_parks_only_whom_it_parks_and_only_for_as_long(ops: list[tuple[str, int, int, int]], cap: int) -> None:
    """One tenant may have so many, the other any; a place there is for everybody but for those of three or more."""
    nodes, room = Nodes("a"), [2]
    used = {"n0": 0, "n1": 0}
    gone: list[tuple[str, int]] = []

    def closed(each: PendingWorkload) -> Closed:
        namespace = each.key[0]
        return frozenset({"x"}) if namespace == "n0" and used["n0"] + _gpus(each) > cap else ANYWHERE

    def rows(shut: Closed) -> Bools | None:
        return np.zeros(len(nodes.free), dtype=np.bool_) if shut else None

    waiting = Queue(nodes.table, lambda: nodes.free, tenant=lambda space: space, closed=closed, open_rows=rows)
    there: dict[tuple[str, str], PendingWorkload] = {}
    told: dict[tuple[str, str], str] = {}
    lacking: set[int] = set()

    def tell(workloads: Iterable[PendingWorkload], reason: object) -> None:
        told.update({each.key: str(reason or "").partition(" ")[0] for each in workloads})

    def may(each: PendingWorkload) -> bool:
        return not closed(each) and _gpus(each) not in lacking

    for op, number, tenant, gpus in ops:
        match op:
            case "put" if (f"n{tenant}", f"p{number}") not in there:
                each = workload(f"p{number}", f"n{tenant}", gpus=gpus, since=number)
                there[each.key] = each
                tell([each], waiting.put(each))
            case "serve":
                while waiting.rechecks.outdated:
                    waiting.rechecks.look(1)
                expected = min(filter(may, there.values()), key=lambda each: each.order, default=None)
                while (head := waiting.next()) is not None:
                    each = head[0]
                    if closed(each):
                        news = waiting.block(each, Reason(Cause.GPUS, f"cap {used}", "cap"))
                        tell([other for other, _ in news], "cap")
                    elif _gpus(each) > room[0]:
                        lacking.add(_gpus(each))
                        tell([other for other, _ in waiting.block(each, Reason(Cause.GPUS, "full"))], "full")
                        expected = min(filter(may, there.values()), key=lambda one: one.order, default=None)
                    else:
                        assert each is expected
                        waiting.leave(each)
                        del there[each.key]
                        used[each.key[0]] += _gpus(each)
                        gone.append((each.key[0], _gpus(each)))
                        break
                else:
                    assert expected is None
                    for each in there.values():
                        if closed(each):
                            assert told[each.key] in ("cap", "full")
                            assert told[each.key] == "cap" or _gpus(each) in lacking
                        else:
                            assert told[each.key] == "full"
            case "end" if gone:
                namespace, less = gone.pop(number % len(gone))
                used[namespace] -= less
                for each, reason in waiting.widen(namespace):
                    tell([each], reason)
            case "free":
                room[0] = gpus
                lacking.clear()
                nodes.table.helped("a")
            case "recheck":
                waiting.rechecks.look_anew(number, float("inf"))


def _gpus(each: PendingWorkload) -> int:
    request = each.lead.wish.request
    assert isinstance(request, Whole)
    return request.gpus
