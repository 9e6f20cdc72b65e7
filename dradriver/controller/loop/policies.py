"""Watches the controller's policies in their ConfigMap, and writes Events about their validity.

The controller enforces caps, partitions and reservations, so it must not wait for a mounted file. It writes the Events
for all processes: they read the same ConfigMap, so the node agents need not write them, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
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
    """Return an object that calls ``apply`` whenever the policies change; the caller runs it.

    This function itself calls ``apply`` with the present policies.

    Args:
        apply: Makes the controller use given policies from now on.
        client: An entered client.
        path: The mounted file; None for the defaults.
        namespace: The namespace of the ConfigMap.
        configmap: The name of the ConfigMap that the file comes from; empty to read the file alone, without Events.
        instance: The name of this replica, which Events show.
    """
    policies: PoliciesFile
    if path is None or not configmap:
        policies = PoliciesFile(path, on_change=apply)
    else:
        events = PoliciesEvents(client, namespace=namespace, name=configmap, instance=instance)
        policies = WatchedPolicies(
            client,
            path,
            namespace=namespace,
            name=configmap,
            on_change=apply,
            on_trouble=events.invalid,
            on_recovery=events.valid,
        )
    apply(policies.in_force)
    return policies


class PoliciesEvents:
    """Writes the Events about the ConfigMap of the policies."""

    def __init__(self, client: Client, *, namespace: str, name: str, instance: str) -> None:
        """Store what the Events need.

        Args:
            client: An entered client.
            namespace: The namespace of the ConfigMap.
            name: The name of the ConfigMap.
            instance: The name of this replica, which Events show.
        """
        self._client, self._namespace, self._name = client, namespace, name
        self._events = Recorder(client, component="gpu-topology", instance=instance)

    async def invalid(self, trouble: str) -> None:
        """Write that the policies are not in force; ``trouble`` says why."""
        reason = PoliciesError.reason
        about = await self._about(reason)
        await self._events.record(about=about, type="Warning", reason=reason, message=trouble, action=_ACTION)

    async def valid(self, policies: Policies) -> None:
        """Write that the policies are in force again, after an Event of ``invalid``."""
        name = f"{self._namespace}/{self._name}"
        message = (
            f"The policies file of ConfigMap {name} is valid again. It is in force, digest {policies.fingerprint}."
        )
        about = await self._about("PoliciesValid")
        await self._events.record(about=about, type="Normal", reason="PoliciesValid", message=message, action=_ACTION)

    async def _about(self, reason: str) -> Reference:
        """Return the ConfigMap as the object of an Event; without its UID if unreadable.

        ``reason`` is the reason of the Event, for the log.
        """
        try:
            config_map = await self._client.get(CONFIG_MAPS, self._name, namespace=self._namespace)
            uid = config_map["metadata"]["uid"]
        except (DriverError, KeyError) as error:
            logger.warning(
                "ConfigMap %s/%s cannot be read, so kubectl describe does not show the Event %s: %s",
                self._namespace,
                self._name,
                reason,
                error,
            )
            uid = ""
        return Reference(CONFIG_MAPS.kind, self._namespace, self._name, uid)
