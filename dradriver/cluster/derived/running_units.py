"""What runs on GPUs, unit by unit: whom it would cost how much to end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from dradriver.api.base.objects import seconds
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Device, Key, Usage, claim_key, is_set
from dradriver.cluster.cache.picture import Picture
from dradriver.cluster.nodes.requests import Amounts
from dradriver.cluster.pods.gpu_time import owner_of
from dradriver.cluster.records.records import ClaimRecord


class Running(msgspec.Struct, frozen=True, gc=False):
    """A bound pod of ours with the GPUs that it was given.

    Attributes:
        key: Its namespace and name.
        pod: The pod.
        claim: Its claim.
        node: Its node.
        devices: Of which devices it has what.
        takes: What it takes from its node.
        since: Since when it has run, seconds since the epoch.
        priority: Its own.
    """

    key: Key
    pod: Pod
    claim: Key
    node: str
    devices: Mapping[Device, Usage]
    takes: Amounts
    since: float
    priority: int

    @property
    def ending(self) -> bool:
        """Whether it was told to end."""
        return self.pod.metadata.deletion_timestamp is not None

    def ends_at(self) -> float:
        """Return when one that was told to end is gone at the latest, seconds since the epoch."""
        return seconds(self.pod.metadata.deletion_timestamp) or 0.0


class RunningUnit(msgspec.Struct, frozen=True, gc=False):
    """A pod by itself, or all of a gang that run.

    Attributes:
        key: Who it is: of a single pod its namespace and name, else the gang's.
        pods: Its pods.
        priority: The highest of theirs.
        gpus: How many GPUs they have something of.
        since: Since when the first of them has run, seconds since the epoch.
        grace_s: The longest of their graces.
    """

    key: Key
    pods: tuple[Running, ...]
    priority: int
    gpus: int
    since: float
    grace_s: int

    def lost_s(self, now: float) -> float:
        """Return the GPU-seconds that are lost where it ends now."""
        return self.gpus * max(now - self.since, 0.0)

    @property
    def shown(self) -> str:
        """Who it is, for people."""
        pods = f"'s {len(self.pods)} pods" if len(self.pods) > 1 else ""
        return f"{self.owner}{pods}" if pods else "/".join(self.pods[0].key)

    @property
    def owner(self) -> str:
        """What made it, as ``namespace/Job/train``; of a pod that nothing made the pod."""
        first = self.pods[0]
        return f"{first.key[0]}/{owner_of(first.pod) or first.key[1]}"


class RunningUnits:
    """Keeps what was read of each pod for as long as pod and claim stay what they are."""

    def __init__(self, picture: Picture) -> None:
        """``picture`` is asked each time; nothing need be told here."""
        self._picture = picture
        self._known: dict[Key, tuple[Pod, ClaimRecord, RunningUnit | None]] = {}
        self._units: tuple[RunningUnit, ...] = ()
        self._ending: tuple[Running, ...] = ()
        self._version = -1

    def all(self) -> tuple[Sequence[RunningUnit], Sequence[Running]]:
        """Return the units that run, and the pods that end already, of whatever unit.

        A gang of which a pod shares a set with others, is of a node that nobody knows, or has GPUs and is not bound
        yet, is no unit: it cannot be ended as a whole, or who ends for it is not known.
        """
        if self._version != self._picture.version:
            self._version = self._picture.version
            self._read()
        return self._units, self._ending

    def _read(self) -> None:
        gangs, known, claims = self._picture.gangs, self._known, self._picture.claims
        self._known = {}
        alone: list[RunningUnit] = []
        together: dict[Key, list[Running]] = {}
        ending: list[Running] = []
        for key, pod in self._picture.pods.items():
            entry = known.get(key)
            if entry is None or entry[0] is not pod or claims.get(entry[1].key) is not entry[1]:
                if not pod.spec.node_name or (claim := self._picture.claim_of(pod)) is None:
                    continue
                running = self._running(key, pod, claim)
                entry = pod, claim, None if running is None else _unit(key, (running,))
            self._known[key] = entry
            if (unit := entry[2]) is None:
                continue
            (running,) = unit.pods
            if running.ending:
                ending.append(running)
            elif (of := gangs.of(key)) is not None:
                together.setdefault(of.gang, []).append(running)
            else:
                alone.append(unit)
        self._units = (
            *alone,
            *(_unit(gang, tuple(pods)) for gang, pods in together.items() if self._whole(gang, pods)),
        )
        self._ending = tuple(ending)

    def _running(self, key: Key, pod: Pod, claim: ClaimRecord) -> Running | None:
        name, takes = claim_key(pod), self._picture.node_usage.by(key)
        given = self._picture.accounts.given(claim.key)
        if pod.finished or takes is None or not given or name is None or is_set(name) or not _uses(pod, claim):
            return None
        if not (devices := self._picture.held(claim.key)):
            return None
        since = (pod.status.start_time, claim.allocated_at, pod.metadata.creation_timestamp)
        return Running(
            key=key,
            pod=pod,
            claim=claim.key,
            node=pod.spec.node_name,
            devices=devices,
            takes=takes[1],
            since=next((at for text in since if (at := seconds(text))), 0.0),
            priority=pod.spec.priority or 0,
        )

    def _whole(self, gang: Key, pods: Sequence[Running]) -> bool:
        """Return whether all pods of a gang that are bound, or are about to be, are among these, and none ends."""
        every = (self._picture.pods[key] for key in self._picture.gangs.pods(gang))
        return sum(bool(pod.spec.node_name) or self._picture.claim_of(pod) is not None for pod in every) == len(pods)


def _unit(key: Key, pods: tuple[Running, ...]) -> RunningUnit:
    return RunningUnit(
        key=key,
        pods=pods,
        priority=max(one.priority for one in pods),
        gpus=sum(len(one.devices) for one in pods),
        since=min(one.since for one in pods),
        grace_s=max(one.pod.grace_s for one in pods),
    )


def _uses(pod: Pod, claim: ClaimRecord) -> bool:
    """Return whether a claim is a pod's own, and nobody's beside."""
    return claim.owned_by(pod.metadata.uid) and set(claim.users) <= {pod.metadata.uid}


def by_node(pods: Iterable[Running]) -> dict[str, list[Running]]:
    """Return pods by their nodes."""
    found: dict[str, list[Running]] = {}
    for one in pods:
        found.setdefault(one.node, []).append(one)
    return found
