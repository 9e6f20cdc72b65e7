"""Machines that differ in nothing but their GPUs' uuids, kept once; the uuids apart."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from dradriver.topology.machine import Machine


class NodeMachine(NamedTuple):
    """One node's machine: what it shares with others, without uuids, and its own uuids in one text, by position."""

    shared: Machine
    uuids: str

    def machine(self) -> Machine:
        """The machine, as it was taken in."""
        uuids = self.uuids.split("\n")
        gpus = (msgspec.structs.replace(gpu, uuid=uuid) for gpu, uuid in zip(self.shared.gpus, uuids, strict=False))
        return msgspec.structs.replace(self.shared, gpus=tuple(gpus))


class SharedMachines:
    """All different machines of a cluster but for their uuids: 0.4 kB a node instead of 7.5 kB."""

    def __init__(self) -> None:
        self._known: dict[Machine, tuple[Machine, int]] = {}  # and how many nodes have it

    def __len__(self) -> int:
        return len(self._known)

    def add(self, machine: Machine) -> NodeMachine:
        """Take a machine in; ``drop`` it when its node goes."""
        found = self.of(machine)
        _, nodes = self._known.get(found.shared, (found.shared, 0))
        self._known[found.shared] = found.shared, nodes + 1
        return found

    def of(self, machine: Machine) -> NodeMachine:
        """What ``add`` gives, without counting it."""
        bare = msgspec.structs.replace(
            machine, gpus=tuple(msgspec.structs.replace(gpu, uuid="") for gpu in machine.gpus)
        )
        shared, _ = self._known.get(bare, (bare, 0))
        return NodeMachine(shared, "\n".join(gpu.uuid for gpu in machine.gpus))

    def drop(self, node_machine: NodeMachine) -> None:
        """Forget one node's."""
        shared, nodes = self._known[node_machine.shared]
        if nodes > 1:
            self._known[shared] = shared, nodes - 1
        else:
            del self._known[shared]
