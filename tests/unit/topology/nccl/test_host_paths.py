"""A virtual machine's file with the paths of the server below it."""

from __future__ import annotations

import msgspec
import pytest

from dradriver.topology import nccl, profiles
from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Machine, Nic, NumaNode, PathType, PciDevice
from dradriver.topology.nccl.host_paths import lost

GUEST = profiles.load("h100-x8-flat-vm")


def change(machine: Machine, **fields: object) -> Machine:
    return msgspec.structs.replace(machine, **fields)


def guest(*nics: Nic, numa: tuple[int, ...] = (0,)) -> Machine:
    nodes = tuple(NumaNode(id=n, cpus=f"{8 * n}-{8 * n + 7}") for n in numa)
    return change(GUEST, numa=nodes, nics=nics, nic_paths=((PathType.PHB,) * 8,) * len(nics))


def beside(text: str) -> dict[str, list[int]]:
    """Positions of the GPUs on each NIC's own switch."""
    machine = nccl.read(text)
    rows = zip(machine.nics, machine.nic_paths, strict=True)
    return {nic.pci: [i for i, path in enumerate(row) if path <= PathType.PXB] for nic, row in rows}


@pytest.mark.parametrize("server", ["hgx-h100", "dgx-h100", "dgx-a100"])
def test_only_nics_next_to_gpus_are_matched(server: str) -> None:
    """A DGX has cards for storage between those for the GPUs."""
    like = profiles.load(server)
    found = beside(nccl.write(GUEST, like=like))
    wanted = [row for row in like.nic_paths if min(row) <= PathType.PXB]
    assert [found[nic.pci] for nic in GUEST.nics] == [
        [i for i, path in enumerate(row) if path <= PathType.PXB] for row in wanted
    ]
    assert all(found[nic.pci] for nic in GUEST.nics)


def test_a_guests_card_of_another_kind_stays_where_sys_has_it() -> None:
    front = Nic(name="eth0", pci="0000:05:00.0", kind="ethernet", gbps=12.5)
    slow = Nic(name="mlx5_8", pci="0000:06:00.0", kind="roce", gbps=3.125)
    found = beside(nccl.write(guest(front, *GUEST.nics, slow), like=profiles.load("dgx-h100")))
    assert found["0000:05:00.0"] == found["0000:06:00.0"] == []
    assert [found[nic.pci] for nic in GUEST.nics] == [[n] for n in range(8)]


def test_a_servers_virtual_functions_are_not_its_cards() -> None:
    server = profiles.load("hgx-h100")
    functions = tuple(
        Nic(name=f"{nic.name}_v", pci=f"0000:f{n}:00.1", numa=nic.numa, kind=nic.kind, gbps=nic.gbps, parent=nic.name)
        for n, nic in enumerate(server.nics)
    )
    both = [part for pair in zip(functions, server.nics, strict=True) for part in pair]
    rows = [row for row in server.nic_paths for _ in range(2)]
    shown = change(server, nics=tuple(both), nic_paths=tuple(rows))
    assert nccl.write(GUEST, like=shown) == nccl.write(GUEST, like=server)


@pytest.mark.parametrize(
    ("nics", "server", "says"),
    [
        (
            GUEST.nics[:4],
            "dgx-h100",
            "dgx-h100: the server has 8 NICs near its GPUs (12 in total), but this machine has 4 (",
        ),
        (GUEST.nics, "l40s-x8", "l40s-x8: the server has 2 NICs near its GPUs (2 in total), but this machine has 8 ("),
        (GUEST.nics[:2], "h100-pcie-x8-bridge-pairs", "0 NICs near its GPUs (0 in total), but this machine has 2 ("),
    ],
)
def test_nics_that_cannot_be_told_apart_are_refused(nics: tuple[Nic, ...], server: str, says: str) -> None:
    with pytest.raises(TopologyError) as caught:
        nccl.write(guest(*nics), like=profiles.load(server))
    assert says in str(caught.value)
    assert "Write a file of the server that has only the NICs of this machine, in the same order." in str(caught.value)


def test_a_server_with_another_number_of_gpus_is_refused() -> None:
    with pytest.raises(
        TopologyError, match=r"dgx2-v100: .*16 GPUs, but this machine has 8\. Name a server with the same number"
    ):
        nccl.write(GUEST, like=profiles.load("dgx2-v100"))


def test_without_nics_the_paths_between_gpus_are_taken() -> None:
    again = nccl.read(nccl.write(guest(numa=(0, 1)), like=profiles.load("dgx1-v100")))
    assert again.paths[0][1] is PathType.PIX
    assert not again.nics


def test_what_the_guests_sys_says_of_its_devices_is_kept() -> None:
    """Graphics cards are 0x030000, and a class or id that is not /sys's makes NCCL see a device twice."""
    seen = [PciDevice(g.pci, None, None, "0x030000", "10de:2684:10de:16c1", "16.0 GT/s PCIe", 8) for g in GUEST.gpus]
    seen += [PciDevice(nic.pci, None, None, "0x020700", "15b3:101e:15b3:0023", "odd", 0) for nic in GUEST.nics]
    unnamed = tuple(msgspec.structs.replace(nic, kind="") for nic in GUEST.nics)
    machine = change(GUEST, pci=tuple(seen), nics=unnamed)
    text = nccl.write(machine, like=profiles.load("hgx-h100"))
    assert nccl.check(text, machine=machine) == []
    leaves = {device.busid: device for device in nccl.read(text).pci}
    for device in seen:
        there = leaves[device.busid]
        assert (there.kind, there.ids) == (device.kind, device.ids)
    assert (leaves["0000:0f:00.0"].link_speed, leaves["0000:0f:00.0"].link_width) == ("16.0 GT/s PCIe", 8)
    assert leaves["0000:17:00.0"].link_speed == "32.0 GT/s PCIe"


def test_a_guest_with_the_servers_numa_nodes_gets_its_sockets() -> None:
    server, machine = profiles.load("hgx-h100"), guest(*GUEST.nics, numa=(0, 1))
    text = nccl.write(machine, like=server)
    assert nccl.check(text, machine=machine) == []
    again = nccl.read(text)
    assert [gpu.numa for gpu in again.gpus] == [gpu.numa for gpu in server.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [nic.numa for nic in again.nics] == [nic.numa for nic in server.nics]
    assert again.paths[0][3:5] == (PathType.NODE, PathType.SYS)
    assert 'numaid="-1"' not in text
    assert lost(machine, like=server) == []


def test_what_a_guest_without_them_loses_is_said() -> None:
    server = profiles.load("hgx-h100")
    text = nccl.write(GUEST, like=server)
    assert nccl.read(text).numa[0].id == 0
    assert lost(GUEST, like=server) == [
        "hgx-h100 has GPUs on NUMA nodes 0, 1, this machine has 0: in the file, devices of several sockets are below "
        "one CPU. NCCL then treats the path between them as a path within a socket. Give the virtual machine the NUMA "
        "nodes of the server"
    ]
    one = change(server, gpus=tuple(msgspec.structs.replace(g, numa=0) for g in server.gpus))
    near = tuple(tuple(min(path, PathType.NODE) for path in row) for row in one.paths)
    nics = tuple(tuple(min(path, PathType.NODE) for path in row) for row in one.nic_paths)
    assert lost(GUEST, like=change(one, paths=near, nic_paths=nics)) == []


def test_numa_nodes_that_the_guest_knows_stay() -> None:
    server = profiles.load("hgx-h100")
    shown = guest(*GUEST.nics, numa=(0, 1, 2))
    gpus = tuple(msgspec.structs.replace(gpu, numa=1 + i // 4) for i, gpu in enumerate(shown.gpus))
    machine = change(shown, gpus=gpus)
    again = nccl.read(nccl.write(machine, like=server))
    assert [gpu.numa for gpu in again.gpus] == [1, 1, 1, 1, 2, 2, 2, 2]
    assert [nic.numa for nic in again.nics] == [1, 1, 1, 1, 2, 2, 2, 2]  # beside their GPUs
    assert lost(machine, like=server) == []


def test_numa_nodes_that_contradict_the_order_of_devices_are_refused() -> None:
    shown = guest(*GUEST.nics, numa=(0, 1))
    gpus = tuple(msgspec.structs.replace(gpu, numa=i % 2) for i, gpu in enumerate(shown.gpus))
    with pytest.raises(TopologyError) as caught:
        nccl.write(change(shown, gpus=gpus), like=profiles.load("hgx-h100"))
    assert str(caught.value) == (
        "hgx-h100: its GPU0 and GPU1 are on one NUMA node, but this machine's are on 0 and 1. So its devices are in "
        "another order. Write a file of the server with the devices in the order of this machine."
    )
