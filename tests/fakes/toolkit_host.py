"""A host with NVIDIA's container toolkit, and what it makes of the machine."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from dradriver.node.container_edits import GPU_FILE
from dradriver.node.vendors.nvidia.discovery import base_specification, ctk
from dradriver.node.vendors.nvidia.discovery.base_specification import BaseSpecification
from dradriver.node.vendors.nvidia.discovery.own_toolkit import OwnToolkit
from dradriver.topology.machine import Gpu, Machine
from tests.fakes.node import machine
from tests.fakes.toolkit import Ctk, ImageCtk, lay

WHOLE = machine()
Object = dict[str, Any]


class Host:
    """A host's file system with a CDI folder that a runtime reads."""

    def __init__(self, root: Path, driver_root: str = "", *, dev: bool = True) -> None:
        self.root = root
        (root / "dev").mkdir(exist_ok=True)
        if dev:
            (root / driver_root / "dev").mkdir(parents=True, exist_ok=True)
        self.cdi = root / "var/run/cdi"
        self.now = 0.0
        self.ctk: Ctk | None = None
        self._driver_root = root / driver_root
        self.base = self.agent()

    def agent(self, image: ImageCtk | None = None) -> BaseSpecification:
        """What a fresh agent makes, whose image may bring a toolkit."""
        own = None if image is None else OwnToolkit(image.folder, copies=[self.copies], host_root=self.root)

        def run(root: Path, command: Sequence[str], timeout_s: float) -> bytes:
            if image is not None and root == Path("/"):
                return image.run(root, command, timeout_s)
            return self.ctk.run(root, command, timeout_s) if self.ctk else ctk.run(root, command, timeout_s)

        return BaseSpecification(
            cdi_root=self.cdi,
            host_root=self.root,
            driver_root=self._driver_root,
            own_toolkit=own,
            run=run,
            clock=lambda: self.now,
            wall=lambda: 1.8e9 + self.now,
        )

    @functools.cached_property
    def copies(self) -> Path:
        """Where the hooks' programs of images are copied to: at the same path for the agent as for the host."""
        path = self.root.with_name(f"{self.root.name}-copies")
        if not path.is_symlink():
            below = self.root / str(path).lstrip("/")
            below.mkdir(parents=True)
            path.symlink_to(below)
        return path

    def put(self, path: str, spec: Object) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        lay(self.root, spec)
        file.write_text(json.dumps(spec) if path.endswith("json") else yaml.safe_dump(spec))
        return file

    @property
    def made(self) -> Object:
        found: Object = json.loads((self.cdi / GPU_FILE).read_text())
        return found


def nodes(spec: Object) -> dict[str, str]:
    """The GPU's node of each device, on the host."""
    devices = [one for one in spec["devices"] if one["name"] != base_specification.DRIVER]
    first = {one["name"]: one["containerEdits"]["deviceNodes"][0] for one in devices}
    return {name: node.get("hostPath", node["path"]) for name, node in first.items()}


def changed(whole: Machine, **gpus: Gpu) -> Machine:
    return msgspec.structs.replace(whole, gpus=tuple(gpus.get(f"g{gpu.index}", gpu) for gpu in whole.gpus))


def swapped() -> Machine:
    """The machine with two minors exchanged, as after a GPU was found later than its neighbour."""
    first, second = WHOLE.gpus[:2]
    return changed(
        WHOLE,
        g0=msgspec.structs.replace(first, minor=second.minor),
        g1=msgspec.structs.replace(second, minor=first.minor),
    )


def in_mig_mode(*indices: int) -> Machine:
    return changed(WHOLE, **{f"g{i}": msgspec.structs.replace(WHOLE.gpus[i], mig=()) for i in indices})
