"""Levels of the network from node labels, and where each node stands."""

from __future__ import annotations

import msgspec
import pytest

from dradriver.topology import profiles
from dradriver.topology.machine import Nic
from dradriver.topology.network_levels import CLIQUE, FAMILIES, ZONE, levels_of, location, network_gbps

AWS = "topology.k8s.aws/network-node-layer-"
TIER = "fabric.topograph.run/tier-"
DOMAIN, SUB_DOMAIN = "accelerator.topograph.run/domain", "accelerator.topograph.run/sub-domain"


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_found_by_its_nearest_key(family: dict[str, str]) -> None:
    levels = levels_of([dict.fromkeys(family.values(), "a")])
    assert levels.names == ("fabric", *family, "zone")
    assert levels.keys == (CLIQUE, *family.values(), ZONE)


def test_a_family_that_nine_nodes_of_ten_have_is_taken() -> None:
    with_, without = {f"{AWS}3": "l"}, {ZONE: "z"}
    assert levels_of([with_] * 9 + [without]).names == ("fabric", "leaf", "spine", "core", "zone")
    assert levels_of([with_] * 8 + [without] * 2).names == ("fabric", "zone")
    assert levels_of([]).names == ("fabric", "zone")


def test_the_first_family_of_several_is_taken() -> None:
    both = {f"{AWS}3": "l", "fabric.topograph.run/tier-0": "t"}
    assert levels_of([both]).keys[1] == "fabric.topograph.run/tier-0"


def test_topograph_has_as_many_tiers_as_nine_nodes_of_ten_have() -> None:
    five = {f"{TIER}{number}": f"s{number}" for number in range(5)}
    levels = levels_of([five])
    assert levels.names == ("fabric", "leaf", "spine", "core", "tier-3", "tier-4", "zone")
    assert levels.location(five).domains[1:6] == (
        ("", "s4", "s3", "s2", "s1", "s0"),
        ("", "s4", "s3", "s2", "s1"),
        ("", "s4", "s3", "s2"),
        ("", "s4", "s3"),
        ("", "s4"),
    )
    four = {key: value for key, value in five.items() if key != f"{TIER}4"}
    assert levels_of([five] * 9 + [four]).names[-2:] == ("tier-4", "zone")
    assert levels_of([five] * 8 + [four] * 2).names[-2:] == ("tier-3", "zone")
    gap = {key: value for key, value in five.items() if key != f"{TIER}3"}
    assert levels_of([gap]).names == ("fabric", "leaf", "spine", "core", "zone")
    assert levels_of([gap], [f"{TIER}0", f"{TIER}4"]).names == ("leaf", "tier-4")


def test_a_sub_domain_is_below_its_fabric_and_nests_in_it_alone() -> None:
    one = {f"{TIER}0": "l1", DOMAIN: "d1", SUB_DOMAIN: "rack1"}
    other = {f"{TIER}0": "l2", DOMAIN: "d1", SUB_DOMAIN: "rack1"}
    elsewhere = {f"{TIER}0": "l1", DOMAIN: "d2", SUB_DOMAIN: "rack1"}
    levels = levels_of([one, other, elsewhere, {f"{TIER}0": "l1"}])
    assert levels.names == ("sub-domain", "fabric", "leaf", "spine", "core", "zone")
    locations = [levels.location(labels).domains for labels in (one, other, elsewhere)]
    assert [domains[:2] for domains in locations] == [(("d1/rack1",), ("d1",))] * 2 + [(("d2/rack1",), ("d2",))]
    assert levels.location({SUB_DOMAIN: "rack1"}).domains[0] is None, "it is in no fabric"
    assert levels.location({SUB_DOMAIN: "rack1"}, fabric="u.1").domains[:2] == (("u.1/rack1",), ("u.1",))


def test_a_sub_domain_comes_with_the_fabric_that_configured_levels_lack() -> None:
    labels = {DOMAIN: "d1", SUB_DOMAIN: "rack1"}
    assert levels_of([labels], ["example.com/row"]).names == ("sub-domain", "fabric", "row")
    assert levels_of([labels], [DOMAIN, "example.com/row"]).names == ("fabric", "row"), "as it is written"
    assert levels_of([labels], ["example.com/row", SUB_DOMAIN]).names == ("sub-domain", "fabric", "row")
    assert levels_of([], ["example.com/sub-domain"]).names == ("example.com/sub-domain",)


def test_domains_nest_but_for_a_fabric() -> None:
    levels = levels_of([{f"{AWS}3": "l", f"{AWS}2": "s", f"{AWS}1": "c", ZONE: "z", CLIQUE: "u.1"}])
    one = levels.location({f"{AWS}3": "l", f"{AWS}2": "s1", ZONE: "z", CLIQUE: "u.1"}, gbps=50)
    other = levels.location({f"{AWS}3": "l", f"{AWS}2": "s2", ZONE: "z", CLIQUE: "u.1"})
    assert one.domains == (("u.1",), ("z", "", "s1", "l"), ("z", "", "s1"), None, ("z",))
    assert one.gbps == 50
    assert [a == b for a, b in zip(one.domains, other.domains, strict=True)] == [True, False, False, True, True]


def test_a_node_without_a_label_is_in_no_domain() -> None:
    levels = levels_of([{f"{AWS}3": "l"}])
    assert levels.location({}).domains == (None,) * 5
    assert levels.location({f"{AWS}3": ""}).domains == (None,) * 5
    assert levels.location({}, fabric="u.2").domains[0] == ("u.2",)


def test_configured_keys_go_before_all_that_is_found() -> None:
    found = {f"{AWS}3": "l", "example.com/rack": "r", "example.com/row": "w"}
    levels = levels_of([found], ["example.com/rack", "example.com/row"])
    assert levels.names == ("rack", "row")
    assert levels.location(found).domains == (("w", "r"), ("w",))


def test_a_level_is_nvlinks_by_its_key_not_its_name() -> None:
    levels = levels_of([], ["example.com/fabric", "example.com/row"])
    assert levels.names == ("example.com/fabric", "row")
    assert levels.location({"example.com/row": "w"}, fabric="u.1").domains == (None, ("w",))
    one = levels.location({"example.com/fabric": "f", "example.com/row": "w"}, fabric="u.1")
    assert one.domains == (("w", "f"), ("w",))
    levels = levels_of([], [CLIQUE, "example.com/fabric", "topology.k8s.aws/ultraserver-id", "example.com/row"])
    labels = {"example.com/fabric": "f", "topology.k8s.aws/ultraserver-id": "s", "example.com/row": "w"}
    assert levels.location(labels, fabric="u.1").domains == (("u.1",), ("w", "f"), ("s",), ("w",))


def test_a_fabric_is_below_configured_levels_that_name_none_where_a_node_is_in_one() -> None:
    row = ["example.com/row"]
    assert levels_of([{}], row).names == ("row",)
    assert levels_of([{}], row, fabrics=True).keys == (CLIQUE, "example.com/row")
    ultra = "topology.k8s.aws/ultraserver-id"
    levels = levels_of([{}, {ultra: "s"}], row)
    assert (levels.names, levels.keys) == (("fabric", "row"), (ultra, "example.com/row"))
    assert levels_of([{CLIQUE: "u.1"}], [*row, CLIQUE]).keys == ("example.com/row", CLIQUE), (
        "it stands where it is written"
    )


def test_every_configured_level_has_a_name_of_its_own() -> None:
    keys = [f"{AWS}3", "a.example.com/rack", "b.example.com/rack", "example.com/node", "a.example.com/rack", ZONE]
    names = ("leaf", "rack", "b.example.com/rack", "example.com/node", "zone")
    assert levels_of([], keys).names == names


def test_the_bandwidth_of_a_machines_network() -> None:
    machine = profiles.load("dgx1-v100")

    def with_nics(*nics: Nic) -> float:
        return network_gbps(msgspec.structs.replace(machine, nics=nics))

    rdma = [Nic(name=f"mlx5_{number}", kind="infiniband", gbps=50.0) for number in range(8)]
    function = Nic(name="mlx5_9", kind="infiniband", gbps=50.0, parent="mlx5_0")
    front = Nic(name="eth0", kind="ethernet", gbps=12.5)
    bond = Nic(name="bond0", kind="ethernet", gbps=25.0, members=("eth0", "eth1"))
    assert with_nics(*rdma, function, front) == 400
    assert with_nics(front) == 12.5
    assert with_nics(front, bond) == 25
    assert with_nics(Nic(name="mlx5_0"), *rdma[:1]) == 50
    assert with_nics() == 0


def test_a_part_of_the_network_counts_within_those_around_it() -> None:
    here = location(fabric="f.1", leaf="l1", spine="s1", zone="z1")
    assert here.domains == (("f.1",), ("z1", "s1", "l1"), ("z1", "s1"), ("z1",))
    for there, same in (
        (location(fabric="f.1", leaf="l9", spine="s9", zone="z2"), [True, False, False, False]),
        (location(leaf="l1", spine="s2", zone="z1"), [False, False, False, True]),
        (location(leaf="l1", spine="s1", zone="z2"), [False] * 4),
    ):
        assert [a == b for a, b in zip(here.domains, there.domains, strict=True)] == same


def test_what_is_not_known_is_no_part_of_the_network() -> None:
    assert location().domains == (None,) * 4
    assert location(leaf="l1").domains == (None, ("", "", "l1"), None, None)
