"""The options of the node agent, and the command line that says them: ``python -m dradriver node``."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, cast

from dradriver.process import options


class Options(options.Common):
    """What the command line says; see ``parser`` for the meaning of each."""

    node: str
    pod_uid: str = ""
    kubelet_root: Path
    cdi_root: Path
    state_dir: Path
    health_port: int
    discovery: Literal["auto", "nvml", "amd", "simulated"] = "auto"
    driver_root: Path | None = None
    host_root: Path = Path("/")
    device_root: Path | None = None
    toolkit: Path | None = None
    hooks_dir: Path | None = None
    simulated_default: str | None = None
    simulated_machines: Mapping[str, str] = MappingProxyType({})
    simulated_dir: Path | None = None
    rediscover_s: float = 10.0
    allow_device_plugin: bool = False
    policies: Path | None = None
    mps: bool = False
    kubeconfig: Path | None = None
    allocating_driver: str


def parser() -> argparse.ArgumentParser:
    """Return the parser of the node agent's command-line options."""
    # The options that all processes of the driver have, then those of the agent.
    made = options.parser(
        "python -m dradriver node",
        "The agent of one node: publishes its GPUs as ResourceSlices and prepares claims for the kubelet.",
        health_port=8081,
    )
    add = made.add_argument
    add("--node-name", dest="node", required=True, help="this node's name")
    add(
        "--discovery",
        choices=("auto", "nvml", "amd", "simulated"),
        default="auto",
        help="how the machine is read: auto (its own GPUs, NVIDIA's or AMD's, by what its PCI devices are; default), "
        "nvml (NVIDIA's), amd (AMD's, from /sys), simulated (a profile stands for it)",
    )
    add(
        "--driver-root",
        metavar="DIR",
        type=Path,
        help="root of the file system that holds the NVIDIA driver; default: wherever the dynamic linker finds it",
    )
    add(
        "--host-root",
        metavar="DIR",
        type=Path,
        default=Path("/"),
        help="where the host's /sys and /proc are; default: /",
    )
    add(
        "--device-root",
        metavar="DIR",
        type=Path,
        help="where the /sys and /dev of AMD's GPUs are, as of a machine that was captured; default: --host-root",
    )
    add(
        "--toolkit",
        metavar="DIR",
        type=Path,
        help="NVIDIA's container toolkit for a host that has none that works: nvidia-ctk, nvidia-cdi-hook and ldconfig",
    )
    add(
        "--hooks-dir",
        metavar="DIR",
        type=Path,
        help="where the programs of its hooks are copied to, at the host's path, for every container to run; default: "
        "<state-dir>/toolkit, which pods in a user namespace cannot reach",
    )
    add("--simulated-default", metavar="PROFILE", help="profile or file that stands for every node not named below")
    add(
        "--simulated-machine",
        metavar="NODE=PROFILE",
        action="append",
        default=[],
        dest="simulated_machines",
        type=_machine,
        help="profile or file that stands for this node; may be repeated",
    )
    add(
        "--simulated-dir",
        metavar="DIR",
        type=Path,
        help="GPUs named in DIR/lost (uuid or index, one a line) are gone, DIR/processes has a "
        "line for each process: GPU uuid and pid; default: <state-dir>/simulated",
    )
    add(
        "--rediscover",
        metavar="SECONDS",
        dest="rediscover_s",
        type=_seconds,
        default=10.0,
        help="how often the machine is read; default: 10",
    )
    add("--kubelet-root", type=Path, default=Path("/var/lib/kubelet"), help="the kubelet's --root-dir")
    add("--cdi-root", type=Path, default=Path("/var/run/cdi"), help="where the container runtime looks for CDI specs")
    add("--state-dir", type=Path, help="default: <kubelet-root>/plugins/gpu.topology")
    add("--pod-uid", help="uid of the agent's pod, which tells instances apart; default: a fresh one")
    add(
        "--allow-device-plugin",
        action="store_true",
        help="publish even where a device plugin or another driver hands out the same GPUs",
    )
    add("--mps", action="store_true", help="serve shares of GPUs by MPS, whose daemons python -m dradriver mps runs")
    options.add_allocating_driver(made)
    return made


def parse(argv: list[str]) -> Options:
    """Return the node agent's options by its command line; a wrong one ends the process with usage."""
    made = parser()
    said = made.parse_args(argv, namespace=Options(simulated_machines=[]))
    said.simulated_machines = dict(said.simulated_machines)
    if said.discovery != "simulated" and (said.simulated_default or said.simulated_machines):
        made.error(f"a simulated machine is named, but the discovery is {said.discovery}: add --discovery=simulated")
    said.state_dir = cast("Path | None", said.state_dir) or said.kubelet_root / "plugins" / "gpu.topology"
    said.pod_uid = said.pod_uid or str(uuid.uuid4())
    return said


def _machine(text: str) -> tuple[str, str]:
    node, separator, source = text.partition("=")
    if not (node and separator and source):
        raise argparse.ArgumentTypeError(f"{text!r}: write NODE=PROFILE")
    return node, source


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: write a number of seconds above 0")
    return seconds
