"""The controller's cluster cache, filled from one list of each kind of object, for explain, free and the page.

Pods that this driver does not place are read only on the nodes that matter (``fill``). To read all of these pods takes
seconds on 1,000 nodes. Their CPU and memory count only on nodes with GPUs for the explained pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from dradriver.api.base import names
from dradriver.api.base.allocating_driver import OURS, bound
from dradriver.api.base.objects import Metadata, Node
from dradriver.api.base.pods import Pod
from dradriver.api.claims import compute_domains
from dradriver.api.claims.claim_templates import Template
from dradriver.api.claims.pins import Claim, Key
from dradriver.api.gangs import gang_size_of_owner
from dradriver.api.policies.policy_sections import DEFAULTS, Policies
from dradriver.api.policies.unmatched_selectors import NodeGpus
from dradriver.api.vocabulary.nic_requests import DRIVERS
from dradriver.cli.cluster import cluster_reading, installation
from dradriver.cli.cluster.cluster_lists import Lists
from dradriver.cli.cluster.cluster_reading import ClusterError
from dradriver.cli.cluster.policies_in_force import InForce
from dradriver.cli.cluster.tenant_usage import Own
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.gpus import gone_agents
from dradriver.cluster.gpus.kueue_topologies import read_topology
from dradriver.cluster.gpus.taint_rules import read_rule
from dradriver.cluster.nics.nic_devices import read_slice
from dradriver.cluster.nodes.pod_demands import Where
from dradriver.cluster.pods import volumes
from dradriver.cluster.pods.pod_rules import rules_of
from dradriver.cluster.records import pod_records, records, templates
from dradriver.controller.features.namespaces import Namespace
from dradriver.controller.owners.owner_kinds import OwnerKinds
from dradriver.controller.owners.owner_reader import OwnerReader
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    KUEUE_TOPOLOGIES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from dradriver.kube.store import Change, key_of
from dradriver.queue.caps import Caps
from dradriver.queue.limits import Limits
from dradriver.queue.pending import PendingWorkload
from dradriver.queue.reservation_access import ReadReservations
from dradriver.queue.reservation_rules import Reservation, Terms

MOST_AT_ONCE: Final = 16  # lists of a node's pods

_HANDLER_OF_KIND: Final[Mapping[str, Callable[[Picture, Change[Any]], None]]] = {
    RESOURCE_SLICES.plural: Picture.slice_changed,
    RESOURCE_CLAIMS.plural: Picture.claim_changed,
    NODES.plural: Picture.node_changed,
    DEVICE_CLASSES.plural: Picture.class_changed,
    PODS.plural: Picture.pod_changed,
}


class Scene:
    """A cluster, listed once: the controller's cluster cache, and additional data for the commands.

    Attributes:
        picture: The cluster cache, as the controller has it; set by ``read``.
        policies: The policies that the controller uses.
        ledger: The driver that allocates GPUs. The controller's code runs with this driver set.
        claims: All claims, with the names of their users, by namespace and name.
        nodes: All nodes, by name.
        tenants: The tenants, with their past usage if it could be read.
        caps: The caps of the tenants, with the GPUs that count towards them.
        limits: Caps, reservations and all other limits that keep GPUs from workloads.
        owners: Reads the objects that own pods of gangs, such as Jobs. The controller has such a reader, too.
        is_empty: Whether no slice with GPUs is published. Then no place can be searched, and ``absence`` or ``unread``
            says so.
        absence: Sentences that no driver is installed (``installation``); empty if it is, or if that is not known.
    """

    def __init__(
        self,
        client: Client,
        server: ServerConfig,
        policies: Policies = DEFAULTS,
        *,
        own: Own | None = None,
        absence: str = "",
    ) -> None:
        """Prepare an empty cluster; ``read`` reads it.

        Args:
            client: The API server's client.
            server: The API server, for messages.
            policies: The policies that the controller uses.
            own: The data of the driver's namespace, such as GPU time and reservations; None if it was not read.
            absence: Sentences that no driver is installed; empty if it is, or if that is not known.
        """
        self.picture: Picture
        self.caps: Caps
        self.limits: Limits
        self.ledger = OURS
        self.claims: dict[Key, Claim] = {}
        self.nodes: dict[str, Node] = {}
        self._lists = Lists(client, server)
        self.is_empty = False
        self.absence = absence
        self._client = client
        self._server = server
        self.policies = policies
        self.own = own or Own()
        self.tenants = self.own.tenants(policies, {})
        self.owners = OwnerReader(
            client, OwnerKinds(client), waits=lambda _: True, touch=lambda _: None, may_not=_you_may_not
        )
        self._groups_read: set[str] = set()  # namespaces for which ``read_groups`` was called
        self._filled: set[str] = set()  # nodes whose other pods were read
        self._foreign: set[Key] = set()  # others' pods that the picture has
        self._records: dict[tuple[str, Key], Any] = {}  # by kind and key what the picture has
        self._labels: dict[str, Mapping[str, str]] = {}  # by namespace: its labels

    async def read(self, *, pods_too: bool = True) -> None:
        """List the cluster once, and fill a cluster cache with it as the controller does.

        If the user may not list a kind of object, no error is raised, and ``unread`` gets a message.

        Args:
            pods_too: Whether to read device classes and our pods, too. They are needed to place a pod.
        """
        with self._lists.warnings():
            # 1. All lists at once. Lists that only some policies need are skipped (``_nothing``).
            slices, rules, topologies, claims, nodes, classes, our_pods, namespaces = await asyncio.gather(
                self._lists.slices(OURS),
                self._lists.optional(DEVICE_TAINT_RULES, read_rule),
                _nothing() if self.policies.network.levels else self._lists.optional(KUEUE_TOPOLOGIES, read_topology),
                self._lists.of(RESOURCE_CLAIMS, cluster_reading.read_claim),
                self._lists.of(NODES, records.read_node),
                self._lists.of(DEVICE_CLASSES, records.read_class) if pods_too else _nothing(),
                self._lists.of(PODS, pod_records.read, label_selector=names.LABEL) if pods_too else _nothing(),
                self._lists.of(NAMESPACES, Namespace) if self.tenants.by_labels else _nothing(),
            )
            if self.whole and not slices:
                self.is_empty = True
                if not self.absence:
                    self.unread.append(cluster_reading.nothing_published(self._server))
            # 2. The driver that allocates GPUs. If it is not this one, its slices have the devices.
            self.ledger, other_slices = await self._lists.of_other_driver(slices)
            slices += other_slices
            with bound(self.ledger):
                # 3. First the settings, then objects that others refer to, then those that refer to them.
                self.picture = cache = Picture(lambda _: None, lambda: None, partition_of=self._partition_of)
                self._records.clear()
                cache.weights = self.policies.preference
                cache.nodes.spot_labels = self.policies.spot.labels
                cache.levels_changed(self.policies.network.levels, self.policies.network.gbps)
                for topology in topologies:
                    cache.topology_changed(_as_added(topology))
                cache.nccl_changed(self.policies.nccl.version)
                cache.nic_classes_changed(self.policies.nics.every)
                self._take_all(DEVICE_CLASSES, classes)
                self._take_all(NODES, nodes)
                for rule in rules:
                    cache.taint_rule_changed(_as_added(rule))
                self._take_all(RESOURCE_SLICES, slices)
                self._take_all(RESOURCE_CLAIMS, claims)
                self._take_all(PODS, our_pods)
                self._labels = {namespace.metadata.name: namespace.metadata.labels for namespace in namespaces}
                # 4. Tenants, caps and reservations, by what is now in the cache. From now on each change counts at
                # once.
                self.settle()
                cache.gpu_time.charged.add(self._charge_limits)
                _ = cache.inventory.fleet  # made now, so that warnings about machines are caught here

    def _take_all(self, resource: Resource, records: Iterable[Any]) -> None:
        for record in records:
            self.take(resource, key_of(record), record)

    def take(self, resource: Resource, key: Key, new: Any) -> None:
        """Update the listed cluster with one object that changed.

        A pod that the scheduler alone places is ignored here: ``fill`` counts it, with all other pods of its node.

        Args:
            resource: The kind: slice, claim, node, device class or pod of ours.
            key: Namespace and name of the object.
            new: The new object; None if it was deleted.
        """
        # 1. ``claims`` and ``nodes`` have the objects. The cluster cache has records: what the controller keeps of
        # them.
        if resource == RESOURCE_CLAIMS:
            _put(self.claims, key, new)
            with bound(self.ledger):  # the record has the devices of this driver
                new = None if new is None else records.claim_record(new)
        elif resource == NODES:
            _put(self.nodes, key[1], new)
        elif resource == PODS and not isinstance(new, Pod):
            new = None

        # 2. Tell the cluster cache, as a watch event would.
        old = self._records.pop((resource.plural, key), None)
        if new is not None:
            self._records[resource.plural, key] = new
        changes = [Change(key, old, new)]
        if old is not None and new is not None and old.metadata.uid != new.metadata.uid:
            # Another object of the same name: the old one was deleted.
            changes = [Change(key, old, None), Change(key, None, new)]
        with bound(self.ledger):
            for change in changes:
                if change.old is not None or change.new is not None:
                    _HANDLER_OF_KIND[resource.plural](self.picture, change)

    def _charge_limits(self, namespace: str, more: Mapping[str, float]) -> None:
        """Count GPUs that a namespace newly uses in the limits, such as caps.

        The cluster cache calls this when claims change. ``more`` are the GPUs by product. ``limits`` is read at each
        call, because ``settle`` makes a new object.
        """
        self.limits.charge(namespace, more)

    def _partition_of(self, namespace: str) -> str:
        """Return the tenant whose partition (its own part of the GPUs) a namespace must use.

        ``tenants`` is read at each call, because ``settle`` makes a new object.
        """
        return self.tenants.partition_of(namespace)

    def settle(self) -> None:
        """Count the GPUs that each tenant has and had, then apply the caps and reservations.

        It makes the objects ``tenants``, ``limits`` and ``caps`` again.
        """
        picture = self.picture
        self.tenants = self.own.tenants(self.policies, picture.gpu_time.now(), self._labels)
        picture.fleets.follow(self.policies)
        self.limits = Limits(picture)
        self.caps = Caps(self.tenants, picture, self.limits.eased)
        self.limits.put(self.caps, in_force=self.caps.matters)
        reserved = ReadReservations(self.own.reserved, Terms.of(self.policies.queue.reservation))
        self.limits.put(reserved, in_force=bool(self.own.reserved))
        picture.inventory.reserve({gpu: held.who for held in self.own.reserved for gpu in held.gpus})

    def reserved(self, workload: PendingWorkload) -> Reservation | None:
        """Return the reservation of a workload in the listed cluster; None if it has none."""
        return next((held for held in self.own.reserved if held.who == workload.who), None)

    @property
    def unread(self) -> list[str]:
        """Return the messages about lists that could not be read; the caller may add messages."""
        return self._lists.unread

    @property
    def sees_agents(self) -> bool:
        """Return whether slices, claims and nodes could be read.

        If they could not, a missing agent cannot be recognized.
        """
        return self._lists.sees_agents

    @property
    def whole(self) -> bool:
        """Return whether slices, claims and nodes could be read, and a slice with GPUs is published.

        If not, no place can be searched, and ``unread`` has the reason.
        """
        return self.sees_agents and not self.is_empty

    def gpus_by_node(self) -> Iterator[NodeGpus]:
        """Yield the nodes whose slices are complete, with their labels and GPUs."""
        for name in self.picture.inventory.pools():
            pool = self.picture.inventory.pool(name)
            if pool is not None:
                yield NodeGpus(name, self.picture.nodes.labels_of(name), pool.machine.gpus)

    def agents_gone(self) -> dict[str, frozenset[str]]:
        """Return the listed nodes whose agent is gone, with their allocated devices.

        The result is empty also if it is not known which agents are gone.
        """
        if not self.sees_agents:
            return {}
        with bound(self.ledger):
            held = (device for claim in self.picture.claims.values() for device in gone_agents.held(claim))
            return self.picture.agents_gone(held)

    async def read_templates(self, namespace: str) -> bool:
        """Add the ResourceClaimTemplates of a namespace to the listed cluster.

        Returns whether the user may read them.
        """
        before = len(self.unread)
        for template in await self._lists.of(RESOURCE_CLAIM_TEMPLATES, records.read_template, namespace=namespace):
            self.picture.template_changed(_as_added(template))
        return len(self.unread) == before

    async def read_beside(self, pods: Collection[Pod]) -> None:
        """Add the templates and NVLink channels that pods of one namespace need in addition to GPUs."""
        some = [pod for pod in pods if templates.beside(pod)]
        if not some:
            return
        if not await self.read_templates(some[0].metadata.namespace):
            self._take_as_there(some)
            return
        if any(self.picture.templates.domain_of(pod) is not None for pod in some):
            selector = f"spec.driver={compute_domains.DRIVER}"
            for piece in await self._lists.of(RESOURCE_SLICES, records.read_channels, field_selector=selector):
                self.picture.channels_changed(_as_added(piece))

    def _take_as_there(self, pods: Collection[Pod]) -> None:
        """Assume that a template exists if pods name it in addition to the template of their GPUs.

        The user may not read templates, so the command cannot know whether they exist.
        """
        for pod in pods:
            namespace = pod.metadata.namespace
            for name in templates.beside(pod):
                template = Template(metadata=Metadata(namespace=namespace, name=name), spec=None)
                self.picture.templates.known.setdefault((namespace, name), template)

    async def read_nics(self) -> None:
        """Add the slices of NIC drivers to the listed cluster; only a request for NICs needs them."""
        for driver in DRIVERS:
            for piece in await self._lists.of(RESOURCE_SLICES, read_slice, field_selector=f"spec.driver={driver}"):
                self.picture.nics_changed(_as_added(piece))
            self.picture.nics_read(driver)

    async def volumes_of(self, pod: Pod) -> Where | volumes.Unbound:
        """Return the nodes that the volumes of a pod allow.

        These are all nodes if the user may not read volumes. The result is ``Unbound`` if a claim of the pod for a
        volume is not bound yet.
        """
        claims = volumes.claims_of(pod)
        try:
            places = [await volumes.locate(self._client, claim) for claim in claims]
        except (ApiError, Unreachable) as error:
            for claim in claims:
                self.picture.volumes.read(claim, None)
            self.unread.append(
                f"{self._server.url}: the pod's volumes cannot be read ({error}). The answer assumes that all "
                "nodes reach them. Ask for the verb get on persistentvolumeclaims, persistentvolumes and "
                "storageclasses."
            )
            return ()
        for claim, place in zip(claims, places, strict=True):
            self.picture.volumes.read(claim, place)
        lacking = next((place for place in places if isinstance(place, volumes.Unbound)), None)
        return volumes.together(places) if lacking is None else lacking

    async def read_groups(self, namespace: str) -> None:
        """Add to the listed cluster the pods without GPUs that belong to PodGroups of a namespace.

        A namespace is read once.
        """
        if namespace in self._groups_read:
            return
        self._groups_read.add(namespace)
        for pod in await self._lists.of(PODS, pod_records.read, namespace=namespace):
            if isinstance(pod, pod_records.Grouped):
                self.picture.gangs.other_changed((pod.namespace, pod.name), pod.group)

    def put(self, pod: Pod) -> None:
        """Add a pod that this driver places, unless the listed cluster has it already."""
        self.picture.pods.setdefault((pod.metadata.namespace, pod.metadata.name), pod)

    async def fill(self, nodes: Collection[str]) -> bool:
        """Add the pods on ``nodes``, except those that this driver places.

        Their CPU and memory count on the nodes. The result is False if the pods of all these nodes had been read
        before.
        """
        wanted = [node for node in nodes if node not in self._filled]
        self._filled.update(wanted)
        # One list of all pods is as large as the lists of most nodes, and needs fewer requests.
        is_most = len(wanted) > max(MOST_AT_ONCE, len(self.nodes) // 2)
        selectors = [{}] if is_most else [{"field_selector": f"spec.nodeName={node}"} for node in wanted]
        room = asyncio.Semaphore(MOST_AT_ONCE)

        async def pods_by(selector: dict[str, str]) -> list[Any]:
            async with room:
                return await self._lists.of(PODS, pod_records.read, **selector)

        for listed in await asyncio.gather(*map(pods_by, selectors)):
            self._take_in(listed)
        return bool(wanted)

    async def read_neighbours(self, pods: Collection[Pod]) -> None:
        """Add the pods that affinity and spread rules of ``pods`` count.

        Only pods that this driver does not place are added, from the namespaces that the rules name.
        """
        rules = [rule for pod in pods if (rule := rules_of(pod)) is not None]
        namespaces = {chosen.namespaces for rule in rules for chosen in rule.chosen}
        named = sorted({namespace for some in namespaces for namespace in some or ()})
        selectors = [{}] if None in namespaces else [{"namespace": namespace} for namespace in named]
        for selector in selectors:
            self._take_in(await self._lists.of(PODS, pod_records.read, **selector))

    def _take_in(self, listed: Iterable[Any]) -> None:
        for pod in listed:
            if isinstance(pod, pod_records.Foreign) and (key := (pod.namespace, pod.name)) not in self._foreign:
                self._foreign.add(key)
                self.picture.pod_changed(_as_added(pod))


async def read_whole(
    client: Client,
    server: ServerConfig,
    followed: InForce,
    driver_namespace: str | None = None,
    *,
    pods_too: bool = True,
) -> Scene:
    """Return the listed cluster, for a command that needs slices, claims and nodes.

    Reservations are read if the policies enable them.

    Args:
        client: The API server's client, inside its ``async with`` block.
        server: The API server, for messages.
        followed: The policies to decide by. If ``followed.trouble`` is set, it is the first message of
            ``Scene.unread``.
        driver_namespace: The driver's namespace, if the user names it. Reservations are there.
        pods_too: Whether to read device classes and the driver's pods, too.

    Raises:
        ClusterError: Slices, claims or nodes are missing, so no place can be searched.
    """
    own, driver = Own(followed.policies), await installation.read(client, server, driver_namespace)
    if followed.policies.queue.reservation.after_minutes:
        await own.read_reservations(client, server, driver.namespace)
    scene = Scene(client, server, followed.policies, own=own, absence=driver.absence)
    await scene.read(pods_too=pods_too)
    if not scene.whole:
        raise ClusterError(driver.absence or scene.unread[0])
    scene.unread[:0] = filter(None, [followed.trouble, *own.unread])
    return scene


async def _nothing() -> list[Any]:
    return []


def _put(into: dict[Any, Any], key: object, new: object | None) -> None:
    into.pop(key, None)
    if new is not None:
        into[key] = new


def _as_added(record: Any) -> Change[Any]:
    return Change((record.metadata.namespace, record.metadata.name), None, record)


def _you_may_not(kind: str, one: str) -> str:
    group, plural = gang_size_of_owner.OBJECTS[kind]
    return f"you may not read {one}, which says how many pods the gang has. Ask for the verb get on {plural}.{group}."
