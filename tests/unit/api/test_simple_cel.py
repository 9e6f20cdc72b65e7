"""Selectors of NICs: what can be read of them, and of which devices it holds."""

from __future__ import annotations

import pytest

from dradriver.api import simple_cel
from dradriver.api.simple_cel import Value

NIC: dict[str, Value] = {
    "dra.net/rdma": True,
    "dra.net/virtual": False,
    "dra.net/numaNode": 0,
    "dra.net/rdmaDevice": "mlx5_0",
    "azure.dra.net/placementGroupId": "c6c7",
}
A = 'device.attributes["dra.net"]'


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        (f"{A}.rdma == true && {A}.virtual == false && {A}.numaNode == 0", True),
        (f"{A}.rdma == true &&\n{A}.virtual == false", True),
        ("device.attributes['dra.net']['rdmaDevice'] == 'mlx5_0'", True),
        (f'{A}["rdma"] == true && {A}["numaNode"] == 1', False),
        ('device.attributes["azure.dra.net"]["placementGroupId"] == "c6c7"', True),
        ('device.driver == "dra.net"', True),
        ('device.driver == "example.com"', False),
        (f"{A}.rdma", True),
        (f"!{A}.virtual", True),
        (f"!{A}.rdma", False),
        (f"({A}.rdma) && (({A}.numaNode < 1))", True),
        (f'{A}.rdmaDevice.startsWith("mlx5")', True),
        (f'{A}.rdmaDevice.endsWith("_1")', False),
        (f'{A}.rdmaDevice.contains("x5")', True),
        (f'{A}.rdmaDevice in ["mlx5_1", "mlx5_0"]', True),
        (f"{A}.numaNode in [1, 2]", False),
        (f"{A}.numaNode != 1", True),
        (f"{A}.numaNode >= 1", False),
        # What a device does not have fails the scheduler's attempt: it is none of these, whatever is asked of it.
        (f'{A}.ipv4 == "1.2.3.4"', False),
        (f'{A}.ipv4 != "1.2.3.4"', False),
        (f"!{A}.sriov", False),
        (f'{A}.?ipv4.orValue("") == ""', True),
        (f"{A}.?sriov.orValue(true) == true", True),
        (f"!{A}.?sriov.orValue(false)", True),
        # Of different types nothing is said: CEL has no such comparison.
        (f'{A}.numaNode == "0"', False),
        (f"{A}.rdma == 1", False),
        (f"{A}.rdma != 1", False),
        (f"{A}.numaNode in [true]", False),
    ],
)
def test_what_can_be_read_holds_or_not(expression: str, holds: bool) -> None:
    terms = simple_cel.read(expression)
    assert terms is not None
    assert simple_cel.hold(terms, "dra.net", NIC) is holds


@pytest.mark.parametrize(
    "expression",
    [
        "", "true", f"{A}.rdma || {A}.virtual", f'{A}.ifName.matches("^eth")', f"has({A}.rdma)", f"{A}.rdma ? 1 : 2",
        f"{A}.numaNode + 1 == 1", f"{A}.numaNode == {A}.mtu", f"!({A}.rdma)", f"{A}.rdma ==", f"{A}.rdma == true &&",
        f"{A}.rdma == true {A}.virtual", f"({A}.rdma", f'{A}.name == "a\\"b"', 'device.capacity["dra.net"].x == 1',
        f"{A}.numaNode == 1.5", f"{A}.numaNode == 1u", f"{A}.rdma < true", f"{A}.rdma in []", "device", "device.",
        f"{A}.version.compareTo(semver('1.0.0')) > 0", f"{A}.rdma == null", "(" * 70 + f"{A}.rdma" + ")" * 70,
        " && ".join([f"{A}.rdma"] * 65), f'{A}.rdmaDevice == "{"x" * 5000}"', "\ud800",
        f"{A}.numaNode == 9999999999999999999",
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_left_to_the_scheduler(expression: str) -> None:
    assert simple_cel.read(expression) is None
