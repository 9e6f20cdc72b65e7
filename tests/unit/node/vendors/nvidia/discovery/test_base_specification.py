"""The base specification: made by the toolkit, when it is made anew, and what a failure leaves."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from dradriver.node.container_edits import GPU_FILE, cdi_id
from dradriver.node.errors import NotYetError
from dradriver.node.vendors.nvidia.discovery import base_specification
from dradriver.node.vendors.nvidia.discovery.base_specification import BaseSpecification
from tests.cluster.settings import NVIDIA_TOOLKITS
from tests.fakes.node import uuid
from tests.fakes.toolkit import VERSIONS, Ctk, management, specification
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
    assert cdi_id(uuid(0)) == f"gpu.topology/gpu={uuid(0)}"


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
    (host.cdi / GPU_FILE).unlink()  # a reboot, or somebody's broom
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
    assert base_specification.driver_id(host.cdi) == "gpu.topology/gpu=driver"
    (host.cdi / GPU_FILE).unlink()
    host.base.keep(msgspec.structs.replace(every, driver_version="590.1"))  # another driver's libraries
    assert not (host.cdi / GPU_FILE).exists()
    with pytest.raises(NotYetError, match="cannot be read"):
        base_specification.driver_id(host.cdi)
    bare = specification(WHOLE)
    bare["containerEdits"].pop("deviceNodes")  # nothing to make a device of
    host.put("etc/cdi/nvidia.yaml", bare)
    assert host.base.keep(WHOLE) == {}
    with pytest.raises(NotYetError, match="does not contain the driver's libraries only"):
        base_specification.driver_id(host.cdi)


def test_gpus_in_mig_mode_are_ignored_here(host: Host) -> None:
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
    assert base_specification.driver_id(host.cdi) == "gpu.topology/gpu=driver"
    calls = len(host.ctk.calls)
    host.now += base_specification.AGAIN_S
    assert host.base.keep(every) == {}
    assert len(host.ctk.calls) == calls
    host.ctk.machine = WHOLE  # MIG mode was turned off
    assert host.base.keep(WHOLE) == {}
    assert len(nodes(host.made)) == 8


def test_common_edits_that_could_not_be_had_are_tried_again(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    every = in_mig_mode(*range(8))
    host.put("etc/cdi/nvidia.yaml", specification(msgspec.structs.replace(WHOLE, driver_version="535.1.2")))
    assert host.base.keep(every) == {}
    assert "Shares and MIG slices cannot be prepared: " in caplog.text
    assert "is of driver 535.1.2" in caplog.text
    host.now += base_specification.AGAIN_S
    host.ctk = Ctk(host.root, every)
    assert host.base.keep(every) == {}
    assert base_specification.driver_id(host.cdi) == "gpu.topology/gpu=driver"


def test_what_was_made_is_made_again_when_the_host_no_longer_has_what_it_names(host: Host) -> None:
    """A driver of the same version that was installed elsewhere, a daemon whose socket is gone."""
    host.ctk = Ctk(host.root, WHOLE)
    assert host.base.keep(WHOLE) == {}
    (mount,) = host.made["containerEdits"]["mounts"]
    (host.root / mount["hostPath"].lstrip("/")).unlink()
    assert host.base.keep(WHOLE) == {}
    assert len(host.ctk.calls) == 2
    assert host.base.keep(WHOLE) == {}
    assert len(host.ctk.calls) == 2


def test_a_toolkit_that_fails_leaves_what_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """1.15 does not look for the driver's library below the driver's root."""
    host = Host(tmp_path, driver_root="run/nvidia/driver")
    host.ctk = Ctk(host.root, WHOLE, version=(1, 15))
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
    host.now += base_specification.AGAIN_S
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
    assert caplog.text.count("stays unchanged for up to 10 minutes: ") == 1
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
        host.now += base_specification.AGAIN_S
    for _ in range(3):
        assert "install the NVIDIA Container Toolkit" in host.base.keep(WHOLE)[uuid(0)]
        host.now += base_specification.AGAIN_S
    host.put("etc/cdi/nvidia.yaml", specification(WHOLE))
    assert host.base.keep(WHOLE) == {}


def test_a_toolkit_that_came_back_may_be_replaced_again(host: Host) -> None:
    host.ctk = Ctk(host.root, WHOLE)
    host.base.keep(WHOLE)
    for _ in range(2):
        host.ctk.remove()
        assert host.base.keep(WHOLE) == {}
        host.now += base_specification.AGAIN_S
        host.ctk = Ctk(host.root, WHOLE)
        assert host.base.keep(WHOLE) == {}
        host.now += base_specification.ALONE_S
    host.ctk.remove()
    assert host.base.keep(WHOLE) == {}


def test_without_anything_it_says_the_exact_command(host: Host) -> None:
    oldest, *_ = (version.rpartition(".")[0] for version in NVIDIA_TOOLKITS)  # that tests run
    assert host.base.keep(WHOLE)[uuid(0)] == (
        f"no CDI specification in {host.cdi} or {host.root}/etc/cdi; install the NVIDIA Container Toolkit on the node "
        f"({oldest} or newer), or run: nvidia-ctk cdi generate --device-name-strategy=uuid "
        "--output=/var/run/cdi/nvidia.yaml"
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
    monkeypatch.setattr(base_specification, "PATIENCE_S", 0.0)
    host.ctk = Ctk(host.root, WHOLE)
    host.cdi.mkdir(parents=True)
    folder = os.open(host.cdi, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    assert "cannot be written: " in host.base.keep(WHOLE)[uuid(0)]
    os.close(folder)
    host.now += base_specification.SOON_S
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


def test_a_disk_that_has_room_again_soon_has_it(host: Host) -> None:
    host.ctk = Ctk(host.root, WHOLE)
    host.cdi.parent.mkdir(parents=True)
    host.cdi.write_text("no folder")
    assert len(host.base.keep(WHOLE)) == len(WHOLE.gpus)
    host.cdi.unlink()
    host.now += base_specification.SOON_S
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
    host.now += base_specification.SOON_S
    assert host.base.keep(WHOLE) == {}
