"""Whatever a machine of AMD is like, what its /sys says is read as it is."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.node.vendors.amd import amd_reading
from dradriver.topology import profiles
from tests.effort import examples
from tests.fakes.kfd import AmdServer, amd
from tests.fakes.server import complete

WHOLE = amd(complete(profiles.load("mi250-x4")))
PAIRS = [(i, j) for i in range(8) for j in range(i)]


@given(counts=st.lists(st.integers(0, 4), min_size=len(PAIRS), max_size=len(PAIRS)), ids=st.sets(
    st.integers(1, 2**64 - 1), min_size=8, max_size=8))  # fmt: skip
@settings(max_examples=examples(20), deadline=None)
def test_any_links_and_identities_are_read_as_they_are(counts: list[int], ids: set[int]) -> None:
    links = [[0] * 8 for _ in range(8)]
    for (i, j), count in zip(PAIRS, counts, strict=True):
        links[i][j] = links[j][i] = count
    gpus = tuple(
        msgspec.structs.replace(gpu, uuid=f"GPU-{number:016x}") for gpu, number in zip(WHOLE.gpus, ids, strict=True)
    )
    machine = msgspec.structs.replace(WHOLE, gpus=gpus, links=tuple(map(tuple, links)))
    with tempfile.TemporaryDirectory() as folder:
        AmdServer(Path(folder), machine)
        found = amd_reading.discover(Path(folder)).machine
    assert found.links == machine.links
    assert [gpu.uuid for gpu in found.gpus] == [gpu.uuid for gpu in gpus]
    assert found.paths == machine.paths
