"""Another driver's devices as GPUs by identity: its names for them are another's once a GPU is lost.

NVIDIA's driver calls a GPU ``gpu-<minor>``, AMD's ``gpu-<card>-<render>``. A claim's allocation has that name for ever;
which GPU it meant is known as long as the driver's slices say so. After a shift two GPUs are out of reach: the one that
the claim was given, on which its pod may run, and the one that has the name now, which the scheduler gives to nobody
else, and on which the pod runs if it starts anew after a reboot: with the boot the driver forgets what it prepared, and
goes by the name again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from dradriver.api.claims.pins import Device, Key, MigSlice, Usage
from dradriver.api.slices import resource_slices
from dradriver.cluster.gpus.pools import newest
from dradriver.cluster.records.devices import gpu_names
from dradriver.cluster.records.records import ClaimRecord
from dradriver.cluster.records.slice_records import SliceRecord
from dradriver.topology.machine import Machine

_MIG: Final = re.compile(r"gpu-\d{1,4}-mig-(\d{1,2}g\d{1,4}gb(?:-[a-z.-]{1,16})?)-(\d{1,4})-(\d{1,2})")
"""NVIDIA's name for a MIG slice: the profile, its id and the first memory slice."""

_Kind = dict[str, SliceRecord]


class _Pool(msgspec.Struct):
    """One node's slices.

    Attributes:
        machine: Those of our node agent, by name.
        devices: Those of the other driver.
        names: Which GPU each of its devices is, as of its newest complete generation: our device names by its own.
        joined: Both as one slice of ours; None while one of the two is not whole.
    """

    machine: _Kind
    devices: _Kind
    names: dict[str, str]
    joined: SliceRecord | None = None


class _Given(msgspec.Struct):
    """What a claim was given.

    Attributes:
        uid: The claim's.
        first: The GPU that each device was when it was first seen; empty while no slice has shown it.
    """

    uid: str
    first: dict[Device, str]


class JoinedSlices:
    """Joins the slices of two drivers, and says which GPUs a claim holds by its devices' names."""

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}
        self._given: dict[Key, _Given] = {}
        self._users: dict[str, set[Key]] = {}  # claims by pool

    def set_slice(
        self, old: SliceRecord | None, new: SliceRecord | None
    ) -> list[tuple[str, SliceRecord | None, SliceRecord | None]]:
        """Update the joined slices by a changed slice. Returns each pool concerned, what it was, and what it is.

        Such a slice offers the GPUs that both know: whose place in the machine our agent says, and which the other
        driver hands out whole.
        """
        for piece in (old, new):
            if piece is None:
                continue
            pool = self._pools.setdefault(piece.pool, _Pool({}, {}, {}))
            kind = pool.machine if piece.gpus is None else pool.devices
            kind.pop(piece.metadata.name, None)
            if piece is new:
                kind[piece.metadata.name] = piece
        changes = []
        for name in sorted({piece.pool for piece in (old, new) if piece is not None}):
            pool, before = self._pools[name], self._pools[name].joined
            self._join(name, pool)
            changes.append((name, before, pool.joined))
            self._drop(name)
        return changes

    def slices(self) -> dict[str, SliceRecord]:
        """Return the slices of both drivers that were taken in, by name."""
        kinds = (kind for pool in self._pools.values() for kind in (pool.machine, pool.devices))
        return {name: piece for kind in kinds for name, piece in kind.items()}

    def has_slices(self, pool: str) -> bool:
        """Return whether our node agent has any slice in a pool, complete or not."""
        return pool in self._pools and bool(self._pools[pool].machine)

    def slice_of(self, pool: str, name: str) -> SliceRecord | None:
        """Return a pool's slice of that name, whichever driver's, as it was taken in."""
        known = self._pools.get(pool)
        return None if known is None else known.machine.get(name) or known.devices.get(name)

    def users(self, pool: str) -> list[Key]:
        """Return the claims that were given devices of a pool whose slices are joined."""
        return sorted(self._users.get(pool, ()))

    def held(self, claim: ClaimRecord) -> Mapping[Device, Usage]:
        """Return the GPUs that a claim keeps from others by its devices in joined slices, all of each.

        A device that no slice has shown yet stands under its driver's name for it.
        """
        given = self._given.get(claim.key)
        if given is None or given.uid != claim.uid:
            self.forget(claim.key)
            given = self._given[claim.key] = _Given(claim.uid, {})
        # Of its own claims the controller knows better, whatever the names were when it first saw them.
        gpus = set() if claim.pin is None else set(claim.pin.devices)
        for device in claim.devices or ():
            pool, name = device
            self._users.setdefault(pool, set()).add(claim.key)
            now = self._pools[pool].names.get(name, "") if pool in self._pools else ""
            given.first[device] = given.first.get(device) or now
            known = {now} if claim.pin is not None else {now, given.first[device] or name}
            gpus |= {(pool, gpu) for gpu in known - {""}}
        return dict.fromkeys(gpus)

    def results(self, claim: ClaimRecord) -> Mapping[Device, Usage]:
        """Return what a claim was given of the GPUs that its devices were at first: of MIG slices these, else all.

        Unlike what it keeps from others, no GPU stands under two names, and none whole of which it has a part.
        """
        if claim.pin is not None:
            return dict.fromkeys(claim.pin.devices)
        given = self._given.get(claim.key)
        found: dict[Device, Usage] = {}
        for device in claim.devices or ():
            pool, name = device
            gpu = (given.first.get(device) if given is not None else "") or name
            part = self._part(pool, gpu, name)
            others = found.get((pool, gpu), ())
            found[pool, gpu] = None if part is None or others is None else (*others, part)
        return found

    def _part(self, pool: str, device: str, name: str) -> MigSlice | None:
        """Return which slice of a GPU its driver's name says; None for none, and where the GPU is not known."""
        mig = _MIG.fullmatch(name)
        if mig is None or pool not in self._pools:
            return None
        machine = next((piece.machine for piece in self._pools[pool].machine.values()), None)
        gpus = machine.gpus if isinstance(machine, Machine) else ()
        gpu = next((gpu for gpu in gpus if resource_slices.device_name(gpu.uuid) == device), None)
        profile = None if gpu is None else next((one for one in gpu.profiles if one.id == int(mig[2])), None)
        return None if profile is None else MigSlice(profile.name, int(mig[3]), profile.size)

    def forget(self, key: Key) -> None:
        """Forget the devices in joined slices that a claim had: it is gone, or was given nothing."""
        given = self._given.pop(key, None)
        for pool in {pool for pool, _ in given.first} if given is not None else ():
            users = self._users.get(pool, set())
            users.discard(key)
            if not users:
                self._users.pop(pool, None)
                self._drop(pool)

    def _drop(self, name: str) -> None:
        """Forget a pool without slices of which no claim has anything."""
        pool = self._pools.get(name)
        if pool is not None and not (pool.machine or pool.devices or name in self._users):
            del self._pools[name]

    def _join(self, name: str, pool: _Pool) -> None:
        machines, theirs = newest(pool.machine.values()), newest(pool.devices.values())
        machine = next((piece.machine for piece in machines if piece.machine is not None), None)
        if theirs:
            said = {device: gpu for piece in theirs for device, gpu in (piece.gpus or {}).items()}
            pool.names = gpu_names(said, machine if isinstance(machine, Machine) else None)
        pool.joined = None
        if not machines or not theirs:
            return
        every = [*machines, *theirs]
        pool.joined = msgspec.structs.replace(
            machines[0],
            node=name if all(piece.node == name for piece in every) else "",
            generation=1,
            count=1,
            usable=frozenset(gpu for piece in theirs for device in piece.usable if (gpu := pool.names.get(device))),
            machine=machine,
            ill=frozenset(gpu for piece in theirs for device in piece.ill if (gpu := pool.names.get(device))),
        )
