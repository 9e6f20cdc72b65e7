"""AMD's machines from trees of files: written from a machine, read back as it was."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from dradriver.node.errors import SetupError
from dradriver.node.vendors.amd import amd_reading
from dradriver.topology import profiles
from dradriver.topology.check import check
from dradriver.topology.machine import Machine, PathType
from tests.fakes.kfd import NODES, AmdServer, amd
from tests.fakes.server import complete


def server(root: Path, profile: str = "mi210-x8") -> AmdServer:
    return AmdServer(root, amd(complete(profiles.load(profile))))


def tellable(machine: Machine) -> Machine:
    """What /sys says of a machine: no power limits, and no version of a driver that comes with the kernel."""
    gpus = tuple(msgspec.structs.replace(gpu, power_watts=0) for gpu in machine.gpus)
    return msgspec.structs.replace(machine, gpus=gpus, driver_version="", nccl_version="")


@pytest.mark.parametrize("profile", profiles.names("amd"))
def test_a_machine_is_read_exactly_as_it_is(profile: str, tmp_path: Path) -> None:
    written = server(tmp_path, profile)
    found = amd_reading.discover(tmp_path)
    assert found.machine == tellable(written.machine)
    assert check(found.machine) is found.machine
    assert (found.problems, found.refused, found.silent, found.unsure) == ((), None, 0, frozenset())


def test_a_gpu_has_the_name_of_its_part_and_of_its_board_as_the_driver_has_it(tmp_path: Path) -> None:
    written = server(tmp_path)
    written.product_name(0, "AMD Instinct MI210 OEM (C2)  ")
    written.product_name(1, "AMD Instinct MI210")
    for gpu, odd in enumerate(("", "x" * 65, "MI210\nOAM", "MI210\u00ae", "MI\x1b[31m"), 2):
        written.product_name(gpu, odd)
    gpus = amd_reading.discover(tmp_path).machine.gpus
    assert {gpu.product for gpu in gpus} == {"AMD Instinct MI210"}
    assert [gpu.board for gpu in gpus] == ["AMD Instinct MI210 OEM (C2)", *[""] * 7]


def test_a_part_that_is_not_known_is_called_what_the_driver_calls_it_else_by_its_number(tmp_path: Path) -> None:
    written = server(tmp_path)
    for number in written.numbers.values():
        properties = written.root / NODES / str(number) / "properties"
        properties.write_text(properties.read_text().replace(f"device_id {0x740F}", f"device_id {0x74A9}"))
    written.product_name(0, "AMD Instinct MI300X HF OAM")
    gpus = amd_reading.discover(tmp_path).machine.gpus
    assert [gpu.product for gpu in gpus] == ["AMD Instinct MI300X HF OAM", *["AMD GPU 1002:74a9"] * 7]
    assert {gpu.board for gpu in gpus} == {""}


def test_parts_of_another_maker_that_a_fork_of_the_driver_shows_are_not_published_as_amds(tmp_path: Path) -> None:
    """Hygon's DCUs stand in KFD's topology like AMD's GPUs; the maker is told by KFD, or by /sys."""
    written = server(tmp_path)
    for gpu in range(8):
        properties = written.node(gpu) / "properties"
        properties.write_text(properties.read_text().replace(f"vendor_id {0x1002}", f"vendor_id {0x1D94}"))
    found = amd_reading.discover(tmp_path)
    assert found.machine.gpus == ()
    assert found.refused is not None
    assert "it is made by Hygon (1d94), not by AMD. It is left out" in found.refused
    with pytest.raises(SetupError, match=r"no GPU of AMD .* Hygon \(1d94\)"):
        amd_reading.read(tmp_path)


def test_next_to_parts_of_another_maker_amds_own_are_published(tmp_path: Path) -> None:
    written = server(tmp_path)
    (written.device(2) / "vendor").write_text("0x1d94\n")
    properties = written.node(5) / "properties"
    properties.write_text(properties.read_text().replace(f"vendor_id {0x1002}", "vendor_id 4660"))
    found = amd_reading.discover(tmp_path)
    others = [gpu.uuid for gpu in written.machine.gpus if gpu.index not in (2, 5)]
    assert [gpu.uuid for gpu in found.machine.gpus] == others
    assert found.refused is None
    told = [str(problem) for problem in found.problems]
    assert [text.partition("made by ")[2].partition(",")[0] for text in told] == ["Hygon (1d94)", "vendor 1234"]


def test_a_drivers_own_version_is_told(tmp_path: Path) -> None:
    server(tmp_path).file("sys/module/amdgpu/version", "6.12.12")
    assert amd_reading.discover(tmp_path).machine.driver_version == "6.12.12"


@pytest.mark.parametrize(
    ("weight", "least", "most", "links"),
    [
        (15, 50_000, 50_000, 1),
        (15, 50_000, 200_000, 4),
        (13, 819_200, 819_200, 1),
        (13, 0, 0, 1),
        (41, 0, 0, 1),
        (41, 0, 50_000, 1),
        (15, 100_000, 50_000, 1),
        (30, 50_000, 50_000, 0),
        (45, 0, 0, 0),
        (0, 0, 0, 0),
    ],
)
def test_only_some_weights_are_direct_links_and_bandwidths_tell_how_many(
    weight: int, least: int, most: int, links: int, tmp_path: Path
) -> None:
    written = server(tmp_path)
    for one, other in ((0, 1), (1, 0)):
        written.link(
            written.numbers[one],
            1,
            type=11,
            node_to=written.numbers[other],
            weight=weight,
            min_bandwidth=least,
            max_bandwidth=most,
        )
    assert amd_reading.discover(tmp_path).machine.links[0][1] == links


def test_an_identity_has_sixteen_digits(tmp_path: Path) -> None:
    server(tmp_path)
    uuids = [gpu.uuid for gpu in amd_reading.discover(tmp_path).machine.gpus]
    assert uuids[0] == "GPU-00ab000000000001"


def test_a_gpu_without_an_identity_is_left_out_with_words(tmp_path: Path) -> None:
    written = server(tmp_path)
    properties = written.node(3) / "properties"
    text = properties.read_text()
    properties.write_text(text.replace(f"unique_id {int(written.machine.gpus[3].uuid[4:], 16)}", "unique_id 0"))
    found = amd_reading.discover(tmp_path)
    assert [gpu.pci for gpu in found.machine.gpus] == [gpu.pci for gpu in written.machine.gpus if gpu.index != 3]
    assert "unique_id: it is 0" in str(found.problems[0])
    assert found.refused is None


def test_where_no_gpu_has_an_identity_the_machine_is_refused_with_words(tmp_path: Path) -> None:
    written = server(tmp_path)
    for gpu in written.machine.gpus:
        written.properties(written.numbers[gpu.index], simd_count=416)
    found = amd_reading.discover(tmp_path)
    assert not found.machine.gpus
    assert found.refused is not None
    assert "unique_id: it is 0" in found.refused


@pytest.mark.parametrize("mode", ["CPX", "QPX", "DPX"])
def test_a_partitioned_machine_is_refused_with_words(mode: str, tmp_path: Path) -> None:
    written = server(tmp_path, "mi300x-x8")
    for gpu in range(8):
        (written.device(gpu) / "current_compute_partition").write_text("SPX\n" if gpu else f"{mode}\n")
    found = amd_reading.discover(tmp_path)
    assert not found.machine.gpus
    assert found.refused is not None
    assert f"is partitioned ({mode} mode)" in found.refused
    (written.device(0) / "current_compute_partition").write_text("SPX\n")
    assert len(amd_reading.discover(tmp_path).machine.gpus) == 8


@pytest.mark.parametrize("word", ["UNKNOWN", "XPX", "\x1b[2J"])
def test_an_unknown_mode_is_said_and_takes_no_gpu_away(word: str, tmp_path: Path) -> None:
    written = server(tmp_path, "mi300x-x8")
    (written.device(3) / "current_compute_partition").write_text(f"{word}\n")
    found = amd_reading.discover(tmp_path)
    assert found.machine == tellable(written.machine)
    assert [problem.what for problem in found.problems] == ["current_compute_partition"]
    assert repr(word) in str(found.problems[0])


@pytest.mark.parametrize("mode", ["DPX", "TPX", "QPX", "CPX"])
def test_an_unknown_mode_does_not_hide_that_another_gpu_is_cut(mode: str, tmp_path: Path) -> None:
    written = server(tmp_path, "mi300x-x8")
    (written.device(0) / "current_compute_partition").write_text("UNKNOWN\n")
    (written.device(1) / "current_compute_partition").write_text(f"{mode}\n")
    assert f"is partitioned ({mode} mode)" in str(amd_reading.discover(tmp_path).refused)


def test_gpus_that_share_an_identity_are_partitions(tmp_path: Path) -> None:
    written = server(tmp_path, "mi300x-x8")
    shutil.copy(written.node(0) / "properties", written.node(1) / "properties")
    found = amd_reading.discover(tmp_path)
    assert found.refused is not None
    assert "2 devices with one unique_id" in found.refused


def test_what_a_cgroup_may_not_see_has_empty_files_and_is_counted(tmp_path: Path) -> None:
    written = server(tmp_path)
    (written.node(5) / "properties").write_text("")
    (written.node(6) / "gpu_id").write_text("")
    found = amd_reading.discover(tmp_path)
    assert found.silent == 1
    assert [gpu.pci for gpu in found.machine.gpus] == [gpu.pci for gpu in written.machine.gpus if gpu.index != 5]


def test_domains_above_0_are_parts_of_bus_ids(tmp_path: Path) -> None:
    written = server(tmp_path)
    properties = written.node(0) / "properties"
    properties.write_text(properties.read_text().replace("domain 0", "domain 65537"))
    found = amd_reading.discover(tmp_path)
    assert found.machine.gpus[0].pci == "10001:03:00.0"
    assert found.machine.gpus[0].numa == 0  # by KFD's link to a CPU: /sys has no such device


def test_cards_and_render_nodes_are_those_of_the_pci_device(tmp_path: Path) -> None:
    written = server(tmp_path)
    shutil.rmtree(written.device(2) / "drm")
    for name in ("card7", "renderD199"):
        (written.device(2) / "drm" / name).mkdir(parents=True)
    found = amd_reading.discover(tmp_path)
    gpu = found.machine.gpus[2]
    assert gpu.minor == 199
    assert found.drm[gpu.uuid].paths == ("dev/dri/card7", "dev/dri/renderD199")


def test_two_gpus_with_one_render_node_are_not_both_handed_out(tmp_path: Path) -> None:
    written = server(tmp_path)
    shutil.rmtree(written.device(1) / "drm")
    (written.device(1) / "drm" / f"renderD{written.machine.gpus[0].minor}").mkdir(parents=True)
    found = amd_reading.discover(tmp_path)
    assert len(found.machine.gpus) == 7
    assert "renderD128 is GPU 0000:03:00.0's, too" in str(found.problems[0])


def test_links_that_one_side_does_not_tell_are_those_of_the_other(tmp_path: Path) -> None:
    written = server(tmp_path, "mi250-x4")
    shutil.rmtree(written.node(0) / "io_links")
    found = amd_reading.discover(tmp_path)
    assert found.machine.links == written.machine.links
    assert found.unsure == {written.machine.gpus[0].uuid}


def test_links_that_neither_side_tells_are_as_before(tmp_path: Path) -> None:
    written = server(tmp_path, "mi250-x4")
    for gpu in (0, 1):
        shutil.rmtree(written.node(gpu) / "io_links")
    one, other = (written.machine.gpus[gpu].uuid for gpu in (0, 1))
    assert amd_reading.discover(tmp_path).machine.links[0][1] == 0
    assert amd_reading.discover(tmp_path, earlier={(one, other): 4}).machine.links[0][1] == 4


def test_without_a_pci_tree_paths_are_by_numa_node(tmp_path: Path) -> None:
    written = server(tmp_path)
    shutil.rmtree(tmp_path / "sys/bus")
    found = amd_reading.discover(tmp_path)
    assert [gpu.numa for gpu in found.machine.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert (found.machine.paths[0][1], found.machine.paths[0][4]) == (PathType.NODE, PathType.SYS)
    assert found.machine.links == written.machine.links


def test_without_the_driver_there_are_no_gpus_and_a_test_that_needs_some_is_told(tmp_path: Path) -> None:
    assert not amd_reading.discover(tmp_path).machine.gpus
    assert amd_reading.discover(tmp_path).refused is None
    with pytest.raises(SetupError, match="no driver"):
        amd_reading.read(tmp_path)


def test_a_driver_without_gpus_refuses_nothing(tmp_path: Path) -> None:
    (tmp_path / NODES).mkdir(parents=True)
    found = amd_reading.discover(tmp_path)
    assert (found.machine.gpus, found.refused) == ((), None)


@pytest.mark.parametrize("value", [2**64, 10**20 - 1])
@pytest.mark.parametrize(
    ("key", "read"),
    [
        ("unique_id", 7),
        ("location_id", 7),
        ("domain", 7),
        ("device_id", 8),
        ("gfx_target_version", 8),
        ("drm_render_minor", 8),
        ("hive_id", 8),
    ],
)
def test_an_odd_number_of_one_gpu_hides_no_other(key: str, read: int, value: int, tmp_path: Path) -> None:
    written = server(tmp_path)
    properties = written.node(2) / "properties"
    lines = [line for line in properties.read_text().splitlines() if not line.startswith(f"{key} ")]
    properties.write_text("\n".join([*lines, f"{key} {value}"]))
    found = amd_reading.discover(tmp_path)
    others = [gpu.pci for gpu in written.machine.gpus if gpu.index != 2]
    assert len(found.machine.gpus) == read
    assert [gpu.pci for gpu in found.machine.gpus if gpu.pci in others] == others
    assert (key in [problem.what for problem in found.problems]) == (key != "hive_id")


@pytest.mark.parametrize(("said", "memory_mib"), [("68719476736", 65536), ("9" * 18, 64 << 10), ("", 64 << 10)])
def test_memory_that_no_gpu_has_is_that_of_the_device_or_of_its_part(
    said: str, memory_mib: int, tmp_path: Path
) -> None:
    written = server(tmp_path)
    written.properties(written.numbers[0], "mem_banks/0/", heap_type=1, size_in_bytes=2**64 - 1)
    (written.device(0) / "mem_info_vram_total").write_text(said)
    found = amd_reading.discover(tmp_path)
    assert [gpu.memory_mib for gpu in found.machine.gpus] == [memory_mib] + [64 << 10] * 7
    assert [(problem.where, problem.what) for problem in found.problems] == [("GPU 0000:03:00.0", "size_in_bytes")]


def test_a_render_node_of_twenty_digits_leaves_out_that_gpu_alone(tmp_path: Path) -> None:
    written = server(tmp_path)
    properties = written.node(0) / "properties"
    properties.write_text(properties.read_text().replace("drm_render_minor 128", f"drm_render_minor {'9' * 20}"))
    shutil.rmtree(written.device(0) / "drm")
    found = amd_reading.discover(tmp_path)
    assert [gpu.minor for gpu in found.machine.gpus] == [*range(129, 136)]
    assert [problem.what for problem in found.problems] == ["drm_render_minor", "drm"]


def test_odd_bandwidths_and_nodes_of_links_hide_no_gpu(tmp_path: Path) -> None:
    written, most = server(tmp_path), 10**20 - 1
    one, other = written.numbers[0], written.numbers[1]
    written.link(one, 1, type=11, node_to=other, weight=15, min_bandwidth=1, max_bandwidth=most)
    written.link(one, 9, type=11, node_to=most, weight=15, min_bandwidth=most, max_bandwidth=most)
    written.link(one, 0, type=2, node_to=most, weight=most, min_bandwidth=most, max_bandwidth=most)
    found = amd_reading.discover(tmp_path)
    assert len(found.machine.gpus) == 8
    assert found.machine.links[0][1] == 1  # the smaller of what the two say


@pytest.mark.parametrize("between", [True, False])
def test_cpus_between_and_after_gpus_are_counted_among_cpus_alone(between: bool, tmp_path: Path) -> None:
    """KFD numbers both as it finds them: a link to the second CPU is one to NUMA node 1, wherever it stands."""
    written = server(tmp_path)
    shutil.rmtree(tmp_path / "sys/bus")  # KFD's links alone tell what is near
    number = written.numbers[3] + 1 if between else written.numbers[7] + 1
    (tmp_path / NODES / "1").rename(tmp_path / NODES / str(number))
    for gpu in range(4, 8):
        written.link(written.numbers[gpu], 0, type=2, node_to=number, weight=20)
    found = amd_reading.discover(tmp_path)
    assert [gpu.uuid for gpu in found.machine.gpus] == [gpu.uuid for gpu in written.machine.gpus]
    assert [gpu.numa for gpu in found.machine.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert found.machine.links == written.machine.links
    assert found.problems == ()


def test_a_bridge_that_moved_during_a_reading_takes_no_gpu_away(tmp_path: Path) -> None:
    written = server(tmp_path)
    bridge = "0000:f1:00.0/0000:f2:00.0"
    for gpu, way in ((0, f"pci0000:f0/{bridge}"), (1, f"pci0000:e0/0000:e1:00.0/0000:e2:00.0/{bridge}")):
        pci = written.machine.gpus[gpu].pci
        moved = tmp_path / "sys/devices" / way / pci
        moved.parent.mkdir(parents=True)
        shutil.copytree(written.device(gpu), moved)
        at = tmp_path / "sys/bus/pci/devices" / pci
        at.unlink()
        at.symlink_to(moved)
    assert len(amd_reading.discover(tmp_path).machine.gpus) == 8
