"""A seat is no GPU to whoever reads claims and slices; Kubernetes takes what keeps a pod from being bound."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest

from dradriver.allocator.request import Choice, Level
from dradriver.api.base import gang_barrier_device, names
from dradriver.api.base.dra_objects import ResourceClaim, ResourceSlice
from dradriver.api.claims import claim_builder, pins
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import resource_slices
from dradriver.cluster.records import slice_records
from dradriver.cluster.views.holder_names import held_by
from dradriver.topology import profiles
from tests import schema
from tests.unit.api.test_pins import POD, read

Object = dict[str, Any]
SEAT = {
    "request": "seat",
    "driver": names.DRIVER,
    "pool": names.SEAT_POOL,
    "device": gang_barrier_device.DEVICE,
    "shareID": "s-1",
}
GPU = {"request": "main", "driver": names.DRIVER, "pool": "n", "device": "gpu-a"}


def member(*, gpus: bool = True, seat: bool = True) -> Object:
    """A claim of ours, as it is once the scheduler has allocated it."""
    choice = Choice(
        gpus=(0,), containers=((0,),), ring=(0,), busbw_gbps=0, bandwidth_gbps=0, level=Level.NODE, score=100, node="n"
    )
    made = claim_builder.pinned(POD, choice, uuids={"main": ["GPU-a"]})
    if seat:
        made["spec"]["devices"]["requests"].append(gang_barrier_device.request())
    results = [GPU] * gpus + [SEAT] * seat
    return made | {"status": {"allocation": {"devices": {"results": results}}}}


def test_what_is_written_is_what_kubernetes_takes() -> None:
    schema.check(gang_barrier_device.resource_slice())
    made = member()
    schema.check({key: made[key] for key in ("apiVersion", "kind", "metadata", "spec")})
    claim = read(made)
    seat = gang_barrier_device.of(claim)
    assert seat is not None
    for condition in (gang_barrier_device.GO, gang_barrier_device.OFF):
        applied = gang_barrier_device.status(
            claim.metadata, seat, condition, now=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        )
        schema.check(applied | {"spec": made["spec"]})
        (entry,) = applied["status"]["devices"]
        assert entry.pop("conditions")[0]["type"] == condition
        assert entry == {key: SEAT[key] for key in ("driver", "pool", "device", "shareID")}


def test_a_claim_with_a_seat_holds_and_is_pinned_to_its_gpus_alone() -> None:
    with_seat, without = read(member()), read(member(seat=False))
    assert pins.pin(with_seat) == pins.pin(without) is not None
    assert pins.allocated(with_seat) == pins.allocated(without) == {("n", "gpu-a"): None}
    assert with_seat.results == without.results != []
    assert gang_barrier_device.of(without) is None


def test_a_seat_alone_holds_nothing() -> None:
    alone = read(member(gpus=False))
    assert pins.allocated(alone) == {}
    assert alone.results == []
    assert gang_barrier_device.of(alone) is not None


def test_a_request_for_a_seat_takes_no_gpus_place_in_a_claim_of_ours() -> None:
    """Whose GPUs' request asks for seats instead will never get what it says that it is pinned to."""
    claim = member()
    claim["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = gang_barrier_device.CLASS
    assert pins.pin(read(claim)) is None


def test_no_pod_is_shown_to_hold_a_seat_and_its_slice_is_no_nodes() -> None:
    held = held_by([read(member())], {})
    assert {pool: [device for _, device, _ in some] for pool, some in held.items()} == {"n": ["gpu-a"]}
    assert slice_records.read_slice(msgspec.Raw(msgspec.json.encode(gang_barrier_device.resource_slice()))) is None


@pytest.mark.parametrize("mode", [Mode(), Mode(mig="dynamic"), Mode(mig="placements"), Mode(shared="mps")])
def test_every_device_says_that_its_agent_knows_seats(mode: Mode) -> None:
    machine = profiles.load("hgx-h100", seed="n")
    modes = {gpu.uuid: mode for gpu in machine.gpus}
    for piece in resource_slices.build(machine, node="n", node_uid="u", modes=modes):
        assert all(map(gang_barrier_device.known, msgspec.convert(piece, ResourceSlice).spec.devices))


def test_no_seat_is_known_to_an_agent_that_does_not_say_so() -> None:
    claimed: Object = {"metadata": {}, "spec": {"devices": [{"name": "a", "attributes": {"seats": {"int": 1}}}]}}
    (device,) = msgspec.convert(claimed, ResourceSlice).spec.devices
    assert not gang_barrier_device.known(device)
    assert msgspec.convert({"metadata": {}}, ResourceClaim).results == []
