"""The node agent next to another DRA driver that allocates the GPUs: it reads the machine and publishes it.

This agent is not a plugin of the kubelet, because the other driver prepares the claims. It reports the faults of a GPU
in metrics only: a taint belongs to a device, and the devices are published by the other driver.
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
from dradriver.node.discovery.gpu_slots import Slots
from dradriver.node.discovery.machine_watch import MachineWatch
from dradriver.node.health.faults_in_force import Record
from dradriver.node.health.health_watch import HealthWatch
from dradriver.node.nics import nic_watch
from dradriver.node.publishing.node_objects import NodeObjects
from dradriver.node.publishing.publisher import Publisher
from dradriver.process.health_server import serve_health

logger = logging.getLogger(__name__)


async def run(options: Options, *, server: ServerConfig | None = None) -> None:
    """Run this node's agent next to the DRA driver that allocates the GPUs, until cancelled.

    The health port answers "ready" if two things are true. The GPUs' kernel driver answers. The agent has published the
    machine, or does not publish it for a known reason.

    Args:
        options: The options of the command line.
        server: Address and credentials of the API server; by default those of ``options``.

    Raises:
        DriverError: The agent cannot run with these options or on this node; the message says why.
        OSError: The health port is taken.
    """
    client = client_of(options, server)
    objects = NodeObjects(client, options.node)
    backend = hardware.backend(options, objects.released, prepares=False)

    # Reads the machine again and again, and keeps the number of each GPU by the slot that it is in.
    machines = MachineWatch(
        backend.discovery,
        interval_s=options.rediscover_s,
        slots=Slots(None, published=objects.published, is_removed=objects.is_removed),
    )

    # The faults of GPUs. A simulated machine has no kernel log.
    record = Record()
    health = HealthWatch(record, backend.discovery, backend.log)

    # The NICs of a simulated machine cannot be watched.
    is_real = backend.log is not None
    device_root = options.device_root or options.host_root
    nic_watches = [nic_watch.of_host(device_root, machines.last_known, node=options.node)] if is_real else []

    # The kubelet knows no plugin of this agent, so there is no registration to wait for.
    publisher = Publisher(
        client,
        objects,
        machine=machines.publishable,
        registered=lambda: True,
        allow_device_plugin=options.allow_device_plugin,
        refused=backend.refused,
        lost=health,
    )

    # ``looked``, ``changed``: events with functions that are called after each reading, or after a change.
    machines.looked.add(lambda: health.looked(machines.machine, machines.trouble))
    machines.changed.add(publisher.poke)
    # A GPU that has been lost for long is not published any more.
    record.changed.add(publisher.poke)
    driver = current_ledger().driver
    logger.info("agent of node %s, %s's GPUs, which %s hands out", options.node, backend.vendor.word, driver)

    async with (
        serve_health(options.health_port, ready=lambda: publisher.settled and machines.trouble is None),
        client,
        asyncio.TaskGroup() as group,
    ):
        # An administrator's SIGHUP has the machine read now.
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, machines.poke)
        for task in (machines, health, publisher):
            group.create_task(task.run())
        for watch in nic_watches:
            group.create_task(watch.run())
