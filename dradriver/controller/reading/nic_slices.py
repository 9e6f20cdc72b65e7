"""Follows the ResourceSlices of NIC drivers, but only once a pod has requested NICs.

On 5,000 nodes these slices have tens of thousands of devices with dozens of attributes each. No other pod needs them.
"""

from __future__ import annotations

import asyncio
from typing import Any

from dradriver.api.vocabulary.nic_requests import DRIVERS
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nics import nic_devices
from dradriver.kube.client import Client
from dradriver.kube.reflector import Reflector
from dradriver.kube.resources import RESOURCE_SLICES


def field_selector(driver: str) -> str:
    """Return the field selector for the ResourceSlices of a NIC driver."""
    return f"spec.driver={driver}"


class NicSlices:
    """Fills the cluster cache with the ResourceSlices of NIC drivers.

    Attributes:
        reflectors: The reflectors by driver. Their stores are empty until ``begin`` is called.
    """

    def __init__(self, client: Client, picture: Picture) -> None:
        """Make reflectors that follow nothing until ``begin`` is called."""
        self._picture = picture
        self._wanted = asyncio.Event()
        self.reflectors = {
            driver: Reflector[Any](
                client,
                RESOURCE_SLICES,
                nic_devices.read_slice,
                field_selector=field_selector(driver),
                on_change=picture.nics_changed,
            )
            for driver in DRIVERS
        }

    def begin(self) -> None:
        """Start to follow the slices of NIC drivers, because a pod requests NICs."""
        self._wanted.set()

    async def run(self) -> None:
        """Follow the slices of NIC drivers from ``begin`` on, until cancelled."""
        await self._wanted.wait()
        async with asyncio.TaskGroup() as tasks:
            for driver, reflector in self.reflectors.items():
                tasks.create_task(reflector.run())
                tasks.create_task(self._tell(driver, reflector))

    async def _tell(self, driver: str, reflector: Reflector[Any]) -> None:
        await reflector.synced.wait()
        self._picture.nics_read(driver)
