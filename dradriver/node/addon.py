"""The node agent beside another DRA driver that hands out the GPUs: it reads the machine, publishes it, and no more.

It is no plugin of the kubelet's: the other driver prepares the claims. What is wrong with a GPU it says in its metrics
alone, for taints are on devices and those are the other's.
"""

from __future__ import annotations

import asyncio
import logging
import signal

from dradriver import __version__
from dradriver.api.ledger import Ledger
from dradriver.kube import config as kube_config
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.node.agent import Options, discovery_of
from dradriver.node.discovery import release
from dradriver.node.discovery.watch import MachineWatch
from dradriver.node.health.kmsg import KernelLog
from dradriver.node.health.record import Record
from dradriver.node.health.watch import HealthWatch
from dradriver.node.publishing.publisher import Publisher
from dradriver.process.serve import serve_health

logger = logging.getLogger(__name__)


async def run(options: Options, ledger: Ledger, *, server: ServerConfig | None = None) -> None:
    """Be this node's agent beside the driver of a ledger until cancelled.

    It is ready while the driver of the GPUs answers and the machine is published, or deliberately is not.

    Args:
        options: The command line's.
        ledger: Whose devices are handed out.
        server: How to reach the API server; what ``options`` says by default.

    Raises:
        DriverError: Something in the options or on the node is in the way; the message says what.
        OSError: The health port is taken.
    """
    discovery = discovery_of(options, lambda: release.reason(publisher.labels), prepares=False)
    client = Client(
        server or kube_config.load(options.kubeconfig), user_agent=f"gpu-topology-node/{__version__}", timeout_s=10
    )

    def changed() -> None:
        publisher.poke()

    def looked() -> None:
        health.looked(machines.machine, machines.trouble)

    machines = MachineWatch(discovery, interval_s=options.rediscover_s, on_change=changed, on_look=looked)
    log = KernelLog(options.host_root / "dev/kmsg") if options.discovery == "nvml" else None
    health = HealthWatch(Record(on_change=lambda: None), discovery, log)
    publisher = Publisher(
        client,
        node=options.node,
        machine=lambda: machines.machine,
        registered=lambda: True,
        beside_device_plugin=options.beside_device_plugin,
        ledger=ledger,
    )
    logger.info("agent of node %s, %s GPUs, which %s hands out", options.node, options.discovery, ledger.driver)
    async with (
        serve_health(options.health_port, ready=lambda: publisher.settled and machines.trouble is None),
        client,
        asyncio.TaskGroup() as group,
    ):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, machines.poke)
        for work in (machines.run, health.run, publisher.run):
            group.create_task(work())
