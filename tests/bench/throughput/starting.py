"""How long a controller takes to know the whole cluster, and what it weighs then."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.bench.throughput import usage
from tests.bench.throughput.stage import Stage

_SETTLE_S = 3.0


async def starting(stage: Stage, variant: str) -> dict[str, Any]:
    """Return the seconds from the controller's start to /readyz, and its memory then and a little later."""
    driver = stage.drivers[variant]
    await stage.install(driver)
    await stage.quiet()
    async with driver.running("controller") as ready:
        pid = driver.pids["controller"]
        cpu, then = usage.cpu_seconds(pid), usage.memory_mib(pid)
        await asyncio.sleep(_SETTLE_S)
        later = usage.memory_mib(pid)
    figures = {"ready_s": ready, "cpu_s": cpu, "ready": then, "later": later}
    return {"variant": variant, "nodes": stage.machines.count, **figures}
