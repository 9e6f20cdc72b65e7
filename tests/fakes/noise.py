"""A server whose readings flutter, as those of a busy and healthy one do."""

from __future__ import annotations

import random

from tests.fakes.hardware import Server

READING_S = 10.0
PER_HOUR = 360


class Noise:
    """Changes what a server answers before each reading; nothing of it is news."""

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
