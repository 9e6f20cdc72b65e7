"""Whether the container runtime hands out CDI devices: asked of a stand-in, and of a real containerd."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from dradriver.node.health.cdi_runtime_check import OFF, SOCKETS, RuntimeWatch, trouble
from dradriver.node.health.faults_in_force import Record
from dradriver.node.protos.runtime import runtime_pb2, runtime_pb2_grpc
from dradriver.topology import profiles
from tests import needs
from tests.cluster import build
from tests.cluster.waiting import wait_for
from tests.fakes.node import short_folder


@pytest.fixture
def short_path() -> Iterator[Path]:
    with short_folder() as path:
        yield path


class Runtime(runtime_pb2_grpc.RuntimeServiceServicer):
    """A runtime that says of itself what it is told to; None: it does not know the question."""

    def __init__(self, info: dict[str, str] | None) -> None:
        self.info = info
        self.asked = 0

    async def Status(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's
        self.asked += 1
        assert request.verbose
        if self.info is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "what?")
        return runtime_pb2.StatusResponse(info=self.info)


@asynccontextmanager
async def serving(path: Path, info: dict[str, str] | None) -> AsyncIterator[Runtime]:
    path.parent.mkdir(parents=True)
    server, runtime = grpc.aio.server(), Runtime(info)
    runtime_pb2_grpc.add_RuntimeServiceServicer_to_server(runtime, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield runtime
    finally:
        await server.stop(None)


def config(**content: Any) -> dict[str, str]:
    return {"config": json.dumps(content), "golang": '"go1.26"'}


@pytest.mark.parametrize("place", SOCKETS)
async def test_a_containerd_that_has_cdi_off_is_said_to(short_path: Path, place: str) -> None:
    async with serving(short_path / place, config(enableCDI=False, cdiSpecDirs=["/etc/cdi"])):
        assert await trouble(short_path) == OFF


@pytest.mark.parametrize(
    "info",
    [
        config(enableCDI=True),
        config(),
        {},
        None,
        {"config": "{"},
        {"config": "[]"},
        config(enableCDI="no"),
        config(x=1),
    ],
)
async def test_one_that_has_it_on_or_does_not_say_is_no_trouble(short_path: Path, info: dict[str, str] | None) -> None:
    async with serving(short_path / SOCKETS[0], info) as runtime:
        assert await trouble(short_path) is None
        assert runtime.asked == 1


async def test_a_host_without_a_runtime_or_with_a_dead_one_is_no_trouble(short_path: Path) -> None:
    assert await trouble(short_path) is None
    async with serving(short_path / SOCKETS[0], config()):
        pass
    (short_path / SOCKETS[0]).unlink(missing_ok=True)
    (short_path / SOCKETS[0]).touch()
    assert await trouble(short_path) is None


@pytest.mark.parametrize(("other", "said"), [(True, None), (False, OFF), (None, OFF)])
async def test_one_next_to_it_that_has_it_on_may_be_the_kubelets(
    short_path: Path, other: bool | None, said: str | None
) -> None:
    async with (
        serving(short_path / SOCKETS[0], config(enableCDI=False)),
        serving(short_path / SOCKETS[1], None if other is None else config(enableCDI=other)),
    ):
        assert await trouble(short_path) == said


async def test_a_containerd_that_is_not_the_kubelets_is_not_asked(short_path: Path) -> None:
    record, machine, named = Record(), profiles.load("dgx1-v100"), iter(["", "cri-o://1.34.1", "docker://28.0"])
    changed = asyncio.Event()
    record.changed.add(changed.set)

    def kubelets() -> str:
        assert runtime.asked == 0
        return next(named, "containerd://1.7.27")

    watch = RuntimeWatch(record, short_path, lambda: machine, kubelets, interval_s=0.01)
    async with serving(short_path / SOCKETS[0], config(enableCDI=False)) as runtime, asyncio.timeout(20):
        running = asyncio.create_task(watch.run())
        await changed.wait()
        assert (runtime.asked, next(named, None)) == (1, None)
        running.cancel()


async def test_all_gpus_have_the_fault_until_it_is_repaired(short_path: Path) -> None:
    machine = profiles.load("dgx1-v100")
    changed = asyncio.Event()
    record = Record()
    record.changed.add(changed.set)
    watch = RuntimeWatch(record, short_path, lambda: machine, lambda: "containerd://1.7.27", interval_s=0.01)
    async with serving(short_path / SOCKETS[0], config(enableCDI=False)) as runtime, asyncio.timeout(20):
        running = asyncio.create_task(watch.run())
        await changed.wait()
        assert {uuid: [one.fault.kind for one in some] for uuid, some in record.standing().items()} == {
            gpu.uuid: ["runtime"] for gpu in machine.gpus
        }
        changed.clear()
        runtime.info = config(enableCDI=True)
        await changed.wait()
        assert record.standing() == {}
        running.cancel()


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("cdi", [True, False])
async def test_a_real_containerd_says_it(short_path: Path, cdi: bool) -> None:
    needs.real_cluster()
    with containerd(short_path, cdi=cdi):
        assert await trouble(short_path) == (None if cdi else OFF)


@contextmanager
def containerd(root: Path, *, cdi: bool) -> Iterator[None]:
    """Run containerd with its files below a folder; nobody starts a container."""
    socket = root / SOCKETS[0]
    socket.parent.mkdir(parents=True)
    file = root / "config.toml"
    file.write_text(
        f'version = 3\nroot = "{root}/root"\nstate = "{root}/state"\n[grpc]\naddress = "{socket}"\n'
        f'[plugins."io.containerd.cri.v1.runtime"]\nenable_cdi = {str(cdi).lower()}\n'
        f'[plugins."io.containerd.cri.v1.runtime".cni]\nconf_dir = "{root}/cni"\n'
    )
    with (root / "log").open("wb") as log:
        process = subprocess.Popen([build.containerd().ensure() / "containerd", "-c", file], stdout=log, stderr=log)
    try:
        wait_for("containerd", lambda: "successfully booted" in (root / "log").read_text(), seconds=30)
        yield
    finally:
        process.terminate()
        process.wait(30)
