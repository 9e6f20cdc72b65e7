"""The node agent beside another driver that hands out the GPUs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.api.base.allocating_driver import AMD, NVIDIA, OURS, Ledger, bound, current_ledger
from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.slices.resource_slices import read_machine
from dradriver.kube.codec import decode
from dradriver.kube.resources import NODES, RESOURCE_SLICES
from dradriver.node import addon_agent
from dradriver.node import agent as agent_of_our_own
from dradriver.node.agent_options import parse
from dradriver.node.main import serve
from dradriver.node.publishing import publisher
from tests.fakes import nvidia, nvml
from tests.fakes.agents import becomes, lose, ready_port
from tests.fakes.hardware import Server
from tests.fakes.node import NODE, NodeUnderTest, Object, a_node, eventually, machine


@contextlib.asynccontextmanager
async def agent(node: NodeUnderTest, ledger: Ledger = NVIDIA, **more: Any) -> AsyncIterator[None]:
    with bound(ledger):
        task = asyncio.create_task(addon_agent.run(node.options(**more), server=node.api.config))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def ours(node: NodeUnderTest) -> list[Object]:
    return [one for one in node.slices if one["spec"]["driver"] == names.DRIVER]


async def test_it_publishes_the_machine_next_to_their_slices_and_is_no_plugin_of_the_kubelets() -> None:
    async with a_node() as node, ready_port() as (port, status):
        node.api.put(RESOURCE_SLICES, nvidia.slices(NODE, nvidia.whole(machine())))
        async with agent(node, health_port=port):
            await becomes(status, 200)
            (piece,) = ours(node)
            assert not piece["spec"].get("devices")
            assert read_machine([decode(_raw(piece), ResourceSlice)]) == machine()
            assert node.kubelet.seen == {}
            assert (node.specs, node.checkpoint) == ({}, [])


async def test_it_follows_the_machine_and_puts_back_what_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "HOLD_S", 0.02)
    async with a_node() as node, agent(node):
        await eventually(lambda: ours(node))
        await lose(node, "3")

        def seven() -> bool:
            found = read_machine([decode(_raw(one), ResourceSlice) for one in ours(node)])
            return found is not None and len(found.gpus) == 7

        await eventually(seven)
        node.api.remove(RESOURCE_SLICES, ours(node)[0]["metadata"]["name"])
        await eventually(lambda: ours(node))


async def test_all_gpus_of_a_driver_are_in_it_though_nothing_here_could_give_them_to_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server("hgx-h100", tmp_path)
    for variable, value in server.environment().items():
        monkeypatch.setenv(variable, value)
    nowhere = server.file / "cdi"  # below a file: no folder that could be written
    async with a_node() as node:
        options = node.options(discovery="nvml", driver_root=nvml.compiled(), host_root=server.sys.root)
        options.cdi_root = nowhere
        with bound(NVIDIA):
            task = asyncio.create_task(addon_agent.run(options, server=node.api.config))
        try:
            await eventually(lambda: ours(node))
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        found = read_machine([decode(_raw(one), ResourceSlice) for one in ours(node)])
    assert found is not None
    assert [gpu.uuid for gpu in found.gpus] == [gpu.uuid for gpu in server.machine.gpus]


async def test_where_a_device_plugin_has_the_gpus_nothing_is_published() -> None:
    async with a_node() as node, ready_port() as (port, status):
        node.api.put(NODES, {"metadata": {"name": NODE}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}})
        async with agent(node, health_port=port):
            await becomes(status, 200)
            assert ours(node) == []


async def test_a_machine_of_another_vendor_than_the_drivers_is_not_published_and_it_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with a_node() as node, ready_port() as (port, status), agent(node, AMD, health_port=port):
        await becomes(status, 200)
        assert ours(node) == []
        assert ", because in this cluster only GPUs of gpu.amd.com are chosen" in caplog.text


async def test_slices_with_devices_of_before_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "HOLD_S", 0.02)
    async with a_node() as node:
        async with node.agent():
            await node.published()
            assert ours(node)[0]["spec"]["devices"]
        async with agent(node):
            await eventually(lambda: ours(node) and not ours(node)[0]["spec"].get("devices"))
            assert len(ours(node)) == 1


@pytest.mark.parametrize(("ledger", "part"), [(OURS, agent_of_our_own), (NVIDIA, addon_agent)])
async def test_the_agent_is_the_one_for_the_devices_that_the_option_names(
    ledger: Ledger, part: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Ledger] = []

    async def run(_: object) -> None:
        ran.append(current_ledger())

    monkeypatch.setattr(part, "run", run)
    await asyncio.create_task(serve(parse(["--node-name=n", f"--allocating-driver={ledger.driver}"])))
    assert (ran, current_ledger()) == ([ledger], OURS)


def test_the_command_line_knows_all_ledgers() -> None:
    assert parse(["--node-name=n"]).allocating_driver == names.DRIVER
    assert parse(["--node-name=n", "--allocating-driver=gpu.nvidia.com"]).allocating_driver == NVIDIA.driver
    assert parse(["--node-name=n", "--allocating-driver=gpu.amd.com"]).allocating_driver == AMD.driver
    with pytest.raises(SystemExit):
        parse(["--node-name=n", "--allocating-driver=example.com"])


def _raw(obj: Object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(obj))
