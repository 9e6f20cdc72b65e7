"""NCCL_IB_HCA: which cards a container's GPUs have near, in words that NCCL reads as they are meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.api.slices import resource_slices
from dradriver.node.claims import near_nics
from dradriver.node.claims.prepare_plan import plan
from dradriver.topology import profiles
from dradriver.topology.machine import Machine, Nic, PathType
from tests.fakes.node import BOOT, NODE, Object, claim, container_env, device_manager, parameters, result, typed


def as_nccl_reads(value: str, devices: Mapping[str, Sequence[int]]) -> set[tuple[str, int]]:
    """The ports that NCCL takes of those that it finds active, as ``parseStringList`` and ``matchIfList`` read a value.

    misc/utils.cc and transport/net_ib/init.cc: 32 entries of 64 bytes at most, a name ends at a colon or comma.
    """
    exclude, value = value.startswith("^"), value.removeprefix("^")
    exact, value = value.startswith("="), value.removeprefix("=")
    entries = []
    for entry in value.split(","):
        name, colon, port = entry.partition(":")
        assert len(name) < 64, "it would write past its array"
        if name:
            entries.append((name, int(port.partition(":")[0]) if colon else -1))
    found = {
        (device, port)
        for device, ports in devices.items()
        for port in ports
        if any(
            (device == name if exact else device.startswith(name)) and number in (-1, port)
            for name, number in entries[:32]
        )
    }
    return {(device, port) for device, ports in devices.items() for port in ports} - found if exclude else found


def up(machine: Machine) -> dict[str, tuple[int, ...]]:
    return {nic.name: (1,) for nic in machine.nics}


def with_nics(machine: Machine, *nics: Nic, paths: Sequence[Sequence[PathType]]) -> Machine:
    return msgspec.structs.replace(machine, nics=nics, nic_paths=tuple(map(tuple, paths)))


@pytest.mark.parametrize("name", profiles.names())
def test_every_gpu_of_every_machine_gets_its_nearest_cards_and_no_other(name: str) -> None:
    machine = profiles.load(name)
    able = [n for n, nic in enumerate(machine.nics) if nic.kind in ("infiniband", "roce")]
    for gpu in range(len(machine.gpus)):
        value, why = near_nics.hca(machine, [gpu], up(machine))
        assert bool(value) != bool(why)
        taken = {device for device, _ in as_nccl_reads(value, up(machine))} if value else set()
        best = min((machine.nic_paths[n][gpu] for n in able), default=None)
        nearest = {machine.nics[n].name for n in able if machine.nic_paths[n][gpu] == best}
        assert taken == (set() if machine.vendor.word == "ascend" else nearest)


def test_pods_on_one_machine_use_different_cards() -> None:
    machine = profiles.load("hgx-h100")
    (first, _), (last, _) = (near_nics.hca(machine, gpus, up(machine)) for gpus in ([0, 1, 2, 3], [4, 5, 6, 7]))
    a, b = (as_nccl_reads(value, up(machine)) for value in (first, last))
    assert len(a) == len(b) == 4
    assert not a & b


def test_pxb_is_near_where_nothing_is_nearer() -> None:
    """On MI300 servers every GPU's card is behind switches of its own."""
    four = profiles.load("dgx1-v100").subset([0, 1])
    paths = [[PathType.PXB, PathType.SYS], [PathType.SYS, PathType.PXB], [PathType.SYS, PathType.SYS]]
    nics = [Nic(name=f"mlx5_{n}", kind="roce") for n in range(3)]
    machine = with_nics(four, *nics, paths=paths)
    assert near_nics.hca(machine, [0], up(machine)) == ("=mlx5_0:1", "")
    assert near_nics.hca(machine, [0, 1], up(machine)) == ("=mlx5_0:1,mlx5_1:1", "")


def test_names_are_whole_and_ports_are_numbers() -> None:
    one = profiles.load("dgx1-v100").subset([0])
    nics = [Nic(name=f"mlx5_{n}", kind="infiniband") for n in (1, 10)]
    machine = with_nics(one, *nics, paths=[[PathType.PIX], [PathType.SYS]])
    devices = {"mlx5_1": (1, 2), "mlx5_10": (1, 2), "mlx5_11": (1,)}
    value, _ = near_nics.hca(machine, [0], {"mlx5_1": (2,), "mlx5_10": (1, 2)})
    assert value == "=mlx5_1:2"
    assert as_nccl_reads(value, devices) == {("mlx5_1", 2)}
    assert as_nccl_reads("mlx5_1:2", devices) > {("mlx5_1", 2)}, "which is why names are said to be whole"


def test_ports_that_are_not_active_are_left_out_and_give_no_cards_of_others() -> None:
    machine = profiles.load("hgx-h100")
    whole, _ = near_nics.hca(machine, [0, 1], up(machine))
    (of_first, _), (of_second, _) = (near_nics.hca(machine, [gpu], up(machine)) for gpu in (0, 1))
    down = of_first.removeprefix("=").partition(":")[0]
    left = {name: ports for name, ports in up(machine).items() if name != down}
    assert near_nics.hca(machine, [0, 1], left) == (of_second, "")
    assert as_nccl_reads(whole, up(machine)) == as_nccl_reads(of_first, up(machine)) | as_nccl_reads(
        of_second, up(machine)
    )
    value, why = near_nics.hca(machine, [0], left)
    assert value == ""
    assert why == f"none of the nearest network cards ({down}) has an active port"


def test_a_function_is_near_what_its_parent_is_near_and_comes_last() -> None:
    one = profiles.load("dgx1-v100").subset([0, 1])
    nics = [
        Nic(name="mlx5_0", kind="roce"),
        *(Nic(name=f"mlx5_{n}", kind="roce", parent="mlx5_40" if n % 2 else "mlx5_0") for n in range(1, 40)),
        Nic(name="mlx5_40", kind="roce"),
    ]
    far = [PathType.SYS, PathType.SYS]
    paths = [[PathType.PIX, PathType.SYS], *[far] * 39, [PathType.PIX, PathType.SYS]]
    machine = with_nics(one, *nics, paths=paths)
    value, _ = near_nics.hca(machine, [0], up(machine))
    said = value.removeprefix("=").split(",")
    assert said[:2] == ["mlx5_0:1", "mlx5_40:1"]
    assert len(said) == 32, "NCCL reads no more"
    assert as_nccl_reads(value, up(machine)) == {(name.partition(":")[0], 1) for name in said}


@pytest.mark.parametrize("name", ["a,b", "a:b", "^a", "=a", "x" * 64, "a b", ""])
def test_a_name_that_nccl_would_read_otherwise_is_left_out(name: str) -> None:
    one = profiles.load("dgx1-v100").subset([0])
    nics = [Nic(name=name, kind="roce"), Nic(name="mlx5_0", kind="roce")]
    machine = with_nics(one, *nics, paths=[[PathType.PIX], [PathType.PIX]])
    assert near_nics.hca(machine, [0], {name: (1,), "mlx5_0": (1,)}) == ("=mlx5_0:1", "")


@pytest.mark.parametrize("kind", ["efa", "ethernet", ""])
def test_cards_that_nccls_verbs_do_not_use_are_none(kind: str) -> None:
    one = profiles.load("dgx1-v100").subset([0])
    machine = with_nics(one, Nic(name="x0", kind=kind), paths=[[PathType.PIX]])
    value, why = near_nics.hca(machine, [0], {"x0": (1,)})
    assert value == ""
    assert "no network card that does InfiniBand or RoCE" in why


# In a claim.


def env(obj: Object, on: Machine, *, below: str | None = None, **more: Any) -> list[str]:
    server = None if below is None else profiles.load(below)
    teller = container_env(**{"ports": up} | more)
    done = plan(typed(obj), on, device_manager(), teller, node=NODE, boot=BOOT, below=server).claim
    return [one for dev in done.devices for one in dev.edits.env if one.startswith("NCCL_IB")]


def of_gpus(on: Machine, gpus: Sequence[int], **config: Any) -> Object:
    results = [result("gpu", resource_slices.device_name(on.gpus[i].uuid)) for i in gpus]
    return claim("c", results=results, config=[parameters(**config)])


MACHINE = profiles.load("hgx-h100", seed=NODE)


@pytest.mark.parametrize("nccl", ["auto", "off", None])
def test_it_is_set_only_where_it_is_asked_for(nccl: str | None) -> None:
    assert env(of_gpus(MACHINE, [0], nccl=nccl), MACHINE) == []


def test_a_container_is_told_its_own_gpus_cards() -> None:
    (value,) = env(of_gpus(MACHINE, [0, 1], nccl="near-nics"), MACHINE)
    assert value == "NCCL_IB_HCA=" + near_nics.hca(MACHINE, [0, 1], up(MACHINE))[0]
    names_of = {
        name: [resource_slices.device_name(MACHINE.gpus[i].uuid) for i in gpus] for name, gpus in REQUESTS.items()
    }
    results = [result(name, one) for name, some in names_of.items() for one in some]
    two = claim("c", results=results, config=[parameters(nccl="near-nics")])
    assert env(two, MACHINE) == [
        f"NCCL_IB_HCA={near_nics.hca(MACHINE, gpus, up(MACHINE))[0]}" for gpus in REQUESTS.values()
    ]


REQUESTS = {"a": [0, 1], "b": [6]}


def test_rccl_is_told_too_and_hccl_is_said_not_to_be() -> None:
    amd, ascend = profiles.load("mi300x-x8", seed=NODE), profiles.load("ascend-910b-x8", seed=NODE)
    heard: list[str] = []
    assert env(of_gpus(amd, [0], nccl="near-nics"), amd) == [f"NCCL_IB_HCA={near_nics.hca(amd, [0], up(amd))[0]}"]
    assert env(of_gpus(ascend, [0], nccl="near-nics"), ascend, not_told=lambda _, said: heard.append(said)) == []
    assert heard == ["NCCL_IB_HCA is not set in the containers, because HCCL does not read it."]


def test_the_authors_own_stands() -> None:
    asked = of_gpus(MACHINE, [0], nccl="near-nics", keep_env=["NCCL_IB_HCA"])
    assert env(asked, MACHINE) == []
    assert env(of_gpus(MACHINE, [0], nccl="near-nics", keep_env=["NCCL_DEBUG"]), MACHINE) != []


def test_a_claim_with_cards_of_another_driver_is_told_nothing() -> None:
    obj = of_gpus(MACHINE, [0], nccl="near-nics")
    obj["status"]["allocation"]["devices"]["results"].append(
        {"request": "nic", "driver": "dra.net", "pool": NODE, "device": "pci-0000-18-00-0"}
    )
    heard: list[str] = []
    assert env(obj, MACHINE, not_told=lambda _, said: heard.append(said)) == []
    assert heard == ["NCCL_IB_HCA is not set in the containers, because the claim has devices of dra.net too."]


def test_a_gangs_seat_is_no_card() -> None:
    obj = of_gpus(MACHINE, [0], nccl="near-nics")
    obj["status"]["allocation"]["devices"]["results"].append(
        {"request": "seat", "driver": names.DRIVER, "pool": names.SEAT_POOL, "device": "seat"}
    )
    assert len(env(obj, MACHINE)) == 1


@pytest.mark.parametrize(
    ("ports", "why"),
    [(lambda _: None, "were not read yet"), (lambda _: {}, "has an active port")],
)
def test_where_there_is_no_set_it_is_said_why(ports: Any, why: str) -> None:
    heard: list[tuple[str, str]] = []
    teller = container_env(ports=ports, not_told=lambda of, said: heard.append((of.metadata.name, said)))
    for _ in range(3):
        obj = typed(of_gpus(MACHINE, [0], nccl="near-nics"))
        done = plan(obj, MACHINE, device_manager(), teller, node=NODE, boot=BOOT).claim
        assert not any("NCCL_IB_HCA" in one for one in done.devices[0].edits.env)
    assert len(set(heard)) == 1
    assert heard[0][0] == "c"
    assert heard[0][1].startswith("NCCL_IB_HCA is not set in the containers, because ")
    assert why in heard[0][1]


def test_in_a_flat_virtual_machine_the_server_below_says_which_are_near() -> None:
    vm = profiles.load("h100-x8-flat-vm", seed=NODE)
    able = {nic.name for nic in vm.nics if nic.kind in ("infiniband", "roce")}
    asked = of_gpus(vm, [2], nccl="near-nics")
    (flat,) = env(asked, vm)
    assert {name for name, _ in as_nccl_reads(flat.partition("=")[2], up(vm))} == able
    (known,) = env(asked, vm, below="hgx-h100")
    assert len(as_nccl_reads(known.partition("=")[2], up(vm))) < len(able)
