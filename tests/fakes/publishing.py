"""What the node agent writes of a machine, without an API server, and a server whose readings flutter meanwhile."""

from __future__ import annotations

import contextlib
import copy
import random
from typing import Any

from dradriver.api.slices import resource_slices
from dradriver.errors import DriverError
from dradriver.node.discovery import Discovery
from dradriver.node.health.faults_in_force import Record
from dradriver.node.publishing import pool
from dradriver.topology.machine import Machine
from tests.fakes.hardware import Server

READING_S = 10.0
PER_HOUR = 360


class Published:
    """A node's slices over time: as many writes as its publisher would make.

    Attributes:
        writes: How many there were.
        now: Seconds that have passed.
    """

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery
        self._machine: Machine | None = None
        self._stored: list[dict[str, Any]] = []
        self.writes = 0
        self.now = 0.0
        self.record = Record(clock=lambda: self.now, wall=lambda: 1.8e9 + self.now)

    def reading(self, *, after_s: float) -> None:
        """Read the machine, take in its faults, and write what changed."""
        self.now += after_s
        with contextlib.suppress(DriverError):  # the last state stands
            self._machine = self._discovery.read()
        self.record.tell("gpus", self._discovery.faults)
        if self._machine is None:
            return
        wanted = resource_slices.build(self._machine, node="n", node_uid="u", taints=self.record.taints())
        todo = pool.writes(pool.keep_times(wanted, self._stored), self._stored, tolerated={})
        self.writes += len(todo.create) + len(todo.update) + len(todo.delete)
        self._stored = copy.deepcopy([*todo.create, *todo.update]) or self._stored
        for obj in self._stored:
            obj["metadata"]["resourceVersion"] = "1"


class Noise:
    """Changes what a busy and healthy server answers before each reading; nothing of it is news."""

    def __init__(self, server: Server, *, seed: int = 0) -> None:
        self._server = server
        self._whole = dict(server.table)
        self._random = random.Random(seed)
        self._fails = [key for key in self._whole if " " in key and not key.startswith("fabric")]
        self._nics = [nic.name for nic in server.machine.nics if nic.kind in ("infiniband", "roce")]
        self._reading = 0

    def step(self) -> None:
        """Make the next reading's answers."""
        chance, table = self._random, dict(self._whole)
        self._reading += 1
        for gpu in range(len(self._server.machine.gpus)):
            # busy: at its power cap, at times hot for a reading or two, its limit set by an administrator
            reasons = chance.choice((0, 1, 4, 4, 4)) | (0x40 | 0x8 if chance.random() < 0.05 else 0)
            table[f"nvmlDeviceGetCurrentClocksEventReasons {gpu}"] = str(reasons)
            table[f"nvmlDeviceGetPowerManagementLimit {gpu}"] = str(chance.randrange(300_000, 700_000))
            table[f"nvmlDeviceGetTotalEccErrors {gpu}"] = "0"
            table[f"nvmlDeviceGetRemappedRows {gpu}"] = "3 0 0 0"
            if self._reading % 60 < 2:  # the fabric manager starts again
                table[f"fabric health {gpu}"] = str(1 << 4)
        if chance.random() < 0.3:
            table[chance.choice(self._fails)] = "!999"
        if chance.random() < 0.05:
            table["nvmlDeviceGetCount_v2"] = "!999"
        for name in self._nics:
            down = chance.random() < 0.1
            port = f"sys/class/infiniband/{name}/ports/1"
            self._server.sys.file(f"{port}/state", "1: DOWN" if down else "4: ACTIVE")
        self._server.table = table
        self._server.environment()
