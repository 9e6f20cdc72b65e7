"""What the examples would have got from DRA alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dradriver.allocator import Choice, Whole, choose
from dradriver.topology.machine import Machine


class FirstFit:
    """kube-scheduler's own choice: nodes by name, devices in the order a driver without topology lists them (by index).

    It keeps a ledger of its own, so that each pod is compared with what it would have got in a cluster where all the
    pods before it had been placed in this way too.
    """

    def __init__(self, machines: Mapping[str, Machine]) -> None:
        self._machines = dict(sorted(machines.items()))
        self._free = {node: [gpu.index for gpu in machine.gpus] for node, machine in self._machines.items()}

    def take(self, request: Whole, nodes: Collection[str]) -> Choice | None:
        """Return the first GPUs that are free on the first node that has enough; None where there is none."""
        for node, machine in self._machines.items():
            taken = self._free[node][: request.gpus]
            if node in nodes and len(taken) == request.gpus:
                self._free[node] = self._free[node][request.gpus :]
                return worth(machine, taken, node=node)
        return None


def worth(machine: Machine, gpus: Collection[int], *, node: str = "") -> Choice:
    """Return what a given set is worth, by the same model that chooses sets."""
    choice = choose(machine, gpus, Whole(containers=(len(gpus),)))
    return Choice(**{name: getattr(choice, name) for name in choice.__struct_fields__} | {"node": node})
