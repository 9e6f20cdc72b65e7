"""CDI specifications laid out as NVIDIA's toolkits lay them out, and a stand-in for ``nvidia-ctk`` that prints them.

Layouts, options and what is left out are those of NVIDIA/nvidia-container-toolkit 1.15 to 1.18 (pkg/nvcdi,
cmd/nvidia-ctk/cdi/generate) and of the GPU operator's toolkit container (cmd/nvidia-ctk-installer).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dradriver.node.errors import SetupError
from dradriver.topology.machine import Gpu, Machine

Object = dict[str, Any]
VERSIONS = ((1, 15), (1, 16), (1, 17), (1, 18))
_FLAGS = {
    "--format",
    "--mode",
    "--vendor",
    "--class",
    "--device-name-strategy",
    "--driver-root",
    "--dev-root",
    "--library-search-path",
    "--nvidia-ctk-path",
    "--output",
}
_READ_ONLY = ["ro", "nosuid", "nodev", "bind"]


def specification(
    machine: Machine,
    *,
    version: tuple[int, int] = (1, 18),
    kind: str = "nvidia.com/gpu",
    strategies: Sequence[str] = ("index", "uuid"),
    driver_root: str = "/",
    dev_root: str | None = None,
    hook: str = "",
) -> Object:
    """What ``nvidia-ctk cdi generate`` makes of a machine."""
    root = driver_root.rstrip("/")
    dev = root if dev_root is None else dev_root.rstrip("/")
    hook = hook or ("/usr/bin/nvidia-cdi-hook" if version >= (1, 16) else "/usr/bin/nvidia-ctk")
    devices = []
    for gpu in machine.gpus:
        if gpu.mig is not None and version >= (1, 18):
            continue  # lib-nvml.go: a GPU with MIG enabled is its MIG devices alone
        for strategy in strategies:
            name = gpu.uuid if strategy == "uuid" else str(gpu.index)
            devices.append({"name": name, "containerEdits": _gpu_edits(gpu, root=dev, hook=hook)})
    nodes = [_node(f"/dev/nvidia{gpu.minor}", dev) for gpu in machine.gpus]
    devices.append({"name": "all", "containerEdits": {"deviceNodes": nodes}})
    library = f"/usr/lib/x86_64-linux-gnu/libcuda.so.{machine.driver_version}"
    common: Object = {
        "deviceNodes": [_node(f"/dev/{name}", dev) for name in ("nvidia-uvm", "nvidia-uvm-tools", "nvidiactl")],
        "mounts": [{"hostPath": root + library, "containerPath": library, "options": _READ_ONLY}],
        "hooks": [_hook(hook, "update-ldcache", "--folder", "/usr/lib/x86_64-linux-gnu")],
    }
    if version >= (1, 17):
        common["env"] = ["NVIDIA_VISIBLE_DEVICES=void"]
        common["hooks"].append(_hook(hook, "enable-cuda-compat", f"--host-driver-version={machine.driver_version}"))
    return {"cdiVersion": "0.5.0", "kind": kind, "devices": devices, "containerEdits": common}


def management(
    machine: Machine, *, version: tuple[int, int] = (1, 18), driver_root: str = "/run/nvidia/driver", hook: str = ""
) -> Object:
    """One device with all nodes, control nodes too: ``--mode=management``, and what the GPU operator writes."""
    root = driver_root.rstrip("/")
    names = [f"nvidia{gpu.minor}" for gpu in machine.gpus] + ["nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1"]
    kind = "management.nvidia.com/gpu"
    made = specification(machine, version=version, kind=kind, strategies=(), driver_root=root, hook=hook)
    made["containerEdits"].pop("deviceNodes")
    return made | {
        "devices": [{"name": "all", "containerEdits": {"deviceNodes": [_node(f"/dev/{n}", root) for n in names]}}]
    }


def _gpu_edits(gpu: Gpu, *, root: str, hook: str) -> Object:
    dri = [_node(f"/dev/dri/card{gpu.minor + 1}", root), _node(f"/dev/dri/renderD{128 + gpu.minor}", root)]
    link = f"../card{gpu.minor + 1}::{root}/dev/dri/by-path/pci-{gpu.pci}-card"
    return {
        "deviceNodes": [_node(f"/dev/nvidia{gpu.minor}", root), *dri],
        "hooks": [_hook(hook, "create-symlinks", "--link", link)],
    }


def _node(path: str, root: str) -> Object:
    return {"path": path} | ({"hostPath": root + path} if root else {})


def _hook(path: str, *arguments: str) -> Object:
    name = path.rpartition("/")[2]
    return {
        "hookName": "createContainer",
        "path": path,
        "args": [name, *(["hook"] if name == "nvidia-ctk" else []), *arguments],
    }


class Ctk:
    """``nvidia-ctk`` of one release on a host below ``root``.

    Attributes:
        machine: What it finds.
        calls: The commands that were run.
    """

    def __init__(
        self, root: Path, machine: Machine, *, at: str = "usr/bin", version: tuple[int, int] = (1, 18)
    ) -> None:
        self.machine = machine
        self.calls: list[list[str]] = []
        self._version = version
        self._root = root
        folder = root / at
        folder.mkdir(parents=True, exist_ok=True)
        names = ("nvidia-ctk", *(["nvidia-cdi-hook"] if version >= (1, 16) else []))
        self._programs = [folder / name for name in names]
        for program in self._programs:
            program.touch(mode=0o755)

    def remove(self) -> None:
        """Take it away from the host."""
        for program in self._programs:
            program.unlink()

    def run(self, root: Path, command: Sequence[str], timeout_s: float = 0.0) -> bytes:
        """Do what it does, in place of a process."""
        assert root == self._root
        assert (root / command[0].lstrip("/")).exists(), "it runs in the host's root"
        self.calls.append(list(command))
        assert command[1:3] == ["cdi", "generate"]
        flags = dict(word.split("=", 1) for word in command[3:])
        if unknown := flags.keys() - _FLAGS:
            raise SetupError(f"{command[0]} cdi generate failed (1): flag provided but not defined: {min(unknown)}")
        kind, driver_root, hook = (
            f"{flags['--vendor']}/{flags['--class']}",
            flags["--driver-root"],
            flags["--nvidia-ctk-path"],
        )
        if flags["--mode"] == "management":
            made = management(self.machine, version=self._version, driver_root=driver_root, hook=hook) | {"kind": kind}
            return json.dumps(lay(root, made)).encode()
        if driver_root != "/" and self._version < (1, 16):
            raise SetupError(
                f"{command[0]} cdi generate failed (1): failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND"
            )
        if self._version >= (1, 18) and all(gpu.mig is not None for gpu in self.machine.gpus):
            raise SetupError(f'{command[0]} cdi generate failed (1): invalid device "all", empty device edits')
        strategies = [flags["--device-name-strategy"]]
        made = specification(
            self.machine,
            version=self._version,
            kind=kind,
            strategies=strategies,
            driver_root=driver_root,
            dev_root=flags.get("--dev-root"),
            hook=hook,
        )
        return json.dumps(lay(root, made)).encode()


class ImageCtk:
    """``nvidia-ctk`` 1.20 in the agent's own file system, with its hooks' programs, for a host below ``host_root``.

    Attributes:
        folder: Where it is.
        machine: What it finds.
        calls: The commands that were run.
    """

    def __init__(self, folder: Path, host_root: Path, machine: Machine, *, build: str = "first") -> None:
        self.folder = folder
        self.machine = machine
        self.calls: list[list[str]] = []
        self._host = str(host_root)
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("nvidia-ctk", "nvidia-cdi-hook", "ldconfig"):
            (folder / name).write_text(f"{name} of the {build} build")
            (folder / name).chmod(0o755)

    def run(self, root: Path, command: Sequence[str], timeout_s: float = 0.0) -> bytes:
        """Do what it does, in place of a process."""
        assert root == Path("/")
        assert command[:3] == [str(self.folder / "nvidia-ctk"), "cdi", "generate"]
        self.calls.append(list(command))
        flags = dict(word.split("=", 1) for word in command[3:])
        assert flags["--disable-hook"] == "apply-cuda-memory-limits"
        hook, ldconfig = (Path(flags[name]) for name in ("--nvidia-ctk-path", "--ldconfig-path"))
        assert all(path.stat().st_mode & 0o111 == 0o111 for path in (hook, ldconfig)), "the host may run them"
        driver_root, dev_root = flags["--driver-root"], flags.get("--dev-root")
        if flags["--mode"] == "management":
            made = management(self.machine, driver_root=driver_root, hook=str(hook))
        elif all(gpu.mig is not None for gpu in self.machine.gpus):
            raise SetupError(f'{command[0]} cdi generate failed (1): invalid device "all", empty device edits')
        else:
            made = specification(
                self.machine, strategies=["uuid"], driver_root=driver_root, dev_root=dev_root, hook=str(hook)
            )
        text = json.dumps(made | {"kind": f"{flags['--vendor']}/{flags['--class']}"})
        lay(Path(self._host), json.loads(text.replace(f"{self._host}/", "/")))
        return text.encode()


def lay(root: Path, spec: Object) -> Object:
    """Have the host below ``root`` what a specification names, and return the specification."""
    every = [spec.get("containerEdits") or {}, *(device["containerEdits"] for device in spec.get("devices", ()))]
    for edits in every:
        named = [node.get("hostPath", node["path"]) for node in edits.get("deviceNodes", ())]
        named += [mount["hostPath"] for mount in edits.get("mounts", ())]
        named += [hook["path"] for hook in edits.get("hooks", ())]
        for path in named:
            file = root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    return spec
