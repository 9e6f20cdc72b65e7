"""The interface that whole GPUs, MIG instances and shares implement, so that ``device_manager`` treats them alike.

The hardware journal is the record on disk of the devices that the agent makes on the hardware. Container edits are what
a container gets for a device: device nodes, mounts and variables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from dradriver.api.claims.opaque_config import ClaimConfig
from dradriver.node.container_edits import Edits
from dradriver.node.devices.control_interface import Control
from dradriver.node.devices.hardware_journal import Change, Made
from dradriver.topology.machine import Gpu, Machine

A = TypeVar("A")  # what is asked for,
W = TypeVar("W")  # wanted
D = TypeVar("D")  # and done


class AllocatedDevice(NamedTuple):
    """One allocated device, as the claim's allocation describes it.

    Attributes:
        device: The device's published name.
        request: The request that the device was allocated for, without its subrequest.
        consumed: The amount of each of the device's capacities that the claim has; empty if the device is not shared.
        config: The request's configuration.
    """

    device: str
    request: str = ""
    consumed: Mapping[str, str] = {}
    config: ClaimConfig | None = None


class Found(NamedTuple, Generic[A]):
    """An allocated device as it was found on the machine.

    Attributes:
        gpu: The GPU that the device is, or is a fraction of.
        asked: What the claim requests to be made on the hardware; None if nothing has to be made.
        told: Attributes of a fraction that its GPU does not have, as far as they are known before the fraction is made.
    """

    gpu: Gpu
    asked: A
    told: Mapping[str, Any] = {}


class Kind(Protocol):
    """One kind of device: whole GPUs, MIG instances or shares.

    Attributes:
        name: Name of the kind in the files on disk. An agent that starts later finds the kind by this name.
        part: True if a device of this kind is only a fraction of a GPU, so that a GPU can have several devices of this
            kind.
    """

    name: str
    part: bool

    def find(self, machine: Machine, wish: AllocatedDevice) -> Found[Any] | None:
        """Return the allocated device on this machine; None if it is not there.

        ``wish`` is the device as the claim's allocation describes it. The result is also None if the device is of
        another kind.

        Raises:
            DriverError: The claim's description of the device is wrong, or cannot be understood now.
        """


class ReadyKind(Kind, Protocol):
    """A kind of device for which nothing has to be made on the hardware."""

    def edits(self, gpu: Gpu) -> Edits:
        """Return the container edits of a device on ``gpu``: what a container gets for it.

        Raises:
            DriverError: The edits cannot be known now.
        """


@runtime_checkable
class MadeKind(Kind, Protocol[A, W, D]):
    """A kind of device that must be made on the hardware, such as MIG instances and shares.

    Three values describe a device:

    * ``asked``: the claim's request.
    * ``wanted``: the intent, with all choices made, for example the place of a MIG instance.
    * ``done``: the record of the device that was made.

    The agent stores ``wanted`` and ``done`` on disk, in record types of the kind (``hardware_journal.typed``).
    """

    def settle(self, control: Control, intents: Sequence[Change[A, D]], beside: Sequence[Made]) -> list[W]:
        """Choose how devices of this kind are made, for example the place of MIG instances.

        The hardware is not changed. The agent writes the choices to disk before it makes the devices. So ``undo`` knows
        what to look for if the agent is killed later. The result has one choice (``wanted``) for each intent, in the
        same order.

        Args:
            control: Changes the hardware.
            intents: The devices to make for one claim on one GPU, as the claim requests them.
            beside: The hardware journal's other entries of the same GPU, of any kind.

        Raises:
            DriverError: A device cannot be made now, or never.
        """

    def make(self, control: Control, made: Change[W, D]) -> Iterator[Change[W, D]]:
        """Make a device of this kind in steps; after each step yield the journal entry to store.

        The caller stores the entry before the next step. In the last entry, the field ``done`` describes the device,
        for ``edits`` and ``undo``. In earlier entries, the field ``was`` describes what exists so far, for ``undo``.
        After a failure, ``undo`` removes what was made.

        Raises:
            HardwareError: The hardware refused.
        """

    def undo(self, control: Control, made: Change[W, D], beside: Sequence[Made]) -> None:
        """Undo a device of this kind, made wholly or in part; a device that does not exist is no error.

        The agent calls this method again until it succeeds.

        Args:
            control: Changes the hardware.
            made: The entry of the device.
            beside: The hardware journal's other entries of the same GPU, of any kind.

        Raises:
            HardwareError: The hardware refused; the device may be removed in part.
        """

    def check(self, control: Control, made: Change[W, D]) -> None:
        """Check that a device of this kind that was made can be used now.

        This method does not call the driver.

        Args:
            control: Reads the hardware's state.
            made: The device's entry in the hardware journal.

        Raises:
            HardwareError: The device cannot be used; the message says why.
        """

    def there(self, control: Control, made: Change[W, D]) -> bool:
        """Return whether a device of this kind that was made still exists.

        A damaged device counts as existing if the agent can repair it while containers use it.

        Args:
            control: Asks and repairs the hardware.
            made: The device's entry in the hardware journal.

        Raises:
            HardwareError: The hardware does not answer the question.
        """

    def rest(self, control: Control, gpu: str) -> None:
        """Restore the normal state of a GPU without MIG instances and shares, for example end MIG mode.

        If the GPU is in its normal state already, that is no error.

        Args:
            control: Changes the hardware.
            gpu: The GPU's uuid; the hardware journal has no entry of this GPU.

        Raises:
            HardwareError: The hardware refused.
        """

    def told(self, made: Change[W, D]) -> dict[str, Any]:
        """Return the attributes of a device of this kind, named as in ResourceSlices."""

    def edits(self, gpu: Gpu, made: Change[W, D]) -> Edits:
        """Return the container edits of a made device: what a container gets for it.

        Raises:
            DriverError: The edits cannot be known now.
        """


AnyKind = ReadyKind | MadeKind[Any, Any, Any]
