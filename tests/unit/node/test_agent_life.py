"""The whole agent over a node's life: boots, disks that are full, agents that are replaced."""

from __future__ import annotations

import asyncio
import json
import os
import shutil

import pytest

from dradriver.node.errors import SetupError
from tests.fakes.node import a_node, claim, eventually


async def test_a_simulated_node_can_be_booted() -> None:
    """Files are not waited for until a disk has them, so a claim of another boot is prepared anew."""
    async with a_node() as node:
        asked = node.put_claim(claim("c", [0]))
        boot = node.state / "simulated" / "boot_id"
        boot.parent.mkdir(parents=True)
        for name in ("one", "two"):
            boot.write_text(f"{name}\n")
            async with node.agent(name):
                await eventually(lambda name=name: any(name in path.name for path in node.kubelet.seen))  # type: ignore[misc]
                assert (await node.kubelet.prepare(asked))[asked[2]].error == ""
            entry = json.loads((node.state / "claims" / f"{asked[2]}.json").read_bytes())["entry"]
            assert entry["boot"] == name


async def test_a_disk_that_keeps_an_agent_from_its_first_work_does_not_keep_it_from_the_rest() -> None:
    """Claims are given back meanwhile, and what running pods need is there as soon as it can be written."""
    async with a_node() as node:
        kept, given_back = (node.put_claim(claim(name, [gpu])) for gpu, name in enumerate(("kept", "given-back")))
        async with node.agent("before"):
            await node.published()
            for one in (kept, given_back):
                assert (await node.kubelet.prepare(one))[one[2]].error == ""
        before = [name for name in node.specs if kept[2] in name]
        shutil.rmtree(node.cdi)  # a reboot
        os.symlink(node.root / "full", node.cdi)  # no folder can be made there
        async with node.agent("after"):
            await eventually(lambda: any("after" in path.name for path in node.kubelet.seen))
            assert (await node.kubelet.unprepare(given_back))[given_back[2]].error == ""
            assert node.checkpoint == [kept[2]]
            (node.root / "full").mkdir()
            await eventually(lambda: list(node.specs) == before)


@pytest.mark.slow
async def test_an_agent_that_is_replaced_ends_its_calls_first(caplog: pytest.LogCaptureFixture) -> None:
    """One may wait for a GPU whose pod is still ending; the kubelet tries a call that was cut again after a minute."""
    caplog.set_level("INFO")
    async with a_node() as node, node.agent("pod-1") as old:
        await node.published()
        holds, waits = (node.put_claim(claim(name, [0])) for name in ("holds", "waits"))
        assert (await node.kubelet.prepare(holds))[holds[2]].error == ""
        waiting = asyncio.create_task(node.kubelet.prepare(waits))
        await eventually(lambda: "is still held by claim default/holds" in caplog.text)
        async with node.agent("pod-2"):
            await eventually(lambda: len(node.kubelet.seen) == 2)
            old.cancel()
            await node.kubelet.unprepare(holds)
            assert (await waiting)[waits[2]].error == ""
            await eventually(lambda: old.done() and len(node.kubelet.seen) == 1)
            assert (await node.kubelet.unprepare(waits))[waits[2]].error == ""
    assert (node.specs, node.checkpoint) == ({}, [])


async def test_where_it_cannot_make_its_sockets_an_agent_ends_and_says_why() -> None:
    async with a_node() as node:
        node.state.parent.mkdir()
        node.state.touch()
        with pytest.raises(ExceptionGroup) as caught:
            async with node.agent() as agent:
                await agent
        (error,) = caught.value.exceptions
        assert isinstance(error, SetupError)
        assert str(node.state) in str(error)
