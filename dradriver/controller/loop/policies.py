"""The controller's policies, which it watches in their ConfigMap; a bad one is an Event about that ConfigMap.

The controller enforces caps, partitions and reservations, so it must not wait for a mounted file. It writes the Event
for all processes: they read the same ConfigMap, and a thousand agents need not say so too.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from dradriver.api.policies.policies_reader import PoliciesError
from dradriver.api.policies.policy_sections import Policies
from dradriver.errors import DriverError
from dradriver.kube.client import Client
from dradriver.kube.event_recorder import Recorder, Reference
from dradriver.kube.resources import CONFIG_MAPS
from dradriver.process.policies_file import PoliciesFile
from dradriver.process.watched_policies import WatchedPolicies

logger = logging.getLogger(__name__)

_ACTION: Final = "Reloading"


def follow(
    apply: Callable[[Policies], None],
    client: Client,
    path: Path | None,
    *,
    namespace: str,
    configmap: str,
    instance: str,
) -> PoliciesFile:
    """Return the policies, to be run; the controller chooses by them, from their first state on.

    Args:
        apply: Has the controller choose by some policies from now on.
        client: An entered client.
        path: The mounted file; None for the defaults.
        namespace: The ConfigMap's.
        configmap: The name of the ConfigMap that the file is of; empty to read the file alone, without Events.
        instance: The replica that writes Events.
    """
    policies: PoliciesFile
    if path is None or not configmap:
        policies = PoliciesFile(path, on_change=apply)
    else:
        tell = recorder(client, namespace=namespace, name=configmap, instance=instance)
        policies = WatchedPolicies(client, path, namespace=namespace, name=configmap, on_change=apply, on_trouble=tell)
    apply(policies.in_force)
    return policies


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
