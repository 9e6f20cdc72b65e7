"""Specifications that are there: which of them is copied, and what is not believed."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from dradriver.node.errors import SetupError
from dradriver.node.vendors.nvidia.discovery import cdi_specifications as specifications
from dradriver.node.vendors.nvidia.discovery import ctk
from dradriver.node.vendors.nvidia.discovery.cdi_specifications import Specification, read_all
from tests.fakes.node import uuid
from tests.fakes.toolkit import Ctk, ImageCtk, lay, specification
from tests.fakes.toolkit_host import WHOLE, Host, nodes, swapped


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_specification_whose_files_the_host_lacks_is_not_used(host: Host) -> None:
    host.put("etc/cdi/nvidia.yaml", specification(WHOLE))
    (host.root / "usr/bin/nvidia-cdi-hook").unlink()
    wrong = host.base.keep(WHOLE)
    assert "nvidia.yaml names /usr/bin/nvidia-cdi-hook, which is not on the host; " in wrong[uuid(0)]
    odd = host.root / "etc/cdi/nvidia.json"
    odd.write_text(json.dumps(specification(WHOLE, hook="/usr/bin/\0")))
    assert host.base.keep(WHOLE).keys() == {gpu.uuid for gpu in WHOLE.gpus}
    odd.unlink()
    host.put("etc/cdi/nvidia.yaml", specification(WHOLE))
    (host.root / "dev/nvidia3").unlink()
    wrong = host.base.keep(WHOLE)
    assert wrong.keys() == {uuid(3)}
    assert "nvidia.yaml names /dev/nvidia3, which is not on the host; " in wrong[uuid(3)]


@pytest.mark.parametrize("path", ["var/run/cdi/nvidia.yaml", "etc/cdi/nvidia.yaml", "etc/cdi/nvidia.json"])
@pytest.mark.parametrize("kind", ["nvidia.com/gpu", "k8s.device-plugin.nvidia.com/gpu"])
def test_without_a_toolkit_what_is_there_is_used(path: str, kind: str, host: Host) -> None:
    host.put(path, specification(WHOLE, kind=kind))
    assert host.base.keep(WHOLE) == {}
    assert nodes(host.made) == {gpu.uuid: f"/dev/nvidia{gpu.minor}" for gpu in WHOLE.gpus}
    assert host.made["containerEdits"] == specification(WHOLE)["containerEdits"]


def test_a_stale_specification_hands_out_no_wrong_gpu(host: Host) -> None:
    host.put("etc/cdi/nvidia.yaml", specification(WHOLE))
    wrong = host.base.keep(swapped())
    assert wrong.keys() == {uuid(0), uuid(1)}
    assert "nvidia.yaml has /dev/nvidia0 for it, which is /dev/nvidia1 now; " in wrong[uuid(0)]
    assert nodes(host.made).keys() == {uuid(i) for i in range(2, 8)}


def test_one_of_another_driver_is_not_used(host: Host) -> None:
    host.put("etc/cdi/nvidia.yaml", specification(msgspec.structs.replace(WHOLE, driver_version="535.1.2")))
    assert f"is of driver 535.1.2, {WHOLE.driver_version} is running; " in host.base.keep(WHOLE)[uuid(0)]
    host.put("var/run/cdi/nvidia.yaml", specification(WHOLE))
    assert host.base.keep(WHOLE) == {}


def test_one_that_says_the_device_numbers_of_another_load_of_the_driver_is_not_used(host: Host) -> None:
    uvm = host.root / "dev/nvidia-uvm"

    def loaded(major: int) -> None:
        uvm.unlink(missing_ok=True)
        try:
            os.mknod(uvm, stat.S_IFCHR, os.makedev(major, 0))
        except PermissionError:
            pytest.skip("only root can make device nodes")

    def numbered(major: int) -> Any:
        made = specification(WHOLE)
        for node in made["containerEdits"]["deviceNodes"]:
            if node["path"] == "/dev/nvidia-uvm":
                node.update(type="c", major=major)
        return made

    host.put("etc/cdi/nvidia.yaml", numbered(510))
    loaded(510)
    assert host.base.keep(WHOLE) == {}
    loaded(509)
    said = host.base.keep(WHOLE)
    assert said.keys() == {gpu.uuid for gpu in WHOLE.gpus}
    assert "has /dev/nvidia-uvm as device 510:0, which is 509:0 now" in said[uuid(0)]
    host.put("etc/cdi/nvidia.yaml", numbered(509))
    assert host.base.keep(WHOLE) == {}
    assert {node.get("major") for node in host.made["containerEdits"]["deviceNodes"]} == {509, None}


def test_one_that_gives_a_gpu_to_every_container_is_not_used(host: Host) -> None:
    spec = specification(WHOLE)
    spec["containerEdits"]["deviceNodes"].append({"path": "/dev/nvidia3"})
    host.put("etc/cdi/nvidia.yaml", spec)
    assert "nvidia.yaml gives /dev/nvidia3 to every container; " in host.base.keep(WHOLE)[uuid(0)]


def test_what_lasts_until_a_reboot_comes_first(host: Host) -> None:
    host.put("etc/cdi/nvidia.yaml", specification(WHOLE, driver_root="/old"))
    host.put("var/run/cdi/nvidia.yaml", specification(WHOLE, driver_root="/new"))
    host.base.keep(WHOLE)
    assert nodes(host.made)[uuid(0)] == "/new/dev/nvidia0"


def test_a_driver_that_does_not_say_its_version_contradicts_no_specification(host: Host) -> None:
    host.put("etc/cdi/nvidia.yaml", specification(WHOLE))
    assert host.base.keep(msgspec.structs.replace(WHOLE, driver_version="")) == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("other.yaml", yaml.safe_dump(specification(WHOLE, kind="nvidia.com/gpus"))),
        ("index.yaml", yaml.safe_dump(specification(WHOLE, strategies=["index"]))),
        ("nvidia.yaml.tmp", yaml.safe_dump(specification(WHOLE))),
        ("broken.json", "\x00{{{"),
        ("deep.yaml", "[" * 5000),
        ("half.yaml", yaml.safe_dump(specification(WHOLE))[:500]),
        ("list.yaml", "- kind: nvidia.com/gpu\n"),
        ("typed.yaml", "kind: nvidia.com/gpu\ncdiVersion: 0.5.0\ndevices: {a: 1}\n"),
        ("alias.yaml", "a: &a [*a]\n"),
        ("bool.yaml", "a: !!bool x\n"),
        ("time.yaml", "a: !!timestamp x\n"),
        ("number.yaml", "a: !!int ''\n"),
        ("key.yaml", yaml.safe_dump(specification(WHOLE) | {"annotations": {None: "x"}})),
        ("ring.yaml", json.dumps(specification(WHOLE))[:-1] + ',\n "annotations": &a [*a]}\n'),
    ],
)
def test_what_is_no_specification_of_gpus_counts_for_nothing(name: str, text: str, host: Host) -> None:
    host.cdi.mkdir(parents=True)
    lay(host.root, specification(WHOLE))
    (host.cdi / name).write_text(text)
    (host.cdi / "folder.json").mkdir()
    os.mkfifo(host.cdi / "pipe.json")
    assert host.base.keep(WHOLE).keys() == {gpu.uuid for gpu in WHOLE.gpus}
    found = list(read_all([host.cdi], host_root=host.root))
    assert [one.source for one in found] == [str(host.cdi / name)] * (name == "index.yaml")


def test_a_device_node_whose_mode_changed_is_written_again_of_ours_alone(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Toolkits from 1.20 on write modes, and containers would have that of one bad moment for ever."""

    class Modes(Ctk):
        mode = 0o600

        def run(self, root: Path, command: Sequence[str], timeout_s: float = 0.0) -> bytes:
            made = json.loads(super().run(root, command, timeout_s))
            for one in (made["containerEdits"], *(device["containerEdits"] for device in made["devices"])):
                for node in one.get("deviceNodes", ()):
                    node["fileMode"] = self.mode
            return json.dumps(made).encode()

    now = {"mode": 0o600}
    monkeypatch.setattr(specifications, "_device", lambda _root, _path: specifications._Now(195, 0, now["mode"]))
    host.ctk = made = Modes(host.root, WHOLE)
    assert host.base.keep(WHOLE) == {}
    now["mode"] = made.mode = 0o666
    assert host.base.keep(WHOLE) == {}
    assert {node["fileMode"] for node in host.made["containerEdits"]["deviceNodes"]} == {0o666}
    text = json.dumps(host.made).encode()
    now["mode"] = 0o600
    others = Specification("theirs", text, json=True, host_root=host.root)
    assert others.devices(WHOLE.gpus, "")[1] == {}


@pytest.mark.parametrize(
    "text", ["[" * 200_000, "a: &a [1]\nb: *a\n", "a: &a {b: &b {c: *b}}\n"], ids=["deep", "alias", "own"]
)
def test_a_file_that_would_take_the_agents_memory_is_passed_over(text: str, host: Host) -> None:
    host.put("etc/cdi/nvidia.yaml", specification(WHOLE))
    (host.root / "etc/cdi/a.yaml").write_text(f"kind: nvidia.com/gpu\n{text}" if text[0] != "[" else text)
    assert host.base.keep(WHOLE) == {}


def test_all_that_is_tried_in_one_reading_takes_no_minute(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    host = Host(tmp_path / "host")
    spent: list[float] = []

    class Slow(Ctk):
        def run(self, root: Path, command: Sequence[str], timeout_s: float = 0.0) -> bytes:
            spent.append(timeout_s)
            host.now += min(24.0, timeout_s)
            raise SetupError("timed out")

    class SlowImage(ImageCtk):
        def run(self, root: Path, command: Sequence[str], timeout_s: float = 0.0) -> bytes:
            spent.append(timeout_s)
            host.now += timeout_s
            raise SetupError("timed out")

    host.ctk = Slow(host.root, WHOLE)
    image = SlowImage(tmp_path / "image", host.root, WHOLE)
    host.agent(image).keep(WHOLE)
    assert host.now <= ctk.ROUND_S
    assert all(0 < timeout_s <= ctk.TIMEOUT_S for timeout_s in spent)
