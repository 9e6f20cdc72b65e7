"""What is kept of objects says what the objects said."""

from __future__ import annotations

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.api.policies.fields import MigWord
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import resource_slices
from dradriver.cluster.records import records, slice_records
from dradriver.topology import machine_codec, profiles
from dradriver.topology.machine import Machine
from tests.fakes.apirules import Object
from tests.fakes.instances import in_mig_mode


def piece(profile: str, seed: str) -> Object:
    (built,) = resource_slices.build(profiles.load(profile, seed=seed), node=f"node-{seed}", node_uid="u")
    built["metadata"] |= {"uid": seed, "resourceVersion": "1"}
    return built


def kept(obj: Object) -> slice_records.SliceRecord:
    found = slice_records.read_slice(msgspec.Raw(msgspec.json.encode(obj)))
    assert found is not None
    return found


@pytest.mark.parametrize("profile", [name for name in profiles.names("nvidia") if "rack" not in name])
def test_every_machine_is_read_as_it_was_written(profile: str) -> None:
    for seed in ("a", "b"):
        obj = piece(profile, seed)
        assert kept(obj).machine == machine_codec.decode(obj["metadata"]["annotations"][names.MACHINE])


def test_a_machine_whose_gpus_are_not_all_devices_is_read_whole() -> None:
    obj = piece("dgx1-v100", "a")
    del obj["spec"]["devices"][3:]
    assert kept(obj).machine == machine_codec.decode(obj["metadata"]["annotations"][names.MACHINE])


@pytest.mark.parametrize("mig", ["off", "placements", "dynamic", "static"])
def test_machines_of_a_kind_are_kept_once_however_they_are_handed_out(mig: MigWord) -> None:
    found = []
    for seed in ("a", "b"):
        machine = profiles.load("hgx-h100", seed=seed)
        if mig == "static":
            machine = in_mig_mode(machine, {0: [("1g.10gb", 0), ("3g.40gb", 4)]})
        modes = {gpu.uuid: Mode(mig=mig) for gpu in machine.gpus}
        first = resource_slices.build(machine, node=seed, node_uid="u", modes=modes)[0]
        one = kept(first).machine
        assert one == machine_codec.decode(first["metadata"]["annotations"][names.MACHINE])
        assert isinstance(one, Machine)
        found.append(one)
    assert found[0].links is found[1].links
    assert found[0] != found[1]


def test_a_damaged_machine_says_why_and_harms_no_other_of_its_kind() -> None:
    good, bad, twice = (piece("dgx1-v100", seed) for seed in "abc")
    bad["metadata"]["annotations"][names.MACHINE] = good["metadata"]["annotations"][names.MACHINE].replace(
        ":0,", ":,", 1
    )
    machine = profiles.load("dgx1-v100", seed="c")
    text = twice["metadata"]["annotations"][names.MACHINE].replace(machine.gpus[1].uuid, machine.gpus[0].uuid)
    twice["metadata"]["annotations"][names.MACHINE] = text
    assert isinstance(kept(bad).machine, str)
    assert isinstance(kept(twice).machine, str)
    assert not isinstance(kept(good).machine, str)


def test_a_text_that_has_the_stand_ins_of_the_reader_is_read_as_it_stands() -> None:
    obj = piece("dgx1-v100", "a")
    machine = profiles.load("dgx1-v100", seed="a")
    text = obj["metadata"]["annotations"][names.MACHINE].replace(machine.gpus[1].uuid, "GPU-stand-in-0")
    obj["metadata"]["annotations"][names.MACHINE] = text
    assert kept(obj).machine == machine_codec.decode(text)


def test_other_peoples_annotations_and_labels_are_not_kept() -> None:
    claim = {
        "metadata": {
            "name": "gpus-x",
            "namespace": "n",
            "labels": {"example.com/long": "x"},
            "annotations": {"example.com/long": "x" * 200_000},
        }
    }
    found = records.read_claim(msgspec.Raw(msgspec.json.encode(claim)))
    assert found is not None
    assert len(msgspec.json.encode(found)) < 1000
    node = {"metadata": {"name": "n", "annotations": {"example.com/long": "x" * 200_000}}}
    assert len(msgspec.json.encode(records.read_node(msgspec.Raw(msgspec.json.encode(node))))) < 1000


def test_a_claim_of_no_pod_of_ours_is_not_kept_at_all() -> None:
    claim = {"metadata": {"name": "theirs", "namespace": "n"}}
    assert records.read_claim(msgspec.Raw(msgspec.json.encode(claim))) is None


def test_a_device_with_a_fault_that_keeps_pods_off_cannot_be_chosen_and_is_part_of_the_machine() -> None:
    machine = profiles.load("dgx1-v100", seed="a")
    xid, hot = (
        {"key": f"gpu.topology/{kind}", "effect": effect, "timeAdded": "2026-01-01T00:00:00Z"}
        for kind, effect in (("xid", "NoSchedule"), ("thermal", "None"))
    )
    taints = {machine.gpus[2].uuid: [xid], machine.gpus[3].uuid: [hot]}
    (built,) = resource_slices.build(machine, node="node-a", node_uid="u", taints=taints)
    built["metadata"] |= {"uid": "a", "resourceVersion": "1"}
    found = kept(built)
    assert found.usable == {resource_slices.device_name(gpu.uuid) for gpu in machine.gpus if gpu.index != 2}
    assert found.machine == machine
