"""Audit of the cluster cache: compares it with the reflectors' stores every minute, and corrects differences.

Each change of an object updates a part of the cluster cache. If a bug skips an update, a GPU would count as used, or as
free, until a restart. The audit lets other tasks of the event loop run every few milliseconds. ``Controller`` runs it.

A *reflector* lists and watches the objects of one API resource, and keeps the newest state of each in its *store*. A
node's *channel* is the device that a pod needs to use NVLink between nodes. A pod is *foreign* if this controller does
not place it.
"""

from __future__ import annotations

import asyncio
import collections
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key, claim_key, is_set
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nics.nic_devices import NicSlice
from dradriver.cluster.nodes.pod_resources import Amounts
from dradriver.cluster.pods.foreign_pods import ForeignPods
from dradriver.cluster.records.pod_records import Foreign
from dradriver.cluster.records.records import ChannelSlice
from dradriver.cluster.records.slice_records import SliceRecord
from dradriver.controller import metrics
from dradriver.kube.reflector import Change
from dradriver.kube.resources import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource

logger = logging.getLogger(__name__)

PERIOD_S: Final = 60.0
SLICE_S: Final = 0.005  # of work before others get the loop
_LOOK: Final = 16  # keys between two looks at the clock
_MOST_LINES: Final = 16  # in the log, of one audit

K = TypeVar("K")
S = TypeVar("S", ChannelSlice, NicSlice)
Shown = Sequence[tuple[Resource, Mapping[Key, Any]]]
"""What each reflector has stored."""


class Audit:
    """Compares the cluster cache with the stores of the reflectors that fill it.

    A reflector updates its store and the cluster cache without an ``await`` in between. So code without an ``await``
    can compare both: they show the same moment.
    """

    def __init__(self, picture: Picture, shown: Shown) -> None:
        """Make an audit.

        Args:
            picture: The cluster cache.
            shown: The live stores of all reflectors that fill the cluster cache, each with its API resource.
        """
        self._picture = picture
        self._shown = shown
        self._found = 0  # differences that the running audit has found so far

    async def run(self) -> None:
        """Audit the cluster cache every minute, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            await self.look()

    async def look(self) -> int:
        """Audit the cluster cache once and correct it; return the number of differences."""
        self._found = 0
        for check in (
            self._objects, self._claim_users, self._holders, self._nics, self._channels, self._usage, self._foreign,
            self._free, self._gpu_time,
        ):  # fmt: skip
            await check()
        if self._found > _MOST_LINES:
            logger.error(
                "The audit found %d differences between the cluster cache and the API server, and corrected them.",
                self._found,
            )
        return self._found

    def _of(self, resource: Resource) -> list[Mapping[Key, Any]]:
        """Return the stores of all reflectors of one API resource.

        Most resources have one reflector. ResourceSlices have one for each driver.
        """
        return [store for kind, store in self._shown if kind is resource]

    # What the reflectors show, object by object.

    async def _objects(self) -> None:
        """Compare the objects in the cluster cache with the same objects in the reflectors' stores.

        The objects are claims, pods, nodes and ResourceSlices. Templates and device classes are not compared.
        """
        await self._claims()
        await self._pods()
        await self._nodes()
        await self._gpu_slices()
        channels, nics = self._picture.channels, self._picture.nics
        await self._slices_of(ChannelSlice, channels.slices(), channels.slice_of, self._picture.channels_changed)
        await self._slices_of(NicSlice, nics.slices(), nics.slice_of, self._picture.nics_changed)

    async def _claims(self) -> None:
        picture = self._picture
        (stored,) = self._of(RESOURCE_CLAIMS)
        async for key in _in_slices(_union(stored, picture.claims)):
            claim, known = stored.get(key), picture.claims.get(key)
            # The reflector does not keep a claim of somebody else that has the name of a set and nothing that counts.
            # The cache knows it from the answer to a write.
            is_met = claim is None and known is not None and is_set(key) and not known.counts
            if claim != known and not (is_met or picture.accounts.ahead(key)):
                self._differs("claims", key, partial(picture.claim_changed, self._change(key, known, claim)))

    async def _pods(self) -> None:
        picture = self._picture
        (stored,) = self._of(PODS)
        async for key in _in_slices(_union(stored, picture.pods)):
            record, known = stored.get(key), picture.pods.get(key)
            pod = record if isinstance(record, Pod) else None  # what pods of others use is counted by node
            if pod is not known and pod != known and not picture.pod_is_ahead(key):
                self._differs("pods", key, partial(picture.pod_changed, self._change(key, None, pod)))

    async def _nodes(self) -> None:
        picture = self._picture
        (stored,) = self._of(NODES)
        async for key in _in_slices(_union(stored, (("", name) for name in picture.nodes.names()))):
            if not picture.nodes.is_as(key[1], stored.get(key)):
                self._differs("nodes", key, partial(picture.node_changed, self._change(key, None, stored.get(key))))

    async def _gpu_slices(self) -> None:
        """Compare ResourceSlices of GPUs with the cluster cache.

        Several reflectors can have the same slice. If no reflector has a slice, the cluster cache must not have it
        either.
        """
        picture, stores = self._picture, self._of(RESOURCE_SLICES)
        pool_of = {("", name): piece.pool for name, piece in picture.offered.slices().items()}
        pool_of |= {
            key: piece.pool for store in stores for key, piece in store.items() if isinstance(piece, SliceRecord)
        }
        async for key in _in_slices(pool_of):
            stored = next((store[key] for store in stores if isinstance(store.get(key), SliceRecord)), None)
            known = picture.offered.slice_of(pool_of[key], key[1])
            # The cache keeps a slice without the devices that taint rules leave out.
            untainted = None if stored is None else picture.offered.taint_rules.left(stored)
            if untainted != known:
                self._differs("slices", key, partial(picture.slice_changed, self._change(key, known, stored)))

    async def _slices_of(
        self,
        kind: type[S],
        names: Collection[str],
        known_of: Callable[[str], S | None],
        changed: Callable[[Change[S]], None],
    ) -> None:
        """Compare the slices of one kind with the cluster cache.

        Use this method only for slices that the cluster cache stores unchanged. It stores slices of GPUs without their
        tainted devices, so ``_gpu_slices`` compares these.

        Args:
            kind: The record type of the slices.
            names: The names of the slices in the cluster cache.
            known_of: Returns the cluster cache's slice with a given name; None if there is none.
            changed: Updates the cluster cache. It is called with a change from the wrong slice to the right one.
        """
        stores = self._of(RESOURCE_SLICES)
        offered = {key: None for store in stores for key, one in store.items() if isinstance(one, kind)}
        async for key in _in_slices(_union(offered, (("", name) for name in names))):
            shown = next((one for store in stores if isinstance(one := store.get(key), kind)), None)
            known = known_of(key[1])
            if shown is not known and shown != known:
                self._differs("slices", key, partial(changed, self._change(key, known, shown)))

    def _change(self, key: Key, old: Any, new: Any) -> Change[Any]:
        return Change(key, old, new, asyncio.get_running_loop().time())

    # What follows from these.

    async def _claim_users(self) -> None:
        claimants, pods = self._picture.claim_users, self._picture.pods
        async for key in _in_slices(tuple(pods)):
            claim = claim_key(pods[key]) if key in pods else None
            if claim is not None and not claimants.has(claim, key):
                self._differs("claim users", key, partial(claimants.put, claim, key))
        async for claim, key in _in_slices(claimants.every()):
            if claimants.has(claim, key) and (key not in pods or claim_key(pods[key]) != claim):
                self._differs("claim users", key, partial(claimants.put, claim, key))
        async for claim in _in_slices(claimants.led()):
            if claimants.misled(claim):
                self._differs("claim users", claim, partial(claimants.forget_lead, claim))

    async def _holders(self) -> None:
        picture, holds = self._picture, self._picture.inventory.holds
        async for key in _in_slices(_union(picture.claims, picture.accounts.intended(), holds.claims())):
            held = picture.held(key)
            if holds.of(key) != held or not holds.sound(key):
                self._differs("allocations", key, partial(picture.inventory.hold_anew, key, held))
        async for device in _in_slices(holds.devices()):
            for key in [one for one in holds.holders(device) if device not in holds.of(one)]:
                self._differs("allocations", key, partial(picture.inventory.hold_anew, key, picture.held(key)))

    async def _nics(self) -> None:
        picture, nics = self._picture, self._picture.nics
        async for key in _in_slices(_union(picture.claims, picture.accounts.intended(), nics.claims())):
            held = frozenset(picture.accounts.nics_of(key))
            if nics.held(key) != held or not nics.sound(key):
                self._differs("NICs", key, partial(nics.hold_anew, key, held))

    async def _channels(self) -> None:
        """Compare each claim's NVLink channels with the cluster cache's list of channels by claim.

        ``_usage`` compares the channels that pods use.
        """
        claims, channels = self._picture.claims, self._picture.channels
        async for key in _in_slices(_union(claims, channels.of_claim)):
            given = claims[key].channels if key in claims else ()
            if channels.of_claim.get(key, ()) != given:
                self._differs("allocations", key, partial(channels.recount_claim, key))

    async def _usage(self) -> None:
        """Count again what pods use of their nodes, and correct the cluster cache's sums.

        The resources are CPU, memory and so on, and the NVLink channels that pods use.
        """
        nodes, usage_of_ours = self._picture.nodes, self._picture.node_usage

        # 1. Count again what each of our pods takes from its node, and its NVLink channel. ``recount`` also corrects
        #    the figure, and returns whether it was wrong.
        async for key in _in_slices(_union(self._picture.pods, usage_of_ours.pods())):
            if usage_of_ours.recount(key) or self._picture.channels.recount(key):
                self._differs("usage", key)
        async for key in _in_slices(self._picture.channels.pods()):
            if self._picture.channels.recount(key):
                self._differs("usage", key)

        # 2. Sum up by node. ``shown_pods`` are the pods that the API server shows. ``_add`` counts only the foreign
        #    ones among them: what ours take is in ``usage_of_ours``, which also counts pods that are not bound yet.
        (shown_pods,) = self._of(PODS)  # one reflector shows all pods
        sums: dict[str, collections.Counter[str]] = {}
        async for key in _in_slices(tuple(shown_pods)):
            _add(sums, shown_pods.get(key))
        async for key in _in_slices(usage_of_ours.pods()):
            _add(sums, usage_of_ours.by(key))
        suspects = {
            name for name in _union(sums, nodes.used()) if _without_zeros(sums.get(name)) != nodes.used().get(name, {})
        }
        if not suspects:
            return

        # 3. Pods may have changed between two slices. So sum up the suspected nodes again without a pause.
        exact_sums: dict[str, collections.Counter[str]] = {}
        for pod in shown_pods.values():
            _add(exact_sums, pod, suspects)
        for key in usage_of_ours.pods():
            _add(exact_sums, usage_of_ours.by(key), suspects)
        for name in sorted(suspects):
            amounts = _without_zeros(exact_sums.get(name))
            if amounts != nodes.used().get(name, {}):
                self._differs("usage", ("", name), correct=partial(nodes.set_used, name, amounts))

    async def _foreign(self) -> None:
        """Compare foreign pods' nodes, labels and host ports with the reflectors' stores.

        A foreign pod is one that the controller does not place.
        """
        (shown_pods,) = self._of(PODS)
        neighbours, counted = self._picture.neighbours, ForeignPods()
        async for key in _in_slices(tuple(shown_pods)):
            _count(counted, shown_pods.get(key))
        if neighbours.foreign.is_equal(counted):
            return
        # Pods may have changed between two slices. So count them again without a pause.
        exactly = ForeignPods()
        for pod in shown_pods.values():
            _count(exactly, pod)
        if not neighbours.foreign.is_equal(exactly):
            self._differs("pods", ("", "of others"), partial(neighbours.correct_foreign, exactly))

    async def _free(self) -> None:
        inventory, fleets = self._picture.inventory, self._picture.fleets
        async for pool in _in_slices(inventory.pools()):
            if not fleets.is_right(pool):
                self._differs("free", ("", pool), partial(inventory.set_node, pool))

    async def _gpu_time(self) -> None:
        picture, gpu_time = self._picture, self._picture.gpu_time
        async for key in _in_slices(_union(picture.claims, picture.accounts.intended(), gpu_time.claims())):
            held, given = picture.held(key), picture.accounts.given(key)
            if not gpu_time.counts(key, held, given=given):
                self._differs("gpu time", key, partial(gpu_time.holds, key, held, given=given))
        for namespace in gpu_time.recharge():
            self._differs("gpu time", (namespace, ""))

    def _differs(self, record: str, key: Key, correct: Callable[[], object] | None = None) -> None:
        """Log a difference between the cluster cache and a store, and correct it at once.

        The correction cannot wait: the compared objects may change at the next ``await``.

        Args:
            record: The part of the cluster cache that differs, such as ``claims``, for the log and as the metric's
                label.
            key: Namespace and name of the object.
            correct: Corrects the cluster cache; None if the caller has corrected it already.
        """
        name = "/".join(filter(None, key))
        metrics.DIFFERENCES.labels(record).inc()
        self._found += 1
        if self._found <= _MOST_LINES:
            logger.error(
                "Cluster cache, %s of %s: different from the API server. The audit corrected it.", record, name
            )
        try:
            if correct is not None:
                correct()
        except Exception:
            if self._found <= _MOST_LINES:
                logger.exception("Cluster cache, %s of %s: the audit failed with an internal error.", record, name)


def _union(first: Mapping[K, object], *others: Iterable[K]) -> list[K]:
    """Return the keys of ``first`` and of all ``others``, each once."""
    return [*first, *dict.fromkeys(key for some in others for key in some if key not in first)]


async def _in_slices(keys: Collection[K]) -> AsyncIterator[K]:
    """Yield keys one by one; let other tasks run after every ``SLICE_S`` seconds of work.

    Another task can delete an object before its key is yielded, so the caller must check that it exists.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + SLICE_S
    for number, key in enumerate(keys):
        if number % _LOOK == 0 and clock() > until:
            await asyncio.sleep(0)
            until = clock() + SLICE_S
        yield key


def _add(sums: dict[str, collections.Counter[str]], entry: object, only: Collection[str] | None = None) -> None:
    """Add a pod's CPU, memory and so on to the sum of its node.

    Args:
        sums: The sums, by node.
        entry: A foreign pod, or for a pod with GPUs of this driver a tuple of its node and amounts. Other types are
            ignored.
        only: The nodes to add to; None for all.
    """
    if isinstance(entry, Foreign):
        node, takes = entry.node, entry.takes
    elif isinstance(entry, tuple):
        node, takes = entry
    else:
        return
    if node and (only is None or node in only):
        total = sums.setdefault(node, collections.Counter())
        for resource, amount in takes.items():
            total[resource] += amount


def _count(foreign_pods: ForeignPods, entry: object) -> None:
    if isinstance(entry, Foreign):
        foreign_pods.changed(None, entry)


def _without_zeros(total: Mapping[str, int] | None) -> Amounts:
    """Return ``total``, a node's sums, without resources whose amount is 0; empty for None.

    The cluster cache stores the sums in this form.
    """
    return {resource: amount for resource, amount in (total or {}).items() if amount}
