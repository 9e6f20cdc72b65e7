"""A profile's machine in place of a real one: everything but CUDA works with it."""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from dradriver.node.errors import SetupError
from dradriver.node.health.faults import Faults
from dradriver.topology import load, profiles
from dradriver.topology.machine import Machine

LOST: Final = "lost"


class Simulated:
    """The machine of a profile or file, with uuids of this node's own.

    Where the folder holds a file ``lost`` with one GPU a line (uuid, or index in the whole machine), those GPUs are
    gone; the others' indices close ranks, as NVML's do when a GPU is lost.
    """

    faults: Faults = MappingProxyType({})
    sound: frozenset[str] = frozenset()
    host_path = "/dev/null"  # a device node that every host has
    slow = False

    def __init__(self, source: str, *, node: str, folder: Path) -> None:
        self._whole = load.read_machine(source, seed=node)
        self._lost = folder / LOST

    def read(self) -> Machine:
        """Return the machine without the GPUs that are lost now.

        Raises:
            SetupError: The file cannot be read.
        """
        try:
            lost = set(self._lost.read_text().split())
        except FileNotFoundError:
            return self._whole
        except (OSError, UnicodeError) as error:
            raise SetupError(f"{self._lost}: {error}; write one GPU's uuid or index a line") from error
        return without(self._whole, lost)

    def close(self) -> None:
        """Do nothing: nothing is held."""


def source_for(node: str, *, machines: Mapping[str, str], default: str | None) -> str:
    """Return the profile or file that stands for the node.

    Raises:
        SetupError: Neither the node nor a default is given.
    """
    source = machines.get(node, default)
    if source is None:
        raise SetupError(
            f"no simulated machine for node {node}: give --simulated-default=PROFILE or "
            f"--simulated-machine={node}=PROFILE; profiles: {', '.join(profiles.names())}"
        )
    return source


def without(machine: Machine, lost: Container[str]) -> Machine:
    """Return the machine without the GPUs whose uuid or index is in ``lost``."""
    left = [i for i, gpu in enumerate(machine.gpus) if gpu.uuid not in lost and str(gpu.index) not in lost]
    if len(left) == len(machine.gpus):
        return machine
    gpus = tuple(msgspec.structs.replace(machine.gpus[i], index=n) for n, i in enumerate(left))
    return msgspec.structs.replace(machine.subset(left), gpus=gpus)
