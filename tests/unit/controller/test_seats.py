"""Seats in the books: two claims share the one seat, and neither is the other's rival."""

from __future__ import annotations

from typing import Any

import pytest

from dradriver.api.base import gang_barrier_device, names
from dradriver.cluster.derived import conflicts
from dradriver.kube.resources import RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.fakes.gpucluster import GpuCluster, claim_of

SEAT = {"request": "seat", "driver": names.DRIVER, "pool": names.SEAT_POOL, "device": gang_barrier_device.DEVICE}


def take_a_seat(claim: dict[str, Any]) -> None:
    claim["spec"]["devices"]["requests"].append(gang_barrier_device.request())
    claim["status"]["allocation"]["devices"]["results"].append(SEAT | {"shareID": claim["metadata"]["name"]})


@pytest.mark.parametrize("others", [4, 3])
async def test_a_seat_is_no_gpu_and_no_node_and_makes_no_rivals(others: int) -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.put(RESOURCE_SLICES, gang_barrier_device.resource_slice())
    pods = {"first": 4, "second": others}
    for name, gpus in pods.items():
        cluster.pod(name, gpus)
    await cluster.settle()
    cluster.schedule()
    for name in pods:
        cluster.store.edit(RESOURCE_CLAIMS, ("default", claim_of(name)), take_a_seat)
    await cluster.settle()

    picture = cluster.worker.picture
    for name, gpus in pods.items():
        claim = picture.claims["default", claim_of(name)]
        assert claim.pin is not None
        assert claim.devices == claim.pin.taken
        assert len(picture.inventory.holds.of(claim.key)) == gpus
        assert conflicts.fits(picture, claim)
        assert not conflicts.rivals(picture, claim)
    assert picture.inventory.free().sum() == 4 - others
    assert list(picture.offered.slices()) == ["00000-gpu.topology-a"]
    assert await cluster.audit() == 0
