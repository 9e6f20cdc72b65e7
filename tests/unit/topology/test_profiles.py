from __future__ import annotations

import re
from importlib import resources

import msgspec
import pytest

from dradriver.topology import nccl, profiles, topo_m, vendors
from dradriver.topology.errors import TopologyError
from dradriver.topology.groups import group
from dradriver.topology.machine import PathType
from dradriver.topology.nccl import nccl_bandwidths
from dradriver.topology.profiles import profile_fields, profile_reader
from tests.paths import REPO, SHARED_DATA

GOOD = """\
name: two
product: {name: NVIDIA X, memory_mib: 1024}
link_gbps: 20
gpus:
  - {pci: 0000:01:00.0, root: pci0000:00, switch: s0/a, numa: 0, minor: 3}
  - {pci: 0000:02:00.0, root: pci0000:00, switch: s0/b, numa: 0}
nics:
  - {name: mlx5_0, root: pci0000:00, switch: s0/a, numa: 0}
links: {0-1: 4}
"""


@pytest.mark.parametrize("name", profiles.names())
def test_every_profile_loads_under_its_own_name(name: str) -> None:
    machine = profiles.load(name)
    assert machine.name == name
    named = machine.vendor is vendors.ASCEND  # whose architectures have no names that jobs ask for
    assert all(gpu.product and gpu.memory_mib and (named or gpu.architecture) for gpu in machine.gpus)


def test_the_profiles_that_the_chart_uses_are_there() -> None:
    assert {"dgx1-v100", "dgx-h100"} <= set(profiles.names())


def test_uuids_depend_on_name_and_seed_alone() -> None:
    def uuids(name: str, seed: str) -> set[str]:
        return {gpu.uuid for gpu in profiles.load(name, seed=seed).gpus}

    assert uuids("dgx1-v100", "a") == uuids("dgx1-v100", "a")
    every = [uuids(n, s) for n in ("dgx1-v100", "dgx-h100") for s in ("", "a", "b")]
    assert len(set.union(*every)) == 8 * len(every)


def test_dgx_h100_is_switched_and_each_compute_nic_is_near_its_gpu() -> None:
    machine = profiles.load("dgx-h100")
    assert machine.switched
    assert {machine.links[i][j] for i in range(8) for j in range(8) if i != j} == {18}
    near = [row.count(PathType.PIX) for row in machine.nic_paths]
    assert sorted(near) == [0] * 4 + [1] * 8
    assert " ".join(gpu.pci[5:7] for gpu in machine.gpus) == "1b 43 52 61 9d c3 d1 df"


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("dgx1-v100", "dgx1v-v100x8-mlx5x4.txt"),
        ("dgx-a100", "dgx-a100x8-nic10.txt"),
        ("hgx-h200", "hgx-h200x8-sriov-vf-vastai.txt"),
        ("a100-pcie-x8-bridge-pairs", "a100-pcie-x8-nv12-bridge-pairs.txt"),
        ("rtx4090-x8", "rtx4090x8-pix-sys-bond.txt"),
    ],
)
def test_a_profile_agrees_with_topo_m_of_a_real_machine(name: str, file: str) -> None:
    path = SHARED_DATA / "topo_m" / file
    mine, real = profiles.load(name), topo_m.read(path.read_text())
    assert mine.links == real.links
    assert mine.paths == real.paths
    nics = [nic.name for nic in real.nics]
    assert {nic.name: row for nic, row in zip(mine.nics, mine.nic_paths, strict=True)} == dict(
        zip(nics, real.nic_paths, strict=True)
    )
    assert [gpu.numa for gpu in mine.gpus] == [gpu.numa for gpu in real.gpus]
    assert [gpu.switch_links for gpu in mine.gpus] == [gpu.switch_links for gpu in real.gpus]
    assert set(mine.numa) >= set(real.numa)


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("name", "file"),
    [("a100-x4-mesh", "simllm-perlmutter-a100-4x.xml"), ("hgx-h200", "simllm-hgx-h200-8x-vastai.xml")],
)
def test_a_profile_agrees_with_nccls_dump_of_a_real_machine(name: str, file: str) -> None:
    path = SHARED_DATA / "nccl_xml" / file
    mine, real = profiles.load(name), nccl.read(path.read_text())
    assert (mine.links, mine.paths, mine.link_gbps, mine.socket_gbps) == (
        real.links, real.paths, real.link_gbps, real.socket_gbps,
    )  # fmt: skip
    assert mine.cpu == real.cpu
    assert [(node.id, node.cpus) for node in mine.numa] == [(node.id, node.cpus) for node in real.numa]
    told = [(g.pci, g.numa, g.product, g.compute_capability, g.pcie_gbps, g.switch_links) for g in mine.gpus]
    assert told == [(g.pci, g.numa, g.product, g.compute_capability, g.pcie_gbps, g.switch_links) for g in real.gpus]


def test_every_machine_of_the_field_is_there() -> None:
    machines = {name: profiles.load(name) for name in profiles.names("nvidia")}
    switched = {name: sorted({gpu.switch_links for gpu in m.gpus}) for name, m in machines.items() if m.switched}
    assert switched == {
        "dgx-a100": [12], "dgx-h100": [18], "dgx2-v100": [6], "gb200-nvl72-rack": [18], "gb200-nvl72-tray": [18],
        "h100-x8-flat-vm": [18], "hgx-b200": [18], "hgx-h100": [18], "hgx-h100-degraded": [0, 14, 18], "hgx-h200": [18],
        "hgx-h800": [8],
    }  # fmt: skip
    direct = {name: max(map(max, m.links)) for name, m in machines.items() if not m.switched}
    assert direct == {
        "a100-pcie-x8-bridge-pairs": 12, "a100-x4-mesh": 4, "a40-x8-bridge-pairs": 4, "dgx1-v100": 2,
        "h100-pcie-x8-bridge-pairs": 12, "l40s-x8": 0, "rtx-a6000-x4-pairs": 4, "rtx4090-x8": 0,
    }  # fmt: skip
    counts = {name: len(m.gpus) for name, m in machines.items() if len(m.gpus) != 8}
    assert counts == {
        "a100-x4-mesh": 4, "dgx2-v100": 16, "gb200-nvl72-rack": 72, "gb200-nvl72-tray": 4, "rtx-a6000-x4-pairs": 4,
    }  # fmt: skip


@pytest.mark.parametrize("name", profiles.names("nvidia"))
def test_every_profile_counts_bandwidth_as_nccl_does(name: str) -> None:
    machine = profiles.load(name)
    major, _, minor = machine.gpus[0].compute_capability.partition(".")
    if any(map(any, machine.links)):
        assert machine.link_gbps == nccl_bandwidths.link_gbps(int(major + minor))
    assert machine.socket_gbps == nccl_bandwidths.socket_gbps(machine.cpu)
    assert machine.gpus[0].architecture == nccl_bandwidths.architecture(int(major + minor))


# What a GPU's link can be at most below such a CPU: Gen3 12, Gen4 24, Gen5 48 (Intel's and AMD's data sheets).
PCIE_GBPS = {
    ("GenuineIntel", 6, 79): 12, ("GenuineIntel", 6, 85): 12, ("GenuineIntel", 6, 106): 24,
    ("GenuineIntel", 6, 143): 48, ("GenuineIntel", 6, 207): 48,
    ("AuthenticAMD", 23, 49): 24, ("AuthenticAMD", 25, 1): 24, ("AuthenticAMD", 25, 8): 24, ("", 0, 0): 48,
}  # fmt: skip


@pytest.mark.parametrize("name", profiles.names("nvidia"))
def test_no_profiles_gpus_have_a_faster_link_than_its_cpu(name: str) -> None:
    machine = profiles.load(name)
    assert machine.cpu is not None
    most = PCIE_GBPS[machine.cpu.vendor, machine.cpu.family, machine.cpu.model]
    assert max(gpu.pcie_gbps for gpu in machine.gpus) <= most


def test_the_degraded_machine_keeps_its_unhealthy_gpus_out_of_the_groups() -> None:
    groups = group(profiles.load("hgx-h100-degraded"))
    assert groups.domain[5] is None
    assert groups.by_size[8] == (None,) * 8
    assert groups.by_size[4] == (0, 0, None, None, 0, None, 0, None)
    assert groups.by_size[2] == (0, 0, None, 1, 2, None, 2, 1)  # quads consist of pairs
    assert groups.gbps[4] == (370.8,)


def test_a_rack_is_one_domain_of_groups_within_trays() -> None:
    groups = group(profiles.load("gb200-nvl72-rack"))
    assert set(groups.domain) == {0}
    assert groups.by_size[4] == tuple(position // 4 for position in range(72))
    assert groups.by_size[2] == tuple(position // 2 for position in range(72))


def test_the_compact_form_means_what_it_says() -> None:
    machine = profile_reader.read(GOOD, source="two.yaml")
    assert [gpu.minor for gpu in machine.gpus] == [3, 1]
    assert machine.gpus[0].pci == "0000:01:00.0"
    assert machine.paths[0][1] is PathType.PXB
    assert machine.nic_paths[0] == (PathType.PIX, PathType.PXB)
    assert machine.links == ((0, 4), (4, 0))


WRITTEN = (REPO / "docs" / "tasks" / "profiles.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("heading", "entry"),
    [
        ("The profile", profile_fields.Profile),
        ("product", profile_fields.Product),
        ("gpus", profile_fields.GpuEntry),
        ("blocks", profile_fields.BlocksEntry),
        ("nics", profile_fields.NicEntry),
        ("numa", profile_fields.NumaEntry),
        ("cpu", profile_fields.CpuEntry),
    ],
)
def test_the_written_schema_names_every_field_and_the_required_ones(heading: str, entry: type[msgspec.Struct]) -> None:
    part = WRITTEN.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [row.split("|")[1:3] for row in part.splitlines() if row.startswith("| `")]
    told = {name: required.strip() for names, required in rows for name in re.findall(r"`([\w-]+)`", names)}
    fields = {field.encode_name: field.required for field in msgspec.structs.fields(entry)}
    assert set(told) == set(fields)
    assert {name for name, required in told.items() if required == "required"} == {n for n, r in fields.items() if r}


def test_the_written_example_is_read() -> None:
    machine = profile_reader.read(WRITTEN.split("```yaml\n")[1].split("```")[0], source="profiles.md")
    assert machine.links == ((0, 12, 0, 0), (12, 0, 0, 0), (0, 0, 0, 12), (0, 0, 12, 0))
    assert machine.nic_paths == ((PathType.PIX, PathType.PIX, PathType.SYS, PathType.SYS),)


def test_switched_gpus_may_differ_in_their_links() -> None:
    text = GOOD.replace("links: {0-1: 4}", "switch_links: 18").replace("minor: 3", "switch_links: 17")
    machine = profile_reader.read(text, source="two.yaml")
    assert [gpu.switch_links for gpu in machine.gpus] == [17, 18]
    assert machine.links == ((0, 17), (17, 0))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("minor: 3", "minr: 3", "gpus[0].minr: This field is unknown. Known fields: pci,"),
        ("product:", "prodct:", "prodct: This field is unknown. Known fields: name,"),
        ("memory_mib: 1024", "memory_mib: much", "bad.yaml:2: product.memory_mib: 'much' is not allowed. Write a "
                                                 "whole number"),
        ("pci: 0000:02:00.0", "pci: 00000000:2:0.0", "bad.yaml:6: gpus[1].pci: '00000000:2:0.0' is not a PCI address"),
        ("pci: 0000:02:00.0", "pci: 0000:01:00.0", "bad.yaml:6: gpus[1].pci: '0000:01:00.0' is also the value of "
                                                   "gpus[0]"),
        ("pci: 0000:02:00.0, ", "", "bad.yaml:6: gpus[1]: Object missing required field `pci`"),
        ("minor: 3", "minor: 1", "bad.yaml:6: gpus[1].minor: 1 is also the value of gpus[0]"),
        ("0-1: 4", "0-2: 4", "bad.yaml:9: links.0-2: this is not a pair of GPUs. Write two different numbers from 0 "
                             "to 1"),
        ("0-1: 4", "0-0: 4", "bad.yaml:9: links.0-0: this is not a pair of GPUs"),
        ("0-1: 4", "0-1: 4, 1-0: 2", "bad.yaml:9: links.1-0: this pair occurs twice"),
        ("0-1: 4", "0-1: -4", "bad.yaml:9: links.0-1: '-4' is not allowed. Write a whole number from 0 to 36"),
        ("0-1: 4", "0-1: 99", "bad.yaml:9: links.0-1: '99' is not allowed. Write a whole number from 0 to 36"),
        ("0-1: 4", "0-1: 4.5", "bad.yaml:9: links.0-1: '4.5' is not allowed. Write a whole number from 0 to 36"),
        ("{0-1: 4}", "[4]", "bad.yaml:9: links: a list is not allowed. Write pairs of GPUs and their number of links"),
        ("0-1: 4", "0-1: 4, 0-1: 2", "bad.yaml:9: The key 0-1 occurs twice"),
        ("link_gbps: 20", "link_gbps: 0", "bad.yaml:3: link_gbps: 0, but there are links"),
        ("link_gbps: 20", "link_gbps: nan", "bad.yaml:3: link_gbps: nan"),
        ("link_gbps: 20", "link_gbps: 20\nswitch_links: 6", "bad.yaml:10: links: a machine has links or switch_links, "
                                                            "not both"),
        ("s0/b, numa: 0", "s0/b, numa: 1", "bad.yaml:6: gpus[1].numa: 1, but gpus[0] is on node 0 below"),
        ("s0/a, numa: 0}\nlinks", "s0/a, numa: 1}\nlinks", "bad.yaml:8: nics[0].numa: 1, but gpus[0] is on node 0"),
        ("numa: 0}", "numa: 0", "not YAML"),
        ("gpus:", "gpus: &a [*a]\nnics:", "bad.yaml:4"),
    ],
)  # fmt: skip
def test_a_bad_profile_is_refused_with_file_line_and_cure(old: str, new: str, says: str) -> None:
    assert old in GOOD
    with pytest.raises(TopologyError) as caught:
        profile_reader.read(GOOD.replace(old, new, 1), source="bad.yaml")
    assert says in str(caught.value)


PAIRS = (resources.files(profiles) / "rtx-a6000-x4-pairs.yaml").read_text("utf-8")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("pci0000:40, numa: 0", "pci0000:40, numa: 7", "gpus[2].numa: the node 7 is not in numa. Write one of the "
                                                       "nodes 0"),
        ("links:", "nics: [{name: a, numa: 3}]\nlinks:", "nics[0].numa: the node 3 is not in numa. Write one of the "
                                                         "nodes 0"),
        ("links:", "nics: [{name: a, kind: infinband}]\nlinks:",
         "nics[0].kind: 'infinband' is not allowed (did you mean infiniband?). Write efa, ethernet, infiniband or "
         "roce"),
        ("x86_64", "aarch64", "cpu.arch: 'aarch64' is not allowed (did you mean arm64?). Write arm64, ppc64 or x86_64"),
        ("AuthenticAMD", "AMD", "cpu.vendor: 'AMD' is not allowed. Write '  Shanghai  ', AuthenticAMD, CentaurHauls "
                                "or GenuineIntel"),
        ("compute_capability: 8.6", "compute_capability: abc", "product.compute_capability: 'abc' is not allowed. "
                                                               "Write it like 8.0"),
        ("architecture: ampere", "architecture: Ampere", "product.architecture: 'Ampere' is not allowed. Write it "
                                                         "like hopper"),
        ("580.95.05", "latest", "driver_version: 'latest' is not allowed. Write it like 580.95.05"),
        ("links:", "fabric: xyz\nlinks:", "fabric: 'xyz' is not allowed. Write it like "
                                          "6c8e2a54-0f3d-4b7e-9a51-3d2f8b6c4e10.1 (cl"),
        ("cpus: 0-63", "cpus: 63-0", "numa[0].cpus: '63-0' is not a CPU list. Write it in ascending order, for "
                                     "example 0-19,40-59"),
        ("{id: 0, cpus: 0-63}", "{id: 0, cpus: 0-63}\n  - {id: 1, cpus: 60-99}",
         "numa[1].cpus: 60-63 is also in numa[0]. A CPU is on one node"),
        ("2-3: 4", "2-3: 99", "links.2-3: '99' is not allowed. Write a whole number from 0 to 36"),
        ("2-3: 4", "2-3: 20, 1-2: 20", "links.1-2: with these 20 links GPU 2 has 40 links. A GPU can have at most 36"),
        ("links: {0-1: 4, 2-3: 4}", "switch_links: 99", "switch_links: '99' is not allowed. Write a whole number from "
                                                        "0 to 36"),
        ("power_watts: 300", "power_watts: 1e3W", "product.power_watts: '1e3W' is not allowed. Write a whole number"),
        ("pcie_gbps: 24", "pcie_gbps: Gen4", "product.pcie_gbps: 'Gen4' is not allowed. Write a number"),
        ("links:", "virtual: maybe\nlinks:", "virtual: 'maybe' is not allowed. Write true or false"),
        ("name: rtx-a6000-x4-pairs", "name: [a]", "name: a list is not allowed. Write text"),
        ("links:", "nccl-version: [a]\nlinks:", "nccl-version: a list is not allowed. Write text"),
        ("links:", "nccl-version: 2.3x\nlinks:", "nccl-version: '2.3x' is not allowed. Write 2.19 or a later version, "
                                                 "for example 2.23"),
        ("product:", "product: NVIDIA\nnumas:", "product: 'NVIDIA' is not allowed. Write fields: name, architecture, "
                                                "compute_cap"),
        ("numa:\n", "numa: 2\nnics:\n", "numa: '2' is not allowed. Write a list"),
        ("  - {pci: 0000:01:00.0, ", "  - 0000:01:00.0\n  - {pci: 0000:02:00.0, ", "gpus[0]: '0000:01:00.0' is not "
                                                                                   "allowed. Write f"),
    ],
)  # fmt: skip
def test_what_no_machine_can_have_is_refused_with_what_it_can(old: str, new: str, says: str) -> None:
    assert old in PAIRS
    bad = PAIRS.replace(old, new, 1)
    with pytest.raises(TopologyError) as caught:
        profile_reader.read(bad, source="bad.yaml")
    file, line, rest = str(caught.value).split(":", 2)
    assert file == "bad.yaml"
    assert rest.strip().startswith(says)
    changed = {n for n, text in enumerate(bad.splitlines(), 1) if text not in PAIRS.splitlines()}
    assert int(line) in changed


def test_a_profile_may_leave_its_numa_nodes_out() -> None:
    assert profile_reader.read(GOOD, source="two.yaml").numa == ()


def test_a_profile_may_say_which_nccl_runs_and_needs_no_quotes() -> None:
    assert profile_reader.read(PAIRS, source="pairs.yaml").nccl_version == ""
    assert profile_reader.read(PAIRS + "nccl-version: 2.30\n", source="pairs.yaml").nccl_version == "2.30"


@pytest.mark.parametrize("text", ["", "- a", "a word", "[" * 1200, "? [a]\n: b", "a: \0", "'': a", "x - at `$.y: 1"])
def test_what_is_no_profile_at_all_is_refused(text: str) -> None:
    with pytest.raises(TopologyError, match=r"^x\.yaml:1"):
        profile_reader.read(text, source="x.yaml")


def test_aliases_do_not_make_a_small_text_a_large_one() -> None:
    rows = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 40)}]" for i in range(1, 5)]  # 40 ** 4 values
    with pytest.raises(
        TopologyError,
        match=r"^x\.yaml:\d: The profile has more than 20000 values, including those of "
        r"aliases",
    ):
        profile_reader.read("\n".join(["a0: &a0 x", *rows]), source="x.yaml")


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(TopologyError, match=r"did you mean dgx-h100\?.*dgx1-v100"):
        profiles.load("dgx-h10")
