"""Trees of KFD that were captured on real machines."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from dradriver.node.vendors.amd import amd_reading
from tests.fakes.kfd import NODES
from tests.paths import SHARED_DATA

pytestmark = pytest.mark.shared_data
AMD = SHARED_DATA / "vendors/amd"


def captured(archive: str, inside: str, root: Path) -> Path:
    with tarfile.open(AMD / archive) as tar:
        tar.extractall(root / "captured")
    nodes = root / NODES
    nodes.parent.mkdir(parents=True)
    nodes.symlink_to(root / "captured" / inside)
    return root


def test_eight_mi210_are_two_hives_of_four(tmp_path: Path) -> None:
    root = captured("kfd-topo-mi210-xgmi-pcie.tar.gz", "topo-mi210-xgmi-pcie/nodes", tmp_path)
    machine = amd_reading.read(root).machine
    assert {gpu.product for gpu in machine.gpus} == {"AMD Instinct MI210"}
    assert [gpu.minor for gpu in machine.gpus] == [*range(128, 136)]
    assert machine.gpus[0].uuid == "GPU-1901ead3a2ecd4a6"
    hives = [{j for j in range(8) if machine.links[i][j]} | {i} for i in range(8)]
    assert hives == [{0, 1, 2, 3}] * 4 + [{4, 5, 6, 7}] * 4
    assert [gpu.numa for gpu in machine.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert machine.link_gbps == 36.0


@pytest.mark.slow
def test_mi308_in_qpx_is_refused(tmp_path: Path) -> None:
    root = captured("kfd-topology-parsing-mi308.tar.gz", "topology-parsing-mi308/topology/nodes", tmp_path)
    found = amd_reading.discover(root)
    assert not found.machine.gpus
    assert found.refused is not None
    assert "GPU 0000:0a:00 is partitioned (4 devices with one unique_id)" in found.refused
