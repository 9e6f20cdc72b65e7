"""The options that every process has: where the API server is, where its health is told, and how it logs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Literal

from dradriver import __version__


class Common(argparse.Namespace):
    """What the common options say; a process adds its own in a class derived from this."""

    kubeconfig: Path | None  # None: the pod's own service account
    policies: Path | None
    health_port: int
    log_format: Literal["text", "json"]
    verbose: bool


def parser(prog: str, description: str, *, health_port: int, namespace: str = "") -> argparse.ArgumentParser:
    """Return a parser of the command-line options that all processes have.

    Args:
        prog: How the process is started.
        description: What it does, in a sentence.
        health_port: Where its health and metrics are served by default.
        namespace: What it keeps in its own namespace, for the help of ``--namespace``; without it there is no such
            option.
    """
    made = argparse.ArgumentParser(prog=prog, description=description)
    add = made.add_argument_group("options of every process").add_argument
    if namespace:
        add("--namespace", required=True, help=f"namespace of {namespace}")
    add("--kubeconfig", type=Path, metavar="FILE", help="default: the pod's service account")
    add("--policies", type=Path, metavar="FILE", help="the policies file, followed as it changes; default: none")
    add(
        "--health-port",
        type=int,
        default=health_port,
        metavar="PORT",
        help="port of /healthz, /readyz and /metrics; default: %(default)s",
    )
    add("--log-format", choices=("text", "json"), default="text", help="default: %(default)s")
    add("-v", "--verbose", action="store_true", help="log details")
    add("--version", action="version", version=__version__)
    return made


def add_allocating_driver(made: argparse.ArgumentParser) -> None:
    """Add the option for the driver that allocates GPUs: a key of ``api.base.allocating_driver.LEDGERS``."""
    from dradriver.api.base.allocating_driver import LEDGERS, OURS

    made.add_argument(
        "--allocating-driver",
        choices=tuple(LEDGERS),
        default=OURS.driver,
        help="whose devices are handed out: this driver's (default), or those of NVIDIA's or AMD's DRA driver",
    )
