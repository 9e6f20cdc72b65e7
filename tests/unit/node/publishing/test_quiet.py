"""A machine that is well is published once, however its readings flutter."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import pytest

from dradriver.node.vendors.nvidia.discovery.nvidia_gpus import Hardware
from tests.fakes import nvml
from tests.fakes.hardware import Server
from tests.fakes.publishing import READING_S, Noise, Published


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_the_noise_of_a_busy_machine_writes_no_slice(seed: int, tmp_path: Path) -> None:
    server = Server("dgx-h100", tmp_path)
    with patch.dict(os.environ, server.environment()):
        found = Hardware(driver_root=nvml.compiled(), host_root=server.sys.root)
        published, noise = Published(found), Noise(server, seed=seed)
        published.reading(after_s=0)
        for _ in range(40):
            noise.step()
            published.reading(after_s=READING_S)
        assert published.writes == 1
        found.close()


@pytest.mark.slow
def test_a_link_that_comes_and_goes_is_one_write(tmp_path: Path) -> None:
    server = Server("dgx-h100", tmp_path)
    with patch.dict(os.environ, server.environment()):
        found = Hardware(driver_root=nvml.compiled(), host_root=server.sys.root)
        published = Published(found)
        published.reading(after_s=0)
        for reading in range(40):
            server.table["nvmlDeviceGetNvLinkState 2 5"] = str(int(reading % 5 > 1))
            server.environment()
            published.reading(after_s=READING_S)
        assert published.writes == 2
        found.close()
