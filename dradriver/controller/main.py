"""``python -m dradriver controller``."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Final

from dradriver import __version__

LEASE: Final = "gpu-topology-controller"


def main(argv: list[str]) -> int:
    """Run the controller until it is told to stop and return the process's exit status."""
    options = parse(argv)
    from dradriver.kube import process  # --help costs nothing

    process.setup_logging(json_format=options.log_format == "json", verbose=options.verbose)
    return process.run(serve(options))


async def serve(options: argparse.Namespace) -> None:
    """Watch, take part in the election, and work while leading, until cancelled.

    Raises:
        ConfigError: The API server's address or credentials cannot be read.
    """
    from dradriver.controller.controller import Controller
    from dradriver.kube import config
    from dradriver.kube.client import Client
    from dradriver.kube.leader import LeaderElector
    from dradriver.kube.serve import serve_health

    server = config.load(options.kubeconfig)
    async with Client(server, user_agent=f"gpu-topology-controller/{__version__}") as client:
        controller = Controller(client, promise_s=options.promise, unschedulable_s=options.unschedulable)
        elector = LeaderElector(
            client,
            namespace=options.namespace,
            name=LEASE,
            identity=options.identity,
            lease_duration_s=options.lease_duration,
            renew_deadline_s=options.renew_deadline,
            retry_period_s=options.retry_period,
        )
        async with serve_health(options.health_port, ready=controller.ready), asyncio.TaskGroup() as tasks:
            tasks.create_task(controller.watch())
            # Whoever leads must be able to work at once.
            await controller.synced()
            await elector.run(controller.work)


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the options on a command line; a wrong one ends the process with an explanation."""
    parser = argparse.ArgumentParser(
        prog="python -m dradriver controller", description="Chooses GPUs for gated pods and writes their claims."
    )
    parser.add_argument("--namespace", required=True, help="namespace of the election's lease")
    parser.add_argument("--identity", required=True, help="this replica's name in the election: its pod's name")
    parser.add_argument("--health-port", type=int, default=8082, help="/healthz, /readyz, /metrics (default 8082)")
    parser.add_argument("--kubeconfig", type=Path, help="default: the pod's own service account")
    parser.add_argument("--lease-duration", type=int, default=15, metavar="S", help="default 15")
    parser.add_argument("--renew-deadline", type=float, default=10, metavar="S", help="default 10")
    parser.add_argument("--retry-period", type=float, default=2, metavar="S", help="default 2")
    parser.add_argument(
        "--promise",
        type=float,
        default=30,
        metavar="S",
        help="how long GPUs are kept for a pod that the scheduler does not bind (default 30)",
    )
    parser.add_argument(
        "--unschedulable",
        type=float,
        default=5,
        metavar="S",
        help="the same once the scheduler says that it finds no room for the pod (default 5)",
    )
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    parser.add_argument("-v", "--verbose", action="store_true", help="debug messages too")
    parser.add_argument("--version", action="version", version=__version__)
    options = parser.parse_args(argv)
    if not 0 < 1.2 * options.retry_period < options.renew_deadline < options.lease_duration:
        parser.error("--retry-period, --renew-deadline and --lease-duration must grow in this order, as 2, 10 and 15")
    return options
