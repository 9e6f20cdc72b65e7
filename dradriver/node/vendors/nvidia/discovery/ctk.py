"""Runs NVIDIA's ``nvidia-ctk``, which generates CDI specifications of GPUs; ``base_specification`` calls it.

The host's program runs with the host's file system as its root. So it writes the host's own paths. And if it is a
wrapper script of the GPU operator, the script finds the real program.

The code uses only options that releases from 1.15 on have. 1.15 is the oldest release that the tests run. Names and
defaults of the options are from cmd/nvidia-ctk/cdi/generate/generate.go of NVIDIA/nvidia-container-toolkit.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from dradriver.api.base import names
from dradriver.node.errors import SetupError
from dradriver.node.vendors.nvidia.discovery.driver_root import inside

CLASS: Final = "gpu"
AUTO: Final = "auto"
MANAGEMENT: Final = "management"  # names no GPU and does not ask NVML: every container's libraries, and all nodes
MOST_BYTES: Final = 4 << 20  # a specification of eight GPUs with all MIG devices has 200 KB
TIMEOUT_S: Final = 25.0
ROUND_S: Final = 45.0  # for all that are tried: after a minute a reading would be taken for a driver that hangs
_PLACES: Final = (
    "usr/bin/nvidia-ctk",
    "usr/local/bin/nvidia-ctk",
    "usr/local/nvidia/toolkit/nvidia-ctk",  # the GPU operator's toolkit container installs it there
    "run/current-system/sw/bin/nvidia-ctk",  # NixOS
    "run/nvidia/driver/usr/bin/nvidia-ctk",  # a driver container that brings its own
)
_SEARCHED: Final = frozenset(  # where it looks for libraries itself: pkg/lookup/library.go
    (
        ".",
        "usr/lib64",
        "lib64",
        *(
            f"{parent}/{machine}-linux-gnu{child}"
            for parent in ("usr/lib", "lib")
            for machine in ("x86_64", "aarch64")
            for child in ("", "/nvidia/current")
        ),
        "usr/lib",  # by the linker's cache
        "lib",
    )
)
_HOOK: Final = "nvidia-cdi-hook"  # beside it from 1.16 on; before, nvidia-ctk is its own hook
_WRITABLE: Final = ("dev/shm", "run", "tmp")  # it makes a file before it prints it, and a read-only host's /tmp is none
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_IN_ROOT: Final = "import os, sys; os.chroot(sys.argv[1]); os.chdir('/'); os.execv(sys.argv[2], sys.argv[2:])"

Run = Callable[[Path, Sequence[str], float], bytes]  # the root, the words, the seconds it may take; what was printed


class Toolkit(msgspec.Struct, frozen=True):
    """A copy of NVIDIA's container toolkit that can be run, the host's or the image's.

    Attributes:
        program: The path of ``nvidia-ctk`` below ``root``.
        root: The root of the toolkit's file system.
        hook: The program that containers' hooks run, as a path on the host.
        host: The folder in which the toolkit finds the host's files; empty if they are at their own paths.
        options: Further options for the program.
    """

    program: str
    root: Path
    hook: str
    host: str = ""
    options: tuple[str, ...] = ()


def find(host_root: Path) -> Toolkit | None:
    """Return the host's own ``nvidia-ctk``; None if the host has none."""
    for place in _PLACES:
        path = inside(host_root, place)
        if path is not None and os.path.isfile(path) and os.access(path, os.X_OK):
            beside = str(PurePosixPath(place).with_name(_HOOK))
            hook = inside(host_root, beside)
            return Toolkit(f"/{place}", host_root, f"/{beside if hook and os.path.isfile(hook) else place}")
    return None


class Driver(msgspec.Struct, frozen=True):
    """The places of the driver. ``root`` and ``dev_root`` are paths on the host.

    Attributes:
        root: The root of the driver's file system.
        dev_root: The root of the file system that has the driver's device nodes in ``dev``.
        libraries: The folder with the driver's libraries, relative to ``root``; empty if unknown.
    """

    root: str
    dev_root: str
    libraries: str

    def options(self, host: str = "") -> list[str]:
        """Return the options of ``nvidia-ctk`` that say where the driver is.

        Args:
            host: The folder in which ``nvidia-ctk`` finds the host's files; empty for their own paths.
        """
        words = [f"--driver-root={_at(host, self.root)}"]
        if self.dev_root != self.root:
            words.append(f"--dev-root={_at(host, self.dev_root)}")
        if self.libraries and self.libraries not in _SEARCHED:
            words.append(f"--library-search-path={_at(host, str(PurePosixPath(self.root, self.libraries)))}")
        return words


def generate(toolkit: Toolkit, driver: Driver, *, mode: str = AUTO, run: Run, timeout_s: float = TIMEOUT_S) -> bytes:
    """Return the CDI specification that ``nvidia-ctk`` generates, in JSON.

    The specification has this driver's vendor name, and uuids as device names.

    Args:
        toolkit: The toolkit to run.
        driver: Where the driver is on the host.
        mode: The value of the program's option ``--mode``.
        run: Runs the program.
        timeout_s: Seconds that the program may take.

    Raises:
        SetupError: The tool made no specification; the message is the tool's.
    """
    command = [
        toolkit.program,
        "cdi",
        "generate",
        "--format=json",
        f"--mode={mode}",
        f"--vendor={names.DRIVER}",
        f"--class={CLASS}",
        "--device-name-strategy=uuid",
        *driver.options(toolkit.host),
        f"--nvidia-ctk-path={toolkit.hook}",  # since 1.16 another name of --nvidia-cdi-hook-path
        *toolkit.options,
    ]
    made = run(toolkit.root, command, timeout_s)
    return _own_paths(made, toolkit.host) if toolkit.host else made


def _at(host: str, path: str) -> str:
    return f"{host}{path}".rstrip("/") or "/"


def _own_paths(made: bytes, host: str) -> bytes:
    """Return a CDI specification with the prefix ``host`` removed from its paths.

    A toolkit that finds the host's files below a folder ``host`` writes paths with this prefix. The prefix is removed
    from whole paths, and from paths after ``::`` in a hook's arguments.

    Raises:
        SetupError: The specification is not JSON.
    """
    path = re.compile(rf"(?:^|(?<=::)){re.escape(host)}(?=/|$)")

    def own(value: object) -> object:
        if isinstance(value, str):
            return path.sub("", value) or (value and "/")
        if isinstance(value, list):
            return [own(part) for part in value]
        return {key: own(part) for key, part in value.items()} if isinstance(value, dict) else value

    try:
        return msgspec.json.encode(own(msgspec.json.decode(made)))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise SetupError(f"nvidia-ctk printed no specification: {error}") from error


def advice(toolkit: Toolkit | None, *, driver: Driver) -> str:
    """Return what an administrator must do if a CDI specification is missing or stale, with a command.

    If ``toolkit`` is None, the node has no ``nvidia-ctk``, and the advice is to install it.
    """
    command = ["cdi", "generate", "--device-name-strategy=uuid", "--output=/var/run/cdi/nvidia.yaml"]
    command += [word for word in driver.options() if word != "--driver-root=/"]
    if toolkit is None:
        told = shlex.join(["nvidia-ctk", *command])
        return f"install the NVIDIA Container Toolkit on the node (1.15 or newer), or run: {told}"
    return f"run on the node: {shlex.join([toolkit.program, *command])}"


def run(root: Path, command: Sequence[str], timeout_s: float = TIMEOUT_S) -> bytes:
    """Run a command of ``nvidia-ctk`` with ``root`` as its root folder, and return its output.

    Raises:
        SetupError: The command failed, took too long, printed too much, or this process may not change its root.
    """
    # A small program changes the root first, so that paths are the host's own. It needs no file of this image then.
    prefix = [] if root == Path("/") else [sys.executable, "-I", "-c", _IN_ROOT, str(root)]
    until = time.monotonic() + timeout_s
    try:
        process = subprocess.Popen(  # noqa: S603  # NVIDIA's own tool, with words of ours
            [*prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": _PATH} | _temporary(root),
            start_new_session=True,
        )
    except OSError as error:
        raise SetupError(f"{command[0]}: {error}") from error
    with process:
        try:
            output, error_output = _printed(process, until=until)
            status = process.wait(max(0.0, until - time.monotonic()))
        except (ValueError, subprocess.TimeoutExpired) as error:
            raise SetupError(f"{command[0]}: {error}") from error
        # With what it started: the GPU operator's tool is a shell script, which would leave the real one behind.
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    if status:
        lines = error_output.decode("utf-8", "replace").strip().splitlines()
        raise SetupError(f"{command[0]} cdi generate failed ({status}): {lines[-1] if lines else 'no word'}")
    return output


def _temporary(root: Path) -> dict[str, str]:
    """Return the variable ``TMPDIR`` with a writable folder below the root; empty if there is no such folder."""
    for name in _WRITABLE:
        path = inside(root, name)
        if path is not None and os.access(path, os.W_OK | os.X_OK):
            return {"TMPDIR": f"/{name}"}
    return {}


def _printed(process: subprocess.Popen[bytes], *, until: float) -> tuple[bytes, bytes]:
    """Return a process's standard output and standard error, read until the process closes both.

    ``until`` is the latest time at which both must be closed, in seconds of the monotonic clock.

    Raises:
        ValueError: The process writes more than any specification has.
        TimeoutExpired: The process does not close both by ``until``.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    # Both pipes are read as data comes: a process that fills one would wait for ever.
    read = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    with selectors.DefaultSelector() as pipes:
        for pipe in read:
            pipes.register(pipe, selectors.EVENT_READ)
        while pipes.get_map():
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise subprocess.TimeoutExpired(process.args, TIMEOUT_S)
            for key, _ in pipes.select(left_s):
                data = os.read(key.fd, 1 << 16)
                read[key.fd] += data
                if not data:
                    pipes.unregister(key.fd)
                elif len(read[key.fd]) > MOST_BYTES:
                    raise ValueError(f"it prints more than {MOST_BYTES} bytes")
    output, error_output = read.values()
    return bytes(output), bytes(error_output)
