"""Which GPUs the container toolkit knows, and the device nodes that a container lacks."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from dradriver.node.discovery import devices, toolkit

ONE, TWO = "GPU-5c8e4b8e-0d8c-4b8a-9a0e-000000000001", "GPU-5c8e4b8e-0d8c-4b8a-9a0e-000000000002"

GENERATED = f"""---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: {ONE}
- containerEdits: {{}}
  name: all
kind: nvidia.com/gpu
"""


def test_gpus_are_those_that_the_toolkits_specifications_name(tmp_path: Path) -> None:
    first, second = tmp_path / "etc", tmp_path / "run"
    first.mkdir()
    second.mkdir()
    (first / "nvidia.yaml").write_text(GENERATED)
    spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": TWO, "containerEdits": {}}]}
    (second / "nvidia.json").write_text(json.dumps(spec))
    assert toolkit.named([first, second, tmp_path / "none"]) == {ONE, TWO}
    assert toolkit.named([first]) == {ONE}
    assert toolkit.cdi_id(ONE) == f"nvidia.com/gpu={ONE}"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("operator.yaml", GENERATED.replace("nvidia.com/gpu", "k8s.device-plugin.nvidia.com/gpu")),
        ("other.yaml", GENERATED.replace("nvidia.com/gpu", "nvidia.com/gpus")),
        ("index.yaml", GENERATED.replace(ONE, "gpu0")),
        ("nvidia.yaml.tmp", GENERATED),
        ("broken.json", "\x00{{{"),
    ],
)
def test_what_names_no_gpu_of_that_kind_counts_for_nothing(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    (tmp_path / "folder.json").mkdir()
    assert toolkit.named([tmp_path]) == frozenset()


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
        devices.add_nodes([driver, host], folder=own)  # what cannot be made is left, and nothing fails
        assert sorted(path.name for path in own.iterdir()) == ["nvidia0"]
        return
    os.mknod(driver / "nvidia0", stat.S_IFCHR | 0o666, os.makedev(195, 0))
    os.mknod(host / "nvidiactl", stat.S_IFCHR | 0o666, os.makedev(195, 254))
    devices.add_nodes([driver, host, tmp_path / "none"], folder=own)
    assert sorted(path.name for path in own.iterdir()) == ["nvidia0", "nvidiactl"]
    assert (own / "nvidiactl").stat().st_rdev == os.makedev(195, 255)
    assert (own / "nvidia0").read_text() == "there already"
