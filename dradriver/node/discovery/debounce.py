"""What is published does not flutter: a change counts when it lasts, and the more rarely the more there are.

Every write of a slice wakes every scheduler and controller of the cluster. Links are trained again, ports of network
cards go down and come back, a fabric manager restarts: none of that is news before it has lasted. What a GPU can be
handed out for is never delayed: which GPUs there are, under which identity, in which MIG mode, with which driver.
"""

from __future__ import annotations

from typing import Final

from dradriver.topology.machine import Machine

SAME: Final = 3  # readings in a row that say the same before it counts
MOST: Final = 192  # of them once a machine has fluttered for long: half an hour
CALM: Final = 360  # readings without a change, after which it may change quickly again


class Debounce:
    """Decides after each reading which machine is published."""

    def __init__(self) -> None:
        self._published: Machine | None = None
        self._next: Machine | None = None
        self._seen = 0  # readings in a row that said ``_next``
        self._needed = SAME
        self._calm = 0

    def machine(self, read: Machine) -> Machine:
        """Return the debounced machine to publish after a reading: a change counts when it lasts."""
        before = self._published
        if before is None or _urgent(before) != _urgent(read):
            return self._accept(read)
        if read == before:
            self._next = None
            self._calm += 1
            if self._calm >= CALM:
                self._needed = SAME
            return before
        self._seen = self._seen + 1 if read == self._next else 1
        self._next = read
        self._calm = 0
        if self._seen < self._needed:
            return before
        self._needed = min(4 * self._needed, MOST)
        return self._accept(read)

    def _accept(self, machine: Machine) -> Machine:
        self._published, self._next = machine, None
        return machine


def _urgent(machine: Machine) -> object:
    gpus = tuple((gpu.uuid, gpu.index, gpu.minor, gpu.mig) for gpu in machine.gpus)
    return gpus, machine.driver_version
