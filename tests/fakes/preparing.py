"""Claims and a machine around preparers that have no server and no kubelet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.errors import DriverError
from dradriver.kube.errors import ApiError
from dradriver.node.claims.prepare import Preparer
from dradriver.topology.machine import Machine
from tests.fakes.node import BOOT, NODE, Object, device_manager, machine, typed


class World:
    """A cluster's claims, a machine, and as many instances of the agent as a test wants."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.claims: dict[str, ResourceClaim] = {}
        self.trouble: list[DriverError] = []
        self.asked = 0
        self.machine: Machine = machine()
        self.device_manager = device_manager()
        self.boot = BOOT
        self.exclusive: set[str] = set()
        self.processes: dict[str, Sequence[int]] | DriverError | TimeoutError = {}

    async def get_claim(self, namespace: str, name: str) -> ResourceClaim:
        self.asked += 1
        await asyncio.sleep(0.002)
        if self.trouble:
            raise self.trouble.pop(0)
        if name not in self.claims:
            raise ApiError(404, "NotFound", f"{namespace}/{name}")
        return self.claims[name]

    def put(self, obj: Object) -> tuple[str, str, str]:
        self.claims[obj["metadata"]["name"]] = typed(obj)
        return obj["metadata"]["namespace"], obj["metadata"]["name"], obj["metadata"]["uid"]

    def preparer(self, get_claim: Callable[[str, str], Any] | None = None) -> Preparer:
        return Preparer(
            node=NODE,
            state_dir=self.folder / "state",
            cdi_root=self.folder / "cdi",
            get_claim=get_claim or self.get_claim,
            machine=lambda: self.machine,
            device_manager=self.device_manager,
            boot=self.boot,
            processes=self.running,
            exclusive=self.exclusive.__contains__,
        )

    async def running(self, gpus: Sequence[str]) -> dict[str, Sequence[int]]:
        if not isinstance(self.processes, dict):
            raise self.processes
        return {gpu: self.processes.get(gpu, ()) for gpu in gpus}

    @property
    def specs(self) -> dict[str, Any]:
        return {p.name: msgspec.json.decode(p.read_bytes()) for p in sorted((self.folder / "cdi").glob("*"))}

    @property
    def checkpoint(self) -> list[str]:
        return sorted(p.name for p in (self.folder / "state" / "claims").glob("*"))
