"""The device nodes that open a MIG instance, from a driver's own files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dradriver.node.container_edits import DeviceNode
from dradriver.node.errors import NotYetError
from dradriver.node.vendors.nvidia.devices.capabilities import DriverCapabilities
from tests import needs

MIG = "proc/driver/nvidia/capabilities/gpu3/mig/gi5"
DEVICES = """Character devices:
  1 mem
195 nvidia-frontend
{major} nvidia-caps
235 nvidia-caps-imex-channels

Block devices:
  8 sd
"""


class Host:
    """A host whose driver has one MIG instance, number 5 on /dev/nvidia3."""

    def __init__(self, root: Path, driver_root: str = "", major: int = 236) -> None:
        self.root = root
        self.dev = root / driver_root / "dev"
        self.dev.mkdir(parents=True)
        self.put("proc/devices", DEVICES.format(major=major))
        self.put(f"{MIG}/access", "DeviceFileMinor: 48\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
        self.put(f"{MIG}/ci0/access", "DeviceFileMinor: 49\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
        self.capabilities = DriverCapabilities(host_root=root, driver_root=root / driver_root if driver_root else None)

    def put(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def numbers(self, name: str) -> tuple[int, int, int]:
        found = (self.dev / "nvidia-caps" / name).stat()
        assert stat.S_ISCHR(found.st_mode)
        return os.major(found.st_rdev), os.minor(found.st_rdev), stat.S_IMODE(found.st_mode)


@pytest.fixture(autouse=True)
def devices_can_be_made(tmp_path: Path) -> None:
    try:
        os.mknod(tmp_path / "probe", stat.S_IFCHR, os.makedev(236, 1))
    except PermissionError:
        needs.missing("no right to make device nodes")


def test_a_link_in_a_nodes_place_does_not_count(tmp_path: Path) -> None:
    host = Host(tmp_path)
    (host.dev / "nvidia-caps").mkdir()
    (host.dev / "nvidia-caps/nvidia-cap48").symlink_to("/nowhere")
    (host.dev / "nvidia-caps/nvidia-cap49").symlink_to("/dev/null")
    host.capabilities.nodes(3, 5, 0)
    assert [host.numbers(f"nvidia-cap{n}") for n in (48, 49)] == [(236, 48, 0o444), (236, 49, 0o444)]
    assert not (host.dev / "nvidia-caps/nvidia-cap49").is_symlink()


@pytest.mark.parametrize("driver_root", ["", "run/nvidia/driver"])
def test_the_drivers_files_say_which_nodes_and_missing_ones_are_made(driver_root: str, tmp_path: Path) -> None:
    host = Host(tmp_path / "host", driver_root)
    on_host = f"/{driver_root}/dev/nvidia-caps" if driver_root else "/dev/nvidia-caps"
    for _ in range(2):
        assert host.capabilities.nodes(3, 5, 0) == (
            DeviceNode("/dev/nvidia-caps/nvidia-cap48", f"{on_host}/nvidia-cap48"),
            DeviceNode("/dev/nvidia-caps/nvidia-cap49", f"{on_host}/nvidia-cap49"),
        )
        assert [host.numbers(f"nvidia-cap{n}") for n in (48, 49)] == [(236, 48, 0o444), (236, 49, 0o444)]


def test_a_node_of_another_boot_is_made_again(tmp_path: Path) -> None:
    host = Host(tmp_path / "host", major=511)
    (host.dev / "nvidia-caps").mkdir()
    os.mknod(host.dev / "nvidia-caps/nvidia-cap48", stat.S_IFCHR | 0o444, os.makedev(236, 48))
    host.capabilities.nodes(3, 5, 0)
    assert host.numbers("nvidia-cap48") == (511, 48, 0o444)


@pytest.mark.parametrize(
    ("broken", "text", "said"),
    [
        (f"{MIG}/ci0/access", None, "cannot be read: .*ci0/access"),
        (f"{MIG}/access", "DeviceFileMode: 292\n", "names no device"),
        (f"{MIG}/access", "DeviceFileMinor: many\n", "names no device"),
        ("proc/devices", "195 nvidia-frontend\n", "has no nvidia-caps"),
    ],
)
def test_a_driver_that_does_not_say_is_asked_again_later(
    broken: str, text: str | None, said: str, tmp_path: Path
) -> None:
    host = Host(tmp_path / "host")
    (host.root / broken).unlink()
    if text is not None:
        host.put(broken, text)
    with pytest.raises(NotYetError, match=said):
        host.capabilities.nodes(3, 5, 0)


def test_a_node_that_cannot_be_made_is_said_with_what_helps(tmp_path: Path) -> None:
    host = Host(tmp_path / "host")
    (host.dev / "nvidia-caps").write_text("in the way")
    with pytest.raises(NotYetError, match="nvidia-modprobe"):
        host.capabilities.nodes(3, 5, 0)


def test_where_the_drivers_root_has_no_dev_they_are_among_the_hosts(tmp_path: Path) -> None:
    host = Host(tmp_path)
    root = tmp_path / "home/kubernetes/bin/nvidia"
    root.mkdir(parents=True)
    nodes = DriverCapabilities(host_root=tmp_path, driver_root=root).nodes(3, 5, 0)
    assert nodes[0] == DeviceNode("/dev/nvidia-caps/nvidia-cap48", "/dev/nvidia-caps/nvidia-cap48")
    assert host.numbers("nvidia-cap48") == (236, 48, 0o444)
