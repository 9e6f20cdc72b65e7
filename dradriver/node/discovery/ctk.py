"""NVIDIA's ``nvidia-ctk`` on the host, which knows how a container is given a GPU.

It runs with the host's file system as its root, so that what it writes are the host's own paths, and a wrapper script
of the GPU operator finds what it wraps. Only options that releases from 1.14 on know are used; their names and defaults
are from cmd/nvidia-ctk/cdi/generate/generate.go of NVIDIA/nvidia-container-toolkit.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from dradriver.api import names
from dradriver.node.discovery.library import inside
from dradriver.node.errors import SetupError

CLASS: Final = "gpu"
_TIMEOUT_S: Final = 40.0  # it wakes sleeping GPUs; after a minute a reading would be taken for a driver that hangs
_PLACES: Final = (
    "usr/bin/nvidia-ctk",
    "usr/local/bin/nvidia-ctk",
    "usr/local/nvidia/toolkit/nvidia-ctk",  # the GPU operator's toolkit container installs it there
    "run/current-system/sw/bin/nvidia-ctk",  # NixOS
    "run/nvidia/driver/usr/bin/nvidia-ctk",  # a driver container that brings its own
)
_HOOK: Final = "nvidia-cdi-hook"  # beside it from 1.16 on; before, nvidia-ctk is its own hook
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_IN_ROOT: Final = "import os, sys; os.chroot(sys.argv[1]); os.chdir('/'); os.execv(sys.argv[2], sys.argv[2:])"

Run = Callable[[Path, Sequence[str]], bytes]  # the root and the words; what was printed


def find(host_root: Path) -> str | None:
    """Return where the host has it, as a path of the host's; None where it has none."""
    for place in _PLACES:
        path = inside(host_root, place)
        if path is not None and os.path.isfile(path) and os.access(path, os.X_OK):
            return f"/{place}"
    return None


def hook(host_root: Path, ctk: str) -> str:
    """Return the program that containers' hooks run, as a path of the host's."""
    beside = PurePosixPath(ctk).with_name(_HOOK)
    path = inside(host_root, str(beside).lstrip("/"))
    return str(beside) if path is not None and os.path.isfile(path) else ctk


def words(ctk: str, *, hook: str, driver_root: str) -> list[str]:
    """Return the command that prints a specification of our own vendor with uuids as names."""
    return [
        ctk,
        "cdi",
        "generate",
        "--format=json",
        f"--vendor={names.DRIVER}",
        f"--class={CLASS}",
        "--device-name-strategy=uuid",
        f"--driver-root={driver_root}",
        f"--nvidia-ctk-path={hook}",  # since 1.16 another name of --nvidia-cdi-hook-path
    ]


def advice(ctk: str | None, *, driver_root: str) -> str:
    """Return what an administrator does about a specification that is missing or stale."""
    command = ["cdi", "generate", "--device-name-strategy=uuid", "--output=/var/run/cdi/nvidia.yaml"]
    command += [f"--driver-root={driver_root}"] if driver_root != "/" else []
    if ctk is None:
        told = shlex.join(["nvidia-ctk", *command])
        return f"install the NVIDIA Container Toolkit on the node (1.14 or newer), or run: {told}"
    return f"run on the node: {shlex.join([ctk, *command])}"


def run(host_root: Path, command: Sequence[str]) -> bytes:
    """Run a command of the host's and return what it printed.

    Raises:
        SetupError: It failed, took too long, or this process may not change its root.
    """
    prefix = [] if host_root == Path("/") else [sys.executable, "-I", "-c", _IN_ROOT, str(host_root)]
    try:
        done = subprocess.run(  # noqa: S603  # the host's own tool, with words of ours
            [*prefix, *command], capture_output=True, check=False, timeout=_TIMEOUT_S, env={"PATH": _PATH}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"{command[0]}: {error}") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise SetupError(f"{command[0]} cdi generate failed ({done.returncode}): {said[-1] if said else 'no word'}")
    return done.stdout
