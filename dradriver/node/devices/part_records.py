"""The ledgers' records of NVIDIA's parts (MIG instances, MPS shares): what was wanted, and what was made.

Agents of other versions read it, and lose what they do not know when they write an entry again: what none may lose is
another version of the ledger.
"""

from __future__ import annotations

import msgspec

from dradriver.node.devices.control_interface import Placed
from dradriver.node.mps.mps_files import Server
from dradriver.topology.machine import MigProfile


class MigPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which MIG instance is wanted.

    Attributes:
        profile: Id of its profile.
        name: The profile's name.
        start: Its first memory slice.
        found: Whether it was there already, and is somebody else's to destroy.
    """

    profile: int
    name: str
    start: int
    found: bool = False

    @classmethod
    def of(cls, profile: MigProfile, start: int, *, found: bool = False) -> MigPlace:
        """Return the record of a MIG profile's place."""
        return cls(profile=profile.id, name=profile.name, start=start, found=found)

    @property
    def placed(self) -> Placed:
        """Return the placement of the recorded MIG instance on its GPU."""
        return Placed(self.profile, self.start)


class MigInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG instance that was made, or found.

    Attributes:
        instance: Number of the GPU instance.
        compute: Number of the compute instance in it.
        mig: The MIG device's own uuid.
        minor: N of the GPU's ``/dev/nvidiaN`` at that time.
    """

    instance: int
    compute: int
    mig: str
    minor: int


class MpsShare(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which share of a GPU by MPS is wanted.

    Attributes:
        memory_mib: The share's own limit of memory; None where all shares are equal.
        thread_percentage: The share's own limit of threads; None where all shares are equal.
        equal: The limits of every share of the GPU; None where each has its own.
        mode: The compute mode that the GPU had before its first share; None of agents that did not note it.
        shm_mib: What the ``/dev/shm`` of all shares of the GPU holds; None for the default.
    """

    memory_mib: int | None = None
    thread_percentage: int | None = None
    equal: Server | None = None
    mode: int | None = None
    shm_mib: int | None = None

    @property
    def server(self) -> Server:
        """Return the MPS daemon that serves the recorded share."""
        return msgspec.structs.replace(self.equal or Server(), shm_mib=self.shm_mib)


class MpsServed(msgspec.Struct, frozen=True):
    """A share that is served: nothing more is to be known of it, so no entry to undo says what it was."""

    def __bool__(self) -> bool:
        return False
