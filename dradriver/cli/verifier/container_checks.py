"""How containers on this machine get GPUs: the toolkit, CDI specifications, and whether the runtime has CDI enabled.

A *finding* is the result of one check: PASS, WARN or FAIL, with the repair.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dradriver.cli.verifier.finding import Finding, failed, passed, warned
from dradriver.counted import counted
from dradriver.node.container_edits import GPU_FILE, names_in
from dradriver.node.errors import NotYetError
from dradriver.node.vendors.nvidia.discovery import base_specification, ctk
from dradriver.node.vendors.nvidia.discovery.cdi_specifications import Specification, read_all
from dradriver.topology.machine import Machine
from dradriver.topology.vendors import NVIDIA

_CRIO: Final = "run/crio/crio.sock"
_RESTART: Final = "restart the node agent's pod, and look at its log, which says why a GPU is left out"


def findings(machine: Machine | None, *, host_root: Path, cdi_root: Path, is_ours: bool) -> Iterator[Finding]:
    """Yield the findings about the way of GPUs into containers: toolkit, CDI specifications, runtime.

    Args:
        machine: This machine; None if it cannot be read. Then CDI specifications are not compared.
        host_root: The folder with the host's files.
        cdi_root: The folder where the runtime looks for CDI specifications.
        is_ours: Whether this driver allocates the GPUs. If another one does, the agent writes no specification.
    """
    if machine is not None and machine.vendor is not NVIDIA:
        yield _runtime(host_root)
        if is_ours:
            yield _device_nodes(machine, cdi_root)
        return
    yield _toolkit(host_root)
    yield _runtime(host_root)
    if machine is not None:
        if is_ours:
            yield from _specification(machine, host_root, cdi_root)
        yield from _others(machine, host_root, cdi_root)


def _toolkit(host_root: Path) -> Finding:
    found = ctk.find(host_root)
    if found is not None:
        return passed("toolkit", f"the host has {found.program}")
    return warned(
        "toolkit", "the host has no NVIDIA Container Toolkit: the agent takes its image's",
        "nothing, if all GPUs are in the base specification. Otherwise install version 1.15 or "
        "newer",
    )  # fmt: skip


def _runtime(host_root: Path) -> Finding:
    try:
        # By name: it brings grpcio, which the agent's image has and whoever has the command line alone need not.
        runtime = importlib.import_module("dradriver.node.health.cdi_runtime_check")
    except ImportError:
        return warned(
            "cdi", "the package grpcio, which asks the runtime, is not installed",
            "run the Job that gputopo verify --job NODE prints, or pip install 'gpu-topology-dra[node]'",
        )  # fmt: skip
    trouble = asyncio.run(runtime.trouble(host_root))
    sockets = [place for place in runtime.SOCKETS if (host_root / place).is_socket()]
    if trouble is not None:
        return failed(
            "cdi", trouble, "set enable_cdi = true for the CRI plugin in containerd's configuration, restart it"
        )
    if sockets:
        return passed("cdi", f"/{sockets[0]} gives containers CDI devices, or does not say that it does not")
    if (host_root / _CRIO).is_socket():
        return passed("cdi", "CRI-O always gives containers CDI devices")
    return warned(
        "cdi", f"no containerd or CRI-O is to be found below {host_root}",
        "write --host-root. containerd 2 and CRI-O have CDI on by default, and containerd 1.7 "
        "needs enable_cdi = true",
    )  # fmt: skip


def _device_nodes(machine: Machine, cdi_root: Path) -> Finding:
    """Return the result of a check: whether AMD's CDI specification has all GPUs' device nodes."""
    path = cdi_root / GPU_FILE
    try:
        named = names_in(path.read_bytes())
    except (OSError, ValueError) as error:
        return failed("base-specification", f"{path} cannot be read: {error}", _RESTART)
    missing = [gpu.uuid for gpu in machine.gpus if gpu.uuid not in named]
    if missing:
        return failed("base-specification", f"{path} has no {', '.join(missing)}", _RESTART)
    return passed("base-specification", f"{path} has the device nodes of all {len(machine.gpus)} GPUs")


def _specification(machine: Machine, host_root: Path, cdi_root: Path) -> Iterator[Finding]:
    path = cdi_root / GPU_FILE
    try:
        ours = Specification(str(path), path.read_bytes(), json=True, host_root=host_root, ours=True)
        base_specification.driver_id(cdi_root)
    except OSError as error:
        yield failed("base-specification", f"{path} cannot be read: {error.strerror or error}", _RESTART)
        return
    except (ValueError, NotYetError) as error:
        yield failed("base-specification", str(error), _RESTART)
        return
    whole = [gpu for gpu in machine.gpus if gpu.mig is None]
    wrong = ours.devices(whole, machine.driver_version)[1]
    for uuid, why in sorted(wrong.items()):
        yield failed("base-specification", f"{uuid}: {why}", _RESTART)
    if not wrong:
        yield passed(
            "base-specification",
            f"{path} has the {counted(len(whole), 'GPU that is', 'GPUs that are')} allocated whole",
        )


def _others(machine: Machine, host_root: Path, cdi_root: Path) -> Iterator[Finding]:
    for one in read_all((cdi_root, host_root / "etc/cdi"), host_root=host_root):
        if why := one.unfit(machine.driver_version):
            yield warned(
                "cdi-specifications", why,
                "generate it again (nvidia-ctk cdi generate), or delete it. Other tools read it, "
                "too",
            )  # fmt: skip
