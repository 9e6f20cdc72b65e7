"""All ways to free a set, and the cheapest first: against every set of units there is."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from dradriver.allocator.fleet.freeing import Node, Way, good_set, ways
from dradriver.allocator.sets.tables import Tables, tables_of
from dradriver.topology import profiles

TABLES = {name: tables_of(profiles.load(name)) for name in ("dgx1-v100", "dgx-h100", "a100-x4-mesh", "l40s-x8")}


@st.composite
def nodes(draw: st.DrawFn) -> Node[str]:
    """A node whose GPUs are free, somebody's who may go, or somebody's who may not."""
    name = draw(st.sampled_from(sorted(TABLES)))
    tables = TABLES[name]
    owners = draw(
        st.lists(st.sampled_from(["", "x", "a", "b", "c", "d", "e"]), min_size=tables.size, max_size=tables.size)
    )
    masks: dict[str, int] = {}
    for place, owner in enumerate(owners):
        masks[owner] = masks.get(owner, 0) | 1 << place
    lost = masks.pop("x", 0)  # a GPU that is not handed out
    free = masks.pop("", 0)
    held = {f"{owner}-{draw(st.integers(0, 2))}": mask for owner, mask in masks.items()}
    whole = (1 << tables.size) - 1 - (lost if draw(st.booleans()) else 0)
    return Node(draw(st.sampled_from(["n1", "n2"])), tables, free & whole, whole, held)


@given(nodes(), st.sampled_from([2, 3, 4, 8]), st.data())
def test_every_way_is_found_that_needs_all_its_units_and_the_cheapest_is_first(
    node: Node[str], size: int, data: st.DataObject
) -> None:
    lost = {unit: float(data.draw(st.integers(0, 5))) for unit in node.held}
    found = ways([node], lost, size)
    assert {(frozenset(way.units), way.gpus) for way in found} == set(_minimal(node, size))
    for way in found:
        assert way.lost == sum(lost[unit] for unit in way.units)
        free = node.free
        for unit in way.units:
            free |= node.held[unit]
        assert way.gpus & ~free == 0
        assert way.gpus.bit_count() == size
    assert [way.lost for way in found] == sorted(way.lost for way in found)


def _minimal(node: Node[str], size: int) -> list[tuple[frozenset[str], int]]:
    if _frees(node, (), size) is not None:
        return []
    every = {
        frozenset(some): gpus
        for count in range(1, len(node.held) + 1)
        for some in itertools.combinations(node.held, count)
        if (gpus := _frees(node, some, size)) is not None
    }
    return [(some, gpus) for some, gpus in every.items() if not any(less < some for less in every)]


def _frees(node: Node[str], units: tuple[str, ...], size: int) -> int | None:
    free = node.free
    for unit in units:
        free |= node.held[unit]
    return good_set(node.tables, free, node.whole, size)


@given(nodes(), st.sampled_from([2, 4, 8]))
def test_a_set_is_good_if_no_set_of_that_size_is_better(node: Node[str], size: int) -> None:
    every = [_mask(some) for some in itertools.combinations(_places(node.whole), size)]
    free = [mask for mask in every if mask & ~node.free == 0]
    chosen = good_set(node.tables, node.free, node.whole, size)
    best = max((_rate(node.tables, mask) for mask in every), default=0.0)
    assert (chosen is not None) == any(_rate(node.tables, mask) >= best - 1e-6 for mask in free)


def _rate(tables: Tables, mask: int) -> float:
    return float(tables.busbw[mask])


def _places(mask: int) -> list[int]:
    return [place for place in range(mask.bit_length()) if mask >> place & 1]


def _mask(places: tuple[int, ...]) -> int:
    return sum(1 << place for place in places)


def test_many_on_one_node_are_the_cheapest_of_them() -> None:
    tables = tables_of(profiles.load("dgx2-v100"))
    held = {f"u{place:02d}": 1 << place for place in range(16)}
    found = ways([Node("n", tables, 0, (1 << 16) - 1, held)], {unit: float(unit[1:]) for unit in held}, 4)
    assert found[0] == Way(6.0, "n", ("u00", "u01", "u02", "u03"), 0b1111)
    assert all(unit < "u12" for way in found for unit in way.units)
