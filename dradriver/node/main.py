"""``python -m dradriver node``: the command line of the node agent."""

from __future__ import annotations

import argparse
import uuid
from pathlib import Path
from typing import Literal

from dradriver.process import options


class Options(options.Common):
    """What the command line says."""

    node_name: str
    discovery: Literal["nvml", "simulated"]
    driver_root: Path | None
    host_root: Path
    toolkit: Path | None
    simulated_default: str | None
    simulated_machine: list[tuple[str, str]]
    simulated_dir: Path | None
    rediscover: float
    kubelet_root: Path
    cdi_root: Path
    state_dir: Path | None
    pod_uid: str | None
    beside_device_plugin: bool
    mps: bool
    ledger: str


def parser() -> argparse.ArgumentParser:
    """Return the parser of the agent's options."""
    made = options.parser(
        "python -m dradriver node",
        "The agent of one node: publishes its GPUs as ResourceSlices and prepares claims for the kubelet.",
        health_port=8081,
    )
    add = made.add_argument
    add("--node-name", required=True, help="this node's name")
    add(
        "--discovery",
        choices=("nvml", "simulated"),
        default="nvml",
        help="how the machine is read: nvml (its own GPUs, default), simulated (a profile stands for it)",
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
        "--toolkit",
        metavar="DIR",
        type=Path,
        help="NVIDIA's container toolkit for a host that has none that works: nvidia-ctk, nvidia-cdi-hook and ldconfig",
    )
    add("--simulated-default", metavar="PROFILE", help="profile or file that stands for every node not named below")
    add(
        "--simulated-machine",
        metavar="NODE=PROFILE",
        action="append",
        default=[],
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
        type=_seconds,
        default=10.0,
        help="how often the machine is read; default: 10",
    )
    add("--kubelet-root", type=Path, default=Path("/var/lib/kubelet"), help="the kubelet's --root-dir")
    add("--cdi-root", type=Path, default=Path("/var/run/cdi"), help="where the container runtime looks for CDI specs")
    add("--state-dir", type=Path, help="default: <kubelet-root>/plugins/gpu.topology")
    add("--pod-uid", help="uid of the agent's pod, which tells instances apart; default: a fresh one")
    add(
        "--beside-device-plugin",
        action="store_true",
        help="publish even where a device plugin or another driver hands out the same GPUs",
    )
    add("--mps", action="store_true", help="serve shares of GPUs by MPS, whose daemons python -m dradriver mps runs")
    options.add_ledger(made)
    return made


def parse(argv: list[str]) -> Options:
    """Return what the command line says; where it is wrong, the process ends with usage and status 2."""
    made = parser()
    args = made.parse_args(argv, namespace=Options())
    if args.discovery == "nvml" and (args.simulated_default or args.simulated_machine):
        made.error("a simulated machine is named, but the discovery is nvml: add --discovery=simulated")
    return args


def main(argv: list[str]) -> int:
    """Run the agent until a signal ends it and return the process's exit status."""
    args = parse(argv)
    from dradriver.api.ledger import LEDGERS, OURS
    from dradriver.node import addon, agent
    from dradriver.process import run  # --help costs nothing

    wanted = agent.Options(
        node=args.node_name,
        pod_uid=args.pod_uid or str(uuid.uuid4()),
        kubelet_root=args.kubelet_root,
        cdi_root=args.cdi_root,
        state_dir=args.state_dir or args.kubelet_root / "plugins" / "gpu.topology",
        health_port=args.health_port,
        discovery=args.discovery,
        driver_root=args.driver_root,
        host_root=args.host_root,
        toolkit=args.toolkit,
        simulated_default=args.simulated_default,
        simulated_machines=dict(args.simulated_machine),
        simulated_dir=args.simulated_dir,
        rediscover_s=args.rediscover,
        beside_device_plugin=args.beside_device_plugin,
        policies=args.policies,
        mps=args.mps,
        kubeconfig=args.kubeconfig,
    )
    ledger = LEDGERS[args.ledger]
    return run.start(agent.run(wanted) if ledger is OURS else addon.run(wanted, ledger), args)


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
