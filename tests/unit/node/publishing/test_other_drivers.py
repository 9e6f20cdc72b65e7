from __future__ import annotations

import pytest

from dradriver.api.base.dra_objects import Device, ResourceSlice, SliceSpec
from dradriver.api.base.objects import Metadata, Node, NodeStatus
from dradriver.node.publishing.other_drivers import other_owner
from dradriver.topology.vendors import AMD, ASCEND, VENDORS, Vendor


def node(**allocatable: str) -> Node:
    return Node(metadata=Metadata(name="n"), status=NodeStatus(allocatable={"cpu": "8", **allocatable}))


def slice_of(driver: str, devices: int = 1) -> ResourceSlice:
    some = [Device(name=f"d{i}") for i in range(devices)]
    return ResourceSlice(metadata=Metadata(name=driver), spec=SliceSpec(driver=driver, devices=some))


@pytest.mark.parametrize(
    ("resource", "amount", "taken"),
    [
        ("nvidia.com/gpu", "8", True),
        ("nvidia.com/gpu.shared", "32", True),
        ("nvidia.com/mig-1g.10gb", "7", True),
        ("nvidia.com/gpu", "0", False),
        ("amd.com/gpu", "8", False),
    ],
)
def test_a_device_plugins_gpus_in_allocatable_are_of_another_driver(resource: str, amount: str, taken: bool) -> None:
    reason = other_owner(node(**{resource: amount}), [])
    assert (reason is not None) == taken
    assert reason is None or reason == f"a device plugin offers {amount} {resource}"


def test_another_gpu_drivers_slices_are_foreign_and_our_own_are_not() -> None:
    assert other_owner(node(), [slice_of("gpu.topology"), slice_of("nic.example.com")]) is None
    assert other_owner(node(), [slice_of("gpu.nvidia.com")]) == "driver gpu.nvidia.com has published slices"
    assert other_owner(node(), [slice_of("gpu.nvidia.com", devices=0)]) is None


@pytest.mark.parametrize(
    ("vendor", "resource"),
    [
        (AMD, "amd.com/gpu"),
        (AMD, "amd.com/cpx_nps4"),
        (ASCEND, "huawei.com/Ascend910"),
        (ASCEND, "huawei.com/Ascend910B3"),
        (ASCEND, "huawei.com/Ascend910B4-1"),
        (ASCEND, "huawei.com/Ascend310P3"),
        (ASCEND, "huawei.com/npu"),
    ],
)
def test_each_vendors_device_plugin_hands_out_its_own_gpus_and_no_others(vendor: Vendor, resource: str) -> None:
    offered = node(**{resource: "2"})
    assert other_owner(offered, [], vendor) == f"a device plugin offers 2 {resource}"
    assert all(other_owner(offered, [], other) is None for other in VENDORS.values() if other is not vendor)


@pytest.mark.parametrize("resource", ["huawei.com/Ascend910B3", "huawei.com/Ascend310P", "huawei.com/Ascend1980"])
def test_npus_by_any_name_of_their_family_are_of_another_driver(resource: str) -> None:
    """HAMi names them by product, and a product to come has a name that nobody listed here."""
    assert other_owner(node(**{resource: "1"}), [], ASCEND) == f"a device plugin offers 1 {resource}"
    assert other_owner(node(**{resource: "0"}), [], ASCEND) is None


def test_network_cards_of_amd_are_no_gpus() -> None:
    assert other_owner(node(**{"amd.com/nic": "8"}), [], AMD) is None


@pytest.mark.parametrize(("vendor", "driver"), [(AMD, "gpu.amd.com"), (ASCEND, "npu.huawei.com")])
def test_each_vendors_own_driver_hands_out_its_gpus(vendor: Vendor, driver: str) -> None:
    assert other_owner(node(), [slice_of(driver)], vendor) == f"driver {driver} has published slices"
    assert other_owner(node(), [slice_of(driver)]) is None
