"""The fake of NVIDIA's driver is as the real one published itself, on the same machines."""

from __future__ import annotations

from typing import Any

import pytest

from dradriver.topology import profiles
from dradriver.topology.machine import Machine
from tests.fakes import nvidia
from tests.fakes.server import complete

Object = dict[str, Any]


def machine(profile: str) -> Machine:
    return complete(profiles.load(profile, seed="node-a"))


def by_name(devices: list[Object]) -> dict[str, Object]:
    return {device["name"]: device for device in devices}


def without_amounts(device: Object) -> Object:
    """A device without the amounts of engines: those of the library that it was recorded with are nobody's."""
    counted = [
        {**one, "counters": {name: name == "memory" and value for name, value in one["counters"].items()}}
        for one in device["consumesCounters"]
    ]
    capacity = {name: name == "memory" and value for name, value in device["capacity"].items()}
    return {**device, "capacity": capacity, "consumesCounters": counted}


@pytest.mark.parametrize("profile", ["dgx1-v100", "hgx-h100"])
def test_whole_gpus_are_in_one_slice_field_by_field(profile: str) -> None:
    recorded = nvidia.RECORDED[profile]
    made = nvidia.slices("node-a", nvidia.whole(machine(profile)))
    assert made["metadata"]["generateName"] == recorded["metadata"]["generateName"]
    assert by_name(made["spec"].pop("devices")) == by_name(recorded["spec"]["devices"])
    assert made["spec"] == {key: value for key, value in recorded["spec"].items() if key != "devices"}


def test_gpus_that_may_be_had_in_parts_are_in_a_slice_each_behind_one_of_counters() -> None:
    counters, first = nvidia.RECORDED["hgx-h100, DynamicMIG"]
    gpus = machine("hgx-h100")
    made = nvidia.in_parts("node-a", gpus, {gpu.uuid: gpu.minor for gpu in gpus.gpus})
    for one, recorded in zip(made, (counters, first), strict=False):
        assert one["metadata"]["generateName"] == recorded["metadata"]["generateName"]
        assert one["spec"]["pool"] == recorded["spec"]["pool"]
        assert one["spec"].keys() == recorded["spec"].keys()
    (recorded,), mine = counters["spec"]["sharedCounters"], made[0]["spec"]["sharedCounters"][0]
    assert (mine["name"], mine["counters"].keys()) == (recorded["name"], recorded["counters"].keys())
    devices = by_name(made[1]["spec"]["devices"])
    assert list(devices) == first["names"]
    for device in first["spec"]["devices"]:
        assert without_amounts(devices[device["name"]]) == without_amounts(device)
