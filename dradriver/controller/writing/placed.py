"""Reports on placed pods: metrics of their sets and waiting times, and the Event that names the GPUs."""

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
    """Counts placements, and writes an Event about each when nothing else is to be written."""

    def __init__(self, picture: Picture, lanes: Lanes, record: Record | None = None) -> None:
        """Make one that has seen none.

        Args:
            picture: The cluster.
            lanes: Of the placements, which come first.
            record: Writes an Event about a pod.
        """
        self._picture = picture
        self._lanes = lanes
        self._record = record
        self._events: OrderedDict[Key, tuple[Pod, str]] = OrderedDict()  # by pod: Events to write, the oldest first
        self._some = asyncio.Event()  # set while there are Events to write

    def lifted(self, member: Member, placement: Placement, began: float) -> None:
        """Note that a placed pod's gate was removed in an attempt that began at a time of the loop's clock."""
        metrics.DURATION.observe(asyncio.get_running_loop().time() - began)
        choice = placement.choice
        gpus = size_of(choice)
        metrics.PLACEMENTS.labels(choice.level.value if isinstance(choice, Choice) else metrics.PART, gpus).inc()
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
        """Note from what a reflector saw whether a placed pod got its GPUs, and was bound."""
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
        """Write Events about placed pods until cancelled; what is not told by then nobody tells."""
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
    """Return the word in metrics for how many whole GPUs a placed pod has."""
    return metrics.size(len(choice.gpus)) if isinstance(choice, Choice) else metrics.PART


def said(choice: Choice | PartChoice) -> str:
    """Return what an Event says of a place."""
    if isinstance(choice, PartChoice):
        return f"parts of GPUs on node {choice.node}"
    listed = ", ".join(map(str, choice.gpus))
    if len(choice.gpus) == 1:
        return f"GPU {listed} of node {choice.node}"
    busbw = f", all-reduce predicted {choice.busbw_gbps:g} GB/s" if choice.busbw_gbps else ""
    missed = f"; preferred and not free: {', '.join(choice.fallback)}" if choice.fallback else ""
    return f"GPUs {listed} of node {choice.node}: level {choice.level.value}{busbw}, score {choice.score}{missed}"


def _nics(member: Member, placement: Placement) -> str:
    """Return what an Event says of the NICs beside the GPUs; empty where none were asked for."""
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
    told = [f"NIC{'s' if len(chosen) > 1 else ''} {', '.join(chosen)}"] if chosen else []
    told += [f"the NICs of request {shown(name)} are left to the scheduler: {why}" for name, why in left.items()]
    return "".join(f"; {one}" for one in told)[:_LONGEST_OF_NICS]


def _preferences(member: Member) -> int:
    try:
        request = member.wish.request
    except WordError:
        return 0
    return len(request.preferred) if isinstance(request, Whole) else 0
