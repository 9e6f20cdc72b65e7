"""Delays changes of the published machine until they have lasted for some readings; the vendors' discoveries use it.

Every write of a slice wakes every scheduler and controller of the cluster. Short changes are frequent: links are
trained again, ports of network cards go down and come up, a fabric manager restarts. After each published change, the
next change has to last longer. When the machine stays the same for long enough, the delay is short again.

Some changes are never delayed, because they decide which pods a GPU can serve: which GPUs there are, their identity,
their MIG mode, and the driver's version.
"""

from __future__ import annotations

from typing import Final

from dradriver.topology.machine import Machine

SAME: Final = 3  # readings in a row that say the same before it counts
MOST: Final = 192  # of them once a machine has fluttered for long: half an hour
CALM: Final = 360  # readings without a change, after which it may change quickly again


class Debounce:
    """Decides after each reading whether a change of the machine is published now or later."""

    def __init__(self) -> None:
        self._published: Machine | None = None
        self._next: Machine | None = None
        self._seen = 0  # readings in a row that said ``_next``
        self._needed = SAME
        self._calm = 0

    def machine(self, read: Machine) -> Machine:
        """Return the machine to publish after a reading.

        This is the machine that was read if the change is never delayed, or if enough readings in a row had the same
        machine. How many are enough grows with each published change. Otherwise the result is the machine that was
        published before.
        """
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
