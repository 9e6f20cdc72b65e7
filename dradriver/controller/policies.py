"""The controller's policies file; one that is bad is told as an Event about its ConfigMap.

The controller tells it for all: every process reads the same file, and a thousand agents need not say so too.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from dradriver.api.policies.read import PoliciesError
from dradriver.controller.controller import Controller
from dradriver.errors import DriverError
from dradriver.kube.client import Client
from dradriver.kube.events import Recorder, Reference
from dradriver.kube.resources import CONFIG_MAPS
from dradriver.process.policies_file import PoliciesFile

logger = logging.getLogger(__name__)

_ACTION: Final = "Reloading"


def follow(
    controller: Controller, client: Client, path: Path | None, *, namespace: str, configmap: str, instance: str
) -> PoliciesFile:
    """Return the file, to be run; the controller chooses by it, from its first state on.

    Args:
        controller: The controller.
        client: An entered client.
        path: The file; None for the defaults.
        namespace: The ConfigMap's.
        configmap: The name of the ConfigMap that the file is of; empty where no Event is wanted.
        instance: The replica that writes Events.
    """
    tell = recorder(client, namespace=namespace, name=configmap, instance=instance) if configmap else None
    file = PoliciesFile(path, on_change=controller.follow, on_trouble=tell)
    controller.follow(file.in_force)
    return file


def recorder(client: Client, *, namespace: str, name: str, instance: str) -> Callable[[str], Awaitable[None]]:
    """Return the function that writes an Event about the policies' ConfigMap, given what is wrong with it.

    Args:
        client: An entered client.
        namespace: The ConfigMap's.
        name: The ConfigMap's.
        instance: The replica that says so.
    """
    events = Recorder(client, component="gpu-topology", instance=instance)

    async def record(trouble: str) -> None:
        try:
            uid = (await client.get(CONFIG_MAPS, name, namespace=namespace))["metadata"]["uid"]
        except (DriverError, KeyError) as error:
            logger.warning("ConfigMap %s/%s cannot be read, so its Event has no uid: %s", namespace, name, error)
            uid = ""
        about = Reference(CONFIG_MAPS.kind, namespace, name, uid)
        reason = PoliciesError.reason
        await events.record(about=about, type="Warning", reason=reason, message=trouble, action=_ACTION)

    return record
