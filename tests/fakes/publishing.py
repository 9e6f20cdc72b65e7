"""What the node agent writes of a machine, without an API server: as many writes as its publisher would make."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

from dradriver.api import slices
from dradriver.errors import DriverError
from dradriver.node.discovery import Discovery
from dradriver.node.health.record import Record
from dradriver.node.publishing import pool
from dradriver.topology.machine import Machine


class Published:
    """A node's slices over time.

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
        wanted = slices.build(self._machine, node="n", node_uid="u", taints=self.record.taints())
        todo = pool.writes(pool.keep_times(wanted, self._stored), self._stored, tolerated={})
        self.writes += len(todo.create) + len(todo.update) + len(todo.delete)
        self._stored = copy.deepcopy([*todo.create, *todo.update]) or self._stored
        for obj in self._stored:
            obj["metadata"]["resourceVersion"] = "1"
