"""The publisher and what an API server keeps, drops, or is in trouble with."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dradriver.kube.client import Client
from dradriver.kube.resources import RESOURCE_SLICES
from dradriver.node.discovery.simulated_machine import without
from dradriver.node.publishing import publisher as module
from tests.fakes.node import NODE, Object, device, eventually, machine, uuid
from tests.fakes.stage import SLICE, Stage, stage, taint, tainted


async def test_fields_that_the_api_server_drops_are_said_once_and_not_fought(caplog: pytest.LogCaptureFixture) -> None:
    async with stage(registered=False) as on:
        create = on.api.store.create

        def forgetful(where: Any, namespace: str, obj: Object, **more: Any) -> Object:
            for device in obj.get("spec", {}).get("devices", []):
                device.get("attributes", {}).pop("nvlinkDomain", None)
            return create(where, namespace, obj, **more)

        on.api.store.create = forgetful  # type: ignore[method-assign]
        on.register()
        await on.settled(devices=8)
        for _ in range(3):
            on.api.remove(RESOURCE_SLICES, SLICE)
            await eventually(lambda: not on.publisher.published)
            on.register()
            await on.settled(devices=8)
        lists = len(on.api.requests)
        on.publisher.poke()
        await eventually(lambda: len(on.api.requests) > lists)
        await on.settled(devices=8)
        assert on.writes() == ["POST"] * 4
        assert caplog.text.count("does not keep these fields") == 1
        assert "spec.devices[0].attributes.nvlinkDomain" in caplog.text


async def test_trouble_with_the_api_server_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_RETRY_S", 0.01)
    async with stage() as on:
        await on.settled(devices=8)
        on.api.fail(method="PUT", status=403, reason="Forbidden", times=2)
        on.api.fail(method="PUT", status=409, reason="Conflict")
        on.machine = without(machine(), {"2"})
        on.publisher.poke()
        await on.settled(devices=7)
        assert on.writes() == ["POST"] + ["PUT"] * 4


async def test_a_long_outage_does_not_make_it_wait_ever_longer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_FIRST_RETRY_S", 0.001)
    monkeypatch.setattr(module, "_LAST_RETRY_S", 0.004)
    async with stage() as on:
        await on.settled(devices=8)
        on.api.fail(method="PUT", status=500, times=6)
        on.machine = without(machine(), {uuid(2)})
        on.publisher.poke()
        await on.settled(devices=7)
    waits = [record.args[0] for record in caplog.records if isinstance(record.args, tuple) and "again in" in record.msg]
    assert waits == [0.001, 0.002, 0.004, 0.004, 0.004, 0.004]


async def test_nothing_is_published_before_the_server_has_said_what_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_RETRY_S", 0.01)
    async with stage(registered=False) as on:
        refusals = on.api.fail(method="POST", status=500, reason="InternalError", times=3)
        on.register()
        await on.settled(devices=8)
        assert refusals.hits == 3
        assert on.writes() == ["POST"]
        assert on.lacked == []


async def test_a_server_that_calls_the_fields_invalid_can_do_none_of_it(caplog: pytest.LogCaptureFixture) -> None:
    async with stage(registered=False) as on:
        on.api.fail(method="POST", status=422, reason="Invalid", message="sharedCounters: Forbidden")
        on.register()
        await on.settled(devices=8)
        assert on.lacked == [(NODE, "taints"), (NODE, "shares"), (NODE, "counters")]
        assert "sharedCounters: Forbidden" in caplog.text


async def test_a_server_that_was_upgraded_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASK_AGAIN_S", 0.01)
    async with stage(registered=False) as on:
        on.api.store.lacks = {"taints"}
        on.taints = {uuid(2): [taint()]}
        on.register()
        await on.settled(devices=7)
        on.api.store.lacks = set()
        await on.settled(devices=8)
        assert tainted(on) == {device(2): [taint()]}
        assert on.lacked == [(NODE, "taints")]


async def test_a_server_that_forgets_a_field_after_it_was_asked_is_found_out() -> None:
    async with stage() as on:
        await on.settled(devices=8)
        on.api.store.lacks = {"taints"}  # rolled back
        on.taints = {uuid(2): [taint()]}
        on.publisher.poke()
        await on.settled(devices=7)
        assert on.lacked == [(NODE, "taints")]


@pytest.mark.slow
async def test_two_versions_that_disagree_do_not_write_without_end(caplog: pytest.LogCaptureFixture) -> None:
    async with stage() as on, Client(on.api.config, user_agent="other") as client:
        await on.settled(devices=8)
        other = Stage(on.api, client)
        other.machine = without(machine(), {"2"})
        task = asyncio.create_task(other.publisher.run())
        await eventually(lambda: caplog.text.count("Another program keeps changing") == 2)
        spent = len(on.writes())
        assert spent <= 2 * (1 + module.REPAIRS_AT_ONCE)
        for devices, lost in ((6, {"3", "4"}), (5, {"3", "4", "5"})):
            on.machine = without(machine(), lost)  # what the machine says is written at once all the same
            on.publisher.poke()
            await eventually(lambda devices=devices: len(on.slices[0]["spec"]["devices"]) == devices)  # type: ignore[misc]
        assert len(on.writes()) <= spent + 4
        task.cancel()
        await asyncio.wait([task])


async def test_where_the_api_server_keeps_no_taints_the_gpu_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    async with stage(registered=False) as on:
        on.api.store.lacks = {"taints"}
        on.taints = {uuid(2): [taint()], uuid(3): [taint(effect="None")]}
        on.register()
        await on.settled(devices=7)
        assert device(2) not in {d["name"] for d in on.slices[0]["spec"]["devices"]}
        assert caplog.text.count("The API server drops the taints") == 1
        assert on.lacked == [(NODE, "taints")]
        on.taints = {}
        on.publisher.poke()
        await on.settled(devices=8)
