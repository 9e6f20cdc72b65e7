"""The base specification: from the toolkit, from what is there, and what is not believed."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from dradriver.node.discovery.nvidia import ctk, toolkit
from dradriver.node.discovery.nvidia import specification as specifications
from dradriver.node.discovery.nvidia.specification import Specification, read_all
from dradriver.node.discovery.nvidia.toolkit import BaseSpecification
from dradriver.node.errors import NotYetError, SetupError
from tests.fakes.node import uuid
from tests.fakes.toolkit import VERSIONS, Ctk, ImageCtk, lay, management, specification
from tests.fakes.toolkit_host import WHOLE, Host, in_mig_mode, nodes, swapped


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_hosts_toolkit_makes_it(version: tuple[int, int], host: Host) -> None:
    host.ctk = Ctk(host.root, WHOLE, version=version)
    assert host.base.keep(WHOLE) == {}
    assert host.made["kind"] == "gpu.topology/gpu"
    assert nodes(host.made) == {gpu.uuid: f"/dev/nvidia{gpu.minor}" for gpu in WHOLE.gpus}
    hooks = {hook["path"] for hook in host.made["containerEdits"]["hooks"]}
    assert hooks == {"/usr/bin/nvidia-cdi-hook" if version >= (1, 16) else "/usr/bin/nvidia-ctk"}
    assert toolkit.cdi_id(uuid(0)) == f"gpu.topology/gpu={uuid(0)}"


def test_the_operators_toolkit_makes_it_with_the_operators_driver(tmp_path: Path) -> None:
    host = Host(tmp_path, driver_root="run/nvidia/driver")
    host.put("var/run/cdi/management.nvidia.com-gpu.yaml", management(WHOLE))
    assert host.base.keep(WHOLE).keys() == {gpu.uuid for gpu in WHOLE.gpus}  # "all" is no GPU
    host.ctk = Ctk(host.root, WHOLE, at="usr/local/nvidia/toolkit")
    assert host.base.keep(WHOLE) == {}
    assert nodes(host.made) == {gpu.uuid: f"/run/nvidia/driver/dev/nvidia{gpu.minor}" for gpu in WHOLE.gpus}
    assert {hook["path"] for hook in host.made["containerEdits"]["hooks"]} == {
        "/usr/local/nvidia/toolkit/nvidia-cdi-hook"
    }
    (mount,) = host.made["containerEdits"]["mounts"]
    assert mount["hostPath"].startswith("/run/nvidia/driver/usr/lib/")


def test_where_the_driver_has_no_device_nodes_of_its_own_they_are_the_hosts(tmp_path: Path) -> None:
    host = Host(tmp_path, driver_root="home/kubernetes/bin/nvidia", dev=False)
    host.ctk = Ctk(host.root, WHOLE)
    assert host.base.keep(WHOLE) == {}
    assert nodes(host.made) == {gpu.uuid: f"/dev/nvidia{gpu.minor}" for gpu in WHOLE.gpus}
    (mount,) = host.made["containerEdits"]["mounts"]
    assert mount["hostPath"].startswith("/home/kubernetes/bin/nvidia/")


def test_it_is_made_again_when_driver_or_gpus_change_and_not_else(host: Host) -> None:
    host.ctk = Ctk(host.root, WHOLE)
    for _ in range(3):
        host.base.keep(WHOLE)
    host.put("var/run/cdi/gpu.topology-claim_u.json", {"kind": "gpu.topology/claim"})
    host.put("var/run/cdi/nvidia.yaml", specification(WHOLE))
    host.base.keep(WHOLE)
    assert len(host.ctk.calls) == 1  # claims that come and go, and others' files, are no reason
    host.ctk.machine = swapped()
    assert host.base.keep(swapped()) == {}
    assert nodes(host.made)[uuid(0)] == "/dev/nvidia1"
    newer = msgspec.structs.replace(swapped(), driver_version="590.1")
    host.ctk.machine = newer
    assert host.base.keep(newer) == {}
    assert len(host.ctk.calls) == 3
    (host.cdi / toolkit.FILE).unlink()  # a reboot, or somebody's broom
    assert host.base.keep(newer) == {}
    assert len(nodes(host.made)) == 8


def test_parts_of_gpus_get_all_but_a_gpu(host: Host) -> None:
    """A GPU in MIG mode is in no toolkit's specification, and what every container needs is in its own edits."""
    host.put("etc/cdi/nvidia.yaml", specification(WHOLE))
    every = in_mig_mode(*range(8))
    assert host.base.keep(every) == {}
    (driver,) = host.made["devices"]
    assert (driver["name"], [node["path"] for node in driver["containerEdits"]["deviceNodes"]]) == (
        "driver",
        ["/dev/nvidiactl"],
    )
    assert host.made["containerEdits"]["mounts"]
    assert toolkit.driver_id(host.cdi) == "gpu.topology/gpu=driver"
    (host.cdi / toolkit.FILE).unlink()
    host.base.keep(msgspec.structs.replace(every, driver_version="590.1"))  # another driver's libraries
    assert not (host.cdi / toolkit.FILE).exists()
    with pytest.raises(NotYetError, match="cannot be read"):
        toolkit.driver_id(host.cdi)
    bare = specification(WHOLE)
    bare["containerEdits"].pop("deviceNodes")  # nothing to make a device of
    host.put("etc/cdi/nvidia.yaml", bare)
    assert host.base.keep(WHOLE) == {}
    with pytest.raises(NotYetError, match="does not bring the driver's libraries alone"):
        toolkit.driver_id(host.cdi)


def test_gpus_in_mig_mode_are_nobodys_business_here(host: Host) -> None:
    some = in_mig_mode(2, 3)
    host.ctk = Ctk(host.root, some)
    assert host.base.keep(some) == {}
    assert len(nodes(host.made)) == 6
    every = in_mig_mode(*range(8))
    host.ctk.machine = every
    assert host.base.keep(every) == {}
    assert len(host.ctk.calls) == 1  # all that their parts need is in the file


@pytest.mark.parametrize("version", VERSIONS)
def test_where_no_gpu_is_whole_the_common_edits_come_from_the_toolkit_all_the_same(
    version: tuple[int, int], host: Host
) -> None:
    every = in_mig_mode(*range(8))
    host.ctk = Ctk(host.root, every, version=version)
    assert host.base.keep(every) == {}
    assert [device["name"] for device in host.made["devices"]] == ["driver"]
    edits = host.made["containerEdits"]
    assert {node["path"] for node in edits["deviceNodes"]} >= {"/dev/nvidiactl", "/dev/nvidia-uvm"}
    assert edits["mounts"]
    assert toolkit.driver_id(host.cdi) == "gpu.topology/gpu=driver"
    calls = len(host.ctk.calls)
    host.now += toolkit.AGAIN_S
    assert host.base.keep(every) == {}
    assert len(host.ctk.calls) == calls
    host.ctk.machine = WHOLE  # MIG mode was turned off
    assert host.base.keep(WHOLE) == {}
    assert len(nodes(host.made)) == 8


def test_common_edits_that_could_not_be_had_are_tried_again(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    every = in_mig_mode(*range(8))
    host.put("etc/cdi/nvidia.yaml", specification(msgspec.structs.replace(WHOLE, driver_version="535.1.2")))
    assert host.base.keep(every) == {}
    assert "parts of GPUs cannot be prepared: " in caplog.text
    assert "is of driver 535.1.2" in caplog.text
    host.now += toolkit.AGAIN_S
    host.ctk = Ctk(host.root, every)
    assert host.base.keep(every) == {}
    assert toolkit.driver_id(host.cdi) == "gpu.topology/gpu=driver"


def test_what_was_made_is_made_anew_when_the_host_no_longer_has_what_it_names(host: Host) -> None:
    """A driver of the same version that was installed elsewhere, a daemon whose socket is gone."""
    host.ctk = Ctk(host.root, WHOLE)
    assert host.base.keep(WHOLE) == {}
    (mount,) = host.made["containerEdits"]["mounts"]
    (host.root / mount["hostPath"].lstrip("/")).unlink()
    assert host.base.keep(WHOLE) == {}
    assert len(host.ctk.calls) == 2
    assert host.base.keep(WHOLE) == {}
    assert len(host.ctk.calls) == 2


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


def test_a_toolkit_that_fails_leaves_what_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """1.14 does not look for the driver's library below the driver's root."""
    host = Host(tmp_path, driver_root="run/nvidia/driver")
    host.ctk = Ctk(host.root, WHOLE, version=(1, 14))
    wrong = host.base.keep(WHOLE)
    assert "ERROR_LIBRARY_NOT_FOUND" in wrong[uuid(0)]
    assert wrong[uuid(0)].endswith(
        "run on the node: /usr/bin/nvidia-ctk cdi generate --device-name-strategy=uuid "
        "--output=/var/run/cdi/nvidia.yaml --driver-root=/run/nvidia/driver"
    )
    host.put("etc/cdi/nvidia.yaml", specification(WHOLE))
    assert host.base.keep(WHOLE) == {}
    for _ in range(5):
        host.base.keep(WHOLE)
    assert caplog.text.count("LIBRARY_NOT_FOUND") == 2


def test_a_toolkit_that_comes_right_is_asked_again_after_a_while(host: Host) -> None:
    host.ctk = Ctk(host.root, WHOLE.subset(range(7)))
    assert host.base.keep(WHOLE).keys() == {uuid(7)}
    host.ctk.machine = WHOLE
    assert host.base.keep(WHOLE).keys() == {uuid(7)}
    host.now += toolkit.AGAIN_S
    assert host.base.keep(WHOLE) == {}


@pytest.mark.parametrize("restarted", [False, True])
def test_a_toolkit_that_is_being_replaced_takes_no_gpu_away(
    restarted: bool, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    host.ctk = Ctk(host.root, WHOLE)
    host.base.keep(WHOLE)
    before = host.made
    host.ctk.remove()
    if restarted:
        host = Host(host.root)
    for _ in range(3):
        assert host.base.keep(WHOLE) == {}
    assert host.made == before
    assert caplog.text.count("stays as it is for 10 minutes: ") == 1
    assert host.base.keep(swapped()).keys() == {uuid(0), uuid(1)}  # it is believed as little as any other
    host.ctk = Ctk(host.root, WHOLE)
    assert host.base.keep(WHOLE) == {}
    assert host.made == before


def test_a_toolkit_that_does_not_come_back_takes_them_away_after_a_while(host: Host) -> None:
    host.ctk = Ctk(host.root, WHOLE)
    host.base.keep(WHOLE)
    host.ctk.remove()
    for _ in range(2):
        assert host.base.keep(WHOLE) == {}
        host.now += toolkit.AGAIN_S
    for _ in range(3):
        assert "install the NVIDIA Container Toolkit" in host.base.keep(WHOLE)[uuid(0)]
        host.now += toolkit.AGAIN_S
    host.put("etc/cdi/nvidia.yaml", specification(WHOLE))
    assert host.base.keep(WHOLE) == {}


def test_a_toolkit_that_came_back_may_be_replaced_again(host: Host) -> None:
    host.ctk = Ctk(host.root, WHOLE)
    host.base.keep(WHOLE)
    for _ in range(2):
        host.ctk.remove()
        assert host.base.keep(WHOLE) == {}
        host.now += toolkit.AGAIN_S
        host.ctk = Ctk(host.root, WHOLE)
        assert host.base.keep(WHOLE) == {}
        host.now += toolkit.ALONE_S
    host.ctk.remove()
    assert host.base.keep(WHOLE) == {}


def test_without_anything_it_says_the_exact_command(host: Host) -> None:
    assert host.base.keep(WHOLE)[uuid(0)] == (
        f"no CDI specification in {host.cdi} or {host.root}/etc/cdi; install the NVIDIA Container Toolkit on the node "
        "(1.14 or newer), or run: nvidia-ctk cdi generate --device-name-strategy=uuid --output=/var/run/cdi/nvidia.yaml"
    )
    assert not any(host.cdi.glob("*"))


def test_a_folder_that_cannot_be_written_is_said(host: Host) -> None:
    host.ctk = Ctk(host.root, WHOLE)
    host.cdi.parent.mkdir(parents=True)
    host.cdi.write_text("no folder")
    assert "cannot be written: " in host.base.keep(WHOLE)[uuid(0)]


def test_two_agents_make_it_one_after_the_other(host: Host) -> None:
    newer = Host(host.root)
    later = newer.ctk = Ctk(host.root, WHOLE)
    other = threading.Thread(target=lambda: newer.base.keep(WHOLE))

    def opened() -> int:
        there = (Path(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
        return sum(path.is_symlink() and Path(os.readlink(path)) == host.cdi for path in there)

    class Slow(Ctk):
        seen = -1

        def run(self, root: Path, command: Sequence[str], timeout_s: float = 0.0) -> bytes:
            other.start()
            while not later.calls and opened() < 2:
                pass
            self.seen = len(later.calls)
            return super().run(root, command)

    first = host.ctk = Slow(host.root, WHOLE)
    assert host.base.keep(WHOLE) == {}
    other.join()
    assert (first.seen, len(later.calls)) == (0, 0)  # what the first has made is right
    assert len(host.made["devices"]) == len(WHOLE.gpus) + 1


def test_an_agent_waits_for_another_ones_toolkit_no_longer_than_it_may(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolkit, "PATIENCE_S", 0.0)
    host.ctk = Ctk(host.root, WHOLE)
    host.cdi.mkdir(parents=True)
    folder = os.open(host.cdi, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    assert "cannot be written: " in host.base.keep(WHOLE)[uuid(0)]
    os.close(folder)
    host.now += toolkit.SOON_S
    assert host.base.keep(WHOLE) == {}


def test_a_driver_that_is_not_on_the_host_is_nothing_for_the_hosts_toolkit(tmp_path: Path) -> None:
    made = Ctk(tmp_path / "host", WHOLE)
    elsewhere = BaseSpecification(
        cdi_root=tmp_path / "host/var/run/cdi",
        host_root=tmp_path / "host",
        driver_root=tmp_path / "elsewhere",
        run=made.run,
    )
    assert elsewhere.keep(WHOLE).keys() == {gpu.uuid for gpu in WHOLE.gpus}
    assert made.calls == []


def test_a_driver_that_does_not_say_its_version_contradicts_no_specification(host: Host) -> None:
    host.put("etc/cdi/nvidia.yaml", specification(WHOLE))
    assert host.base.keep(msgspec.structs.replace(WHOLE, driver_version="")) == {}


def test_a_disk_that_has_room_again_soon_has_it(host: Host) -> None:
    host.ctk = Ctk(host.root, WHOLE)
    host.cdi.parent.mkdir(parents=True)
    host.cdi.write_text("no folder")
    assert len(host.base.keep(WHOLE)) == len(WHOLE.gpus)
    host.cdi.unlink()
    host.now += toolkit.SOON_S
    assert host.base.keep(WHOLE) == {}
    assert {gpu.uuid for gpu in WHOLE.gpus} <= {device["name"] for device in host.made["devices"]}


def test_a_full_disk_takes_no_gpu_away_that_is_in_the_file(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = WHOLE.gpus
    fewer = msgspec.structs.replace(WHOLE, gpus=tuple(others))
    host.ctk = Ctk(host.root, fewer)
    assert host.base.keep(fewer) == {}
    before = host.made

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    host.ctk.machine = WHOLE
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert host.base.keep(WHOLE).keys() == {first.uuid}
    assert host.made == before
    host.now += toolkit.SOON_S
    assert host.base.keep(WHOLE) == {}


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


def test_a_device_node_whose_mode_changed_is_written_anew_of_ours_alone(
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
