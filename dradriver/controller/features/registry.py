"""Registers the controller's features: limits that keep GPUs from workloads, and tasks that report what happened.

feature       registers                        is active while
caps          a limit (queue/caps)             a tenant has a cap or label selectors, or the policies are not known
reservations  a limit (reservations)           GPUs are reserved for a workload that has waited long
partitions    the GPUs a tenant sees (fleets)  the policies file gives tenants nodes or GPUs of their own
NICs          the ResourceSlices of NICs       a pod has requested NICs
tenants       labels of namespaces             a tenant has label selectors
usage         a task (writing/usage_store)     this replica leads
idle pods     a task (idle_pods)               this replica leads
Pod Security  a task (agent_admission)         this replica leads

The data that features keep of the cluster is registered in ``cluster/cache/feature_books.py``. Their limits on the
choice of a node are registered in ``placing/node_limits.py``. The loop, the steps and the plan import no feature.

A *limit* says which GPUs a workload may use. A *tenant* is a group of namespaces in the policies file, which lists
them or selects them by labels. A tenant's *cap* is the largest number of GPUs that it may have at a time. The policies
are not known if the file was invalid when the controller started.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from dradriver.api.policies.policy_sections import Policies
from dradriver.controller.features.agent_admission import AgentAdmission
from dradriver.controller.features.idle_pods import IdlePods
from dradriver.controller.features.namespaces import Namespaces
from dradriver.controller.features.recorders import Recorders
from dradriver.controller.features.reservations import Reservations
from dradriver.controller.loop.background import always
from dradriver.controller.loop.worker import Worker
from dradriver.controller.reading.nic_slices import NicSlices
from dradriver.controller.writing.release_owner import ReleaseOwner
from dradriver.controller.writing.reservation_store import ReservationStore
from dradriver.controller.writing.usage_store import UsageStore, count_gpu_seconds
from dradriver.kube.client import Client
from dradriver.kube.reflector import Reflector
from dradriver.queue.caps import Caps


class FeatureLimits:
    """The features that limit a workload's GPUs, registered with the worker.

    The worker, the controller's main loop, asks them before it plans a place.

    Attributes:
        caps: How many GPUs each tenant may have at a time.
        reservations: Which GPUs are reserved for which workloads.
    """

    def __init__(self, worker: Worker, *, clock: Callable[[], float] | None = None) -> None:
        """Register the limits of features with the worker, the controller's main loop.

        Args:
            worker: The worker. It asks the limits before it plans a place for a workload.
            clock: Returns seconds since the epoch; the system's by default.
        """
        self._limits = worker.limits
        self.caps = Caps(worker.tenants, worker.picture, worker.limits.eased, worker.agenda.wake)
        self.reservations = Reservations(
            worker.picture, worker.agenda, worker.queue, worker.tenants, worker.workloads, worker.limits,
            worker.evicted, clock=clock,
        )  # fmt: skip
        worker.evicted.changed.add(self.reservations.evictions_changed)
        worker.picture.inventory.reserved.changed.add(self.reservations.gpus_changed)
        worker.followed.add(self._follow)

    def _follow(self, policies: Policies) -> None:
        self._limits.put(self.caps, in_force=self.caps.matters)
        self.reservations.follow(policies)


class FeatureOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The administrator's settings of features. ``controller/main.py`` reads them from options.

    Attributes:
        usage_namespace: The namespace of the ConfigMaps with GPU time; empty to keep none.
        reservation_namespace: The namespace of the ConfigMap with reservations; empty to keep none for the next leader.
        ends_idle: Whether idle pods that request an idle timeout are ended.
        owner: The ClusterRole that owns what the controller creates; empty for no owner.
        daemon_set: The name of the node agents' DaemonSet in ``usage_namespace``; empty to skip the Pod Security check.
        keeps_usage: Whether GPU time outlasts an uninstallation: its ConfigMaps have no owner then.
    """

    usage_namespace: str = ""
    reservation_namespace: str = ""
    ends_idle: bool = False
    owner: str = ""
    keeps_usage: bool = False
    daemon_set: str = ""


class Features:
    """All optional features of a controller, registered with its main loop.

    Attributes:
        limits: The features that keep GPUs from workloads.
    """

    def __init__(
        self,
        client: Client,
        worker: Worker,
        recorders: Recorders,
        options: FeatureOptions,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Register all features with the worker, the controller's main loop.

        Args:
            client: The API server.
            worker: The worker. Features limit the GPUs of its workloads, or report on these.
            recorders: Write Events.
            options: The settings of the administrator.
            clock: Returns the seconds since the epoch by which GPU time is counted; the system's by default.
        """
        picture = worker.picture
        self._worker, reservations = worker, options.reservation_namespace
        owner = ReleaseOwner(client, options.owner)
        self._reservation_store: ReservationStore | None = None
        if reservations:
            self._reservation_store = ReservationStore(client, namespace=reservations, owner=owner)
        self.limits = FeatureLimits(worker)  # caps and reservations
        self._nics = NicSlices(client, picture)  # watches ResourceSlices of NICs once a pod has requested any
        picture.nics.first_requested.add(self._nics.begin)
        # Tells the worker the labels of namespaces, by which the policies file chooses tenants.
        self._namespaces = Namespaces(client, worker.tenants, worker.namespace_changed, recorders.namespace)
        self._usage: UsageStore | None = None
        if usage := options.usage_namespace:
            self._usage = UsageStore(
                client, picture, worker.tenants, namespace=usage, owner=None if options.keeps_usage else owner,
                clock=clock or time.time,
            )  # fmt: skip
            picture.gpu_time.book.spent.add(count_gpu_seconds)  # the metric follows all GPU time that is counted
        self._idle = IdlePods(client, picture, recorders.idle, ends=options.ends_idle)
        self._agents: AgentAdmission | None = None
        if options.daemon_set:
            self._agents = AgentAdmission(
                client, namespace=usage, daemon_set=options.daemon_set, record=recorders.agents
            )
        worker.followed.add(self._follow)  # called with each new policies file

    def _follow(self, policies: Policies) -> None:
        self._namespaces.follow()
        if self._usage is not None:
            self._usage.keep_days = policies.queue.keep_days

    def reflectors(self) -> tuple[Reflector[Any], ...]:
        """Return the reflectors of ResourceSlices that registered features follow."""
        return tuple(self._nics.reflectors.values())

    def watches(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the watches of features, which run in every replica.

        So a standby is up to date when it takes over.
        """
        return self._nics.run, self._namespaces.run

    async def lead(self, tasks: asyncio.TaskGroup) -> None:
        """Start the features' tasks that only a leader runs.

        Returns once the stored reservations are read and, if there are tenants, their GPU time. It waits only for a
        limited time.
        """
        tasks.create_task(always(self._idle.run))
        tasks.create_task(always(self._namespaces.tell))
        if self._agents is not None:
            tasks.create_task(always(self._agents.run))
        if self._usage is not None:
            tasks.create_task(always(self._usage.run))
            if self._worker.tenants.named:  # else nobody's turn depends on it
                await self._usage.first_load()
        reservations = self.limits.reservations
        tasks.create_task(always(partial(reservations.run, self._reservation_store)))
        await reservations.first_load()
