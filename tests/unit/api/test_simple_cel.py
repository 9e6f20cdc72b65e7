"""Selectors of NICs: what can be read of them, and of which devices it holds."""

from __future__ import annotations

import pytest

from dradriver.api.vocabulary import simple_cel
from dradriver.api.vocabulary.simple_cel import Other, Value

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
        (f"!{A}.rdmaDevice", False),
        (f"{A}.numaNode in [true]", False),
    ],
)
def test_what_can_be_read_holds_or_not(expression: str, holds: bool) -> None:
    terms = simple_cel.read(expression)
    assert terms is not None
    assert simple_cel.hold(terms, "dra.net", NIC) is holds


# What the scheduler's own evaluator (k8s.io/dynamic-resource-allocation 0.37.2, cel-go 0.29.2) says of each expression
# with an attribute of each type: T true, F false, E it fails.
TYPES: dict[str, Value | None] = {
    "string": "1.2.3",
    "int": 1,
    "bool": True,
    "version": Other("version", "1.2.3"),
    "strings": Other("strings", '["1.2.3"]'),
    "ints": Other("ints", "[1]"),
    "bools": Other("bools", "[true]"),
    "versions": Other("versions", '["1.2.3"]'),
    "missing": None,
}


@pytest.mark.parametrize(
    ("expression", "verdicts"),
    [
        #                           string, int, bool, version, strings, ints, bools, versions, missing
        (f'{A}.x == "1.2.3"', "TFFEFFFFE"),
        (f"{A}.x == 1", "FTFEFFFFE"),
        (f"{A}.x == true", "FFTEFFFFE"),
        (f'{A}.x != "1.2.3"', "FTTTTTTTE"),
        (f"{A}.x != 1", "TFTTTTTTE"),
        (f"{A}.x != true", "TTFTTTTTE"),
        (f'{A}.x < "2"', "TEEEEEEEE"),
        (f"{A}.x <= 1", "ETEEEEEEE"),
        (f"{A}.x", "EETEEEEEE"),
        (f"!{A}.x", "EEFEEEEEE"),
        (f'{A}.x in ["1.2.3"]', "TFFEFFFFE"),
        (f"{A}.x in [1, 2]", "FTFEFFFFE"),
        (f'{A}.x.startsWith("1.")', "TEEEEEEEE"),
        (f'{A}.x.endsWith(".3")', "TEEEEEEEE"),
        (f'{A}.x.contains("2")', "TEEEEEEEE"),
        (f'{A}.?x.orValue("") == ""', "FFFEFFFFT"),
        (f'{A}.?x.orValue("") != ""', "TTTTTTTTF"),
        (f'{A}.?x.orValue("") in ["", "a"]', "FFFEFFFFT"),
        (f"{A}.?x.orValue(false) == false", "FFFEFFFFT"),
        (f"!{A}.?x.orValue(false)", "EEFEEEEET"),
        (f"{A}.?x.orValue(0) < 1", "EFEEEEEET"),
        (f"{A}.?x.orValue(0) != 1", "TFTTTTTTT"),
    ],
)
def test_a_value_of_each_type_is_to_a_selector_what_it_is_to_the_scheduler(expression: str, verdicts: str) -> None:
    terms = simple_cel.read(expression)
    assert terms is not None
    for (kind, value), verdict in zip(TYPES.items(), verdicts, strict=True):
        attributes = {} if value is None else {"dra.net/x": value}
        assert simple_cel.hold(terms, "dra.net", attributes) is (verdict == "T"), kind


def test_nothing_holds_of_a_value_that_is_not_known_here() -> None:
    for expression in (f'{A}.x != "a"', f"{A}.x != 1", f'{A}.?x.orValue("") == ""', f"!{A}.?x.orValue(false)"):
        terms = simple_cel.read(expression)
        assert terms is not None
        assert not simple_cel.hold(terms, "dra.net", {"dra.net/x": Other("", "1.5")})


@pytest.mark.parametrize(
    "expression",
    [
        "", "true", f"{A}.rdma || {A}.virtual", f'{A}.ifName.matches("^eth")', f"has({A}.rdma)", f"{A}.rdma ? 1 : 2",
        f"{A}.numaNode + 1 == 1", f"{A}.numaNode == {A}.mtu", f"!({A}.rdma)", f"{A}.rdma ==", f"{A}.rdma == true &&",
        f"{A}.rdma == true {A}.virtual", f"({A}.rdma", f'{A}.name == "a\\"b"', 'device.capacity["dra.net"].x == 1',
        f"{A}.numaNode == 1.5", f"{A}.numaNode == 1u", f"{A}.rdma < true", f"{A}.rdma in []", "device", "device.",
        f"{A}.version.compareTo(semver('1.0.0')) > 0", f"{A}.rdma == null", "(" * 70 + f"{A}.rdma" + ")" * 70,
        " && ".join([f"{A}.rdma"] * 65), f'{A}.rdmaDevice == "{"x" * 5000}"', "\ud800",
        f"{A}.numaNode == 9999999999999999999", f'{A}.numaNode in [1, "1"]', "device.driver", "!device.driver",
        "device.driver == 1", "device.driver in [true]",
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_left_to_the_scheduler(expression: str) -> None:
    assert simple_cel.read(expression) is None
