"""CPU profiles of the control plane's parts, as `go tool pprof` reads them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import aiohttp

_PORTS: Final = {"apiserver": 6443, "scheduler": 10259, "controller-manager": 10257}


@contextlib.asynccontextmanager
async def profiled(folder: Path | None, name: str, *, token: str, seconds: int) -> AsyncIterator[None]:
    """Profile all parts from the start of the block on into files of the folder; nothing where there is none."""
    if folder is None:
        yield
        return
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:

        async def ask(part: str, port: int) -> None:
            url = f"https://127.0.0.1:{port}/debug/pprof/profile?seconds={seconds}"
            async with session.get(url, ssl=False) as answer:
                (folder / f"{name}-{part}.pprof").write_bytes(await answer.read())

        async with asyncio.TaskGroup() as tasks:
            for part, port in _PORTS.items():
                tasks.create_task(ask(part, port))
            yield
