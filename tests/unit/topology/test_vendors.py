"""AMD's machines: what their tools, dumps and profiles become; and what holds of every vendor's."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from dradriver.topology import machine_codec, nccl, profiles
from dradriver.topology.amd import smi
from dradriver.topology.check import check
from dradriver.topology.complete import complete
from dradriver.topology.errors import TopologyError
from dradriver.topology.load import read_machine
from dradriver.topology.machine import Machine, PathType
from dradriver.topology.vendors import AMD, NVIDIA, VENDORS
from tests.paths import SHARED_DATA

FOLDER = SHARED_DATA / "vendors"
MODELS = sorted((FOLDER / "amd" / "rccl_models").glob("*.xml"))
# GPUs, architecture, one link's GB/s, and how many of a GPU's peers have how many links.
SHAPES = {
    "topo_16p1h": (16, "gfx90a", 36.0, {4: 1, 2: 1, 1: 1}),
    "topo_4p4h": (16, "gfx908", 24.0, {1: 3}),
    "topo_4p3l_2h": (8, "gfx908", 24.0, {1: 3}),
    "topo_4p_940": (4, "gfx942", 48.0, {1: 3}),
    "topo_8p1h_1": (8, "gfx90a", 36.0, {4: 1, 2: 1, 1: 1}),
    "topo_8p6l_6nic": (8, "gfx908", 24.0, {1: 6}),
    "topo_8p_90a": (8, "gfx90a", 36.0, {1: 3}),
    "topo_8p_940": (8, "gfx942", 48.0, {1: 7}),
    "topo_8p_940vm": (8, "gfx942", 48.0, {1: 7}),
    "topo_8p_pcie_2nic": (8, "gfx906", 0.0, {}),
    "topo_8p_rome_4n_1": (8, "gfx908", 24.0, {1: 3}),
    "topo_8p_ts1": (8, "gfx906", 24.0, {1: 2}),
}


def peers(machine: Machine, gpu: int) -> dict[int, int]:
    return dict(Counter(count for count in machine.links[gpu] if count))


@pytest.mark.shared_data
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_every_dump_of_rccl_is_read(path: Path) -> None:
    machine = read_machine(path)
    gpu = machine.gpus[0]
    assert machine.vendor is AMD
    assert (len(machine.gpus), gpu.architecture, machine.link_gbps, peers(machine, 0)) == SHAPES[path.stem]
    assert bool(machine.pci) is (path.stem not in ("topo_4p4h", "topo_8p1h_1"))  # there a bus id stands twice
    assert machine_codec.decode(machine_codec.encode(machine)) == machine


@pytest.mark.shared_data
@pytest.mark.parametrize(("profile", "dump"), [("mi300x-x8", "topo_8p_940"), ("mi100-x8", "topo_8p_rome_4n_1")])
def test_a_profile_is_what_rccl_saw_of_such_a_machine(profile: str, dump: str) -> None:
    mine, real = profiles.load(profile), read_machine(FOLDER / "amd" / "rccl_models" / f"{dump}.xml")
    assert (mine.links, mine.paths, mine.nic_paths, mine.link_gbps, mine.socket_gbps, mine.cpu) == (
        real.links, real.paths, real.nic_paths, real.link_gbps, real.socket_gbps, real.cpu,
    )  # fmt: skip
    told = [(gpu.pci, gpu.numa, gpu.product, gpu.architecture, gpu.memory_mib, gpu.pcie_gbps) for gpu in mine.gpus]
    if profile == "mi300x-x8":  # the MI100's ran at half its rate that day
        assert told == [(g.pci, g.numa, g.product, g.architecture, g.memory_mib, g.pcie_gbps) for g in real.gpus]


@pytest.mark.shared_data
def test_the_profile_of_an_mi250_is_linked_as_another_such_machine() -> None:
    mine, real = profiles.load("mi250-x4"), read_machine(FOLDER / "amd" / "rccl_models" / "topo_8p1h_1.xml")
    assert sorted(map(sorted, mine.links)) == sorted(map(sorted, real.links))
    assert (mine.link_gbps, mine.gpus[0].product) == (real.link_gbps, real.gpus[0].product)


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("file", "first"),
    [("amd-smi_topology_mi300x.txt", "0000:0c:00.0"), ("amd-smi_topology_mi355x.txt", "0000:0d:00.0")],
)
def test_a_text_of_amd_smi(file: str, first: str) -> None:
    machine = read_machine(FOLDER / "amd" / file)
    assert machine.vendor is AMD
    assert machine.gpus[0].pci == first
    assert all(peers(machine, i) == {1: 7} for i in range(8))
    assert machine.link_gbps == 48.0
    assert {gpu.numa for gpu in machine.gpus} == {None}


@pytest.mark.shared_data
def test_a_text_of_rocm_smi_says_numa_nodes() -> None:
    machine = read_machine(FOLDER / "amd" / "rocm-smi_showtopo_8x.txt")
    assert [gpu.numa for gpu in machine.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert machine.paths[0][1] is PathType.NODE
    assert machine.paths[0][4] is PathType.SYS
    assert peers(machine, 7) == {1: 7}


def test_numa_nodes_are_by_the_gpus_number() -> None:
    text = "=== Link Type between two GPUs ===\n GPU4 GPU5\nGPU4 0 PCIE\nGPU5 PCIE 0\n=== Numa Nodes ===\n"
    text += "".join(f"GPU[{n}] : (Topology) Numa Node: {n - 4}\n" for n in (4, 5))
    assert [gpu.numa for gpu in smi.read(text).gpus] == [0, 1]


AMD_SMI = """\
LINK TYPE TABLE:
             0000:03:00.0 0000:26:00.0 0000:43:00.0
0000:03:00.0 SELF         XGMI         PCIE
0000:26:00.0 XGMI         SELF         PCIE
0000:43:00.0 PCIE         PCIE         SELF

WEIGHT TABLE:
             0000:03:00.0 0000:26:00.0 0000:43:00.0
0000:03:00.0 0            15           40
0000:26:00.0 15           0            72
0000:43:00.0 40           72           0

NUMA BW TABLE:
             0000:03:00.0 0000:26:00.0 0000:43:00.0
0000:03:00.0 N/A          50000-200000 N/A
0000:26:00.0 50000-200000 N/A          N/A
0000:43:00.0 N/A          N/A          N/A
"""


def test_the_most_bandwidth_over_the_least_is_the_number_of_links() -> None:
    machine = smi.read(AMD_SMI, name="box")
    assert machine.links == ((0, 4, 0), (4, 0, 0), (0, 0, 0))
    assert machine.paths[0] == (PathType.SELF, PathType.SYS, PathType.NODE)
    assert machine.paths[1][2] is PathType.SYS


@pytest.mark.parametrize(("weight", "links"), [("13", 4), ("15", 4), ("41", 4), ("0", 4), ("30", 0), ("45", 0)])
def test_a_link_by_way_of_another_gpu_does_not_count(weight: str, links: int) -> None:
    text = AMD_SMI.replace(" 15  ", f" {weight}  ")
    assert smi.read(text).links[0][1] == links
    unknown = smi.read(text.replace("50000-200000", "0-0         "))  # of partitions no bandwidth is said
    assert unknown.links[0][1] == min(links, 1)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("0000:43:00.0 PCIE         PCIE         SELF\n", "", "line 2: the row of 0000:43:00.0 is missing"),
        ("XGMI         PCIE\n", "XGMI\n", "line 3: 0000:03:00.0 has 2 cells, and 3 are needed"),
        ("SELF         XGMI", "SELF         NVLI", "line 3: 'NVLI' between 0000:03:00.0 and 0000:26:00.0"),
        ("SELF         XGMI", "SELF         PCIE", "line 4: 0000:26:00.0 to 0000:03:00.0 is not as back"),
        ("LINK TYPE TABLE", "LINK COLOUR TABLE", "line 1: the table of link types is missing"),
        ("TABLE:\n             0000:03:00.0", "TABLE:\n             gpu-3", "line 2: 'gpu-3' is no GPU"),
        ("50000-200000", "50000..", "line 15: '50000..' between"),
        ("0            15", "0            9999999999999", "'9999999999999' between"),
        ("0000:43:00.0 40", "0000:44:00.0 40", "'0000:44:00.0': a row for each column, once"),
    ],
)
def test_a_broken_text_of_amd_smi_is_refused_with_its_line(old: str, new: str, says: str) -> None:
    with pytest.raises(TopologyError) as caught:
        smi.read(AMD_SMI.replace(old, new, 1))
    assert says in str(caught.value)


OF_ROCM_SMI = """\
WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status

======================= ROCm System Management Interface =======================
=========================== Weight between two GPUs ============================
       GPU0         GPU1         GPU2
GPU0   0            15           40
GPU1   15           0            72
GPU2   40           72           0

=========================== Link Type between two GPUs =========================
WARNING: one more
       GPU0         GPU1         GPU2
GPU0   0            XGMI         PCIE
GPU1   XGMI         0            PCIE
GPU2   PCIE         PCIE         0

================================== Numa Nodes ==================================
GPU{0}          : (Topology) Numa Node: 0
GPU{0}          : (Topology) Numa Affinity: 0
GPU{1}          : (Topology) Numa Node: 0
GPU{2}          : (Topology) Numa Node: 1
============================= End of ROCm SMI Log ==============================
"""


@pytest.mark.parametrize("form", [" {}", "[{}]"])
def test_the_older_form_and_warnings_of_rocm_smi(form: str, tmp_path: Path) -> None:
    text = OF_ROCM_SMI
    for gpu in "012":
        text = text.replace(f"{{{gpu}}}", form.format(gpu))
    (tmp_path / "node.txt").write_text(text)
    machine = read_machine(tmp_path / "node.txt")
    assert [gpu.numa for gpu in machine.gpus] == [0, 0, 1]
    assert machine.links == ((0, 1, 0), (1, 0, 0), (0, 0, 0))
    assert machine.paths[0] == (PathType.SELF, PathType.NODE, PathType.SYS)


NEW_JSON = """[
 {"gpu": 0, "bdf": "0000:03:00.0", "links": [
  {"gpu": 0, "bdf": "0000:03:00.0", "weight": 0, "link_status": "ENABLED", "link_type": "SELF", "num_hops": 0,
   "bandwidth": "N/A"},
  {"gpu": 1, "bdf": "0000:26:00.0", "weight": 15, "link_status": "ENABLED", "link_type": "XGMI", "num_hops": 1,
   "bandwidth": "50000-200000"},
  {"gpu": 2, "bdf": "0000:43:00.0", "weight": 40, "link_status": "ENABLED", "link_type": "PCIE", "num_hops": 2,
   "bandwidth": "N/A"}]},
 {"gpu": 1, "bdf": "0000:26:00.0", "links": [
  {"gpu": 0, "bdf": "0000:03:00.0", "weight": 15, "link_type": "XGMI", "bandwidth": "50000-200000"},
  {"gpu": 1, "bdf": "0000:26:00.0", "weight": 0, "link_type": "SELF", "bandwidth": "N/A"},
  {"gpu": 2, "bdf": "0000:43:00.0", "weight": 72, "link_type": "PCIE", "bandwidth": "N/A"}]},
 {"gpu": 2, "bdf": "0000:43:00.0", "links": [
  {"gpu": 0, "bdf": "0000:03:00.0", "weight": 40, "link_type": "PCIE", "bandwidth": "N/A"},
  {"gpu": 1, "bdf": "0000:26:00.0", "weight": 72, "link_type": "PCIE", "bandwidth": "N/A"},
  {"gpu": 2, "bdf": "0000:43:00.0", "weight": 0, "link_type": "SELF", "bandwidth": "N/A"}]}]"""
OLD_JSON = """[
 {"gpu": 0, "link_accessibility": {"gpu_0": "ENABLED", "gpu_1": "ENABLED", "gpu_2": "DISABLED"},
  "weight": {"gpu_0": 0, "gpu_1": 15, "gpu_2": 40}, "hops": {"gpu_0": 0, "gpu_1": 1, "gpu_2": 2},
  "link_type": {"gpu_0": "SELF", "gpu_1": "XGMI", "gpu_2": "PCIE"},
  "numa_bandwidth": {"gpu_0": "N/A", "gpu_1": "50000-200000", "gpu_2": "N/A"}},
 {"gpu": 1, "weight": {"gpu_0": 15, "gpu_1": 0, "gpu_2": 72},
  "link_type": {"gpu_0": "XGMI", "gpu_1": "SELF", "gpu_2": "PCIE"},
  "numa_bandwidth": {"gpu_0": "50000-200000", "gpu_1": "N/A", "gpu_2": "N/A"}},
 {"gpu": 2, "weight": {"gpu_0": 40, "gpu_1": 72, "gpu_2": 0},
  "link_type": {"gpu_0": "PCIE", "gpu_1": "PCIE", "gpu_2": "SELF"},
  "numa_bandwidth": {"gpu_0": "N/A", "gpu_1": "N/A", "gpu_2": "N/A"}}]"""


@pytest.mark.parametrize(("text", "named"), [(NEW_JSON, True), (OLD_JSON, False)])
def test_both_forms_of_json_are_the_text(text: str, named: bool, tmp_path: Path) -> None:
    (tmp_path / "box.json").write_text(text)
    machine, same = read_machine(tmp_path / "box.json"), smi.read(AMD_SMI, name="box")
    assert (machine.links, machine.paths, machine.link_gbps) == (same.links, same.paths, same.link_gbps)
    assert [gpu.pci for gpu in machine.gpus] == ([gpu.pci for gpu in same.gpus] if named else [""] * 3)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (NEW_JSON, "[1]", "Expected `object`, got `int`"),
        (NEW_JSON, "[{}]", "[0]: the number of a GPU is missing"),
        (NEW_JSON, "[]", "the table of link types is missing"),
        ('"gpu": 1, "bdf": "0000:26:00.0", "weight": 15', '"bdf": "x"', "[0].links[1]: the number of a GPU is missing"),
        (
            '"link_type": "XGMI", "num_hops"',
            '"link_type": "NVLI", "num_hops"',
            "'NVLI' between 0000:03:00.0 and 0000:26",
        ),
        ('{"gpu": 1, "bdf": "0000:26:00.0", "links"', '{"gpu": 0, "bdf": "0000:03:00.0", "links"', "stands twice"),
        (
            '"weight": 72, "link_type": "PCIE", "bandwidth": "N/A"},\n',
            '"weight": 72},\n',
            "has no cell for 0000:26:00.0",
        ),
    ],
)
def test_broken_json_of_amd_smi_is_refused_with_its_place(old: str, new: str, says: str) -> None:
    with pytest.raises(TopologyError) as caught:
        smi.read(NEW_JSON.replace(old, new, 1))
    assert says in str(caught.value)


def test_weights_and_bandwidths_that_are_all_zero_say_linked_or_not() -> None:
    text = AMD_SMI.replace("50000-200000", "0-0         ")
    for weight in ("15", "40", "72"):
        text = text.replace(weight, "0 ")
    assert smi.read(text).links == ((0, 1, 0), (1, 0, 0), (0, 0, 0))


def test_a_product_corrects_what_a_link_carries() -> None:
    machine = complete(smi.read(AMD_SMI), product="mi100")
    assert (machine.link_gbps, machine.gpus[0].product, machine.gpus[0].architecture) == (
        24.0, "AMD Instinct MI100", "gfx908",
    )  # fmt: skip
    with pytest.raises(TopologyError, match=r"is not a known product\. Write one of: AMD Instinct MI100"):
        complete(smi.read(AMD_SMI), product="h100")


def test_a_machine_is_one_vendors() -> None:
    machine = profiles.load("mi300x-x8")
    one, *others = machine.gpus
    for vendor, says in (("nvidia", r"gpus\[1\].vendor: 'amd'"), ("intel", r"gpus\[0\].vendor: 'intel'")):
        gpus = (msgspec.structs.replace(one, vendor=vendor), *others)
        with pytest.raises(TopologyError, match=says):
            check(msgspec.structs.replace(machine, gpus=gpus))


def test_a_machine_from_before_there_were_others_is_nvidias() -> None:
    text = machine_codec.encode(profiles.load("dgx1-v100")).replace(',"vendor":"nvidia"', "")
    assert '"vendor":"nvidia"' not in text
    assert machine_codec.decode(text).vendor is NVIDIA


def test_each_profile_is_of_its_folders_vendor() -> None:
    assert {word: {profiles.load(name).vendor.word for name in profiles.names(word)} for word in VENDORS} == {
        word: {word} for word in VENDORS
    }
    assert set(itertools.chain.from_iterable(map(profiles.names, VENDORS))) == set(profiles.names())


@pytest.mark.parametrize("name", [*profiles.names("amd"), *profiles.names("ascend")])
def test_no_nccl_file_is_written_for_another_library(name: str) -> None:
    with pytest.raises(TopologyError, match="Only NCCL needs a file"):
        nccl.write(profiles.load(name))
