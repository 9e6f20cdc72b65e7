"""How many NICs nodes have for who asks: what they must have in common, and how much of it is kept."""

from __future__ import annotations

import msgspec
import pytest

from dradriver.api.vocabulary.nic_requests import Alike, NicAsk, NicRequest
from dradriver.cluster.nics.nic_devices import NicSlice
from tests.fakes import nics
from tests.fakes.nics import DRANET, DRANET_CLASS, SRIOV
from tests.kept import entries
from tests.unit.cluster.test_nic_inventory import A, B, Book, book, enough, made, see

VF_ID = f"{SRIOV}/vfID"


def functions() -> Book:
    """Return a book with two functions of one card and one of another."""
    mine = book()
    mine.class_changed(SRIOV, ())
    every = [nics.function(f"{A[:-1]}{1 + at}", A, at) for at in range(2)]
    see(mine, made(*every, nics.function(f"{B[:-1]}1", B, 0), driver=SRIOV))
    return mine


def wanted(*counts: int, alike: tuple[Alike, ...] = (), selectors: tuple[str, ...] = ()) -> NicAsk:
    every = (NicRequest(f"n{at}", SRIOV, SRIOV, count, selectors) for at, count in enumerate(counts))
    return NicAsk(requests=tuple(every), alike=alike)


@pytest.mark.parametrize(
    ("counts", "among", "there_are"),
    [((2,), ("n0",), True), ((3,), ("n0",), False), ((1, 1), ("n0", "n1"), True), ((1, 2), ("n0", "n1"), False),
     ((1, 2), ("n1",), True), ((2, 1), ("n1",), True)],
)  # fmt: skip
def test_a_node_counts_where_enough_of_its_nics_have_in_common_what_they_must(
    counts: tuple[int, ...], among: tuple[str, ...], there_are: bool
) -> None:
    mine = functions()
    assert enough(mine, wanted(*counts)) == {"a"}
    assert enough(mine, wanted(*counts, alike=(Alike(VF_ID, among),))) == ({"a"} if there_are else set())


def test_one_nic_of_two_drivers_counts_once() -> None:
    mine = functions()
    see(mine, made(nics.device(f"{A[:-1]}1")))
    own = NicRequest("own", DRANET_CLASS, DRANET, 1)
    assert enough(mine, NicAsk(requests=(own, *wanted(2).requests))) == {"a"}
    assert enough(mine, NicAsk(requests=(own, *wanted(3).requests))) == set()


def very_many(node: str) -> NicSlice:
    """Return a slice with 21,000 functions, of which only three differ. One look counts those of two nodes."""
    few = made(*(nics.function(f"{A[:-1]}{1 + at}", A, at) for at in range(3)), node=node, driver=SRIOV)
    return msgspec.structs.replace(few, nics=few.nics * 7000)


def test_nodes_with_very_many_nics_are_counted_some_at_a_time() -> None:
    mine, ask, names = book(), wanted(2), "abcde"
    mine.class_changed(SRIOV, ())
    for node in names:
        mine.table.offer(node, True)
        see(mine, very_many(node))
    for counted in (2, 4, 5, 5):
        having = mine.counts.of(ask, mine.table.named(names)) > 0
        assert [node for node in names if having[mine.table.row(node)]] == list(names[:counted])
        assert mine.counts.has_ended(ask) is (counted < 5)


def test_more_wishes_than_are_kept_are_not_all_counted_again_each_time_round() -> None:
    mine = functions()
    every = [wanted(1, selectors=(f'device.attributes["{SRIOV}"].vfID == {at}',)) for at in range(1152)]
    for ask in every:
        enough(mine, ask)
    kept = entries(mine.counts)
    mine.looks.clear()
    for _ in range(10):
        for ask in every:
            enough(mine, ask)
    assert 0 < len(mine.looks) < 10 * 2 * len(every) / 2, "two nodes for each request"
    assert entries(mine.counts) == kept, "1024 requests are kept"
