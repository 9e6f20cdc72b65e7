"""Container edits: what a container gets for a device, namely device nodes, mounts and variables.

``devices`` and ``vendors`` make them, and the checkpoint stores them with each prepared claim.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dradriver.api.base import names

GPU_KIND: Final = f"{names.DRIVER}/gpu"
"""The kind of the CDI specification that has this node's whole GPUs."""
GPU_FILE: Final = f"{names.DRIVER}-gpu.json"
"""The name of its file, by the convention of the CDI specification."""


class DeviceNode(msgspec.Struct, frozen=True):
    """A device node: its path in the container, and the device on the host."""

    path: str
    host_path: str


class Mount(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file or folder of the host that is mounted into the container, in most cases read-only."""

    host_path: str
    path: str
    writable: bool = False


class Edits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Additions to a container; ``a + b`` joins two ``Edits``.

    Attributes:
        nodes: Device nodes.
        mounts: Files and folders of the host.
        env: Variables, ``KEY=value``. They replace variables of the same name that the pod's author set.
        cdi: Ids of devices in other CDI specifications, for example in the agent's specification of whole GPUs. The
            runtime also applies the edits of these devices.
    """

    nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    env: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()

    def __add__(self, other: Edits) -> Edits:
        return Edits(
            nodes=self.nodes + other.nodes,
            mounts=self.mounts + other.mounts,
            env=self.env + other.env,
            cdi=self.cdi + other.cdi,
        )

    @property
    def own(self) -> bool:
        """Return whether the edits contain nodes, mounts or variables.

        The result is False if they contain only ids of devices in other CDI specifications (``cdi``).
        """
        return bool(self.nodes or self.mounts or self.env)


def cdi_id(uuid: str) -> str:
    """Return the CDI id of a whole GPU, by the GPU's uuid.

    The id belongs to the base specification, the agent's CDI file for whole GPUs. With the id, a container gets the
    GPU's device nodes and the driver's libraries.
    """
    return f"{GPU_KIND}={uuid}"


class _Name(msgspec.Struct):
    name: str


class _Names(msgspec.Struct):
    devices: list[_Name]


def names_in(text: bytes) -> frozenset[str]:
    """Return the names of the devices in a CDI specification.

    Raises:
        ValueError: The text is not a CDI specification.
    """
    return frozenset(device.name for device in msgspec.json.decode(text, type=_Names).devices)
