"""Pods are told once what their containers are not told, however often a claim is looked at."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dradriver.kube.event_recorder import Recorder, Reference
from dradriver.node.claims import missing_info_events
from dradriver.node.claims.missing_info_events import NotTold
from tests.fakes.node import claim, eventually, typed


class Heard(Recorder):
    """What would be Events."""

    def __init__(self) -> None:
        """Have heard nothing."""
        self.heard: list[tuple[str, str, str]] = []
        self.hung: set[str] = set()

    async def record(self, *, about: Reference, message: str, **more: Any) -> None:
        """Keep whom it is about and the message; never return for a namespace whose webhook hangs."""
        if about.namespace in self.hung:
            await asyncio.Event().wait()
        self.heard.append((about.namespace, about.name, message))


async def test_each_pod_of_a_claim_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()
    told = NotTold(heard)
    obj = claim("c", [0])
    obj["status"]["reservedFor"] += [
        {"resource": "pods", "name": "other", "uid": "other-uid"},
        {"resource": "gangs", "name": "g", "uid": "gang-uid", "apiGroup": "x.io"},
    ]
    for said in ("why", "why", "and why", "why"):
        told.put(typed(obj), said)
    told.put(typed(claim("nobody", [0], used=False)), "why")
    task = asyncio.create_task(told.run())
    await eventually(lambda: len(heard.heard) == 4)
    task.cancel()
    pods = [("default", name, said) for name in ("other", "pod") for said in ("and why", "why")]
    assert sorted(heard.heard) == pods
    assert caplog.text.count("Claim default/c: why") == 1


async def test_too_many_wait_in_the_log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(missing_info_events, "_REMEMBERED", 4)
    heard = Heard()
    told = NotTold(heard)
    for n in range(200):
        told.put(typed(claim(f"c{n}", [0])), "why")
    assert caplog.text.count("why") == 200
    assert len(told._said) == 4
    task = asyncio.create_task(told.run())
    await eventually(lambda: len(heard.heard) == 64)
    task.cancel()


async def test_a_namespace_whose_webhook_hangs_holds_up_no_other() -> None:
    heard = Heard()
    heard.hung.add("hung")
    told = NotTold(heard)
    task = asyncio.create_task(told.run())
    for n in range(60):
        bad = claim(f"bad{n}", [0])
        bad["metadata"]["namespace"] = "hung"
        told.put(typed(bad), "why")
    told.put(typed(claim("good", [0])), "why")
    await eventually(lambda: bool(heard.heard))
    assert heard.heard == [("default", "pod", "why")]
    task.cancel()
