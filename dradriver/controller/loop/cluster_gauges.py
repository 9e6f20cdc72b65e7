"""Gauges of the cluster, counted regularly while this replica leads: GPUs, their users and waiting pods."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from typing import Final

from dradriver.allocator.choice.free_set_counts import SIZES, free_sets
from dradriver.allocator.fleet import domain_capacity
from dradriver.api.claims.pins import Device
from dradriver.api.claims.usage_config_maps import Bucket
from dradriver.api.policies.gpu_prices import Prices
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.derived import gpu_states
from dradriver.cluster.gpus import gone_agents
from dradriver.controller import metrics
from dradriver.controller.writing.reasons import Reasons
from dradriver.reason import Cause

logger = logging.getLogger(__name__)

PERIOD_S: Final = 30.0
_NODES: Final = 32  # looked at before others have their turn
_CLAIMS: Final = 512
_GANG_GPUS: Final = 8  # of a pod of the largest gang
_WHOLE: Final = 8  # GPUs of a set that no smaller one should break, where the machine has so many


class Figures:
    """Counts GPUs, their users and waiting pods of all nodes for the gauges.

    Only the leader runs it.

    Attributes:
        prices: The price of a GPU-hour by product, from the policies file; a gauge shows it.
    """

    def __init__(self, picture: Picture, reasons: Reasons) -> None:
        """Make gauges that have counted nothing yet.

        ``picture`` is the cluster cache; ``reasons`` says why pods wait.
        """
        self.prices = Prices()
        self._picture = picture
        self._reasons = reasons

    async def run(self) -> None:
        """Set the gauges at intervals until cancelled; then remove their values."""
        try:
            while True:
                await self.count()
                await asyncio.sleep(PERIOD_S)
        finally:
            for gauge in (
                metrics.GPUS, metrics.PART_GPUS, metrics.PART_USED, metrics.HELD, metrics.FREE_SETS,
                metrics.FRAGMENTED, metrics.FREE_WHOLE, metrics.LARGEST_GANG, metrics.PRICES, metrics.AGENT_GONE,
            ):  # fmt: skip
                gauge.set({})
            self._set_waiting({})

    async def count(self) -> None:
        """Set all gauges once. Other tasks of the event loop can run in between.

        A change during the count may be included or not. If one gauge cannot be set, all other gauges are still set.
        """
        for figure in (self._gpus, self._held, self._agents, self._sets, self._gangs, self._waiting):
            try:
                await figure()
            except Exception:
                logger.exception("Internal error: the metrics of %s are not updated.", figure.__name__)

    async def _gpus(self) -> None:
        picture = self._picture
        states: Counter[tuple[str, gpu_states.State]] = Counter()
        parts: Counter[tuple[str, gpu_states.PartKind]] = Counter()
        for number, node in enumerate(picture.inventory.pools(), 1):
            found = gpu_states.gpus_of(node, picture.inventory, picture.accounts, picture.nodes)
            states.update(found.states)
            parts.update(found.parts)
            if number % _NODES == 0:
                await asyncio.sleep(0)
        products = {product for product, _ in states}
        metrics.GPUS.set({(product, each): states[product, each] for product in products for each in gpu_states.STATES})
        metrics.PART_GPUS.set(parts)
        prices = {(product, self.prices.currency): self.prices.per_hour(product) for product in sorted(products)}
        known = {key: price for key, price in prices.items() if price is not None}
        metrics.PRICES.set(dict(itertools.islice(known.items(), metrics.PRODUCTS)))  # a sum of prices is none

    async def _held(self) -> None:
        gpu_time = self._picture.gpu_time
        held: dict[Bucket, float] = {}
        for number, claim in enumerate(gpu_time.claims(), 1):
            for bucket, gpus in gpu_time.given(claim).items():
                held[bucket] = held.get(bucket, 0.0) + gpus
            if number % _CLAIMS == 0:
                await asyncio.sleep(0)
        by_namespace: dict[tuple[str, str, str], float] = {}
        parts: dict[tuple[str, str], float] = {}
        for bucket, gpus in held.items():
            key = bucket.namespace, bucket.product, bucket.kind
            by_namespace[key] = by_namespace.get(key, 0.0) + gpus
            if bucket.kind != "whole":
                parts[key[1:]] = parts.get(key[1:], 0.0) + gpus
        metrics.HELD.set(by_namespace)
        metrics.PART_USED.set(parts)

    async def _agents(self) -> None:
        picture = self._picture
        held: list[Device] = []
        for number, claim in enumerate(tuple(picture.claims.values()), 1):
            held += gone_agents.held(claim)
            if number % _CLAIMS == 0:
                await asyncio.sleep(0)
        metrics.AGENT_GONE.set({(node,): float(len(devices)) for node, devices in picture.agents_gone(held).items()})

    async def _sets(self) -> None:
        sets: Counter[tuple[str, str, str]] = Counter()
        free: Counter[str] = Counter()
        fragmented: Counter[str] = Counter()
        for group in tuple(self._picture.inventory.fleet.groups):
            masks = Counter(
                mask
                for name, mask in zip(tuple(group.names), group.free_masks().tolist(), strict=True)
                if self._picture.nodes.takes_new(name)
            )
            product = group.machine.product
            whole = max(size for size in SIZES if size <= min(_WHOLE, max(group.tables.size, 1)))
            for mask, nodes in masks.items():
                found = free_sets(group.tables, mask)
                for (size, level, _), count in found.items():
                    sets[product, str(size), level or metrics.ALONE] += count * nodes
                in_whole = sum(count for (size, _, _), count in found.items() if size == whole)
                free[product] += nodes * mask.bit_count()
                fragmented[product] += nodes * (mask.bit_count() - whole * in_whole)
                await asyncio.sleep(0)
        metrics.FREE_SETS.set(sets)
        metrics.FREE_WHOLE.set(free)
        metrics.FRAGMENTED.set(fragmented)

    async def _gangs(self) -> None:
        picture = self._picture
        picture.fleets.locate(picture.nodes.labels(), "")
        fleet = picture.inventory.fleet
        open_ = picture.nodes.named(name for name in fleet.nodes if picture.nodes.takes_new(name))
        gpus, found = domain_capacity.largest_gangs(fleet, most=_GANG_GPUS, eligible=open_)
        metrics.LARGEST_GANG.set({(level, str(gpus)): float(gang.pods) for level, gang in found.items()})

    async def _waiting(self) -> None:
        self._set_waiting(self._reasons.counted(), self._reasons.oldest() or 0.0)

    def _set_waiting(self, found: dict[Cause, int], oldest: float = 0.0) -> None:
        metrics.OLDEST_WAITING.set(oldest)
        for cause in Cause:
            metrics.WAITING_FOR.labels(cause.value).set(found.get(cause, 0))
