from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.errors import DriverError
from dradriver.topology import cpulist
from dradriver.topology.check import check
from dradriver.topology.machine import Cpu, Gpu, Machine, MigDevice, MigProfile, Nic, NumaNode, PathType, PciDevice
from dradriver.topology.nccl import nccl_bandwidths
from dradriver.topology.pcie_paths import Place, path_matrix
from dradriver.topology.profiles import simulated_mig_profiles
from dradriver.topology.synthetic import synthetic_uuid
from tests.effort import examples
from tests.fakes.hardware import Server
from tests.fakes.server import arranged
from tests.strategies import link_matrices

pytestmark = pytest.mark.slow

CPUS = (
    Cpu(arch="x86_64", vendor="GenuineIntel", family=6, model=143),
    Cpu(arch="x86_64", vendor="AuthenticAMD", family=25, model=1),
    Cpu(arch="arm64"),
    Cpu(arch="ppc64"),
)
NAMES = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), max_size=20).filter(
    lambda name: not name.startswith("!")
)
SPEEDS = st.sampled_from(("", "8 GT/s", "16.0 GT/s PCIe", "32.0 GT/s PCIe"))
SWITCHES = ((), (), ("s0",), ("s1",), ("s0", "s2"), ("s0", "s3"), ("s0", "s3", "s4"))


@st.composite
def places(draw: st.DrawFn) -> Place:
    """A place below one of three roots, each on a NUMA node of its own or on one that is not known."""
    root = draw(st.integers(0, 2))
    return Place(numa=(0, 1, None)[root], root=f"pci0000:{root}0", switches=draw(st.sampled_from(SWITCHES)))


@st.composite
def mig_devices(draw: st.DrawFn, gpu: int, profiles: tuple[MigProfile, ...]) -> tuple[MigDevice, ...] | None:
    if draw(st.integers(0, 3)):
        return None
    slots = draw(st.sets(st.integers(0, 6), max_size=7))
    found = []
    for slot in sorted(slots):
        profile = draw(st.sampled_from((None, *profiles)))
        found.append(
            MigDevice(
                slot,
                synthetic_uuid("mig", 10 * gpu + slot).replace("GPU", "MIG"),
                slot + draw(st.integers(0, 1)),
                0,
                draw(st.sampled_from(("1g.10gb", "1c.3g.40gb", "1g.5gb+me"))) if profile is None else profile.name,
                9984,
                None if profile is None else profile.id,
                None if profile is None else draw(st.sampled_from(profile.starts)),
            )
        )
    by_instance = {one.gpu_instance: one for one in found}
    return tuple(one for one in found if one is by_instance[one.gpu_instance])


@st.composite
def servers(draw: st.DrawFn) -> Machine:
    """A machine of which everything is known and true: hardware that says so can exist."""
    count = draw(st.integers(1, 6))
    homes = [draw(places()) for _ in range(count)]
    cpu = draw(st.sampled_from(CPUS))
    virtual = draw(st.booleans())
    capability = draw(st.sampled_from(((7, 0), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0))))
    sm = capability[0] * 10 + capability[1]
    direct = draw(link_matrices(gpus=count, most=3))
    switched = draw(st.lists(st.sampled_from((0, 0, 6, 18)), min_size=count, max_size=count))
    links = tuple(
        tuple(0 if i == j else direct[i][j] + min(switched[i], switched[j]) for j in range(count)) for i in range(count)
    )
    linked = any(switched) or any(map(any, direct))
    rows: list[list[PathType]] = [[PathType.SELF] * count for _ in range(count)]
    for i in range(count):
        for j in range(i):  # NVML's word, whatever /sys looks like
            rows[i][j] = rows[j][i] = draw(st.sampled_from(list(PathType)[1:]))
    paths = tuple(tuple(row) for row in rows)
    indices = sorted(draw(st.sets(st.integers(0, 8), min_size=count, max_size=count)))
    minors = draw(st.permutations(range(count)))
    nics, nic_homes = draw(network(gpus=homes))
    below: dict[str | None, list[PciDevice]] = {}
    fabric = draw(st.sampled_from(("", "6c8e2a54-0f3d-4b7e-9a51-3d2f8b6c4e10.32766")))
    gpus = []
    for i, home in enumerate(homes):
        of_gpu = simulated_mig_profiles.profiles(
            draw(st.sampled_from(("", "NVIDIA A30", "NVIDIA A100-SXM4-40GB", "NVIDIA H200")))
        )
        device = draw(
            hang(below, home, f"0000:{i + 1:02x}:00.0", kind="0x030200", ids="10de:2330:10de:16c1", flat=virtual)
        )
        known = device.link_speed in nccl_bandwidths.LINK_SPEEDS
        gpus.append(
            Gpu(
                index=indices[i],
                uuid=synthetic_uuid("box", i),
                minor=minors[i],
                pci=device.busid,
                pcie_root=home.root,
                numa=home.numa,
                product=draw(NAMES),
                architecture=nccl_bandwidths.architecture(sm),
                compute_capability=f"{capability[0]}.{capability[1]}",
                memory_mib=draw(st.integers(0, 1 << 20)),
                power_watts=draw(st.integers(0, 2000)),
                pcie_gbps=nccl_bandwidths.pci_gbps(device.link_speed, device.link_width) if known else 24.0,
                switch_links=switched[i],
                c2c_gbps=draw(st.sampled_from((0.0, 223.56))),
                fabric=fabric,
                mig=draw(mig_devices(i, of_gpu)),
                profiles=of_gpu,
            )
        )
    for nic, home in zip(nics, nic_homes, strict=True):
        if nic.pci:
            vendor = "1d0f" if nic.kind == "efa" else "15b3"
            kind = "0x020700" if nic.kind == "infiniband" else "0x020000"
            draw(hang(below, home, nic.pci, kind=kind, ids=f"{vendor}:1021:{vendor}:0041", flat=virtual))
    cpus = ("0-7", "8-15,24-31", "")
    return check(
        Machine(
            name=draw(NAMES),
            gpus=tuple(gpus),
            links=links,
            paths=paths,
            nics=tuple(nics),
            nic_paths=path_matrix(tuple(nic_homes), tuple(homes)),
            numa=tuple(NumaNode(id=3 * n, cpus=c, cpumap=cpulist.to_mask(c, count=32)) for n, c in enumerate(cpus)),
            link_gbps=nccl_bandwidths.link_gbps(sm) if linked else 0.0,
            socket_gbps=nccl_bandwidths.socket_gbps(cpu),
            driver_version=draw(st.sampled_from(("", "580.95.05", "470.256.02"))),
            cpu=cpu,
            pci=arranged(below),
            virtual=virtual,
        )
    )


@st.composite
def network(draw: st.DrawFn, *, gpus: list[Place]) -> tuple[list[Nic], list[Place]]:
    """NICs of one sort (RDMA or Ethernet), some of them virtual functions or bonds, and where they hang."""
    ethernet = draw(st.booleans())
    nics: list[Nic] = []
    homes: list[Place] = []
    for n in range(draw(st.integers(0, 4))):
        bond = draw(st.sampled_from((False, False, True)))
        # A bond beside a GPU, so that its place can be told from its paths alone.
        home = draw(st.sampled_from(gpus)) if bond else draw(places())
        functions = [nic.name for nic in nics if nic.pci]
        nics.append(
            Nic(
                name=f"eth{n}" if ethernet else f"mlx5_{n}",
                pci="" if bond else f"0000:{n + 64:02x}:00.0",
                numa=home.numa,
                kind="ethernet"
                if ethernet
                else draw(st.sampled_from(("infiniband", "roce") if bond else ("infiniband", "roce", "efa"))),
                gbps=draw(st.sampled_from((0.0, 0.125, 12.5, 50.0))),
                parent=draw(st.sampled_from(("", *functions))) if not bond else "",
                members=(f"p{n}f0", f"p{n}f1") if bond else (),
            )
        )
        homes.append(Place(numa=home.numa, root=home.root, switches=home.switches))
    return nics, homes


@st.composite
def hang(
    draw: st.DrawFn,
    below: dict[str | None, list[PciDevice]],
    home: Place,
    busid: str,
    *,
    kind: str,
    ids: str,
    flat: bool,
) -> PciDevice:
    """The device, hung into the tree with the bridges that its place has."""
    above: str | None = None
    for depth in range(len(home.switches)):
        way = f"{home.root}/{'/'.join(home.switches[: depth + 1])}"
        number = sorted({"/".join(s[: d + 1]) for s in SWITCHES for d in range(len(s))}).index(way.partition("/")[2])
        bridge = f"0000:{200 + int(way[8]):02x}:{number:02x}.0"
        if all(one.busid != bridge for one in below.get(above, ())):
            width = 0 if flat and above is None else 16
            speed = draw(SPEEDS)
            below.setdefault(above, []).append(PciDevice(bridge, None, home.numa, "0x060400", "", speed, width))
        above = bridge
    width = 0 if flat and above is None else draw(st.sampled_from((0, 4, 16)))
    device = PciDevice(busid, None, home.numa, kind, ids, draw(SPEEDS), width)
    below.setdefault(above, []).append(device)
    return device


def on_disk(machine: Machine, use: Callable[[Server], None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        use(Server(machine, Path(folder)))


@settings(max_examples=examples(60))
@given(servers())
def test_every_machine_is_read_as_it_is(machine: Machine) -> None:
    def use(server: Server) -> None:
        assert server.read().machine == machine

    on_disk(machine, use)


CODES = st.sampled_from((2, 3, 4, 13, 15, 16, 25, 999))


@settings(max_examples=examples(60))
@given(servers(), st.data())
def test_what_fails_costs_no_other(machine: Machine, data: st.DataObject) -> None:
    def use(server: Server) -> None:
        # The engines of a profile are no query of their own.
        about = sorted(key for key in server.table if key.count(" ") >= 1 and not key.startswith("profile engines "))
        failing = data.draw(st.lists(st.tuples(st.sampled_from(about), CODES), min_size=1, max_size=8))
        touched = set()
        for query, code in failing:
            server.fail(query, code)
            function, *arguments = query.split()
            pair = "CommonAncestor" in function or "P2PStatus" in function
            touched |= {int(name.partition("/")[0]) for name in (arguments[-2:] if pair else arguments[:1])}
        lost = data.draw(st.none() | st.sampled_from([gpu.index for gpu in machine.gpus]))
        if lost is not None:
            server.table[f"lost {lost}"] = str(data.draw(st.integers(0, 40)))
            touched.add(lost)
        sound = [gpu for gpu in machine.gpus if gpu.index not in touched]
        try:
            read = server.read().machine
        except DriverError:
            assert not sound
            return
        found = {gpu.uuid: i for i, gpu in enumerate(read.gpus)}
        whole = {gpu.uuid: i for i, gpu in enumerate(machine.gpus)}
        for a in sound:
            assert read.gpus[found[a.uuid]] == a
            for b in sound:
                for matrix in ("links", "paths"):
                    mine = getattr(read, matrix)[found[a.uuid]][found[b.uuid]]
                    assert mine == getattr(machine, matrix)[whole[a.uuid]][whole[b.uuid]]
        for a_uuid, i in found.items():  # a failure never invents a link
            for b_uuid, j in found.items():
                assert read.links[i][j] <= machine.links[whole[a_uuid]][whole[b_uuid]]

    on_disk(machine, use)


NONSENSE = st.one_of(
    st.sampled_from(
        ("4294967295", str(2**64 - 1), "-1", "100 100 100 \udcff", "\udced\udca0\udc80", "\x07", "0000:99:00.0")
    ),
    st.integers(100, 2**66).map(str),
    st.text(st.characters(codec="utf-8", exclude_characters="\n\0!"), min_size=1, max_size=99),
)


@settings(max_examples=examples(60))
@given(servers(), st.data())
def test_what_is_nonsense_costs_no_other(machine: Machine, data: st.DataObject) -> None:
    def use(server: Server) -> None:
        victim = data.draw(st.sampled_from(machine.gpus)).index
        about = sorted(key for key in server.table if key.split()[1:] and key.split()[1].split("/")[0] == str(victim))
        for query in data.draw(st.lists(st.sampled_from(about), min_size=1, max_size=8)):
            if "CommonAncestor" not in query and "P2PStatus" not in query:
                # Text is minor number 0, which another GPU may have: no two with one are handed out.
                numbers = "MinorNumber" in query
                server.table[query] = str(data.draw(st.integers(100, 2**66))) if numbers else data.draw(NONSENSE)
        try:
            read = server.read().machine
        except DriverError:
            assert len(machine.gpus) == 1
            return
        found = {gpu.uuid: i for i, gpu in enumerate(read.gpus)}
        whole = {gpu.uuid: i for i, gpu in enumerate(machine.gpus)}
        for a in machine.gpus:
            for b in machine.gpus:
                if victim not in (a.index, b.index):
                    assert read.gpus[found[a.uuid]] == a
                    for matrix in ("links", "paths"):
                        mine = getattr(read, matrix)[found[a.uuid]][found[b.uuid]]
                        assert mine == getattr(machine, matrix)[whole[a.uuid]][whole[b.uuid]]

    on_disk(machine, use)


JUNK = st.sampled_from((b"", b"\xff\xfe", b"-1", b"99999999999999999999", b"0x", b"../..", b"\xc2\xb2", b"1 2\n3"))


@settings(max_examples=examples(60))
@given(servers(), st.data(), st.randoms(use_true_random=False))
def test_no_damage_to_sys_hides_a_gpu_or_breaks_a_link(
    machine: Machine, data: st.DataObject, rng: random.Random
) -> None:
    def use(server: Server) -> None:
        files = sorted(path for path in server.sys.root.rglob("*") if path.is_file() or path.is_symlink())
        for path in rng.sample(files, min(len(files), data.draw(st.integers(1, 12)))):
            with suppress(FileNotFoundError):
                if path.is_symlink() or rng.random() < 0.3:
                    path.unlink()
                else:
                    path.write_bytes(data.draw(JUNK))
        read = server.read().machine
        assert [(gpu.uuid, gpu.minor, gpu.switch_links) for gpu in read.gpus] == [
            (gpu.uuid, gpu.minor, gpu.switch_links) for gpu in machine.gpus
        ]
        assert (read.links, read.paths, read.link_gbps) == (machine.links, machine.paths, machine.link_gbps)

    on_disk(machine, use)
