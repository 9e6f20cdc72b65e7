"""What a container is given: a value that kinds of devices make, that a prepared claim keeps and that CDI prints."""

from __future__ import annotations

from typing import Final

import msgspec

from dradriver.api.base import names

GPU_KIND: Final = f"{names.DRIVER}/gpu"
"""The kind of the CDI specification that has this node's whole GPUs."""
GPU_FILE: Final = f"{names.DRIVER}-gpu.json"
"""The name of its file, by the convention of the CDI specification."""


class DeviceNode(msgspec.Struct, frozen=True):
    """A device node: where the container finds it, and what stands behind it on the host."""

    path: str
    host_path: str


class Mount(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file or folder of the host that the container can read, at a path of the container's; seldom one to write."""

    host_path: str
    path: str
    writable: bool = False


class Edits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Additions to a container; ``+`` puts two together.

    Attributes:
        nodes: Device nodes.
        mounts: Files and folders.
        env: Variables, ``KEY=value``. They replace those of the same name that the pod's author set.
        cdi: Ids of devices in others' CDI specifications, which bring edits of their own.
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
        """Return whether the container edits contain anything in addition to ``cdi``."""
        return bool(self.nodes or self.mounts or self.env)


def cdi_id(uuid: str) -> str:
    """Return the CDI id by which container edits name a whole GPU: its device nodes and, where needed, libraries."""
    return f"{GPU_KIND}={uuid}"


class _Name(msgspec.Struct):
    name: str


class _Names(msgspec.Struct):
    devices: list[_Name]


def names_in(text: bytes) -> frozenset[str]:
    """Return the names of the devices whose container edits a CDI specification has.

    Raises:
        ValueError: It is none.
    """
    return frozenset(device.name for device in msgspec.json.decode(text, type=_Names).devices)
