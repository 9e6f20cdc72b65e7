"""The agent's comparison of what is prepared with the API, in passes that a test makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dradriver.node.claims.reconcile import Reconciler
from tests.fakes.node import NODE, claim, device, result
from tests.fakes.preparing import World


def reconciler(world: World, *, held: Callable[[Mapping[str, str]], None] = lambda _: None) -> Reconciler:
    made = Reconciler(world.preparer(), world.get_claim, node=NODE, processes=world.running)
    made.held.add(held)
    return made


async def passes(one: Reconciler, count: int) -> None:
    for _ in range(count):
        await one.once()


UNUSED: dict[str, dict[str, Any] | None] = {
    "gone": None,
    "another of its name": claim("c", [0, 1], uid="new"),
    "finished": claim("c", [0, 1], used=False),
    "allocated to other GPUs": claim("c", [2, 3]),
    "allocated to fewer": claim("c", [0]),
    "allocated on another node": claim("c", results=[result("gpu", device(i), pool="node-b") for i in (0, 1)]),
}
