"""A host with a driver and NVIDIA's container toolkit, and the node agent's look at it through the chart's mounts.

The driver is the tests' NVML and libraries without content that have real names and ELF headers; the toolkit is real,
the host's or the image's.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from dradriver.node.container_edits import GPU_FILE
from dradriver.topology.machine import Gpu, Machine
from tests import needs
from tests.cluster import requirements
from tests.fakes import chart, nvml
from tests.fakes.sysfs import Sys
from tests.paths import REPO

LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"
CONTROL: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_STAND_INS: Final = ("libcuda", "libnvidia-ptxjitcompiler", "libnvidia-nvvm")
_LIMIT_S: Final = 120

Object = dict[str, Any]


class Layout(msgspec.Struct, frozen=True):
    """Where a kind of host has things, below its root.

    Attributes:
        driver: The driver's root; empty for the host's own.
        libraries: The driver's libraries, below that.
        toolkit: The toolkit's programs.
        wrapped: Whether they are scripts around the programs, as the GPU operator's toolkit container installs them.
        own_dev: Whether the driver's root has a ``dev``.
    """

    driver: str = ""
    libraries: str = LIBRARIES
    toolkit: str = "usr/bin"
    wrapped: bool = False
    own_dev: bool = False


PACKAGES: Final = Layout()
OPERATOR: Final = Layout(driver="run/nvidia/driver", toolkit="usr/local/nvidia/toolkit", wrapped=True, own_dev=True)
COS: Final = Layout(driver="home/kubernetes/bin/nvidia", libraries="lib64")
TALOS: Final = Layout(libraries="usr/local/glibc/usr/lib", toolkit="usr/local/bin")


class Seen(msgspec.Struct):
    """What an agent found: the uuids of the GPUs that it publishes, and its log."""

    gpus: list[str]
    log: str


class Host:
    """A host's files. ``/dev``, ``/dev/shm`` and ``/run`` are mounts, ``/tmp`` is none.

    Attributes:
        root: Its root.
        version: The release of its toolkit; None where it has none.
        sys: Its /sys.
        driver: Where the driver's root is; empty for the host's own.
        dev: Where its device nodes are.
    """

    def __init__(self, folder: Path, machine: Machine, *, version: str | None, layout: Layout = PACKAGES) -> None:
        """Lay it out.

        Args:
            folder: Where to.
            machine: What the driver finds.
            version: The toolkit's release; None for none.
            layout: What kind of host.
        """
        self._folder = folder
        self._built = needs.nvidia_toolkit(version) if version else None
        self.version = version
        self.root = folder / "host"
        self.sys = Sys(self.root, machine)
        self._layout = layout
        self.driver = layout.driver
        self.dev = f"{layout.driver}/dev".lstrip("/") if layout.own_dev else "dev"
        for name in ("dev", "etc", "lib64", "proc", "run", "tmp", "usr/bin", "usr/sbin", "var", LIBRARIES):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        (self.root / "dev/shm").mkdir()
        (self.root / "var/run").symlink_to("/run")
        for name in ("bin", "lib"):
            (self.root / name).symlink_to(f"usr/{name}")
        if self._built is not None:
            self._toolkit(self._built)
        self._made_for: str | None = None
        self.say(machine)

    @property
    def hook(self) -> str:
        """The program that containers' hooks run."""
        if self.version is None:
            return self.copied_hook
        name = "nvidia-ctk" if self.version.startswith("1.15.") else "nvidia-cdi-hook"
        return f"/{self._layout.toolkit}/{name}"

    @property
    def copied_hook(self) -> str:
        """The image's, as copied to the host."""
        (copies,) = (self.root / "var/lib/gpu-topology").iterdir()
        return f"/{(copies / 'nvidia-cdi-hook').relative_to(self.root)}"

    @property
    def made(self) -> Object:
        """The base specification."""
        found: Object = json.loads((self.root / "run/cdi" / GPU_FILE).read_text())
        return found

    def say(self, machine: Machine, more: Mapping[str, str] | None = None) -> None:
        """Have the driver find this machine, and answer what else is said."""
        libraries = self.root / self.driver / self._layout.libraries
        if self._made_for != machine.driver_version:
            put_libraries(libraries, machine.driver_version)
            self._made_for = machine.driver_version
        nvml.write(nvml.table(machine) | dict(more or {}), libraries / "table")
        for name in CONTROL:
            self.node(name)
        for gpu in machine.gpus:
            for name, kind in zip(direct(gpu.minor), ("card", "render"), strict=True):
                link = self.root / self.dev / f"dri/by-path/pci-{gpu.pci}-{kind}"
                link.parent.mkdir(parents=True, exist_ok=True)
                if not link.is_symlink():
                    link.symlink_to(f"../{name}")
                (self.sys.device(str(gpu.pci)) / "drm" / name).mkdir(parents=True, exist_ok=True)
                self.node(f"dri/{name}")
            self.node(f"nvidia{gpu.minor}")

    def capabilities(self, gpu: int, instance: int) -> None:
        """Have the driver's files and nodes of a GPU instance with one compute instance."""
        minors = {f"gi{instance}/access": 66, f"gi{instance}/ci0/access": 67}
        for path, minor in minors.items():
            text = f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1"
            self.sys.file(f"proc/driver/nvidia/capabilities/gpu{gpu}/mig/{path}", text)
            self.node(f"nvidia-caps/nvidia-cap{minor}")
        self.sys.file(
            "proc/driver/nvidia-caps/mig-minors", "\n".join(f"gpu{gpu}/{path} {n}" for path, n in minors.items())
        )

    def node(self, name: str) -> None:
        """Make one of the driver's device nodes, with /dev/null behind it."""
        path = self.root / self.dev / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))

    def nodes(self, gpu: Gpu) -> list[str]:
        """Return the device nodes that a container with a GPU gets, as paths of the host's."""
        names = (*(f"dri/{name}" for name in direct(gpu.minor)), f"nvidia{gpu.minor}")
        return [f"/{self.dev}/{name}" for name in names]

    def look(self, *settings: str) -> Seen:
        """Have a fresh agent, in the pod that the chart makes of these values, read the machine."""
        spec = _pod((*settings, f"driverRoot=/{self.driver}"))
        wanted = {"host": str(self.root), "pod": str(self._folder / "pod"), "keep": _kept(), "spec": spec}
        wanted["toolkit"] = str(needs.image_toolkit())
        inside = Path(__file__).with_name("inside.py")
        command = ["unshare", "--mount", "--propagation=private", sys.executable, str(inside)]
        done = subprocess.run(
            command, input=json.dumps(wanted), cwd=REPO, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return Seen(gpus=json.loads(done.stdout), log=done.stderr)

    def _toolkit(self, built: Path) -> None:
        """Put the programs in place, with what they link to."""
        at, wrapped = self._layout.toolkit, self._layout.wrapped
        folder = self.root / at
        folder.mkdir(parents=True, exist_ok=True)
        for program in sorted(built.glob("nvidia-*")):
            shutil.copy(program, folder / (f"{program.name}.real" if wrapped else program.name))
            for linked in _linked(program):
                to = (
                    self.root / LIBRARIES / linked.name
                    if "ld-" not in linked.name
                    else self.root / "lib64" / linked.name
                )
                shutil.copy(linked, to)
            if wrapped:
                shutil.copy(requirements.busybox(), self.root / "usr/bin/sh")
                script = f'#! /bin/sh\nPATH=/{at}:$PATH \\\n\t/{at}/{program.name}.real \\\n\t\t"$@"\n'
                (folder / program.name).write_text(script)
                (folder / program.name).chmod(0o755)


def put_libraries(folder: Path, driver_version: str) -> None:
    """Put the libraries of a driver into a folder, and take away those of another version.

    They have links as installers make them; the one that answers reads its table beside it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.so.*.*"):
        old.unlink()
    files = {name: _stand_in(name) for name in _STAND_INS}
    files["libnvidia-ml"] = nvml.compiled() / "usr/lib64/libnvidia-ml.so.1"
    for name, file in files.items():
        shutil.copy(file, folder / f"{name}.so.{driver_version}")
        (folder / f"{name}.so.1").unlink(missing_ok=True)
        (folder / f"{name}.so.1").symlink_to(f"{name}.so.{driver_version}")


def direct(minor: int) -> tuple[str, str]:
    """The nodes by which a GPU draws."""
    return f"card{minor + 1}", f"renderD{128 + minor}"


def nodes(edits: Mapping[str, Any]) -> list[str]:
    """The device nodes that edits bring, as paths of the host's."""
    return sorted(node.get("hostPath", node["path"]) for node in edits.get("deviceNodes", ()))


@functools.cache
def _pod(settings: tuple[str, ...]) -> Object:
    template: Object = chart.objects(*settings)["DaemonSet", "gpu-topology-node"]["spec"]["template"]
    spec: Object = template["spec"]
    return spec


def _kept() -> Sequence[str]:
    """Folders that the agent's Python and code are in."""
    return sorted({str(REPO), sys.prefix, sys.base_prefix})


def _linked(program: Path) -> list[Path]:
    said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", said)]


@functools.cache
def _stand_in(name: str) -> Path:
    """A library without content that says its name."""
    path = Path(_folder().name) / f"{name}.so.1"
    words = ["cc", "-shared", f"-Wl,-soname,{name}.so.1", "-x", "c", "/dev/null", "-o", str(path)]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    return path


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="driver-")
