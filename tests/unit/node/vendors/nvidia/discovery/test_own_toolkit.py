"""The toolkit that the image brings, on hosts without one that works: what it makes, and its copies on the host."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from dradriver.node.container_edits import GPU_FILE
from dradriver.node.errors import SetupError
from dradriver.node.vendors.nvidia.discovery import base_specification, ctk, own_toolkit
from tests.fakes.node import uuid
from tests.fakes.toolkit import Ctk, ImageCtk, specification
from tests.fakes.toolkit_host import WHOLE, Host, in_mig_mode, nodes

NEWER = msgspec.structs.replace(WHOLE, driver_version="590.1")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "host").mkdir()
    return Host(tmp_path / "host")


@pytest.fixture
def image(host: Host, tmp_path: Path) -> ImageCtk:
    return ImageCtk(tmp_path / "image", host.root, WHOLE)


def hooks(host: Host) -> set[Path]:
    every = [host.made, *host.made["devices"]]
    return {Path(hook["path"]) for one in every for hook in one["containerEdits"].get("hooks", ())}


def folders(host: Host) -> set[str]:
    return {path.name for path in host.copies.iterdir()}


def age(path: Path) -> None:
    then = time.time() - own_toolkit.STAYS_S
    os.utime(path, (then, then))


@pytest.mark.parametrize("root", ["", "run/nvidia/driver", "home/kubernetes/bin/nvidia"])
def test_a_host_needs_the_driver_alone(root: str, tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    host = Host(tmp_path / "host", driver_root=root, dev=root != "home/kubernetes/bin/nvidia")
    image = ImageCtk(tmp_path / "image", host.root, WHOLE)
    assert host.agent(image).keep(WHOLE) == {}
    dev = "" if root.startswith("home") else f"/{root}".rstrip("/")
    assert nodes(host.made) == {gpu.uuid: f"{dev}/dev/nvidia{gpu.minor}" for gpu in WHOLE.gpus}
    assert f"{host.root}/" not in json.dumps(host.made), "the runtime is told the host's own paths"
    assert f"::{dev}/dev/dri/by-path/" in json.dumps(host.made)
    (hook,) = hooks(host)
    assert hook.parent.parent == host.copies
    assert hook.read_text() == "nvidia-cdi-hook of the first build"
    assert (hook.parent / "ldconfig").read_text() == "ldconfig of the first build"
    (mount,) = host.made["containerEdits"]["mounts"]
    assert mount["hostPath"] == f"/{root}{mount['containerPath']}".replace("//", "/")


def test_parts_of_gpus_where_no_gpu_is_whole(host: Host, image: ImageCtk) -> None:
    image.machine = in_mig_mode(*range(8))
    assert host.agent(image).keep(image.machine) == {}
    assert [device["name"] for device in host.made["devices"]] == ["driver"]
    assert base_specification.driver_id(host.cdi)


def test_the_hosts_toolkit_comes_first_and_the_images_where_that_is_not_enough(host: Host, image: ImageCtk) -> None:
    host.ctk = Ctk(host.root, WHOLE)
    base = host.agent(image)
    assert base.keep(WHOLE) == {}
    assert hooks(host) == {Path("/usr/bin/nvidia-cdi-hook")}
    assert not image.calls
    assert not folders(host), "nothing is put on a host that needs nothing"
    host.ctk.machine = WHOLE.subset(range(7))
    image.machine = NEWER
    assert base.keep(NEWER) == {}
    assert {path.parent.parent for path in hooks(host)} == {host.copies}


def test_where_the_hosts_toolkit_hung_the_images_is_not_tried(host: Host, image: ImageCtk) -> None:
    """The driver hangs, and a reading that takes a minute is taken for that."""

    class Hanging(Ctk):
        def run(self, root: Path, command: Sequence[str], timeout_s: float = 0.0) -> bytes:
            host.now += ctk.TIMEOUT_S
            raise SetupError("timed out")

    host.ctk = Hanging(host.root, WHOLE)
    assert host.agent(image).keep(WHOLE).keys() == {gpu.uuid for gpu in WHOLE.gpus}
    assert not image.calls


def test_a_toolkit_of_the_hosts_that_is_being_replaced_is_given_its_time(host: Host, image: ImageCtk) -> None:
    host.ctk = Ctk(host.root, WHOLE)
    base = host.agent(image)
    base.keep(WHOLE)
    before = host.made
    host.ctk.remove()
    assert base.keep(WHOLE) == {}
    assert host.made == before
    host.now += base_specification.ALONE_S
    assert base.keep(WHOLE) == {}
    assert {path.parent.parent for path in hooks(host)} == {host.copies}


def test_what_the_image_made_is_made_again_at_once_when_the_driver_moved(host: Host, image: ImageCtk) -> None:
    base = host.agent(image)
    base.keep(WHOLE)
    (mount,) = host.made["containerEdits"]["mounts"]
    (host.root / mount["hostPath"].lstrip("/")).unlink()
    assert base.keep(WHOLE) == {}
    assert (host.root / mount["hostPath"].lstrip("/")).exists()


@pytest.mark.parametrize("damage", ["gone", "other", "not executable"])
def test_a_copy_that_is_not_what_it_was_is_made_again(damage: str, host: Host, image: ImageCtk) -> None:
    base = host.agent(image)
    base.keep(WHOLE)
    (hook,) = hooks(host)
    if damage == "gone":
        hook.unlink()
    elif damage == "other":
        hook.write_text("")
        (host.cdi / GPU_FILE).unlink()
    else:
        hook.chmod(0o644)
        (host.cdi / GPU_FILE).unlink()
    assert base.keep(WHOLE) == {}
    assert hook.read_text() == "nvidia-cdi-hook of the first build"
    assert os.access(hook, os.X_OK)


def test_a_folder_where_nothing_may_be_run_is_said(
    host: Host, image: ImageCtk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = os.statvfs(host.root)
    flags = os.statvfs_result((*real[:8], os.ST_NOEXEC, *real[9:10]))
    monkeypatch.setattr(os, "statvfs", lambda path: flags)
    base = host.agent(image)
    assert "toolkit of the agent's image cannot be used: " in base.keep(WHOLE)[uuid(0)]
    assert "(noexec)" in caplog.text
    host.put("etc/cdi/nvidia.yaml", specification(WHOLE))
    assert base.keep(WHOLE) == {}


def test_an_image_without_a_toolkit_is_said(host: Host, tmp_path: Path) -> None:
    base = host.agent(ImageCtk(tmp_path / "image", host.root, WHOLE))
    for path in (tmp_path / "image").iterdir():
        path.unlink()
    assert "No such file" in base.keep(WHOLE)[uuid(0)]


def test_a_newer_agent_has_containers_run_its_own_hooks(host: Host, image: ImageCtk, tmp_path: Path) -> None:
    """A hook may have a hole that a newer one lacks; agents side by side do not undo each other's work."""
    older = host.agent(image)
    older.keep(WHOLE)
    (first,) = hooks(host)
    newer = host.agent(ImageCtk(tmp_path / "newer", host.root, WHOLE, build="second"))
    assert newer.keep(WHOLE) == {}
    (second,) = hooks(host)
    assert second.read_text() == "nvidia-cdi-hook of the second build"
    assert older.keep(WHOLE) == {}
    assert newer.keep(WHOLE) == {}
    assert hooks(host) == {second}
    assert first.exists(), "for containers that are being made by what the file said before"


def test_copies_that_nothing_names_for_a_while_are_removed(host: Host, image: ImageCtk, tmp_path: Path) -> None:
    host.agent(image).keep(WHOLE)
    (first,) = hooks(host)
    newest = ImageCtk(tmp_path / "newer", host.root, WHOLE, build="second")
    newer = host.agent(newest)
    newer.keep(WHOLE)
    (second,) = hooks(host)
    for path in (first.parent, second.parent):
        age(path)
    host.now += own_toolkit.STAYS_S
    newer.keep(WHOLE)
    assert folders(host) == {first.parent.name, second.parent.name}, "it was named until now"
    age(host.cdi / GPU_FILE)
    host.now += own_toolkit.STAYS_S
    newer.keep(WHOLE)
    assert folders(host) == {second.parent.name}


def test_what_cannot_be_made_for_a_newer_agent_stays(host: Host, image: ImageCtk, tmp_path: Path) -> None:
    host.agent(image).keep(WHOLE)
    before = host.made
    newest = ImageCtk(tmp_path / "newer", host.root, WHOLE, build="second")
    (newest.folder / "ldconfig").unlink()
    assert host.agent(newest).keep(WHOLE) == {}
    assert host.made == before


class Late(ImageCtk):
    """One whose first calls fail, as while the driver does not answer yet."""

    fails = 2

    def run(self, root: Path, command: Sequence[str], timeout_s: float = 0.0) -> bytes:
        if self.fails:
            self.fails -= 1
            raise SetupError("the driver does not answer yet")
        return super().run(root, command, timeout_s)


def test_a_newer_agent_whose_toolkit_fails_at_first_tries_again(host: Host, image: ImageCtk, tmp_path: Path) -> None:
    host.agent(image).keep(WHOLE)
    before = hooks(host)
    newer = host.agent(Late(tmp_path / "newer", host.root, WHOLE, build="second"))
    assert newer.keep(WHOLE) == {}
    assert hooks(host) == before
    host.now += base_specification.AGAIN_S
    assert newer.keep(WHOLE) == {}
    (hook,) = hooks(host)
    assert hook.read_text() == "nvidia-cdi-hook of the second build"


@pytest.mark.parametrize("program", ["nvidia-cdi-hook", "ldconfig"])
def test_a_copy_that_is_damaged_while_the_file_names_it_is_repaired(program: str, host: Host, image: ImageCtk) -> None:
    base = host.agent(image)
    base.keep(WHOLE)
    (hook,) = hooks(host)
    copy = hook.parent / program
    copy.write_text("")
    host.now += own_toolkit.STAYS_S
    assert base.keep(WHOLE) == {}
    assert copy.read_text() == f"{program} of the first build"
    if program == "ldconfig":
        copy.unlink()
        assert host.agent(image).keep(WHOLE) == {}
        assert copy.exists(), "an agent looks when it starts"


def test_a_file_of_another_program_among_the_copies_stops_no_tidying(host: Host, image: ImageCtk) -> None:
    base = host.agent(image)
    base.keep(WHOLE)
    (host.copies / "a-file").write_text("")
    (host.copies / "0123456789abcdef").mkdir()
    for path in (host.copies / "a-file", host.copies / "0123456789abcdef", host.cdi / GPU_FILE):
        age(path)
    host.now += own_toolkit.STAYS_S
    base.keep(WHOLE)
    assert "0123456789abcdef" not in folders(host)


def test_time_for_a_hosts_toolkit_to_come_back_is_given_once_however_often_the_agent_starts(
    host: Host, image: ImageCtk
) -> None:
    host.ctk = Ctk(host.root, WHOLE)
    host.agent(image).keep(WHOLE)
    host.ctk.remove()
    host.agent(image).keep(WHOLE)
    host.now += base_specification.ALONE_S - 1
    assert host.agent(image).keep(WHOLE) == {}
    assert not image.calls
    host.now += 1
    assert host.agent(image).keep(WHOLE) == {}
    assert {path.parent.parent for path in hooks(host)} == {host.copies}
    host.ctk = Ctk(host.root, WHOLE)
    (host.cdi / GPU_FILE).unlink()
    assert host.agent(image).keep(WHOLE) == {}
    host.ctk.remove()
    host.now += base_specification.ALONE_S - 1
    assert host.agent(image).keep(WHOLE) == {}
    assert hooks(host) == {Path("/usr/bin/nvidia-cdi-hook")}, "it was there meanwhile"


class WithoutMounts(ImageCtk):
    """One that finds no library to mount."""

    def run(self, root: Path, command: Sequence[str], timeout_s: float = 0.0) -> bytes:
        made = json.loads(super().run(root, command, timeout_s))
        made["containerEdits"].pop("mounts")
        return json.dumps(made).encode()


def test_what_a_toolkit_says_now_counts_for_more_than_what_was_written_before(
    host: Host, image: ImageCtk, tmp_path: Path
) -> None:
    """Else a mount that is gone for good would go into each container because a GPU's device node is gone, too."""
    host.agent(image).keep(WHOLE)
    gone = WHOLE.gpus[3]
    (mount,) = host.made["containerEdits"]["mounts"]
    for path in (f"dev/nvidia{gone.minor}", mount["hostPath"].lstrip("/")):
        (host.root / path).unlink()
    seven = WHOLE.subset([n for n, gpu in enumerate(WHOLE.gpus) if gpu is not gone])
    again = host.agent(WithoutMounts(tmp_path / "image", host.root, seven))
    assert again.keep(WHOLE).keys() == {gone.uuid}
    assert "mounts" not in host.made["containerEdits"]


def test_hooks_are_where_every_container_can_run_them(
    tmp_path: Path, image: ImageCtk, caplog: pytest.LogCaptureFixture
) -> None:
    """In a user namespace a container's root is nobody on the host, and the kubelet's folders are closed to others."""
    closed, opened, view = tmp_path / "closed/copies", tmp_path / "opened/copies", tmp_path / "view"
    for folder in (closed, opened):  # as the host has them
        (view / str(folder).lstrip("/")).mkdir(parents=True)
    (view / str(closed.parent).lstrip("/")).chmod(0o750)
    own = own_toolkit.OwnToolkit(image.folder, copies=[closed, opened], host_root=view)
    assert Path(own.ready().hook).parent.parent == opened
    assert not caplog.text
    alone = own_toolkit.OwnToolkit(image.folder, copies=[closed], host_root=view)
    for _ in range(2):
        assert Path(alone.ready().hook).parent.parent == closed
    assert caplog.text.count(f"cannot read {closed.parent}, which") == 1
    assert "hostUsers: false" in caplog.text
