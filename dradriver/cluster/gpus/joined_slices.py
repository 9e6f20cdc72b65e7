"""The slices of another allocating driver, joined with our node agent's slices.

NVIDIA's driver calls a GPU ``gpu-<minor>``, AMD's ``gpu-<card>-<render>``. When a GPU is lost, these names can shift to
other GPUs. A claim's allocation keeps the name for ever. The GPU behind a name is known only while the driver's slices
show it.

After a shift, two GPUs cannot be allocated to others:
1. The GPU that the claim was allocated. Its pod may still run on it.
2. The GPU that has the name now. The scheduler gives this name to no other claim. If the pod starts again after a
   reboot, it gets this GPU: the driver forgets prepared claims at boot, and looks the name up again.

A *pool* is all ResourceSlices of a node, and has the node's name.
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
    """The slices of one node from both drivers.

    Attributes:
        machine: The slices of our node agent, by name.
        devices: The slices of the other driver, by name.
        names: Our device name for each device name in the other driver's newest complete slices.
        joined: Both joined into one slice of our form; None while the slices of one driver are not complete.
    """

    machine: _Kind
    devices: _Kind
    names: dict[str, str]
    joined: SliceRecord | None = None


class _Given(msgspec.Struct):
    """The devices of another driver that a claim was allocated.

    Attributes:
        uid: The claim's uid.
        first: For each device, our device name of the GPU that a slice first showed for it; empty if no slice has shown
            it yet. Later the device's name may mean another GPU.
    """

    uid: str
    first: dict[Device, str]


class JoinedSlices:
    """Joins our node agents' slices with the slices of another driver that allocates GPUs.

    It also translates the other driver's device names into GPUs.
    """

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}
        self._given: dict[Key, _Given] = {}
        self._users: dict[str, set[Key]] = {}  # claims by pool

    def set_slice(
        self, old: SliceRecord | None, new: SliceRecord | None
    ) -> list[tuple[str, SliceRecord | None, SliceRecord | None]]:
        """Update the joined slices with a changed slice of either driver.

        ``old`` is None for a new slice, ``new`` for a deleted one. A joined slice offers the GPUs that both drivers
        know: our agent has their position in the machine, and the other driver offers them whole.

        Returns:
            Each pool concerned, with its joined slice before and after the change.
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
        """Return the ResourceSlices of both drivers by name, as they were published."""
        kinds = (kind for pool in self._pools.values() for kind in (pool.machine, pool.devices))
        return {name: piece for kind in kinds for name, piece in kind.items()}

    def has_slices(self, pool: str) -> bool:
        """Return whether our node agent has published any ResourceSlice of a pool."""
        return pool in self._pools and bool(self._pools[pool].machine)

    def slice_of(self, pool: str, name: str) -> SliceRecord | None:
        """Return a pool's slice of either driver by its name; None if there is none."""
        known = self._pools.get(pool)
        return None if known is None else known.machine.get(name) or known.devices.get(name)

    def users(self, pool: str) -> list[Key]:
        """Return the claims to which devices of a pool are allocated."""
        return sorted(self._users.get(pool, ()))

    def held(self, claim: ClaimRecord) -> Mapping[Device, Usage]:
        """Return the GPUs that no other claim can get because of this claim, each as a whole.

        After a device name has shifted, these are the GPU that it meant first and the GPU that it means now. A device
        that no slice has shown yet is returned under the other driver's name.
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
        """Return the GPUs or MIG slices that a claim was allocated.

        If our controller pinned the claim, the result is the pinned GPUs. In any other claim, a device name counts as
        the GPU that it meant when the name was first seen. A GPU of which the claim has only MIG slices is returned
        with these slices.
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
        """Return the MIG slice that a device name of the other driver stands for.

        None if the name is no MIG slice, or if the GPU is not known.

        Args:
            pool: The node.
            device: The GPU, by our device name.
            name: The other driver's device name.
        """
        mig = _MIG.fullmatch(name)
        if mig is None or pool not in self._pools:
            return None
        machine = next((piece.machine for piece in self._pools[pool].machine.values()), None)
        gpus = machine.gpus if isinstance(machine, Machine) else ()
        gpu = next((gpu for gpu in gpus if resource_slices.device_name(gpu.uuid) == device), None)
        profile = None if gpu is None else next((one for one in gpu.profiles if one.id == int(mig[2])), None)
        return None if profile is None else MigSlice(profile.name, int(mig[3]), profile.size)

    def forget(self, key: Key) -> None:
        """Forget which GPUs a claim's device names meant, because its allocation is gone.

        ``key`` is the claim's namespace and name.
        """
        given = self._given.pop(key, None)
        for pool in {pool for pool, _ in given.first} if given is not None else ():
            users = self._users.get(pool, set())
            users.discard(key)
            if not users:
                self._users.pop(pool, None)
                self._drop(pool)

    def _drop(self, name: str) -> None:
        """Forget the node ``name`` if it has no ResourceSlices of either driver and no claims."""
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
