"""The command-line options that every process has: the API server's address, the health port, and the log format."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Literal

from dradriver import __version__


class Common(argparse.Namespace):
    """The values of the common options.

    Each process adds its own options in a derived class.
    """

    kubeconfig: Path | None  # None: the pod's own service account
    policies: Path | None
    health_port: int
    log_format: Literal["text", "json"]
    verbose: bool


def parser(prog: str, description: str, *, health_port: int, namespace: str = "") -> argparse.ArgumentParser:
    """Return a parser of the command-line options that all processes have.

    Args:
        prog: The command that starts the process.
        description: What the process does, in a sentence.
        health_port: The default port of health and metrics.
        namespace: What the process keeps in its own namespace, as text for the help of ``--namespace``. If it is empty,
            the parser does not have this option.
    """
    made = argparse.ArgumentParser(prog=prog, description=description)
    add = made.add_argument_group("options of every process").add_argument
    if namespace:
        add("--namespace", required=True, help=f"namespace of {namespace}")
    add("--kubeconfig", type=Path, metavar="FILE", help="the kubeconfig. Default: the service account of the pod")
    add(
        "--policies",
        type=Path,
        metavar="FILE",
        help="the policies file. The process follows its changes. Default: the built-in policies",
    )
    add(
        "--health-port",
        type=int,
        default=health_port,
        metavar="PORT",
        help="port of /healthz, /readyz and /metrics. Default: %(default)s",
    )
    add("--log-format", choices=("text", "json"), default="text", help="format of the log. Default: %(default)s")
    add("-v", "--verbose", action="store_true", help="also log details (level DEBUG)")
    add("--version", action="version", version=__version__)
    return made


def add_allocating_driver(made: argparse.ArgumentParser) -> None:
    """Add the option ``--allocating-driver``, which names the DRA driver that allocates the GPUs.

    ``made`` is the parser. The possible values are this driver, NVIDIA's and AMD's.
    """
    from dradriver.api.base.allocating_driver import LEDGERS, OURS

    made.add_argument(
        "--allocating-driver",
        choices=tuple(LEDGERS),
        default=OURS.driver,
        help="the DRA driver that allocates the GPUs: this driver (default), NVIDIA's or AMD's",
    )
