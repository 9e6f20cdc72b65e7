"""The process that runs MPS control daemons, as the agent finds it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from dradriver.__main__ import main
from dradriver.node.boot import boot_id
from dradriver.node.errors import HardwareError
from dradriver.node.mps import main as mps
from dradriver.node.mps.mps_files import MpsFolder, Server
from dradriver.node.vendors.nvidia.devices.nvml_control import NvmlControl
from tests.fakes.mps_node import HALF, A, B, Node


async def serve(control: NvmlControl, gpu: str, server: Server) -> None:
    """Do as the agent does: want it, and ask until it is so."""
    control.start_mps(gpu, server)
    while True:
        try:
            return control.check_mps(gpu, server)
        except HardwareError:
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_the_process_does_all_that(node: Node) -> None:
    """The agent's side waits for it, in the thread that changes hardware."""
    files = MpsFolder(node.files.path, boot=boot_id())
    control = NvmlControl(driver_root=None, mps=files)
    task = asyncio.create_task(mps.run(node.files.path.parent, None, health_port=0, path=node.path))
    for server in (HALF, Server()):
        await serve(control, A, server)
        assert node.of(A).alive()
        await asyncio.to_thread(control.stop_mps, A)
        assert not node.of(A).alive()
    await serve(control, A, HALF)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert files.ready(A) is None


@pytest.mark.slow
async def test_a_gpu_whose_driver_hangs_holds_up_no_other(node: Node) -> None:
    files = MpsFolder(node.files.path, boot=boot_id())
    control = NvmlControl(driver_root=None, mps=files)
    node.say(A, "hang")
    files.want(A, HALF)
    task = asyncio.create_task(mps.run(node.files.path.parent, None, health_port=0, path=node.path))
    await serve(control, B, HALF)
    assert (files.ready(A), node.of(B).alive()) == (None, True)
    await asyncio.to_thread(control.stop_mps, B)
    assert not node.of(B).alive()
    (node.files.of(A) / "hang").unlink()
    while files.ready(A) is None:
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.slow
async def test_that_a_driver_hangs_is_told_until_it_does_not(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps, "HANGS_S", 0.0)
    files = MpsFolder(node.files.path, boot=boot_id())
    node.say(A, "hang")
    files.want(A, HALF)
    task = asyncio.create_task(mps.run(node.files.path.parent, None, health_port=0, path=node.path))
    while (told := files.ready(A)) is None:
        await asyncio.sleep(0)
    assert "does not return, because it hangs in the GPU driver" in told.trouble
    (node.files.of(A) / "hang").unlink()
    while (told := files.ready(A)) is None or told.trouble:
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def test_its_command_line_is_one_of_the_drivers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["mps", "--help"])
    assert ended.value.code == 0
    assert "--driver-root" in capsys.readouterr().out
