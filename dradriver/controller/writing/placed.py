"""Reports on placed pods: metrics of their GPU sets and waiting times, and the Event that names the GPUs.

A *set* is the GPUs that were chosen for one pod.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Final

from dradriver.allocator.request import Choice, PartChoice, Whole
from dradriver.api.base.errors import WordError
from dradriver.api.base.objects import seconds
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key, Pin
from dradriver.api.vocabulary.messages import shown
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.records.placement import Placement
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller import metrics
from dradriver.controller.writing.reasons import Record
from dradriver.queue.pending import Member
from dradriver.queue.write_lanes import Lanes

_LONGEST_OF_NICS: Final = 768  # characters; an Event's message has 1,024
_MOST_EVENTS: Final = 1024  # that wait to be written; the oldest go first
_PAUSE_S: Final = 0.1  # between two
_BUSY_S: Final = 1.0


class Placed:
    """Counts placements in the metrics, and writes Events about them while no other write waits."""

    def __init__(self, picture: Picture, lanes: Lanes, record: Record | None = None) -> None:
        """Make an object that has reported no placement.

        Args:
            picture: The cluster cache.
            lanes: The write lanes, which limit concurrent writes. Events are written only while no placement waits
                there.
            record: Writes an Event about a pod; None for no Events.
        """
        self._picture = picture
        self._lanes = lanes
        self._record = record
        self._events: OrderedDict[Key, tuple[Pod, str]] = OrderedDict()  # by pod: Events to write, the oldest first
        self._some = asyncio.Event()  # set while there are Events to write

    def lifted(self, member: Member, placement: Placement, began: float) -> None:
        """Report that a placed pod's gate was removed.

        ``began`` is when the writes of its placement began, by the event loop's clock.
        """
        metrics.DURATION.observe(asyncio.get_running_loop().time() - began)
        choice = placement.choice
        gpus = size_of(choice)
        metrics.PLACEMENTS.labels(choice.level.value if isinstance(choice, Choice) else metrics.FRACTION, gpus).inc()
        if isinstance(choice, Choice):
            self._count(member, choice, gpus)
        if self._record is not None:
            self._events[member.key] = member.pod, said(choice) + _nics(member, placement)
            if len(self._events) > _MOST_EVENTS:
                self._events.popitem(last=False)
            self._some.set()

    def _count(self, member: Member, choice: Choice, gpus: str) -> None:
        wished = _preferences(member)
        if wished:
            missed = len(choice.fallback)
            metrics.PREFERENCES.labels("anything" if missed == wished else "next" if missed else "first").inc()
        if len(choice.gpus) == 1:
            return
        metrics.SCORES.labels(gpus).observe(choice.score)
        if choice.busbw_gbps:  # else there is no prediction
            metrics.BUSBW.labels(gpus).observe(choice.busbw_gbps)
        pool = self._picture.inventory.pool(choice.node)
        nodes = set() if pool is None else {gpu.numa for gpu in pool.machine.gpus if gpu.index in choice.gpus}
        if len(nodes) > 1:
            metrics.ACROSS_NUMA.labels(gpus).inc()

    def seen(self, old: object, new: object) -> None:
        """Count a placed pod in the metrics once it has its GPUs or is bound.

        ``old`` and ``new`` are the states of an object before and after a change that a reflector saw. All other
        changes are ignored.
        """
        match old, new:
            case ClaimRecord(devices=None), ClaimRecord(pin=Pin(), devices=dict()):
                metrics.PROMISES_KEPT.inc()
            case Pod(), Pod() if new.spec.node_name and not old.spec.node_name:
                self._bound(new)

    def _bound(self, pod: Pod) -> None:
        claim, made = self._picture.claim_of(pod), seconds(pod.metadata.creation_timestamp)
        if claim is None or claim.pin is None or made is None:
            return  # the scheduler alone chose for it
        metrics.WAITED.observe(max(time.time() - made, 0.0), pod.metadata.namespace, size_of(claim.pin.choice))

    async def run(self) -> None:
        """Write Events about placed pods until cancelled; then drop the unwritten ones."""
        try:
            while True:
                await self._some.wait()
                if not (self._lanes.idle and self._lanes.room()):
                    await asyncio.sleep(_BUSY_S)
                    continue
                if self._events and self._record is not None:
                    key, (pod, text) = self._events.popitem(last=False)
                    known = self._picture.pods.get(key)
                    if known is not None and known.metadata.uid == pod.metadata.uid:
                        await self._record(pod, text)
                        await asyncio.sleep(_PAUSE_S)
                if not self._events:
                    self._some.clear()
        finally:
            self._events.clear()


def size_of(choice: Choice | PartChoice) -> str:
    """Return the metric label for the GPUs of ``choice``, such as ``8``, or ``fraction``."""
    return metrics.size(len(choice.gpus)) if isinstance(choice, Choice) else metrics.FRACTION


def said(choice: Choice | PartChoice) -> str:
    """Return the text of the Event that names the GPUs of ``choice``."""
    if isinstance(choice, PartChoice):
        return f"The pod gets shares or MIG slices of GPUs on node {choice.node}."
    listed = ", ".join(map(str, choice.gpus))
    if len(choice.gpus) == 1:
        return f"The pod gets GPU {listed} of node {choice.node}."
    busbw = f", predicted all-reduce {choice.busbw_gbps:g} GB/s" if choice.busbw_gbps else ""
    missed = f" Preferred, but not free: {', '.join(choice.fallback)}." if choice.fallback else ""
    level = choice.level.value
    return f"The pod gets GPUs {listed} of node {choice.node} (level {level}{busbw}, score {choice.score}).{missed}"


def _nics(member: Member, placement: Placement) -> str:
    """Return the Event's sentences about the NICs of ``placement``; empty without NICs."""
    try:
        ask = member.wish.nics
    except WordError:
        return ""
    if ask is None:
        return ""
    chosen = sorted(address for each in placement.nics.values() for address in each)
    left = dict(ask.left) | {
        request.name: "a selector of its DeviceClass is for the scheduler alone to judge"
        for request in ask.requests
        if request.name not in placement.nics
    }
    told = [f" It gets NIC{'s' if len(chosen) > 1 else ''} {', '.join(chosen)}."] if chosen else []
    told += [f" The NICs of request {shown(name)} are left to the scheduler: {why}." for name, why in left.items()]
    return "".join(told)[:_LONGEST_OF_NICS]


def _preferences(member: Member) -> int:
    try:
        request = member.wish.request
    except WordError:
        return 0
    return len(request.preferred) if isinstance(request, Whole) else 0
