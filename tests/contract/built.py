"""Every kind of object that the code builds, made by the code itself: one entry of ``BUILDERS`` a kind.

A builder gets the Kubernetes version and returns objects with ``apiVersion`` and ``kind``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

import msgspec

from dradriver.allocator.request import Amount, Choice, Constraint, Level, MigPart, Part, PartChoice, SharePart, Whole
from dradriver.api.base import gang_barrier_device, names
from dradriver.api.base.allocating_driver import LEDGERS, bound
from dradriver.api.base.objects import Metadata
from dradriver.api.base.pods import Pod, PodClaim, PodSpec
from dradriver.api.claims import claim_builder
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import resource_slices
from dradriver.api.slices.slice_features import ALL, SliceFeatures, probes
from dradriver.kube.client import ApiError, Client
from dradriver.kube.event_recorder import Recorder, Reference
from dradriver.kube.leader import ElectionLease, LeaderElector
from dradriver.kube.resources import DEVICE_CLASSES
from dradriver.topology import profiles
from dradriver.topology.machine import Machine, MigDevice
from dradriver.topology.vendors import NVIDIA, VENDORS
from tests.contract import admitted
from tests.contract.admitted import NAMESPACE, UUIDS
from tests.fakes import chart, nvidia
from tests.fakes.kfd import on_boards
from tests.paths import SHARED_DATA

Object = dict[str, Any]

UID: Final = "00000000-0000-0000-0000-000000000001"
MODES: Final = (
    Mode(shared="mps", memory_overcommit=1.5, exclusive_to="namespace"),
    Mode(shared="time-slicing"),
    Mode(shared="mps", equal_shares=3),
    Mode(mig="dynamic"),
    Mode(mig="placements"),
)
WITHOUT: Final = SliceFeatures(taints=False, shares=False, counters=False)
_CUT_UP: Final = ("hgx-h100", "dgx-a100")


def in_mig_mode(machine: Machine) -> Machine:
    """The machine with an instance of each plain size on every second GPU, as far as they can be there together."""
    placed = ((9, 4), (14, 2), (19, 1), (19, 0))
    there = tuple(
        MigDevice(slot, f"MIG-{slot}", slot + 1, 0, "", 0, number, start) for slot, (number, start) in enumerate(placed)
    )
    gpus = tuple(msgspec.structs.replace(gpu, mig=there) if n % 2 == 0 else gpu for n, gpu in enumerate(machine.gpus))
    return msgspec.structs.replace(machine, gpus=gpus)


def _slices(machine: Machine, **more: Any) -> list[Object]:
    """Return its slices twice: with all that a server may keep, and with what every server keeps."""
    both = (resource_slices.build(machine, node="n", node_uid=UID, features=able, **more) for able in (ALL, WITHOUT))
    return [one for made in both for one in made]


def _whole(_: str) -> list[Object]:
    return [one for name in profiles.names("nvidia") for one in _slices(profiles.load(name, seed="n"))]


def _other_vendors(_: str) -> list[Object]:
    others = [name for vendor in VENDORS.values() if vendor is not NVIDIA for name in profiles.names(vendor.word)]
    return [one for name in others for one in _slices(on_boards(profiles.load(name, seed="n")))]


def _without_memory(_: str) -> list[Object]:
    """GPUs that do not tell their memory, and rules that would share them."""
    whole = profiles.load("hgx-h100", seed="n")
    machine = msgspec.structs.replace(
        whole, gpus=tuple(msgspec.structs.replace(gpu, memory_mib=0, profiles=()) for gpu in whole.gpus)
    )
    return _slices(machine, modes={machine.gpus[0].uuid: Mode(shared="mps")})


def _tainted(_: str) -> list[Object]:
    machine = profiles.load("hgx-h100", seed="n")
    taint = {"key": f"{names.PREFIX}xid", "value": "79", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
    return _slices(machine, taints={machine.gpus[1].uuid: [taint, taint | {"effect": "None"}]})


def _in_mode(mode: Mode) -> list[Object]:
    machines = [profiles.load(name, seed="n") for name in _CUT_UP]
    return [one for m in machines for one in _slices(m, modes={gpu.uuid: mode for gpu in m.gpus[::2]})]


def _instances(_: str) -> list[Object]:
    return [one for name in _CUT_UP for one in _slices(in_mig_mode(profiles.load(name, seed="n")))]


def _machines_alone(_: str) -> list[Object]:
    """What the node agent publishes beside NVIDIA's driver."""
    machines = [profiles.load(name, seed="n") for name in profiles.names("nvidia")]
    return [one for machine in machines for one in resource_slices.machine_alone(machine, node="n", node_uid=UID)]


def _nvidias(_: str) -> list[Object]:
    """Slices as the fake of NVIDIA's driver has them: what the add-on is tested with could be true."""
    machine = profiles.load("hgx-h100", seed="n")
    first, second, *_rest = machine.gpus
    mixed = [nvidia.mig(first, 0), nvidia.mig(first, 0, start=1), nvidia.vfio(second, 1)]
    return [nvidia.slices("n", nvidia.whole(machine)), nvidia.slices("m", mixed)]


_OWNER: Final = Pod(
    metadata=Metadata(name="p", namespace=NAMESPACE, uid=UID),
    spec=PodSpec(resource_claims=[PodClaim(name=names.POD_CLAIM, resource_claim_name="gpus-1")]),
)
_WHOLE: Final = Choice(
    gpus=(0, 1, 2), containers=((0, 1), (2,)), ring=(0, 1, 2), busbw_gbps=80, bandwidth_gbps=50, level=Level.NVLINK,
    score=100, node="n",
)  # fmt: skip
_SHARE: Final = SharePart(gpu=0, amount=Amount(25, 20480))
_SLICE: Final = MigPart(gpu=1, profile="3g.40gb", start=4, size=4)


def _whole_claims(_: str) -> list[Object]:
    uuids = {"main": UUIDS[:2], "other": UUIDS[2:3]}
    addresses = {uuid: f"0000:{number:02x}:00.0" for number, uuid in enumerate(UUIDS[:3], 1)}
    made: list[Object] = []
    for nccl in ("auto", "file", "off"):
        for ledger in LEDGERS.values():
            with bound(ledger):
                keep = ["NCCL_TOPO_FILE"]
                made.append(
                    claim_builder.pinned(_OWNER, _WHOLE, uuids=uuids, addresses=addresses, keep_env=keep, nccl=nccl)
                )
    return [*made, *(claim_builder.pinned(_OWNER, _WHOLE, uuids=uuids, vendor=vendor) for vendor in VENDORS)]


def _shared_claims(_: str) -> list[Object]:
    """A claim that pods share: by a name of theirs, with an owner that does not control it."""
    pod = msgspec.structs.replace(
        _OWNER, spec=PodSpec(resource_claims=[PodClaim(name=names.POD_CLAIM, resource_claim_name="duo")])
    )
    choice = msgspec.structs.replace(_WHOLE, containers=((0, 1, 2),))
    request = Whole(containers=(3,), required=(Constraint.NVLINK,))
    return [claim_builder.pinned(pod, choice, uuids={names.SET_REQUEST: UUIDS[:3]}, shared=request)]


def _part_claims(*parts: Part, placed: Sequence[str] = ()) -> list[Object]:
    uuids = {f"r{number}": [UUIDS[part.gpu]] for number, part in enumerate(parts)}
    choice = PartChoice(containers=(parts,), node="n")
    return [claim_builder.pinned(_OWNER, choice, uuids=uuids, compute={"3g.40gb": 3}, placed=placed)]


class _Written:
    """A server that has nothing, and what was created there."""

    def __init__(self) -> None:
        self.objects: list[Object] = []

    async def get(self, *_: object, **__: object) -> Object:
        raise ApiError(404, "NotFound", "there is none")

    async def create(self, _: object, obj: Object, **__: object) -> Object:
        self.objects.append(obj)
        return obj


def _written(write: Callable[[Client], Awaitable[object]]) -> list[Object]:
    async def run() -> list[Object]:
        server = _Written()
        await write(cast("Client", server))
        return server.objects

    return asyncio.run(run())


def _events(_: str) -> list[Object]:
    about = [
        Reference("Pod", NAMESPACE, "p", UID),
        Reference("Node", "", "n", UID),
        Reference(DEVICE_CLASSES.kind, "", gang_barrier_device.CLASS, UID, DEVICE_CLASSES.api_version),
    ]

    async def write(client: Client) -> None:
        recorder = Recorder(client, component="gpu-topology", instance="controller-0")
        for one in about:
            await recorder.record(
                about=one, type="Warning", reason="WaitsForGPUs", message="x" * 2000, action="Placing"
            )

    return _written(write)


def _leases(_: str) -> list[Object]:
    elector = "gpu-topology-controller"
    return _written(lambda c: LeaderElector(c, ElectionLease(NAMESPACE, elector), identity="controller-0")._take())


def _chart(version: str, *settings: str) -> list[Object]:
    """What the chart makes, without the kinds of cert-manager, which no server has by itself."""
    made = list(chart.objects(*settings, kubernetes=version).values())
    for one in made:
        if one["kind"] == "Pod":  # no dry run makes the account that it names, and without it a pod is refused
            one["spec"]["serviceAccountName"] = "default"
    return [one for one in made if not one["apiVersion"].startswith("cert-manager.io/")]


def _extended(version: str) -> list[Object]:
    """The chart with an extended resource's name, which it refuses before Kubernetes 1.36."""
    able = tuple(map(int, version.split(".")[:2])) >= (1, 36)
    return _chart(version, *(("deviceClass.extendedResourceName=nvidia.com/gpu",) if able else ()))


BUILDERS: Final[dict[str, Callable[[str], list[Object]]]] = {
    "slices of whole GPUs": _whole,
    "slices of GPUs that do not tell their memory": _without_memory,
    "slices of other vendors' GPUs": _other_vendors,
    "slices with taints": _tainted,
    "slices of instances": _instances,
    **{f"slices, {mode}": lambda _, mode=mode: _in_mode(mode) for mode in MODES},  # type: ignore[misc]
    "slices of a machine alone": _machines_alone,
    "slices of NVIDIA's driver": _nvidias,
    "slice of the seats": lambda _: [gang_barrier_device.resource_slice(UID)],
    "probes": lambda _: probes("n", UID),
    "claims of whole GPUs": _whole_claims,
    "claims that pods share": _shared_claims,
    "claims of shares": lambda _: _part_claims(_SHARE, _SHARE),
    "claims of slices": lambda _: _part_claims(_SLICE),
    "claims of slices that are devices": lambda _: _part_claims(_SLICE, placed=UUIDS[1:2]),
    "claims by templates": admitted.by_templates,
    "claims handed over": admitted.handed_over,
    "templates of static pods": admitted.static_templates,
    "pods": admitted.pods,
    **({"pods of the field's manifests": admitted.manifests_of_the_field} if SHARED_DATA.is_dir() else {}),
    "pods translated": admitted.translated,
    "workloads": admitted.workloads,
    "events": _events,
    "leases": _leases,
    **{f"chart, {name}": lambda v, s=some: _chart(v, *s) for name, some in chart.VARIANTS.items()},  # type: ignore[misc]
    "chart, extended resource": _extended,
}
