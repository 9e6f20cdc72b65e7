"""The NCCL settings of a container: a topology file if it cannot see the truth, and variables if the admin wants.

A wrong file does harm, so ``auto`` writes one only where ``topology.nccl.file_needed`` finds that NCCL would see a flat
tree, and only when it is known which server is below the virtual machine: without that the file would be as flat.
``near-nics`` is ``auto``, and names the network cards of the container's GPUs.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.event import Event
from dradriver.node.claims import near_nics
from dradriver.node.errors import ClaimError
from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Machine
from dradriver.topology.nccl import tuning
from dradriver.topology.nccl.file_needed import explain, flattened
from dradriver.topology.nccl.host_paths import with_paths

logger = logging.getLogger(__name__)

TOPO_FILE: Final = "NCCL_TOPO_FILE"
_FILES: Final = ("file", "env")
ActivePorts = Callable[[Machine], Mapping[str, Sequence[int]] | None]


class Settings(NamedTuple):
    """Files by the path at which the container finds them, and variables."""

    files: dict[str, bytes]
    env: tuple[str, ...] = ()


class Nccl:
    """What NCCL is told in the containers of this node.

    Attributes:
        not_told: Told what the containers of a claim asked for and are not told, each time that the claim is looked at.
    """

    def __init__(self, tuning_profile: Callable[[], str] = str, ports: ActivePorts = lambda _: None) -> None:
        """Tell nothing yet.

        Args:
            tuning_profile: Gives the tuning profile of the policies in force, ``auto`` for the one that fits the
                machine, empty for none.
            ports: Gives the active ports of the machine's network cards, by name; None where they are not known.
        """
        self._tuning_profile = tuning_profile
        self._ports = ports
        self.not_told: Event[[ResourceClaim, str]] = Event()
        self._said: set[str] = set()

    def settings(
        self, mode: str, machine: Machine, gpus: Sequence[int], *, below: Machine | None, keep_env: Collection[str]
    ) -> Settings:
        """Return the NCCL files and variables of a container with these GPUs.

        Args:
            mode: ``auto``, ``file``, ``env``, ``near-nics`` or ``off``.
            machine: This machine.
            gpus: Positions of the container's GPUs, ascending.
            below: The server below this virtual machine, if it is one and that is known.
            keep_env: Variables of the author's.

        Raises:
            ClaimError: A file was asked for and cannot be written.
        """
        if mode == "off":
            return Settings({})

        # Files by their path in the container: NCCL's tuning, if a policy names a profile, and a topology file.
        files = {}
        profile = self._tuning_profile()
        if profile and len(gpus) > 1:
            files[tuning.CONF_PATH] = tuning.conf(profile, machine).encode()
        topology = self._file(mode, machine, gpus, below)

        # NCCL finds the file at its default path; only the mode ``env`` also names it in a variable.
        named = mode == "env" and TOPO_FILE not in keep_env
        return Settings(files | topology, tuple(f"{TOPO_FILE}={path}" for path in topology) if named else ())

    def nics(self, machine: Machine, gpus: Sequence[int], *, below: Machine | None) -> tuple[str, str]:
        """Return, of the NCCL settings, the variable that names the network cards near a container's GPUs, or a reason.

        Args:
            machine: This machine.
            gpus: Positions of the container's GPUs.
            below: The server below this virtual machine, if it is one and that is known.
        """
        active = self._ports(machine)
        if active is None:
            return "", "the ports of the network cards were not read yet"
        if below is not None and machine.virtual and flattened(machine):
            with contextlib.suppress(TopologyError):  # then all cards are as near
                machine = with_paths(machine, like=below)
        value, why = near_nics.hca(machine, gpus, active)
        return f"{near_nics.VARIABLE}={value}" if value else "", why

    def _file(self, mode: str, machine: Machine, gpus: Sequence[int], below: Machine | None) -> dict[str, bytes]:
        """Return the topology file by its path in the container; empty if it is of no use."""
        # Flattened: a virtual machine's PCI tree that hides the switches. The server's paths replace it.
        server_below = below if machine.virtual and flattened(machine) else None

        # ``_FILES``: modes that ask for a file. In others it is made only if NCCL needs it.
        if mode not in _FILES:
            if not explain(machine).needed or len(gpus) + len(machine.nics) < 2:
                return {}
            if server_below is None and flattened(machine):
                self._say(
                    f"{machine.name or 'this machine'} is a virtual machine with a flat PCI tree, and which server is "
                    "below it is not known: NCCL is given no topology file; write nccl.servers in the policies file"
                )
                return {}
        from dradriver.topology.nccl.nccl_file_writer import VIRTUAL_PATH, write  # here, for most machines need no file

        try:
            return {VIRTUAL_PATH: write(machine, like=server_below, gpus=gpus).encode()}
        except TopologyError as error:
            if mode in _FILES:
                raise ClaimError(
                    f"no NCCL topology file can be written here: {error}; have the pod say gpu.topology/nccl: off"
                ) from error
            self._say(f"NCCL is given no topology file: {error}")
            return {}

    def _say(self, text: str) -> None:
        """Log a text once, not with every claim."""
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)
