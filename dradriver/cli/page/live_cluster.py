"""The live cluster of the page: the cluster (``Scene``) that other commands list once.

A *tile* is the field of the page that shows one node. The page keeps the cluster up to date by the changes of objects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from dradriver.api.base import names
from dradriver.api.base.allocating_driver import OURS, bound
from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.base.errors import WordError
from dradriver.api.base.objects import Node
from dradriver.api.base.pods import Pod
from dradriver.api.claims import pins
from dradriver.api.claims.pins import Claim
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.slices.resource_slices import is_machine_alone
from dradriver.cli.cluster import cluster_view
from dradriver.cli.cluster.largest_gangs import stand
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.cluster.tenant_usage import Own
from dradriver.cli.explainer.queue_position import read_what_pods_name
from dradriver.cli.page.followed_objects import Mirror
from dradriver.cluster.derived import gpu_states
from dradriver.cluster.derived.gpu_states import State
from dradriver.cluster.records import slice_records
from dradriver.cluster.views.gone_node_views import GoneNode
from dradriver.cluster.views.node_views import NodeView, NotOffered
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import CONFIG_MAPS, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dradriver.kube.store import Key
from dradriver.view.terminal_text import plain

logger = logging.getLogger(__name__)

_FED: Final = frozenset({RESOURCE_SLICES, RESOURCE_CLAIMS, NODES, PODS})  # of other kinds all is read anew
_AT_ONCE: Final = 32  # nodes that are looked at before others have their turn


class Tile(NamedTuple):
    """The facts about a node that the page's summary counts.

    Attributes:
        product: The product of its GPUs.
        gpus: A letter for each GPU, see ``page_pieces.node_piece``.
        is_closed: Whether the node takes no new pods.
    """

    product: str
    gpus: str
    is_closed: bool


class Live:
    """The cluster, brought up to date by ``update``.

    Attributes:
        scene: The listed cluster, with the controller's cluster cache.
        views: The nodes as the page shows them, by name.
        gone: The nodes whose agent is gone, as the page shows them, by name.
        tiles: The facts about nodes that the summary counts, by name; ``page_pieces`` updates them.
        doubts: For each node, warnings about data that could not be read or looks wrong.
        pods: Our pods by namespace and name, including static ones.
        unread: Messages about objects that could not be read.
    """

    def __init__(self, mirror: Mirror, server: ServerConfig, policies: Policies | None, driver_namespace: str) -> None:
        """Prepare an empty cluster; ``update`` reads it.

        Args:
            mirror: The objects that are followed.
            server: The API server, for messages.
            policies: The policies of the user's file; None to follow the policies in the driver's namespace.
            driver_namespace: The driver's namespace; empty if it is not known.
        """
        self.scene: Scene
        self.views: dict[str, NodeView] = {}
        self.gone: dict[str, GoneNode] = {}
        self.tiles: dict[str, Tile] = {}
        self.doubts: dict[str, list[str]] = {}
        self.pods: dict[Key, Pod] = {}
        self._mirror = mirror
        self._server = server
        self._policies = policies
        self._namespace = driver_namespace
        self._pieces: dict[str, dict[str, ResourceSlice]] = {}  # by pool and name
        self._alone: set[str] = set()  # names of slices that only describe a machine: another driver has its GPUs
        self._claims: dict[str, dict[Key, Claim]] = {}  # by pool and key
        self._where: dict[Key, frozenset[str]] = {}  # the pools of each claim
        self._reserved: dict[str, dict[str, str]] = {}  # GPUs by node that are kept for somebody who waits
        self._changes: dict[tuple[Resource, Key], None] = {}  # objects that changed since the last update
        self._anew = True  # whether the next update reads everything again
        self._own_changed = False  # whether policies or the tenants' usage changed

    @property
    def unread(self) -> tuple[str, ...]:
        """Return messages about objects of the live cluster that could not be read."""
        return tuple(dict.fromkeys((*self._mirror.said(), *self.scene.own.unread, *self.scene.unread)))

    def changed(self, resource: Resource, key: Key | None) -> None:
        """Record that an object changed.

        If ``key`` is None, record that the user can now list other objects of this kind than before.
        """
        if resource == CONFIG_MAPS and key is not None:
            self._own_changed = True
        elif resource not in _FED or key is None:
            self._anew = True
        else:
            self._changes[resource, key] = None

    def read_anew(self) -> None:
        """Make the next update read everything again, also objects that are not watched."""
        self._anew = True

    async def update(self) -> set[str]:
        """Apply the recorded changes. Returns the names of the nodes that look different, or are gone."""
        if self._own_changed:
            self._own_changed = False
            await self._read_own()
        dirty: set[str] = set()
        while self._changes and not self._anew:
            (resource, key), _ = self._changes.popitem()
            dirty |= self._take(resource, key)
        if self._anew:
            self._anew = False
            self._changes.clear()
            dirty |= await self._begin()
        reserved = dict(self._reserved)
        self.scene.settle()
        stand(self.scene)
        await read_what_pods_name(self.scene)
        _ = self.scene.picture.inventory.fleet  # made now: a machine that is refused has no states of GPUs
        self._reserved = self.scene.picture.inventory.reserved.by_node
        known = reserved.keys() | self._reserved.keys()
        dirty |= {name for name in known if reserved.get(name) != self._reserved.get(name)}
        await self._look(dirty)
        return dirty

    async def _read_own(self) -> None:
        if self._anew:
            return
        own = Own(self._policies)
        await own.read(self._mirror, self._server, self._namespace)
        if own.policies != self.scene.own.policies:
            self._anew = True
        else:
            self.scene.own = own

    async def _begin(self) -> set[str]:
        """Read everything that is followed. Return the names of all present and former nodes."""
        own = Own(self._policies)
        if self._namespace:
            await own.read(self._mirror, self._server, self._namespace)
        scene = Scene(self._mirror, self._server, own.policies, own=own)
        await scene.read()
        self.scene = scene
        nodes = {*self.views, *self.gone, *self.doubts}
        self._pieces, self._alone, self._claims, self._where, self.pods = {}, set(), {}, {}, {}
        for piece in self._mirror.every(RESOURCE_SLICES):
            nodes |= self._put_piece(piece.metadata.name, piece)
        for claim in self._mirror.every(RESOURCE_CLAIMS):
            nodes |= self._put_claim(claim.key, claim)
        for pod in self._mirror.every(PODS):
            self._put_pod((pod.metadata.namespace, pod.metadata.name), pod)
        return nodes | scene.nodes.keys() | self._claims.keys()

    def _take(self, resource: Resource, key: Key) -> set[str]:
        """Update the cluster by one object that changed.

        Returns the names of the nodes that look different.
        """
        new = self._mirror.find(resource, key)  # None once it is deleted
        record = new  # what the controller's cluster cache keeps of it
        changed_nodes: set[str] = set()
        if resource == NODES:
            changed_nodes = {key[1]}
        elif resource == RESOURCE_CLAIMS:
            changed_nodes = self._put_claim(key, new)
        elif resource == PODS:
            self._put_pod(key, new)
        else:  # a slice
            # The first slice of all, or another driver may allocate the GPUs from now on: everything is read again.
            if self.scene.is_empty or self._may_change_driver(new):
                self._anew = True
                return changed_nodes
            with bound(self.scene.ledger):
                record = None if new is None else slice_records.slice_record(new)
            changed_nodes = self._put_piece(key[1], new)
        try:
            self.scene.take(resource, key, record)
        except Exception:  # an error that one object meets must not keep the others from the page
            logger.exception(
                "%s %s cannot be processed. The page reads the whole cluster again.", resource.plural, "/".join(key)
            )
            self._anew = True
        return changed_nodes

    def _may_change_driver(self, piece: ResourceSlice | None) -> bool:
        """Return whether a slice (``piece``) may change which driver allocates GPUs.

        If so, the whole cache is filled again.
        """
        if piece is None or not _ours(piece):
            return bool(self._alone) and self.scene.ledger is OURS
        return is_machine_alone(piece) and not self._alone

    def _put_piece(self, name: str, piece: ResourceSlice | None) -> set[str]:
        if piece is not None and names.is_seat(piece.spec.driver, piece.spec.pool.name):
            return set()
        dirty = {pool for pool, pieces in self._pieces.items() if name in pieces} if piece is None else set()
        for pool in dirty:
            del self._pieces[pool][name]
        self._alone.discard(name)
        if piece is not None:
            if _ours(piece) and is_machine_alone(piece):
                self._alone.add(name)
            self._pieces.setdefault(piece.spec.pool.name, {})[name] = piece
            dirty.add(piece.spec.pool.name)
        return dirty

    def _put_claim(self, key: Key, claim: Claim | None) -> set[str]:
        before = self._where.pop(key, frozenset())
        for pool in before:
            self._claims[pool].pop(key, None)
        if claim is None:
            return set(before)
        now = self._where[key] = frozenset(_pools(claim))
        for pool in now:
            self._claims.setdefault(pool, {})[key] = claim
        return {*before, *now}

    def _put_pod(self, key: Key, pod: Any) -> None:
        self.pods.pop(key, None)
        if isinstance(pod, Pod):
            self.pods[key] = pod

    async def _look(self, dirty: set[str]) -> None:
        """Make the views of the nodes named in ``dirty`` again, because their objects changed."""
        for number, name in enumerate(sorted(dirty)):
            try:
                self._look_at(name)
            except Exception as error:  # what one node's objects say costs no other node its tile
                self.leave_out(name, error)
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)

    def _look_at(self, name: str) -> None:
        pieces = self._pieces.get(name, {}).values()
        claims = self._claims.get(name, {}).values()
        self.views.pop(name, None)
        self.gone.pop(name, None)
        self.doubts.pop(name, None)
        if any(map(_ours, pieces)):
            not_offered = NotOffered(taint_rules=self.scene.picture.offered.taint_rules)
            found, doubts = cluster_view.views(pieces, claims, only=(name,), not_offered=not_offered)
            self.views |= {view.name: view for view in found}
            if doubts:
                self.doubts[name] = doubts
        elif name in self.scene.nodes and self.scene.sees_agents:
            gone = cluster_view.gone_views(pieces, claims, is_node=name.__eq__)
            self.gone |= {node.name: node for node in gone}

    def leave_out(self, name: str, error: Exception) -> None:
        """Leave the node ``name`` out, because its objects caused an error in this program.

        This lasts until its objects change.
        """
        logger.error("node %s cannot be shown", name, exc_info=error)
        self.views.pop(name, None)
        self.gone.pop(name, None)
        self.tiles.pop(name, None)
        why = f"an error in this program: {type(error).__name__}: {error}"
        self.doubts[name] = [plain(f"node {name} is left out: {why}")]

    def node(self, name: str) -> Node | None:
        """Return a node of the live cluster.

        The result is None if the node does not exist, or if the user may not read nodes.
        """
        return self.scene.nodes.get(name)

    def closed(self, name: str) -> str:
        """Return why a node takes no new pods.

        The result is empty if the node takes pods, or if the user may not read nodes.
        """
        node = self.node(name)
        if node is None:
            return ""
        ready = any(one.type == "Ready" and one.status == "True" for one in node.status.conditions)
        causes = ["cordoned"] * node.spec.unschedulable + ["not ready"] * (not ready)
        if not causes and not self.scene.picture.nodes.takes_new(name):
            causes = ["goes for maintenance"]
        view = self.views.get(name)
        blocked = () if view is None else (gpu.blocked for gpu in view.gpus if gpu.is_never_placed)
        return ", ".join([*causes, *dict.fromkeys(blocked)])

    def tenant(self, namespace: str) -> str:
        """Return the tenant of a namespace of the live cluster; ``namespace/NAME`` if the policies name none for it."""
        return plain(self.scene.tenants.of(namespace) or f"namespace/{namespace}")

    def states(self, name: str) -> dict[int, State] | None:
        """Return the state of each GPU of a node of the live cluster, as metrics count it; None if it is not known."""
        if not self.scene.whole:
            return None
        picture = self.scene.picture
        return gpu_states.states_of(name, picture.inventory, picture.accounts, picture.nodes)


def _ours(piece: ResourceSlice) -> bool:
    return piece.spec.driver == OURS.driver


def _pools(claim: Claim) -> Iterator[str]:
    """Yield the pools in which a claim has devices, allocated or tentative."""
    if claim.status.allocation is not None:
        for result in claim.status.allocation.devices.results:
            yield result.pool
        return
    try:
        pin = pins.pin(claim)
    except (WordError, ValueError):
        return
    if pin is not None:
        yield pin.choice.node
