"""The files that other tests go through by a pattern are there: of an empty folder a parametrized test has no case."""

from __future__ import annotations

import pytest

from tests import captured
from tests.paths import SHARED_DATA

LEAST = {  # folder and pattern as the tests have them: how many there are at least
    ("topo_m", "*.txt"): 14,  # topology/test_topo_m.py, topology/test_complete.py, topology/nccl/test_file_needed.py
    ("nccl_xml", "*.xml"): 7,  # topology/nccl/test_reader.py, test_file_needed.py
    ("manifests", "*.yaml"): 7,  # cli/test_lint.py
    ("vendors/amd/rccl_models", "*.xml"): 12,  # topology/test_vendors.py, property/test_allocator_strength.py
    ("vendors/amd", "*_*topo*.txt"): 3,  # bench/fuzz.py
    ("vendors/ascend", "*.txt"): 2,  # the same
    ("vendors/nic", "dranet_*.yaml"): 12,  # controller/test_nics_captured.py, contract/beside_nics.py
}


@pytest.mark.shared_data
@pytest.mark.parametrize(("place", "least"), LEAST.items(), ids=str)
def test_texts_of_real_machines_are_all_there(place: tuple[str, str], least: int) -> None:
    folder, pattern = SHARED_DATA / place[0], place[1]
    if not folder.is_dir():
        pytest.skip(f"no {place[0]} among the texts of real machines")
    assert len(list(folder.glob(pattern))) >= least


def test_pods_as_programs_made_them_are_all_there() -> None:
    assert len(list(captured.FOLDER.glob("*.json"))) >= 9
