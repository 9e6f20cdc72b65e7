"""The node agent beside another DRA driver that hands out the GPUs: it reads the machine, publishes it, and no more.

It is no plugin of the kubelet's: the other driver prepares the claims. What is wrong with a GPU it says in its metrics
alone, for taints are on devices and those are the other's.
"""

from __future__ import annotations

import asyncio
import logging
import signal

from dradriver.api.base.allocating_driver import current_ledger
from dradriver.kube.config import ServerConfig
from dradriver.node import hardware
from dradriver.node.agent import client_of
from dradriver.node.agent_options import Options
from dradriver.node.discovery.machine_watch import MachineWatch
from dradriver.node.discovery.slots import Slots
from dradriver.node.health.faults_in_force import Record
from dradriver.node.health.health_watch import HealthWatch
from dradriver.node.nics import nic_watch as nics
from dradriver.node.publishing.node_objects import NodeObjects
from dradriver.node.publishing.publisher import Publisher
from dradriver.process.health_server import serve_health

logger = logging.getLogger(__name__)


async def run(options: Options, *, server: ServerConfig | None = None) -> None:
    """Run this node's agent next to the other driver that is bound, until cancelled.

    It is ready while the driver of the GPUs answers and the machine is published, or deliberately is not.

    Args:
        options: The command line's.
        server: How to reach the API server; what ``agent_options`` says by default.

    Raises:
        DriverError: Something in the options or on the node is in the way; the message says what.
        OSError: The health port is taken.
    """
    client = client_of(options, server)
    objects = NodeObjects(client, options.node)
    found = hardware.backend(options, objects.released, prepares=False)
    machines = MachineWatch(
        found.discovery,
        interval_s=options.rediscover_s,
        slots=Slots(None, published=objects.published, is_removed=objects.is_removed),
    )
    record = Record()
    health = HealthWatch(record, found.discovery, found.log)
    sys_root = options.sys_root or options.host_root
    on_host = found.log is not None
    cards = [nics.of_host(sys_root, machines.last_known, node=options.node)] if on_host else []
    publisher = Publisher(
        client,
        objects,
        machine=machines.publishable,
        registered=lambda: True,
        beside_device_plugin=options.beside_device_plugin,
        refused=found.refused,
        lost=health,
    )
    machines.looked.add(lambda: health.looked(machines.machine, machines.trouble))
    machines.changed.add(publisher.poke)
    record.changed.add(publisher.poke)  # a GPU that is lost for long is not published any more
    driver = current_ledger().driver
    logger.info("agent of node %s, %s's GPUs, which %s hands out", options.node, found.vendor.word, driver)
    async with (
        serve_health(options.health_port, ready=lambda: publisher.settled and machines.trouble is None),
        client,
        asyncio.TaskGroup() as group,
    ):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, machines.poke)
        for part in (machines, health, publisher):
            group.create_task(part.run())
        for watch in cards:
            group.create_task(watch.run())
