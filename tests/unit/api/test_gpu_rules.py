"""Rules that name GPUs: by number, UUID or PCI address, also of GPUs of which nobody knows the slot."""

from __future__ import annotations

import msgspec
import pytest

from dradriver.api.policies import partitions
from dradriver.api.policies.gpu_modes import mode_of
from dradriver.api.policies.policies_reader import PoliciesError, read
from dradriver.topology.machine import Gpu
from tests.fakes.node import machine

GPUS = machine().gpus
UNKNOWN = msgspec.structs.replace(GPUS[2], index=8, has_slot=False)
MIXED = (*(gpu for gpu in GPUS if gpu.index != 2), UNKNOWN)
TENANTS = """
tenants:
  a: {namespaces: [a], partition: %s, exclusive: %s}
  b: {namespaces: [b], partition: %s, exclusive: %s}
"""


def open_to(one: str, other: str, *gpus: Gpu, exclusive: tuple[bool, bool] = (True, True)) -> dict[str, set[int]]:
    """Return which numbers the tenants and all others may have."""
    text = TENANTS % (one, str(exclusive[0]).lower(), other, str(exclusive[1]).lower())
    rules = partitions.bounds(read(text.encode(), source="x").tenants)
    division = partitions.divide(rules, "node", {}, gpus)
    assert not division.clashes
    return {name: set(numbers) for name, numbers in division.open.items()}


def test_any_name_of_a_gpu_is_enough() -> None:
    one = f"{{numbers: [0], uuids: [{GPUS[3].uuid.upper()}], pciAddresses: ['{GPUS[5].pci}']}}"
    assert open_to(one, f"{{uuids: [{GPUS[4].uuid}]}}", *GPUS) == {"a": {0, 3, 5}, "b": {4}, "": {1, 2, 6, 7}}


def test_a_gpu_of_an_unknown_slot_is_of_no_tenant_while_it_may_be_in_an_exclusive_partition() -> None:
    assert open_to("{numbers: [0, 1, 2]}", "{numbers: [4]}", *MIXED) == {"a": {0, 1}, "b": {4}, "": {3, 5, 6, 7}}


def test_it_is_anybodys_who_may_have_gpus_that_no_number_keeps_from_others() -> None:
    found = open_to("{numbers: [0, 1, 2]}", "{nodes: [another]}", *MIXED, exclusive=(False, True))
    assert found == {"a": {0, 1}, "": {0, 1, 3, 4, 5, 6, 7, 8}}


def test_it_is_its_tenants_if_its_uuid_is_named() -> None:
    found = open_to(f"{{uuids: [{UNKNOWN.uuid}]}}", "{numbers: [4]}", *MIXED, exclusive=(True, False))
    assert found == {"a": {8}, "b": {4}, "": {0, 1, 3, 4, 5, 6, 7}}


@pytest.mark.parametrize(
    ("rules", "is_known"),
    [
        ("[{numbers: [8], shared: mps}]", False),
        ("[{nodes: [other], numbers: [0], shared: mps}]", True),
        ("[{shared: mps}, {numbers: [0], mig: static}]", True),
        ("[{numbers: [0], mig: static}, {shared: mps}]", False),
    ],
)
def test_a_gpu_of_an_unknown_slot_stays_as_it_is_if_a_number_decides(rules: str, is_known: bool) -> None:
    mode = mode_of(read(f"gpus: {rules}".encode(), source="x"), node="node", labels={}, gpu=UNKNOWN)
    assert (mode is not None) == is_known


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("{numbers: [0, 1]}", "{numbers: [1]}"),
        ("{uuids: [GPU-1]}", "{numbers: [1], uuids: [gpu-1]}"),
        ("{pciAddresses: ['0000:06:00.0']}", "{products: ['*']}"),
    ],
)
def test_partitions_that_surely_have_a_gpu_in_common_are_refused(one: str, other: str) -> None:
    with pytest.raises(PoliciesError, match="are also in the partition of tenant a"):
        read((TENANTS % (one, "true", other, "true")).encode(), source="x")


def test_a_number_and_a_uuid_may_be_of_different_gpus() -> None:
    read((TENANTS % ("{numbers: [0]}", "true", "{uuids: [GPU-1]}", "true")).encode(), source="x")


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("{uuids: ['GPU 1']}", "a GPU's UUID as nvidia-smi -L gives it"),
        ("{pciAddresses: ['06:00.0']}", "a PCI address as /sys writes it, as 0000:06:00.0"),
        ("{pciAddresses: ['00000000:06:00.0']}", "a PCI address as /sys writes it, as 0000:06:00.0"),
        ("{uuids: []}", "a list with one UUID or more"),
    ],
)
def test_what_names_no_gpu_is_refused_with_what_to_write(rule: str, says: str) -> None:
    with pytest.raises(PoliciesError, match=says):
        read(f"gpus: [{rule}]".encode(), source="x")


@pytest.mark.parametrize("address", ["0000:06:00.0", "10000:06:00.0"])
def test_an_address_that_the_system_writes_is_taken(address: str) -> None:
    assert read(f"gpus: [{{pciAddresses: ['{address}']}}]".encode(), source="x").gpus[0].pci_addresses == (address,)
