"""GPUs that are not handed out whole alone, as devices."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import resource_slices
from dradriver.api.slices.slice_features import ALL, SliceFeatures
from dradriver.topology import profiles
from dradriver.topology.machine import Machine
from tests.strategies import machines

NO_SHARES = SliceFeatures(shares=False)
MODES = st.builds(
    Mode,
    shared=st.sampled_from(("none", "mps", "time-slicing")),
    memory_overcommit=st.floats(1, 16),
    exclusive_to=st.sampled_from(("", "namespace")),
) | st.builds(Mode, shared=st.sampled_from(("mps", "time-slicing")), equal_shares=st.integers(2, 48))


def devices(machine: Machine, modes: dict[str, Mode], features: SliceFeatures = ALL) -> list[dict[str, Any]]:
    built = resource_slices.build(machine, node="n", node_uid="u", modes=modes, features=features)
    return [device for piece in built for device in piece["spec"]["devices"]]


def mib(quantity: str) -> int:
    assert quantity.endswith("Mi")
    return int(quantity[:-2])


def test_a_shared_gpu_is_one_device_that_a_plain_claim_takes_whole() -> None:
    machine = profiles.load("dgx-a100", seed="n")
    first, second = machine.gpus[:2]
    found = {d["attributes"]["uuid"]["string"]: d for d in devices(machine, {first.uuid: Mode(shared="mps")})}
    device = found[first.uuid]

    assert device["name"] == resource_slices.device_name(first.uuid)
    assert device["allowMultipleAllocations"] is True
    assert device["attributes"]["type"] == {"string": "gpu"}
    assert device["attributes"]["shareable"] == {"bool": True}
    assert device["attributes"]["sharing"] == {"string": "mps"}
    assert device["capacity"] == {
        "cores": {
            "value": "100",
            "requestPolicy": {"default": "100", "validRange": {"min": "1", "step": "1", "max": "100"}},
        },
        "memory": {
            "value": f"{first.memory_mib}Mi",
            "requestPolicy": {
                "default": f"{first.memory_mib}Mi",
                "validRange": {"min": "1Mi", "step": "1Mi", "max": f"{first.memory_mib}Mi"},
            },
        },
    }
    assert "allowMultipleAllocations" not in found[second.uuid]
    assert "shareable" not in found[second.uuid]["attributes"]


def test_promised_memory_never_lets_two_have_a_gpu_whole() -> None:
    machine = profiles.load("l40s-x8", seed="n")
    gpu = machine.gpus[0]
    device = next(
        d
        for d in devices(machine, {gpu.uuid: Mode(shared="time-slicing", memory_overcommit=2.5)})
        if d["attributes"]["uuid"]["string"] == gpu.uuid
    )
    memory, cores = device["capacity"]["memory"], device["capacity"]["cores"]

    assert mib(memory["value"]) == int(2.5 * gpu.memory_mib)
    assert memory["requestPolicy"]["default"] == memory["requestPolicy"]["validRange"]["max"] == f"{gpu.memory_mib}Mi"
    assert cores["value"] == cores["requestPolicy"]["default"]


def test_of_a_gpu_in_equal_shares_a_claim_has_one_or_all() -> None:
    machine = profiles.load("hgx-h100", seed="n")
    gpu = machine.gpus[0]
    mode = Mode(shared="mps", equal_shares=3)
    device = next(d for d in devices(machine, {gpu.uuid: mode}) if d["attributes"]["uuid"]["string"] == gpu.uuid)

    assert device["attributes"]["equalShares"] == {"int": 3}
    assert device["capacity"] == {
        "cores": {"value": "100", "requestPolicy": {"default": "100", "validValues": ["33", "100"]}},
        "memory": {"value": "81559Mi", "requestPolicy": {"default": "81559Mi", "validValues": ["27186Mi", "81559Mi"]}},
    }
    parts = [d for d in devices(machine, {gpu.uuid: mode}, NO_SHARES) if d["attributes"]["type"]["string"] == "share"]
    assert [d["name"] for d in parts] == [
        f"{resource_slices.device_name(gpu.uuid)}-share-{number}" for number in range(3)
    ]
    assert parts[0]["capacity"] == {"cores": {"value": "33"}, "memory": {"value": "27186Mi"}}
    assert parts[0]["attributes"]["equalShares"] == {"int": 3}


@given(machines(), st.data())
def test_what_the_api_server_allows(machine: Machine, data: st.DataObject) -> None:
    modes = {gpu.uuid: data.draw(MODES) for gpu in machine.gpus}
    for features in (ALL, NO_SHARES):
        built = resource_slices.build(machine, node="n", node_uid="u", modes=modes, features=features)
        every = [device for piece in built for device in piece["spec"]["devices"]]
        assert len({device["name"] for device in every}) == len(every)
        assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", device["name"]) for device in every)
        assert all(len(piece["spec"]["devices"]) <= 64 for piece in built)
        assert {piece["spec"]["pool"]["resourceSliceCount"] for piece in built} == {len(built)}
        assert len({piece["metadata"]["name"] for piece in built}) == len(built)
        for device in every:
            capacity = device.get("capacity", {})
            assert len(device["attributes"]) + len(capacity) <= 32
            for amount in capacity.values():
                if "requestPolicy" in amount:
                    assert device["allowMultipleAllocations"]
                    policy = amount["requestPolicy"]
                    most = policy["validValues"][-1] if "validValues" in policy else policy["validRange"]["max"]
                    value, most, default = (
                        int(x.removesuffix("Mi")) for x in (amount["value"], most, policy["default"])
                    )
                    assert 1 <= default <= most <= value
                    steps = [int(x.removesuffix("Mi")) for x in policy.get("validValues", ())]
                    assert steps == sorted(set(steps))
                    assert min(steps, default=1) >= 1
        assert {gpu.uuid for gpu in machine.gpus} == {
            (device["attributes"].get("uuid") or device["attributes"]["parentUUID"])["string"] for device in every
        }


@given(machines(), st.data())
def test_a_server_without_shares_never_hands_a_gpu_out_twice(machine: Machine, data: st.DataObject) -> None:
    """Each GPU is whole or in parts, and the parts of one come to no more than it."""
    modes = {gpu.uuid: data.draw(MODES) for gpu in machine.gpus}
    every = devices(machine, modes, NO_SHARES)
    for gpu in machine.gpus:
        whole = [d for d in every if d["attributes"].get("uuid") == {"string": gpu.uuid}]
        parts = [d for d in every if d["attributes"].get("parentUUID") == {"string": gpu.uuid}]
        divided = modes[gpu.uuid].shared != "none" and gpu.memory_mib > 0
        assert (len(whole), bool(parts)) == ((0, True) if divided else (1, False))
        assert all(d["attributes"]["type"] == {"string": "share"} for d in parts)
        assert sum(int(d["capacity"]["cores"]["value"]) for d in parts) <= 100
        assert sum(mib(d["capacity"]["memory"]["value"]) for d in parts) <= gpu.memory_mib
        assert len(parts) in (0, modes[gpu.uuid].equal_shares or resource_slices.EQUAL_SHARES)


def test_more_devices_than_a_slice_holds_make_more_slices_each_gpu_in_one() -> None:
    machine = profiles.load("dgx2-v100", seed="n")
    modes = {gpu.uuid: Mode(shared="time-slicing") for gpu in machine.gpus}
    built = resource_slices.build(machine, node="n", node_uid="u", modes=modes, features=NO_SHARES)

    assert sum(len(piece["spec"]["devices"]) for piece in built) == resource_slices.EQUAL_SHARES * len(machine.gpus)
    assert [bool(piece["metadata"]["annotations"]) for piece in built] == [True] + [False] * (len(built) - 1)
    homes = [{device["attributes"]["parentUUID"]["string"] for device in piece["spec"]["devices"]} for piece in built]
    assert sum(map(len, homes)) == len(machine.gpus)
