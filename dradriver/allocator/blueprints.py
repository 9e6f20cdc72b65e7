"""Machines that differ in nothing but their GPUs' uuids, kept once; the uuids apart."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from dradriver.topology.machine import Machine


class Kept(NamedTuple):
    """One node's machine: what it shares with others, and its uuids in one text, by position."""

    blueprint: Machine
    uuids: str

    def machine(self) -> Machine:
        """The machine, as it was taken in."""
        uuids = self.uuids.split("\n")
        gpus = (msgspec.structs.replace(gpu, uuid=uuid) for gpu, uuid in zip(self.blueprint.gpus, uuids, strict=False))
        return msgspec.structs.replace(self.blueprint, gpus=tuple(gpus))


class Blueprints:
    """All different machines of a cluster but for their uuids: 0.4 kB a node instead of 7.5 kB."""

    def __init__(self) -> None:
        self._known: dict[Machine, tuple[Machine, int]] = {}  # and how many nodes have it

    def __len__(self) -> int:
        return len(self._known)

    def keep(self, machine: Machine) -> Kept:
        """Take a machine in; ``drop`` it when its node goes."""
        kept = self.of(machine)
        _, nodes = self._known.get(kept.blueprint, (kept.blueprint, 0))
        self._known[kept.blueprint] = kept.blueprint, nodes + 1
        return kept

    def of(self, machine: Machine) -> Kept:
        """What ``keep`` gives, without counting it."""
        bare = msgspec.structs.replace(
            machine, gpus=tuple(msgspec.structs.replace(gpu, uuid="") for gpu in machine.gpus)
        )
        blueprint, _ = self._known.get(bare, (bare, 0))
        return Kept(blueprint, "\n".join(gpu.uuid for gpu in machine.gpus))

    def drop(self, kept: Kept) -> None:
        """Forget one node's."""
        blueprint, nodes = self._known[kept.blueprint]
        if nodes > 1:
            self._known[kept.blueprint] = blueprint, nodes - 1
        else:
            del self._known[kept.blueprint]
