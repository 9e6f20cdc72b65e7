"""Reads CDI specifications of other programs: which GPUs they name, and whether they still fit the machine.

A CDI file describes the machine at the time when a program wrote the file. A container requests a device by its name,
and gets the device nodes of the file. But the nodes may be wrong now. After a GPU was replaced, lost or found again,
its minor number can belong to another GPU. After the driver was loaded again, the major number of ``nvidia-uvm`` can be
different. So this module compares the device nodes with the host.

Edits are what a CDI device adds to a container: device nodes, mounts, variables and hooks. Some edits belong to one
device of the file, others to every container that uses the file.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

import msgspec

from dradriver.api.base import names
from dradriver.node.vendors.nvidia.discovery import ctk
from dradriver.node.vendors.nvidia.discovery.driver_root import inside
from dradriver.topology.machine import Gpu

_DEEPEST: Final = 64
_MODE: Final = 0o777
_ENDINGS: Final = (".json", ".yaml", ".yml")
_OURS: Final = f"{names.DRIVER}-"
_KIND: Final = re.compile(r"(?:[a-z0-9-]+\.)*nvidia\.com/gpu")  # nvidia.com/gpu, the device plugin's, the operator's
_NODE: Final = re.compile(r"/(?:.*/)?dev/nvidia([0-9]{1,9})")  # on the host perhaps below the driver's root
_CONTROL: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")  # every container's
_DRIVER_LIBRARY: Final = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.([0-9]+\.[0-9]+(?:\.[0-9]+)?)")


class _DeviceNode(msgspec.Struct, rename="camel"):
    path: str
    host_path: str = ""
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None

    @property
    def on_host(self) -> str:
        return self.host_path or self.path


class _Mount(msgspec.Struct, rename="camel"):
    host_path: str


class _Hook(msgspec.Struct):
    path: str


class _Edits(msgspec.Struct, rename="camel"):
    device_nodes: list[_DeviceNode] | None = None
    mounts: list[_Mount] | None = None
    hooks: list[_Hook] | None = None

    def paths(self) -> Iterator[str]:
        """Yield the paths that these CDI edits need on the host.

        Without them a container does not start.
        """
        yield from (node.on_host for node in self.device_nodes or [])
        yield from (mount.host_path for mount in self.mounts or [])
        yield from (hook.path for hook in self.hooks or [])


class _Device(msgspec.Struct, rename="camel"):
    name: str
    container_edits: _Edits


class _Specification(msgspec.Struct, rename="camel"):
    kind: str
    cdi_version: str
    devices: list[_Device]


class Specification:
    """One CDI specification, as a program wrote it.

    Attributes:
        source: The file or program that the specification comes from, for messages.
        raw: The whole content.
        edits: The edits that every container gets.
    """

    def __init__(
        self, source: str, text: bytes, *, json: bool, host_root: Path, on_paper: bool = False, ours: bool = False
    ) -> None:
        """Parse the text of a CDI specification.

        Args:
            source: The file or program that the specification comes from, for messages.
            text: The whole text.
            json: Whether the text is JSON; else it is YAML.
            host_root: Folder that contains the host's files. The files that the specification names must be there.
            on_paper: Whether to assume, without a check, that the host has all files that the specification names.
            ours: Whether this driver made the specification. If so, it copied the modes of device nodes from the host,
                and the modes are compared with the host. Other programs may have chosen modes on purpose.

        Raises:
            ValueError: The text is not a CDI specification.
        """
        self.source = source
        self._host_root = host_root
        self._on_paper = on_paper
        self._ours = ours
        try:
            # A JSON text is no YAML in all cases, and is read thirty times as fast as one.
            self.raw: dict[str, Any] = msgspec.json.decode(text) if json else _yaml(text)
            # ``raw`` is written again, ``_typed`` has the fields that are judged. The common edits go into every
            # container.
            self._typed = msgspec.convert(self.raw, _Specification)
            if not json:
                msgspec.json.encode(self.raw)  # what YAML can say and JSON cannot, no runtime reads either
            self.edits = _common(self.raw)
            self._common = msgspec.convert(self.edits, _Edits)
        except (msgspec.MsgspecError, RecursionError, TypeError, ValueError) as error:
            raise ValueError(f"{source}: no CDI specification: {error}") from error

    def names(self, kind: str | None = None) -> bool:
        """Return whether the CDI specification is of this kind, for example ``nvidia.com/gpu``.

        If ``kind`` is None, return whether it is of any kind of NVIDIA's.
        """
        return self._typed.kind == kind if kind else bool(_KIND.fullmatch(self._typed.kind))

    def has(self, name: str) -> bool:
        """Return whether the CDI specification has a device with this name."""
        return any(device.name == name for device in self._typed.devices)

    def devices(self, gpus: Iterable[Gpu], driver_version: str) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Return the usable CDI devices of GPUs by uuid, and why other GPUs have none.

        A device is usable if its device nodes and files still fit the host.

        Args:
            gpus: GPUs that containers get as a whole: those not in MIG mode.
            driver_version: The running driver's version; empty if unknown.
        """
        # By name: the device's judged fields, and all that the text says of it.
        by_name = {
            device.name: (device, raw) for device, raw in zip(self._typed.devices, self.raw["devices"], strict=True)
        }
        unfit = self.unfit(driver_version)
        devices: dict[str, dict[str, Any]] = {}
        wrong: dict[str, str] = {}
        for gpu in gpus:
            if gpu.uuid not in by_name:
                wrong[gpu.uuid] = f"{self.source} does not name it"
                continue

            # The minor number of a GPU's device node can be another GPU's since the text was written.
            device, raw = by_name[gpu.uuid]
            if unfit:
                wrong[gpu.uuid] = unfit
            elif (minors := _minors(device.container_edits)) != {gpu.minor}:
                nodes_text = ", ".join(f"/dev/nvidia{minor}" for minor in sorted(minors)) or "no device node"
                wrong[gpu.uuid] = f"{self.source} has {nodes_text} for it, which is /dev/nvidia{gpu.minor} now"
            elif unlike := self._unlike_host(device.container_edits):
                wrong[gpu.uuid] = unlike
            else:
                devices[gpu.uuid] = raw
        return devices, wrong

    def driver(self, name: str, driver_version: str) -> dict[str, Any] | None:
        """Return a CDI device that adds the driver to a container, but no GPU.

        The device has no edits of its own except one device node, because CDI requires one. So a container with the
        device gets only the edits that every container gets, for example libraries. The result is None if no container
        could start with these edits, or if they have no device node.

        Args:
            name: The device's name.
            driver_version: The running driver's version; empty if unknown.
        """
        nodes = self.edits.get("deviceNodes") or []
        if not nodes or self.unfit(driver_version):
            return None
        own = next((node for node in nodes if node["path"].endswith("/nvidiactl")), nodes[0])
        return {"name": name, "containerEdits": {"deviceNodes": [own]}}

    def unfit(self, driver_version: str) -> str:
        """Return why no container can start with this specification; empty if containers can.

        Only the edits that every container gets are checked, not those of single devices.

        Args:
            driver_version: The running driver's version; empty if unknown.
        """
        if shared := _minors(self._common):
            said = ", ".join(f"/dev/nvidia{minor}" for minor in sorted(shared))
            return f"{self.source} gives {said} to every container"
        if stale := self._stale(driver_version):
            return f"{self.source} is of driver {stale}, {driver_version} is running"
        return self._unlike_host(self._common)

    def _unlike_host(self, edits: _Edits) -> str:
        """Return which file or device number in the edits differs from the host; empty if all agree.

        Toolkits from 1.20 on write the numbers of device nodes. A runtime makes the container's nodes with these
        numbers.
        """
        for path in edits.paths() if not self._on_paper else ():
            if not _exists(self._host_root, path):
                return f"{self.source} names {path}, which is not on the host"
        for node in edits.device_nodes or []:
            now = _device(self._host_root, node.on_host)
            said = (node.major, node.minor or 0)
            if now is not None and node.major is not None and (now.major, now.minor) != said:
                is_now = f"{now.major}:{now.minor} now"
                return f"{self.source} has {node.on_host} as device {said[0]}:{said[1]}, which is {is_now}"
            if now is not None and self._ours and node.file_mode is not None and node.file_mode & _MODE != now.mode:
                return (
                    f"{self.source} has {node.on_host} with mode {node.file_mode & _MODE:o}, which is {now.mode:o} now"
                )
        return ""

    def _stale(self, driver_version: str) -> str:
        """Return the version of the mounted driver libraries if another driver version runs.

        Otherwise the text is empty.
        """
        for mount in self._common.mounts or []:
            library = _DRIVER_LIBRARY.fullmatch(PurePosixPath(mount.host_path).name)
            if library is not None and driver_version and library[1] != driver_version:
                return library[1]
        return ""


def _exists(root: Path, path: str) -> bool:
    with contextlib.suppress(ValueError):  # what no file system has in a name, somebody may have written
        real = inside(root, path.lstrip("/"))
        return real is not None and os.path.exists(real)
    return False


class _Now(NamedTuple):
    """The numbers and the mode of a device node as it is on the host now."""

    major: int
    minor: int
    mode: int


def _device(root: Path, path: str) -> _Now | None:
    """Return the numbers and the mode of a device node of the host; None if it does not exist."""
    with contextlib.suppress(OSError, ValueError):
        real = inside(root, path.lstrip("/"))
        if real is not None and stat.S_ISCHR((status := os.stat(real)).st_mode):
            return _Now(os.major(status.st_rdev), os.minor(status.st_rdev), status.st_mode & _MODE)
    return None


def _common(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the edits of a CDI specification (``raw``) for every container.

    If the specification has no device nodes for every container, the driver's control nodes, such as
    ``/dev/nvidiactl``, are taken from its device ``all``. nvidia-ctk writes such specifications in the mode
    ``management``.
    """
    edits = dict(raw.get("containerEdits") or {})
    if not edits.get("deviceNodes"):
        of_all = [device["containerEdits"] for device in raw["devices"] if device["name"] == "all"]
        nodes = [node for device_edits in of_all for node in device_edits.get("deviceNodes") or []]
        if control := [node for node in nodes if PurePosixPath(node["path"]).name in _CONTROL]:
            edits["deviceNodes"] = control
    return edits


def _yaml(text: bytes) -> Any:
    import yaml  # here, for the agent's own specification is JSON

    try:
        depth = 0
        for event in yaml.parse(text, yaml.CSafeLoader):  # before anything is built of it
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST or isinstance(event, yaml.AliasEvent):
                raise ValueError(
                    f"lists and maps are more than {_DEEPEST} deep, or there is an alias. Write the values out."
                )
        return yaml.load(text, yaml.CSafeLoader)
    except (yaml.YAMLError, AttributeError, LookupError, TypeError) as error:  # ``!!bool x`` is a KeyError of its own
        raise ValueError(str(error)) from error


def _minors(edits: _Edits) -> set[int]:
    """Return the minor numbers of the GPU nodes in a device's edits, on the host and in the container."""
    paths = [path for node in edits.device_nodes or [] for path in (node.path, node.host_path)]
    return {int(match[1]) for path in paths if (match := _NODE.fullmatch(path))}


def read_all(folders: Iterable[Path], *, host_root: Path) -> Iterator[Specification]:
    """Yield NVIDIA's CDI specifications in these folders.

    In each folder, specifications of the kind ``nvidia.com/gpu`` come first.

    Args:
        folders: The folders to search.
        host_root: Folder that contains the host's files.
    """
    for folder in folders:
        specifications = []
        for path in files(folder):
            with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
                text = file.read(ctk.MOST_BYTES)
                specification = Specification(str(path), text, json=path.suffix == ".json", host_root=host_root)
                if specification.names():
                    specifications.append(specification)
        yield from sorted(specifications, key=lambda one: not one.names("nvidia.com/gpu"))


def files(folder: Path) -> list[Path]:
    """Return the CDI specifications of other programs in a folder, by name; empty if it cannot be read."""
    with contextlib.suppress(OSError):
        return sorted(
            p for p in folder.iterdir() if p.suffix in _ENDINGS and not p.name.startswith(_OURS) and p.is_file()
        )
    return []
