"""How many NICs nodes have for who asks: what they must have in common, and how much of it is kept."""

from __future__ import annotations

import pytest

from dradriver.api.nics import Alike, NicAsk, NicRequest
from dradriver.cluster.nics import Nics
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
