"""The options of the node agent, and the parser of its command line: ``python -m dradriver node``."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, cast

from dradriver.process import options


class Options(options.Common):
    """The values of the node agent's command-line options; ``parser`` explains each option."""

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
        "The node agent: publishes the GPUs of its node as ResourceSlices, and prepares claims for the kubelet.",
        health_port=8081,
    )
    add = made.add_argument
    add("--node-name", dest="node", required=True, help="name of the node")
    add(
        "--discovery",
        choices=("auto", "nvml", "amd", "simulated"),
        default="auto",
        help=(
            "source of the machine: auto (NVIDIA or AMD, by the PCI devices, the default), nvml (NVIDIA), amd "
            "(AMD, from /sys), simulated (a profile)"
        ),
    )
    add(
        "--driver-root",
        metavar="DIR",
        type=Path,
        help=("root of the file system with the NVIDIA driver. Default: where the dynamic linker finds the driver"),
    )
    add(
        "--host-root",
        metavar="DIR",
        type=Path,
        default=Path("/"),
        help="folder with the host's /sys and /proc. Default: /",
    )
    add(
        "--device-root",
        metavar="DIR",
        type=Path,
        help=("folder with the /sys and /dev of AMD's GPUs, for example of a captured machine. Default: --host-root"),
    )
    add(
        "--toolkit",
        metavar="DIR",
        type=Path,
        help="NVIDIA's container toolkit (nvidia-ctk, nvidia-cdi-hook, ldconfig), used if the host's own does not work",
    )
    add(
        "--hooks-dir",
        metavar="DIR",
        type=Path,
        help=(
            "folder, as a path of the host, to which the hooks' programs are copied. Default: "
            "<state-dir>/toolkit, which pods in a user namespace cannot reach"
        ),
    )
    add("--simulated-default", metavar="PROFILE", help="profile or file of each node without a --simulated-machine")
    add(
        "--simulated-machine",
        metavar="NODE=PROFILE",
        action="append",
        default=[],
        dest="simulated_machines",
        type=_machine,
        help="profile or file of this node. It can be repeated",
    )
    add(
        "--simulated-dir",
        metavar="DIR",
        type=Path,
        help=(
            "folder with the simulated faults: DIR/lost has the UUID or index of each lost GPU, DIR/processes a "
            "line for each process (GPU UUID and pid). Default: <state-dir>/simulated"
        ),
    )
    add(
        "--rediscover",
        metavar="SECONDS",
        dest="rediscover_s",
        type=_seconds,
        default=10.0,
        help="seconds between two readings of the machine. Default: 10",
    )
    add("--kubelet-root", type=Path, default=Path("/var/lib/kubelet"), help="the kubelet's --root-dir")
    add(
        "--cdi-root",
        type=Path,
        default=Path("/var/run/cdi"),
        help="folder in which the container runtime looks for CDI specifications",
    )
    add("--state-dir", type=Path, help=("folder with the agent's state. Default: <kubelet-root>/plugins/gpu.topology"))
    add("--pod-uid", help=("uid of the agent's pod, which distinguishes instances. Default: a new one"))
    add(
        "--allow-device-plugin",
        action="store_true",
        help="publish the GPUs even if a device plugin or another driver allocates them, too",
    )
    add("--mps", action="store_true", help="serve shares by MPS. python -m dradriver mps runs the daemons")
    options.add_allocating_driver(made)
    return made


def parse(argv: list[str]) -> Options:
    """Return the options that the node agent's command line sets; exit with the usage text if it is wrong."""
    made = parser()
    said = made.parse_args(argv, namespace=Options(simulated_machines=[]))
    said.simulated_machines = dict(said.simulated_machines)
    if said.discovery != "simulated" and (said.simulated_default or said.simulated_machines):
        made.error(f"A simulated machine is named, but --discovery is {said.discovery}. Add --discovery=simulated.")
    said.state_dir = cast("Path | None", said.state_dir) or said.kubelet_root / "plugins" / "gpu.topology"
    said.pod_uid = said.pod_uid or str(uuid.uuid4())
    return said


def _machine(text: str) -> tuple[str, str]:
    node, separator, source = text.partition("=")
    if not (node and separator and source):
        raise argparse.ArgumentTypeError(f"{text!r} is not a machine. Write NODE=PROFILE.")
    return node, source


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration. Write a number of seconds above 0.")
    return seconds
