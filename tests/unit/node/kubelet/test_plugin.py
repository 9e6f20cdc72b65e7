from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

from dradriver.node.kubelet import sockets
from dradriver.node.kubelet.gpu_health_service import HealthStream
from dradriver.node.kubelet.plugin import Plugin
from dradriver.node.kubelet.service import DraService
from dradriver.node.kubelet.sockets import SocketPaths
from tests.fakes.kubelet import FakeKubelet
from tests.fakes.node import eventually, short_folder


class Stage:
    """A plugin that runs, and what it told."""

    def __init__(self, root: Path) -> None:
        self.paths: SocketPaths = sockets.paths(kubelet_root=root, state_dir=root / "state", pod_uid="u")
        self.kubelet = FakeKubelet(root)
        self.told: list[bool] = []
        service = cast("DraService", _NoService())
        health = HealthStream(node="node-a", machine=lambda: None, standing=dict)
        self.plugin = Plugin(self.paths, service, health, check_s=0.01)
        self.plugin.changed.add(lambda: self.told.append(self.plugin.registered))

    async def served(self) -> None:
        await eventually(lambda: self.paths.registration.exists() and self.paths.dra.exists())


class _NoService:
    async def NodePrepareResources(self, *_: object) -> None: ...  # noqa: N802
    async def NodeUnprepareResources(self, *_: object) -> None: ...  # noqa: N802
    async def idle(self) -> None: ...


@contextlib.asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    with short_folder() as root:
        made = Stage(root)
        task = asyncio.create_task(made.plugin.run())
        try:
            await made.served()
            yield made
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_it_is_registered_once_the_kubelet_says_so() -> None:
    async with stage() as on:
        assert not on.plugin.registered
        await on.kubelet.register(on.paths.registration)
        assert on.plugin.registered
        assert on.told == [True]


async def test_a_refusal_is_no_registration_and_ends_an_earlier_one() -> None:
    async with stage() as on:
        on.kubelet.accept = False
        await on.kubelet.register(on.paths.registration)
        assert (on.plugin.registered, on.told) == (False, [])
        on.kubelet.accept = True
        await on.kubelet.register(on.paths.registration)
        on.kubelet.accept = False
        await on.kubelet.register(on.paths.registration)
        assert (on.plugin.registered, on.told) == (False, [True, False])


async def test_a_kubelet_that_registers_it_again_is_told_of() -> None:
    async with stage() as on:
        await on.kubelet.register(on.paths.registration)
        await on.kubelet.register(on.paths.registration)
        assert on.told == [True, True]


async def test_trap_7_without_its_sockets_it_is_not_registered_until_a_kubelet_found_the_new_ones() -> None:
    for vanished in ("registration", "dra"):
        async with stage() as on:
            await on.kubelet.register(on.paths.registration)
            getattr(on.paths, vanished).unlink()
            await eventually(lambda: not on.plugin.registered)
            await on.served()
            assert on.told == [True, False]
            await on.kubelet.register(on.paths.registration)
            assert on.plugin.registered


async def test_a_wiped_folder_is_made_again() -> None:
    async with stage() as on:
        on.paths.registration.unlink()
        on.paths.registration.parent.rmdir()
        await on.served()
        await on.kubelet.register(on.paths.registration)
        assert on.plugin.registered


async def test_at_the_end_it_is_not_registered_and_its_sockets_are_gone() -> None:
    async with stage() as on:
        await on.kubelet.register(on.paths.registration)
    assert not on.plugin.registered
    assert not on.paths.registration.exists()
    assert not on.paths.dra.exists()
