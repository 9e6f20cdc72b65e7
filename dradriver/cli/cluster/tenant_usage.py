"""Tenants and their past usage of GPUs, with reservations, from the ConfigMaps of the driver's namespace."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dradriver.api.base.errors import WordError
from dradriver.api.claims import reservation_config_map, usage_config_maps
from dradriver.api.claims.usage_config_maps import HOUR_S, Detail, Details, Hours
from dradriver.api.policies.policy_sections import DEFAULTS, Policies
from dradriver.cli.cluster import cluster_reading, policies_in_force
from dradriver.cli.cluster.cluster_reading import ClusterError
from dradriver.cli.cluster.policies_in_force import InForce
from dradriver.cluster.pods.gpu_time import decayed
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import CONFIG_MAPS
from dradriver.queue import reservation_access
from dradriver.queue.namespace_tenants import Tenants
from dradriver.queue.reservation_rules import Reservation
from dradriver.queue.tenant_shares import Shares
from dradriver.view.terminal_text import plain


class Own:
    """The data that the controller keeps in the driver's namespace: GPU time, reservations and policies.

    Attributes:
        policies: The policies to decide by: the policies in force, or the policies of the user's file.
        hours: GPU time by hour.
        details: Idle time and pods by hour.
        until: Time of the last count, seconds since the epoch; 0 if nothing was counted.
        reserved: The reservations of GPUs for waiting workloads.
        unread: Messages about data that could not be read.
        refused: Why none of the data could be read; empty if some of it could be read.
        trouble: Why the policies in force are not known; empty if they are. ``unread`` has the same message.
    """

    def __init__(self, file: Policies | None = None) -> None:
        """Prepare empty data.

        Args:
            file: The policies of the user's file; None to use the policies in force.
        """
        self.policies = file or DEFAULTS
        self._file = file
        self.hours: Hours = {}
        self.details: Details = {}
        self.until = 0.0
        self.reserved: tuple[Reservation, ...] = ()
        self.unread: list[str] = []
        self.refused = ""
        self.trouble = ""

    async def read(self, client: Client, server: ServerConfig, namespace: str) -> None:
        """Read the tenants' past usage, reservations and policies from the ConfigMaps of the driver's namespace.

        Errors are not raised; ``unread`` gets a message about each ConfigMap that cannot be read.
        """
        try:
            config_maps: list[dict[str, Any]] = await cluster_reading.listed(
                client, server, CONFIG_MAPS, dict, namespace=namespace
            )
        except ClusterError as error:
            # ``_file``: the user's own policies, or None to use those of the ConfigMap that could not be read.
            trouble = f"{error}."
            if self._file is None:
                unread = policies_in_force.unread(error)
                self.policies, trouble = unread.policies, unread.trouble
            self.refused = str(error)
            self.unread.append(f"{trouble} The fair-share use of tenants counts only the GPUs that they have now.")
            return

        # Several ConfigMaps can have the same hour: the one that was counted last is right.
        # ``_usage_in`` yields what a ConfigMap holds, or nothing if it cannot be read.
        usage_names = frozenset(usage_config_maps.every_name())
        usages = [
            counted
            for config_map in config_maps
            if usage_config_maps.name_in(config_map) in usage_names
            for counted in self._usage_in(config_map)
        ]
        for counted in sorted(usages, key=lambda counted: counted.until):
            self.hours |= counted.hours
            self.details |= {hour: counted.details.get(hour, Detail()) for hour in counted.hours}
            self.until = counted.until

        for config_map in config_maps:
            if usage_config_maps.name_in(config_map) == reservation_config_map.NAME:
                self._take_reservations(config_map)
        # ``among`` finds the ConfigMap with the policies in force.
        if self._file is None:
            self._take_policies(policies_in_force.among(config_maps, namespace))

    async def read_reservations(self, client: Client, server: ServerConfig, namespace: str) -> None:
        """Read only the reservations from the driver's namespace, without the tenants' usage."""
        try:
            self._take_reservations(await client.get(CONFIG_MAPS, reservation_config_map.NAME, namespace=namespace))
        except (ApiError, Unreachable) as error:
            if not (isinstance(error, ApiError) and error.not_found):
                refused = cluster_reading.refused(error, server, CONFIG_MAPS)
                self.unread.append(f"The reserved GPUs are not known: {refused}")

    def _take_reservations(self, config_map: Mapping[str, Any]) -> None:
        try:
            self.reserved = tuple(held for held, _ in reservation_access.read(reservation_config_map.read(config_map)))
        except WordError as error:
            self.unread.append(plain(str(error)))

    def _usage_in(self, config_map: Mapping[str, Any]) -> Iterable[usage_config_maps.Kept]:
        try:
            yield usage_config_maps.read(config_map)
        except WordError as error:
            self.unread.append(plain(str(error)))

    def _take_policies(self, policies: InForce) -> None:
        self.policies, self.trouble = policies.policies, policies.trouble
        if policies.trouble:
            self.unread.append(policies.trouble)

    def tenants(
        self,
        policies: Policies,
        now_held: Mapping[str, tuple[float, float]],
        labels: Mapping[str, Mapping[str, str]] | None = None,
    ) -> Tenants:
        """Return the tenants with their past GPU time and their present GPUs.

        Args:
            policies: The policies that define the tenants.
            now_held: The present GPUs of each namespace, allocated or tentatively placed.
            labels: The labels of each namespace, by which tenants select namespaces. If they could not be read, tenants
                select no namespace by labels.
        """
        now = time.time()
        tenants = Tenants(Shares(time.monotonic))
        # The controller may know policies that this command could not read. The command then decides by the defaults.
        tenants.follow(msgspec.structs.replace(policies, known=True))
        for namespace, labels_of_namespace in (labels or {}).items():
            tenants.namespace_changed(namespace, labels_of_namespace)
        # The namespaces could not be read: then no tenant selects any by labels.
        if labels is not None and not labels:
            tenants.by_labels = False
        # Past GPU time counts less the older it is. Hours in the future (a wrong clock) do not count.
        hours = {hour: rows for hour, rows in self.hours.items() if hour <= now // HOUR_S}
        used_gpu_s = decayed(hours, now, half_life_s=tenants.shares.half_life_s)
        tenants.shares.restart(used_gpu_s, now_held)
        return tenants
