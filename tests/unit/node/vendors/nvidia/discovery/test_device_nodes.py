"""The driver's device nodes that a container lacks."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dradriver.node.vendors.nvidia.discovery import device_nodes


def test_nodes_of_a_driver_that_was_loaded_again_are_made_again(tmp_path: Path) -> None:
    driver, host, own = (tmp_path / name for name in ("driver", "host", "own"))
    for folder in (driver, host, own):
        (folder / "nvidia-caps").mkdir(parents=True)
    paths = ("nvidia-uvm", "nvidia-caps/nvidia-cap1")

    def load(folder: Path, major: int) -> None:
        for path in paths:
            (folder / path).unlink(missing_ok=True)
            os.mknod(folder / path, stat.S_IFCHR | 0o666, os.makedev(major, 1))

    try:
        load(host, 236)
    except PermissionError:
        pytest.skip("device nodes cannot be made here")
    for major in (236, 238):
        load(host, major)
        device_nodes.add_nodes([driver, host], folder=own)
        assert [(own / path).stat().st_rdev for path in paths] == [os.makedev(major, 1)] * 2
    load(driver, 511)
    before = [(own / path).stat().st_ino for path in paths]
    for _ in range(2):
        device_nodes.add_nodes([host, driver], folder=own)
        assert [(own / path).stat().st_ino for path in paths] == before  # the first source's, as they are


def test_missing_device_nodes_are_made_as_the_host_or_the_drivers_container_has_them(tmp_path: Path) -> None:
    host, driver, own = (tmp_path / name for name in ("host", "driver", "own"))
    for folder in (host, driver, own):
        folder.mkdir()
    (own / "nvidia0").write_text("there already")
    (driver / "nvidia-caps").mkdir()
    (driver / "nvidia9").write_text("no device")
    try:
        os.mknod(driver / "nvidiactl", stat.S_IFCHR | 0o666, os.makedev(195, 255))
    except PermissionError:
        device_nodes.add_nodes([driver, host], folder=own)  # what cannot be made is left, and nothing fails
        assert sorted(path.name for path in own.iterdir()) == ["nvidia0"]
        return
    os.mknod(driver / "nvidia-caps/nvidia-cap1", stat.S_IFCHR | 0o400, os.makedev(236, 1))
    (host / "nvidia-caps-imex-channels").mkdir()
    os.mknod(host / "nvidia-caps-imex-channels/channel0", stat.S_IFCHR | 0o666, os.makedev(235, 0))
    os.mknod(driver / "nvidia0", stat.S_IFCHR | 0o666, os.makedev(195, 0))
    os.mknod(host / "nvidiactl", stat.S_IFCHR | 0o666, os.makedev(195, 254))
    device_nodes.add_nodes([driver, host, tmp_path / "none"], folder=own)
    assert sorted(str(path.relative_to(own)) for path in own.rglob("*") if not path.is_dir()) == [
        "nvidia-caps-imex-channels/channel0",
        "nvidia-caps/nvidia-cap1",
        "nvidia0",
        "nvidiactl",
    ]
    assert (own / "nvidia-caps/nvidia-cap1").stat().st_rdev == os.makedev(236, 1)
    assert (own / "nvidiactl").stat().st_rdev == os.makedev(195, 255)
    assert (own / "nvidia0").read_text() == "there already"
