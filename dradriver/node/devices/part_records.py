"""What the hardware journal and the checkpoint store about MIG instances and MPS shares: the intent and the result.

Agents of other versions read these records, and drop unknown fields when they write an entry again. A field that must
not be lost needs a new version of the file format.
"""

from __future__ import annotations

import msgspec

from dradriver.node.devices.control_interface import Placed
from dradriver.node.mps.mps_files import Server
from dradriver.topology.machine import MigProfile


class MigPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The MIG instance to make: its profile and its place.

    Attributes:
        profile: Id of the instance's profile.
        name: The profile's name.
        start: Number of the instance's first memory slice.
        found: Whether the instance existed already. Then the agent must not destroy it.
    """

    profile: int
    name: str
    start: int
    found: bool = False

    @classmethod
    def of(cls, profile: MigProfile, start: int, *, found: bool = False) -> MigPlace:
        """Return the record of a MIG instance with this profile and first memory slice.

        ``found`` says whether the instance existed already, so that the agent must not destroy it.
        """
        return cls(profile=profile.id, name=profile.name, start=start, found=found)

    @property
    def placed(self) -> Placed:
        """Return the instance's place in the form that the methods of ``Control`` use.

        The place is the profile id and the first memory slice.
        """
        return Placed(self.profile, self.start)


class MigInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG instance that was made, or that existed already.

    Attributes:
        instance: Number of the GPU instance.
        compute: Number of the compute instance in it.
        mig: The MIG device's own uuid.
        minor: The N of the GPU's ``/dev/nvidiaN`` when the instance was made.
    """

    instance: int
    compute: int
    mig: str
    minor: int


class MpsShare(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The MPS share of a GPU to make.

    Attributes:
        memory_mib: The share's own memory limit in MiB; None if all shares have the limits ``equal``.
        thread_percentage: The share's own limit of threads, 1 to 100; None if all shares have the limits ``equal``.
        equal: The limits that all shares of the GPU have; None if each share has limits of its own.
        mode: The compute mode that the GPU had before its first share; None in entries of old agents.
        shm_mib: The size in MiB of the ``/dev/shm`` that all shares of the GPU use; None for the default.
    """

    memory_mib: int | None = None
    thread_percentage: int | None = None
    equal: Server | None = None
    mode: int | None = None
    shm_mib: int | None = None

    @property
    def server(self) -> Server:
        """Return the settings of the MPS daemon that serves the recorded share."""
        return msgspec.structs.replace(self.equal or Server(), shm_mib=self.shm_mib)


class MpsServed(msgspec.Struct, frozen=True):
    """The record of an MPS share that is served.

    It has no fields: to undo a share, the agent needs no more facts.
    """

    def __bool__(self) -> bool:
        return False
