from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dradriver.node.errors import SetupError
from dradriver.node.kubelet import sockets
from dradriver.node.kubelet.sockets import SocketPaths
from tests.fakes.node import short_folder

pytestmark = pytest.mark.looptime


@pytest.fixture
def root() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder


def own(root: Path, uid: str = "own") -> SocketPaths:
    return sockets.paths(kubelet_root=root, state_dir=root / "plugins" / "gpu.topology", pod_uid=uid)


@contextlib.contextmanager
def listening(path: Path, *, backlog: int = 8) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as live:
        live.bind(str(path))
        live.listen(backlog)
        yield


def files_in(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if not path.is_dir())


def dead(path: Path) -> None:
    with listening(path):
        pass
    assert path.exists()


def test_every_instance_has_socket_names_of_its_own() -> None:
    a, b = own(Path("/var/lib/kubelet"), "uid-a"), own(Path("/var/lib/kubelet"), "uid-b")
    assert str(a.registration) == "/var/lib/kubelet/plugins_registry/gpu.topology-uid-a-reg.sock"
    assert str(a.dra) == "/var/lib/kubelet/plugins/gpu.topology/dra-uid-a.sock"
    assert not {a.registration, a.dra} & {b.registration, b.dra}


def test_trap_11_a_path_that_no_socket_can_have_is_refused_at_start() -> None:
    name = len("/plugins_registry/gpu.topology-u-reg.sock")
    longest = Path("/" + "k" * (107 - name - 1))
    assert len(str(sockets.paths(kubelet_root=longest, state_dir=Path("/s"), pod_uid="u").registration)) == 107
    with pytest.raises(SetupError, match=r"108 bytes, .* at most 107. Write a shorter --kubelet-root"):
        sockets.paths(kubelet_root=Path(str(longest) + "k"), state_dir=Path("/s"), pod_uid="u")
    with pytest.raises(SetupError, match="--state-dir"):
        sockets.paths(kubelet_root=Path("/k"), state_dir=Path("/" + "ü" * 50), pod_uid="u")
    with pytest.raises(SetupError, match="absolute"):
        sockets.paths(kubelet_root=Path("kubelet"), state_dir=Path("/s"), pod_uid="u")


async def test_trap_11_the_longest_allowed_path_can_be_served() -> None:
    with short_folder() as folder:
        path = folder / ("s" * (sockets.MOST_BYTES - len(str(folder)) - 1))
        with listening(path):
            assert len(str(path)) == sockets.MOST_BYTES


async def test_trap_9_dead_sockets_of_earlier_instances_are_removed_and_nothing_else(root: Path) -> None:
    older = own(root, "older")
    dead(older.registration)
    dead(older.dra)
    dead(own(root).registration)
    other = root / "plugins_registry" / "other.driver-reg.sock"
    dead(other)
    note = root / "plugins" / "gpu.topology" / "dra-note.txt"
    note.write_text("")
    await sockets.remove_dead(own(root))
    assert files_in(root) == sorted([other, note])


async def test_trap_8_a_living_instances_sockets_are_never_touched(root: Path) -> None:
    older = own(root, "older")
    with listening(older.registration), listening(older.dra):
        await sockets.remove_dead(own(root))
        assert older.registration.exists()
        assert older.dra.exists()


async def test_a_living_instance_that_is_too_busy_to_answer_is_not_dead(root: Path) -> None:
    older = own(root, "older")
    with listening(older.registration, backlog=0), contextlib.ExitStack() as stack:
        refused = 0
        while refused == 0:  # until its queue is full
            caller = stack.enter_context(socket.socket(socket.AF_UNIX))
            caller.setblocking(False)
            refused = caller.connect_ex(str(older.registration))
        await sockets.remove_dead(own(root))
        assert older.registration.exists()


async def test_trap_8_a_living_process_on_our_own_path_is_not_taken_over(root: Path) -> None:
    paths = own(root)
    with listening(paths.dra):
        with pytest.raises(SetupError, match="another process serves this socket"):
            await sockets.remove_dead(paths)
        assert paths.dra.exists()


async def test_a_socket_that_was_replaced_is_not_ours_to_remove(root: Path) -> None:
    path = root / "s"
    dead(path)
    was = sockets.identity(path)
    (root / "aside").touch()  # takes the inode's place, so that the next file gets another
    path.rename(root / "moved")
    dead(path)
    sockets.remove_own(path, was)
    assert path.exists()
    sockets.remove_own(path, sockets.identity(path))
    assert not path.exists()
    sockets.remove_own(path, was)
