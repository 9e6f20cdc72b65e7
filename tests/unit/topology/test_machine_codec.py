from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dradriver.api.slices import resource_slices
from dradriver.topology import machine_codec, profiles
from dradriver.topology.check import check
from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Cpu, Gpu, Machine, MigDevice, Nic, NumaNode, PathType, PciDevice


@pytest.mark.parametrize("name", profiles.names())
def test_encoding_and_decoding_is_the_identity(name: str) -> None:
    machine = profiles.load(name, seed="node-a")
    if len(machine.gpus) <= 16:
        machine = _with_pci(machine)
    text = machine_codec.encode(machine)
    assert machine_codec.decode(text) == machine_codec.decode(text.encode()) == machine
    assert "\n" not in text


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-a100"])
def test_eight_gpus_with_ten_nics_fit_in_16_kb(name: str) -> None:
    machine = profiles.load(name)
    assert len(machine.nics) >= 10
    long = [msgspec.structs.replace(gpu, product="NVIDIA " + "H" * 57) for gpu in machine.gpus]
    wide = msgspec.structs.replace(_with_pci(machine), gpus=tuple(long), driver_version="580.126.20")
    assert len(machine_codec.encode(wide).encode()) <= 16 * 1024


def _with_pci(machine: Machine) -> Machine:
    """The machine with a bridge, or two, above every GPU and NIC, all facts at full length."""
    tree: list[PciDevice] = []
    words = ("1000:c030:1000:0001", "32.0 GT/s PCIe", 16)
    devices: list[Gpu | Nic] = [*machine.gpus, *machine.nics]
    for n, device in enumerate(devices):
        tree.append(PciDevice(f"f001:{n:02x}:00.0", None, device.numa, "0x060400", *words))
        tree.append(PciDevice(f"f002:{n:02x}:00.0", len(tree) - 1, device.numa, "0x060400", *words))
        tree.append(PciDevice(device.pci or f"f003:{n:02x}:00.0", len(tree) - 1, device.numa, "0x030200", *words))
    return msgspec.structs.replace(
        machine,
        pci=tuple(tree),
        cpu=Cpu(arch="x86_64", vendor="GenuineIntel", family=6, model=143),
        numa=tuple(msgspec.structs.replace(node, cpumap=",".join(["ffffffff"] * 8)) for node in machine.numa),
    )


def _put(path: list[Any], value: object) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for step in path[:-1]:
            document = document[step]
        document[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_put(["version"], 2), "Invalid enum value 2 - at `$.version`"),
        (_put(["gpus", 3, "uuid"], 7), "Expected `str`, got `int` - at `$.gpus[3].uuid`"),
        (_put(["gpus", 3, "uuid"], "GPU_x"), "gpus[3].uuid: 'GPU_x' is not valid. Write what the vendor's tool "
                                             "prints"),
        (_put(["gpus", 3, "uuid"], ""), "gpus[3].uuid: '' is not valid. Write what"),
        (_put(["gpus", 3, "uuid"], "-a"), "gpus[3].uuid: '-a' is not valid. Write what"),
        (_put(["gpus", 3, "uuid"], "a" * 64), "1 to 63 letters, digits"),
        (_put(["gpus", 3, "uuid"], "a\n"), "1 to 63 letters, digits"),
        (_put(["gpus", 3, "index"], 1), "gpus[3].index: 1 is also the value of gpus[1]"),
        (_put(["gpus", 3, "index"], 9), "gpus[4].index: 4 is not above the previous index"),
        (_put(["gpus", 3, "numa"], -1), "gpus[3].numa: -1 is not valid. Write a number of at least 0"),
        (_put(["gpus", 3, "pci"], "06:00.0"), "gpus[3].pci: '06:00.0' is not a PCI address. Write"),
        (_put(["gpus", 3, "switch_links"], -1), "gpus[3].switch_links: -1 is not allowed. Write 0 to 1024"),
        (_put(["gpus"], []), "gpus: the list is empty"),
        (_put(["links", 0, 1], 5), "links[0][1]: 5, but links[1][0] is 1"),
        (_put(["links", 2, 2], 1), "links[2][2]: 1, but a GPU has no link to itself"),
        (_put(["links", 2], [0]), "links[2]: 1 values, but 8 are needed"),
        (_put(["paths"], []), "paths: 0 rows, but 8 are needed"),
        (_put(["paths", 0, 1], 9), "Invalid enum value 9 - at `$.paths[0][1]`"),
        (_put(["paths", 0, 1], 4), "paths[0][1]: 4, but paths[1][0] is 1"),
        (_put(["paths", 1, 1], 1), "paths[1][1]: 1 is not possible here. 0 (self) is on the diagonal"),
        (_put(["nic_paths", 1, 1], 0), "nic_paths[1][1]: 0 (self) is not possible between a NIC and a GPU"),
        (_put(["nics", 1, "name"], "mlx5_0"), "nics[1].name: 'mlx5_0' is empty or occurs twice"),
        (_put(["nics", 1, "pci"], "x"), "nics[1].pci: 'x'"),
        (_put(["numa", 1, "id"], 0), "numa[1].id: 0 is out of order. Write the nodes by id"),
        (_put(["numa", 1, "cpus"], "all"), "numa[1].cpus: 'all' is not a CPU list. Write"),
        (_put(["link_gbps"], -1), "link_gbps: -1"),
        (_put(["gpus", 0, "profiles"], [[19, "1g", 1, 9984, 7, [0], 1]]), "profiles[0].name: '1g' is not a MIG"),
        (_put(["gpus", 0, "profiles"], [[0, "7g.80gb", 7, 1, 1, [12], 8]]), "profiles[0]: 8 slices at (12,) do not"),
        (_put(["gpus", 0, "profiles"], [[0, "1g.5gb", 1, 1, 1, [1, 0], 1]]), "profiles[0].starts: (1, 0) is not"),
        (_put(["gpus", 0, "profiles"], [[0, "1g.5gb", 1, -1, 1, [0], 1]]), "profiles[0].memory_mib: -1"),
        (_put(["gpus", 0, "profiles"], [[0, "1g.5gb", 1, 1, 1, [0], 1]] * 2), "each with a name of its own"),
    ],
)  # fmt: skip
def test_a_broken_document_is_refused_with_the_place(change: Callable[[Any], None], says: str) -> None:
    document = json.loads(machine_codec.encode(profiles.load("dgx1-v100")))
    change(document)
    with pytest.raises(TopologyError) as caught:
        machine_codec.decode(json.dumps(document))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", b"\xff", '{"version":1}', '{"version":1,"x":' + "[" * 100_000, '{"name":"\\ud800"}', "\ud800"],
    ids=["empty", "list", "cut", "bytes", "bare", "deep", "surrogate", "lone"],
)  # fmt: skip
def test_what_is_no_document_is_refused(text: str | bytes) -> None:
    with pytest.raises(TopologyError, match="machine JSON, version 1: "):
        machine_codec.decode(text)


VENDORS = {
    "amd": [f"a5ff75a0-0000-1000-80d3-c6ef08e83a5{n}" for n in range(8)],
    "kfd": [f"0x2f1c0b9a5d3e774{n}" for n in range(8)],
    "ascend": [f"B8A3C2D1-20A0E6F4-7D5B1C3E-8F9A0B1C-4D5E6F7{n}" for n in range(8)],
    "short": list("abcdefgh"),
    "long": [str(n) * 63 for n in range(8)],
}


@pytest.mark.parametrize("uuids", VENDORS.values(), ids=VENDORS)
def test_another_vendors_machine_is_one_too(uuids: list[str]) -> None:
    machine = profiles.load("dgx1-v100")
    gpus = (msgspec.structs.replace(gpu, uuid=uuid) for gpu, uuid in zip(machine.gpus, uuids, strict=True))
    other = msgspec.structs.replace(machine, gpus=tuple(gpus))
    assert machine_codec.decode(machine_codec.encode(other)) == other
    label = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
    assert all(label.fullmatch(resource_slices.device_name(gpu.uuid)) for gpu in other.gpus)


def test_two_ids_that_differ_in_case_alone_would_be_one_device() -> None:
    machine = profiles.load("dgx1-v100")
    twin = msgspec.structs.replace(machine.gpus[1], uuid=machine.gpus[0].uuid.upper())
    with pytest.raises(TopologyError, match=r"gpus\[1\]\.uuid: 'GPU-.*' is also the value of gpus\[0\]"):
        machine_codec.encode(msgspec.structs.replace(machine, gpus=(machine.gpus[0], twin, *machine.gpus[2:])))


def test_profiles_are_read_of_writers_with_and_without_engines() -> None:
    """Older agents told of no engines; a newer one may know more about a profile."""
    machine = profiles.load("hgx-h100", seed="n")
    document = json.loads(machine_codec.encode(machine))
    for gpu in document["gpus"]:
        gpu["profiles"] = [[*profile, "newer"] for profile in gpu["profiles"]]
    assert machine_codec.decode(json.dumps(document)) == machine
    for gpu in document["gpus"]:
        gpu["profiles"] = [profile[:7] for profile in gpu["profiles"]]
    old = machine_codec.decode(json.dumps(document))
    assert {profile.engines for gpu in old.gpus for profile in gpu.profiles} == {()}
    assert [profile.name for profile in old.gpus[0].profiles] == [p.name for p in machine.gpus[0].profiles]


@pytest.mark.parametrize("engines", [[-1], [1025], [0] * 17])
def test_engines_that_no_gpu_has_are_refused(engines: list[int]) -> None:
    document = json.loads(machine_codec.encode(profiles.load("hgx-h100", seed="n")))
    document["gpus"][0]["profiles"][0][7] = engines
    with pytest.raises(TopologyError, match=r"gpus\[0\]\.profiles\[0\]\.engines: .*at most 16 numbers from 0 to 1024"):
        machine_codec.decode(json.dumps(document))


def test_fields_of_a_newer_writer_are_skipped() -> None:
    machine = profiles.load("dgx1-v100")
    document = json.loads(machine_codec.encode(machine))
    document["added"] = document["gpus"][0]["added"] = {"later": [1]}
    assert machine_codec.decode(json.dumps(document)) == machine


TREE = _with_pci(profiles.load("dgx1-v100"))


@pytest.mark.parametrize(
    ("position", "device", "says"),
    [
        (1, PciDevice("f001:00:00.0", None, 0, "0x060400"), "pci[1].busid: 'f001:00:00.0' is not a PCI address, or "
                                                            "occurs twice"),
        (1, PciDevice("1:0:0.0", None, 0, "0x060400"), "pci[1].busid: '1:0:0.0'"),
        (1, PciDevice("0009:00:00.0", 1, 0, "0x060400"), "pci[1].parent: 1 is not valid. Write the position of a "
                                                         "bridge before this device"),
        (1, PciDevice("0009:00:00.0", -1, 0, "0x060400"), "pci[1].parent: -1"),
        (1, PciDevice("0009:00:00.0", 0, 0, "bridge"), "pci[1].kind: 'bridge' is not valid. Write it as in /sys, for "
                                                       "example 0x030200"),
        (1, PciDevice("0009:00:00.0", 0, 0, "0x060400", "0x10de"), "pci[1].ids: '0x10de'"),
        (1, PciDevice("0009:00:00.0", 0, 0, "0x060400", "", "fast\n"), "pci[1].link_speed: 'fast\\n'"),
        (1, PciDevice("0009:00:00.0", 0, 0, "0x060400", "", "", 255), "pci[1].link_width: 255 is not allowed. Write 0 "
                                                                      "to 64"),
        (1, PciDevice("0009:00:00.0", 0, -1, "0x060400"), "pci[1].numa: -1"),
    ],
)  # fmt: skip
def test_a_broken_pci_tree_is_refused_with_the_place(position: int, device: PciDevice, says: str) -> None:
    tree = [*TREE.pci[:position], device, *TREE.pci[position + 1 :]]
    with pytest.raises(TopologyError) as caught:
        machine_codec.encode(msgspec.structs.replace(TREE, pci=tuple(tree)))
    assert says in str(caught.value)


def test_a_broken_cpu_mask_or_model_is_refused() -> None:
    for change, says in (
        ({"numa": (NumaNode(id=0, cpumap="0-19"),)}, r"numa\[0\].cpumap: '0-19' is not a CPU map"),
        ({"cpu": Cpu(arch="x86_64", family=-1)}, "cpu.family: -1"),
    ):
        with pytest.raises(TopologyError, match=says):
            machine_codec.encode(msgspec.structs.replace(TREE, **change))


def test_fields_that_an_older_writer_did_not_know_are_not_known() -> None:
    machine = profiles.load("dgx1-v100")
    document = json.loads(machine_codec.encode(machine))
    for field in ("cpu", "pci", "virtual"):
        del document[field]
    for nic in document["nics"]:
        del nic["kind"], nic["gbps"]
    again = machine_codec.decode(json.dumps(document))
    assert (again.cpu, again.pci, again.virtual, again.gpus) == (None, (), None, machine.gpus)
    assert {(nic.kind, nic.gbps) for nic in again.nics} == {("", 0.0)}


CLIQUE = "6c8e2a54-0f3d-4b7e-9a51-3d2f8b6c4e10.1"


def _joined(*fabrics: str) -> Machine:
    """A DGX-1 whose first GPUs have joined these fabrics; the others none."""
    machine = profiles.load("dgx1-v100")
    all_ = (*fabrics, *[""] * (len(machine.gpus) - len(fabrics)))
    gpus = (msgspec.structs.replace(gpu, fabric=fabric) for gpu, fabric in zip(machine.gpus, all_, strict=True))
    return msgspec.structs.replace(machine, gpus=tuple(gpus))


class _OlderMachine(msgspec.Struct):
    """What the first writers and readers knew of a fabric: the machine's own field."""

    fabric: str = ""


@pytest.mark.parametrize(
    ("machine", "older"),
    [
        (_joined(*[CLIQUE] * 8), CLIQUE),
        (_joined(CLIQUE, "", CLIQUE), CLIQUE),
        (_joined(CLIQUE, CLIQUE[:-1] + "2"), ""),
        (_joined(), ""),
    ],
    ids=["all", "some", "several", "none"],
)
def test_older_readers_find_the_fabric_and_newer_ones_each_gpus_own(machine: Machine, older: str) -> None:
    text = machine_codec.encode(machine)
    assert msgspec.json.decode(text, type=_OlderMachine).fabric == older
    assert ("fabric" in json.loads(text)) == bool(older)
    assert machine_codec.decode(text) == machine


def test_an_older_writers_fabric_is_every_gpus() -> None:
    document = json.loads(machine_codec.encode(_joined()))
    for gpu in document["gpus"]:
        del gpu["fabric"]
    assert machine_codec.decode(json.dumps(document | {"fabric": ""})) == _joined()
    assert machine_codec.decode(json.dumps(document | {"fabric": CLIQUE})) == _joined(*[CLIQUE] * 8)


def _with_nic(machine: Machine, name: str) -> Machine:
    return msgspec.structs.replace(machine, nics=(Nic(name=name),), nic_paths=(machine.nic_paths[0],))


@pytest.mark.parametrize("name", ["", "\ud800"])
def test_nothing_is_written_that_could_not_be_read(name: str) -> None:
    with pytest.raises(TopologyError):
        machine_codec.encode(_with_nic(profiles.load("dgx1-v100"), name))


MIG = MigDevice(0, "MIG-5c7e0d3a-1f2b-4a6c-8d9e-0f1a2b3c4d5e", 1, 0, "1g\udcff", 1)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        (
            "nics",
            (Nic(name="mlx\udcff"),),
            r"nics[0].name: 'mlx\udcff' is not valid UTF-8. Write text that UTF-8 can "
            r"hold",
        ),
        ("nics", (Nic(name="b", members=("eth0", "\ud800")),), r"nics[0].members[1]: '\ud800'"),
        ("gpus", (Gpu(index=0, uuid="a", minor=0, pci="", product="\udc80"),), r"gpus[0].product: '\udc80'"),
        ("gpus", (Gpu(index=0, uuid="a", minor=0, pci="", mig=(MIG,)),), r"gpus[0].mig[0].profile: '1g\udcff'"),
        ("cpu", Cpu(arch="\udcff"), r"cpu.arch: '\udcff'"),
        ("driver_version", "\udcff", r"driver_version: '\udcff'"),
    ],
)
def test_text_that_is_not_unicode_is_refused_with_the_place(field: str, value: object, says: str) -> None:
    fields: dict[str, Any] = {"name": "n", "gpus": (Gpu(index=0, uuid="a", minor=0, pci=""),), field: value}
    rows = ((PathType.SYS,),) * len(fields.get("nics", ()))
    machine = Machine(links=((0,),), paths=((PathType.SELF,),), nic_paths=rows, **fields)
    for reader in (check, machine_codec.encode):
        with pytest.raises(TopologyError) as caught:
            reader(machine)
        assert str(caught.value).startswith(says)
        assert str(caught.value).isprintable()
