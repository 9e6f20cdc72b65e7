"""How many NICs nodes have for who asks: what they must have in common, and how much of it is kept."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from dradriver.api.vocabulary.nics import Alike, NicAsk, NicRequest
from dradriver.cluster.nics import nic_counts
from dradriver.cluster.nics.nics import Nics
from tests.fakes import nics
from tests.fakes.nics import DRANET, DRANET_CLASS, SRIOV
from tests.unit.cluster.test_nics import A, B, book, enough, made, see

VF_ID = f"{SRIOV}/vfID"


def functions() -> Nics:
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


def test_nodes_with_very_many_nics_are_counted_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nic_counts, "_MOST_READ", 7)
    mine, ask, names = functions(), wanted(2), "abcde"
    for node in names[1:]:
        mine._nodes.offer(node, True)
        every = [nics.function(f"{A[:-1]}{1 + at}", A, at) for at in range(3)]
        see(mine, made(*every, node=node, driver=SRIOV))
    for counted in (2, 4, 5, 5):
        having = mine.counts.of(ask, mine._nodes.named(names)) > 0
        assert [node for node in names if having[mine._nodes.row(node)]] == list(names[:counted])
        assert mine.counts.has_ended(ask) is (counted < 5)


def test_more_wishes_than_are_kept_are_not_all_counted_again_each_time_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nic_counts, "_MOST", 16)
    mine = functions()
    every = [wanted(1, selectors=(f'device.attributes["{SRIOV}"].vfID == {at}',)) for at in range(18)]
    for ask in every:
        enough(mine, ask)
    monkeypatch.setattr(mine.counts, "_count", counted := Mock(side_effect=mine.counts._count))
    for _ in range(10):
        for ask in every:
            enough(mine, ask)
    assert counted.call_count < 10 * 2 * 18 / 2, "of two nodes for each"
