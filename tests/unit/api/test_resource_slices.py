"""A machine as ResourceSlices, and back."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given

from dradriver.api.base import names
from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.slices import device_attributes, resource_slices
from dradriver.topology import profiles
from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Machine
from tests.strategies import machines

QUALIFIED = re.compile(r"([a-z0-9.]{1,63}/)?[A-Za-z_][A-Za-z0-9_]{0,31}")
KINDS = {"string": str, "int": int, "bool": bool, "version": str}


def build(machine: Machine) -> list[dict[str, Any]]:
    return resource_slices.build(machine, node="n1", node_uid="u1")


def attributes(machine: Machine, index: int) -> dict[str, Any]:
    for device in build(machine)[0]["spec"]["devices"]:
        values = {key: next(iter(value.values())) for key, value in device["attributes"].items()}
        if values["index"] == index:
            return values
    raise AssertionError(index)


@given(machines())
def test_what_the_api_server_allows(machine: Machine) -> None:
    (one,) = build(machine)
    devices = one["spec"]["devices"]

    assert len(devices) == len(machine.gpus) == len({device["name"] for device in devices})
    for device in devices:
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", device["name"])
        assert len(device["attributes"]) + len(device.get("capacity", {})) <= 32
        for key, value in device["attributes"].items():
            assert QUALIFIED.fullmatch(key)
            ((kind, content),) = value.items()
            assert type(content) is KINDS[kind]
            assert not isinstance(content, str) or 0 < len(content.encode()) <= 64


@given(machines())
def test_every_reader_can_rebuild_the_machine(machine: Machine) -> None:
    typed = [msgspec.convert(piece, ResourceSlice) for piece in build(machine)]

    assert machine == resource_slices.read_machine(typed)


@given(machines())
def test_same_machine_same_slices(machine: Machine) -> None:
    assert build(machine) == build(machine)


def test_devices_are_named_after_the_gpu_not_its_place() -> None:
    machine = profiles.load("dgx1-v100", seed="n1")
    fewer = msgspec.structs.replace(
        machine,
        gpus=tuple(msgspec.structs.replace(gpu, index=gpu.index - 1) for gpu in machine.gpus[1:]),
        links=tuple(row[1:] for row in machine.links[1:]),
        paths=tuple(row[1:] for row in machine.paths[1:]),
        nic_paths=tuple(row[1:] for row in machine.nic_paths),
    )
    names_before = {device["name"] for device in build(machine)[0]["spec"]["devices"]}
    names_after = {device["name"] for device in build(fewer)[0]["spec"]["devices"]}

    assert names_before - names_after == {machine.gpus[0].uuid.lower()}


def test_a_dgx_1() -> None:
    got = attributes(profiles.load("dgx1-v100", seed="n1"), 5)

    assert got["nvlinkGroup4"] == attributes(profiles.load("dgx1-v100", seed="n1"), 6)["nvlinkGroup4"]
    assert got["nvlinkGroup4"] != attributes(profiles.load("dgx1-v100", seed="n1"), 1)["nvlinkGroup4"]
    assert got[names.NUMA_NODE] == 1
    assert got["architecture"] == "volta"
    assert got["cudaComputeCapability"] == "7.0.0"
    assert got["nic"].startswith("mlx5_")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("H" * 70, "H" * 64),
        ("é" * 45, "é" * 32),
        ("a" + "é" * 45, "a" + "é" * 31),
        ("aa" + "𝄞" * 20, "aa" + "𝄞" * 15),
        ("é" * 32, "é" * 32),
    ],
)
def test_long_texts_are_cut_to_64_bytes_between_characters(text: str, expected: str) -> None:
    """The API server counts bytes, and refuses the whole slice."""
    machine = profiles.load("dgx1-v100")
    gpus = tuple(msgspec.structs.replace(gpu, product=text) for gpu in machine.gpus)
    nics = tuple(msgspec.structs.replace(nic, name=f"{text}{n}") for n, nic in enumerate(machine.nics))
    got = attributes(msgspec.structs.replace(machine, gpus=gpus, nics=nics), 0)

    assert got["productName"] == expected
    assert got["nic"].startswith(expected)
    assert len(got["nic"].encode()) <= 64


def test_a_machine_with_text_that_is_not_unicode_makes_no_slices() -> None:
    machine = profiles.load("dgx1-v100")
    odd = msgspec.structs.replace(machine.gpus[0], product="\udcff")

    with pytest.raises(TopologyError, match=r"gpus\[0\]\.product: '.udcff'"):
        build(msgspec.structs.replace(machine, gpus=(odd, *machine.gpus[1:])))


def test_first_fit_meets_good_sets() -> None:
    """The scheduler takes devices in list order: any aligned block of 2 or 4 is a group."""
    devices = build(profiles.load("dgx1-v100"))[0]["spec"]["devices"]
    for size in (2, 4):
        numbers = [device["attributes"][f"nvlinkGroup{size}"]["int"] for device in devices]
        blocks = [set(numbers[i : i + size]) for i in range(0, len(numbers), size)]

        assert all(len(block) == 1 for block in blocks)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("535.104.05", "535.104.5"),
        ("7.0", "7.0.0"),
        ("580", "580.0.0"),
        ("", None),
        ("N/A", None),
        ("1.2.3-rc1", "1.2.3"),
    ],
)
def test_versions_are_semantic(version: str, expected: str | None) -> None:
    assert expected == device_attributes.semver(version)


def test_a_long_node_name_still_makes_a_name() -> None:
    name = resource_slices.slice_name(0, "n" * 253)

    assert len(name) <= 253
    assert name.startswith("00000-")
    assert name != resource_slices.slice_name(0, "n" * 252 + "m")


def test_slices_without_a_machine() -> None:
    assert resource_slices.read_machine([]) is None
