"""The NCCL settings of a container: a topology file if the container does not see the real topology, and variables.

A wrong file can make NCCL slower. So the mode ``auto`` writes a file only under two conditions:

* ``topology.nccl.file_needed`` finds that NCCL would see a flat PCI tree, in which all devices seem equally far apart.
* The physical server below the virtual machine is known. Without the server the file would be flat, too.

The mode ``near-nics`` does the same as ``auto``, and also names the network cards near the container's GPUs.

A tuning profile is a set of NCCL variables for a kind of machine (``topology.nccl.tuning``). The policies file can name
one.
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
    """The files of NCCL, by path in the container, and its variables."""

    files: dict[str, bytes]
    env: tuple[str, ...] = ()


class Nccl:
    """Makes the NCCL settings of containers on this node.

    Attributes:
        not_told: An ``event.Event`` with a claim and a text. It occurs each time that a claim is prepared whose
            containers requested settings and do not get them. The text says why.
    """

    def __init__(self, tuning_profile: Callable[[], str] = str, ports: ActivePorts = lambda _: None) -> None:
        """Store the arguments; make no settings yet.

        Args:
            tuning_profile: Returns the tuning profile of the policies in force; ``auto`` for the profile that fits the
                machine, empty for no profile.
            ports: Returns the active ports of the machine's network cards, by name; None if they are unknown.
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
            mode: ``off`` for no settings; ``file`` for a topology file; ``env`` for the file and a variable with its
                path; ``auto`` and ``near-nics`` for a file only if NCCL needs one.
            machine: This machine.
            gpus: Positions of the container's GPUs in ``machine.gpus``, ascending.
            below: The physical server below a virtual machine; None if unknown or not virtual.
            keep_env: Names of variables that the pod's author set; they are not replaced.

        Raises:
            ClaimError: The container requests a file that cannot be written.
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
        """Return the NCCL variable that names the network cards near these GPUs, or a reason.

        Args:
            machine: This machine.
            gpus: Positions of the container's GPUs in ``machine.gpus``.
            below: The physical server below a virtual machine; None if unknown or not virtual.

        Returns:
            Two texts: the variable with its value, for example ``NCCL_IB_HCA==mlx5_0:1``, and the reason why there is
                no variable. One of them is empty.
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
        """Return the NCCL topology file by its path in the container; empty for none.

        Args:
            mode: The mode that the claim requests. ``file`` and ``env`` always write a file, ``auto`` and ``near-nics``
                only if NCCL needs one.
            machine: This machine.
            gpus: Positions of the container's GPUs in ``machine.gpus``.
            below: The physical server below a virtual machine; None if unknown or not virtual.
        """
        # Flattened: a virtual machine's PCI tree that hides the switches. The server's paths replace it.
        server_below = below if machine.virtual and flattened(machine) else None

        # ``_FILES``: modes that ask for a file. In others it is made only if NCCL needs it.
        if mode not in _FILES:
            if not explain(machine).needed or len(gpus) + len(machine.nics) < 2:
                return {}
            if server_below is None and flattened(machine):
                self._say(
                    f"NCCL gets no topology file, because {machine.name or 'this machine'} is a virtual machine "
                    f"with a flat "
                    "PCI tree on an unknown server. Write nccl.servers in the policies file."
                )
                return {}
        from dradriver.topology.nccl.nccl_file_writer import VIRTUAL_PATH, write  # here, for most machines need no file

        try:
            return {VIRTUAL_PATH: write(machine, like=server_below, gpus=gpus).encode()}
        except TopologyError as error:
            if mode in _FILES:
                why = str(error).removesuffix(".")
                raise ClaimError(
                    f"no NCCL topology file can be written here: {why}. Write gpu.topology/nccl: off on the pod."
                ) from error
            self._say(f"NCCL gets no topology file: {error}")
            return {}

    def _say(self, text: str) -> None:
        """Log a text the first time that it occurs, so not again for every claim."""
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)
