"""The comparison with nvidia-smi, for machines that have GPUs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dradriver.topology import profiles, topo_m
from tests.fakes.hardware import Server
from tests.hardware.differences import differences


@pytest.mark.parametrize("name", ["dgx1-v100", "dgx-h100", "h100-x8-flat-vm", "gb200-nvl72-tray"])
def test_a_machine_and_its_own_text_agree(name: str, tmp_path: Path) -> None:
    text = topo_m.write(profiles.load(name))
    assert differences(Server(name, tmp_path).read().machine, topo_m.read(text)) == []


def test_every_difference_is_said() -> None:
    machine = profiles.load("dgx1-v100")
    text = topo_m.write(machine)
    rows = text.splitlines()
    rows[1] = rows[1].replace("NV1", "NV2", 1)
    rows[2] = rows[2].replace("NV1", "NV2", 1)
    for row in (1, 9):  # GPU0's and NIC0's
        rows[row] = rows[row].replace("PIX", "PXB", 1)
    said = topo_m.read("\n".join(rows))
    assert differences(machine, said) == [
        "GPU0 - GPU1: 1 links, nvidia-smi has 2",
        "mlx5_0 - GPU0: PIX, nvidia-smi has PXB",
    ]
    moved = msgspec.structs.replace(machine.gpus[7], numa=0)
    assert differences(msgspec.structs.replace(machine, gpus=(*machine.gpus[:7], moved)), topo_m.read(text)) == [
        "GPU7: NUMA node 0, nvidia-smi has 1"
    ]
    assert differences(profiles.load("rtx-a6000-x4-pairs"), said)[0].startswith("GPUs: [0, 1, 2, 3], nvidia-smi has ")
