"""NVML without a GPU: compiles ``nvml.c`` and writes the table that it answers from."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, cast

from dradriver.node.vendors.nvidia.discovery import binding, library_sessions
from dradriver.node.vendors.nvidia.discovery.nvml_interface import Nvml
from dradriver.topology.machine import Gpu, Machine, MigProfile, PathType
from dradriver.topology.nccl import nccl_bandwidths
from tests import needs

SOURCE = Path(__file__).with_name("nvml.c")
TABLE = "NVML_TABLE"
UNSEEN_SWITCH = "FFFFFFFF:FFFF:FF.0"
_SPEEDS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
_LEVELS = {PathType.PIX: 10, PathType.PXB: 20, PathType.PHB: 30, PathType.NODE: 40, PathType.SYS: 50}
_MAY_BE_EMPTY = ("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetName")

# NVML_GPU_INSTANCE_PROFILE_*, by whether a profile is plain and its compute slices, the smaller one first.
_ENUMERATED: dict[bool, dict[int, tuple[int, ...]]] = {
    True: {1: (0, 9), 2: (1,), 3: (2,), 4: (3,), 7: (4,)},
    False: {1: (7,), 2: (8,)},
}
_ELSEWHERE = (5, 6, 10, 11, 12, 13, 14, 15, 16, 17)

_SLICES: Final = re.compile(r"(?:(?P<compute>\d)c\.)?(?P<gpu>\d)g\.")

Table = dict[str, str]


@functools.cache
def compiled(*, old: bool = False) -> Path:
    """Return a driver root that holds the library, ``old`` one without what drivers lacked long ago.

    A test without a compiler is skipped; CI must have one.
    """
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        needs.missing("no C compiler (cc, gcc, clang) for the NVML test library")
    root = Path(_folder().name) / ("old" if old else "new")
    folder = root / "usr/lib64"
    folder.mkdir(parents=True)
    words = [compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
    words += [*(["-DOLD"] if old else []), str(SOURCE), "-o", str(folder / "libnvidia-ml.so.1"), "-ldl", "-lpthread"]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    return root


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for as long as the process lives."""
    return tempfile.TemporaryDirectory(prefix="nvml-")


def end_sessions() -> None:
    """End every session that is open in this process: an agent that was not told to close keeps its own."""
    for session in library_sessions.sessions():
        binding.end(cast("Nvml", session))


def write(table: Mapping[str, str], path: Path) -> Path:
    """Write the table for the library and return its path, for ``NVML_TABLE``; ``\\udcff`` in it is the byte ff."""
    new = path.with_suffix(".new")
    new.write_text("".join(f"{key}={value}\n" for key, value in table.items()), "utf-8", "surrogateescape")
    return new.replace(path)  # an agent may be reading it


def table(machine: Machine) -> Table:
    """What NVML says on this machine. Overwrite an answer with ``!15`` to have it fail."""
    answers = {"nvmlDeviceGetCount_v2": str(1 + max(gpu.index for gpu in machine.gpus))}
    if machine.driver_version:
        answers["nvmlSystemGetDriverVersion"] = machine.driver_version
    if machine.cuda_version:
        major, _, minor = machine.cuda_version.partition(".")
        answers["nvmlSystemGetCudaDriverVersion_v2"] = str(1000 * int(major) + 10 * int(minor))
    for i, gpu in enumerate(machine.gpus):
        at = str(gpu.index)
        speed, width = link_words(gpu.pcie_gbps)
        own = {
            "nvmlDeviceGetHandleByIndex_v2": "",
            "nvmlDeviceGetUUID": gpu.uuid,
            "nvmlDeviceGetMinorNumber": str(gpu.minor),
            "nvmlDeviceGetName": gpu.product,
            "nvmlDeviceGetCudaComputeCapability": gpu.compute_capability.replace(".", " "),
            "nvmlDeviceGetMemoryInfo": str(gpu.memory_mib << 20),
            "nvmlDeviceGetPowerManagementDefaultLimit": str(gpu.power_watts * 1000),
            "nvmlDeviceGetMaxPcieLinkGeneration": str(_SPEEDS[speed.split()[0]]),
            "nvmlDeviceGetMaxPcieLinkWidth": str(width),
            "nvmlDeviceGetMigMode": "0 0" if gpu.mig is None else "1 1",
            "nvmlDeviceGetGpuFabricInfoV": _fabric(gpu),
            "nvmlDeviceGetPciInfo_v3": _nvml_bus_id(gpu.pci),
        }
        answers |= {f"{name} {at}": answer for name, answer in own.items() if answer or name in _MAY_BE_EMPTY}
        answers |= _c2c(at, gpu.c2c_gbps) | _mig(at, gpu) | mig_table(gpu.index, gpu.profiles) | _links(machine, i)
        for j, other in enumerate(machine.gpus):
            if i != j:
                answers[f"nvmlDeviceGetTopologyCommonAncestor {at} {other.index}"] = str(_LEVELS[machine.paths[i][j]])
                answers[f"nvmlDeviceGetP2PStatus 2 {at} {other.index}"] = "0" if machine.links[i][j] else "5"
    return answers


def mig_table(gpu: int, profiles: Sequence[MigProfile]) -> Table:
    """What NVML says of a GPU's profiles, by its enumeration, which has gaps, in MIG mode and out of it."""
    answers: Table = {}
    numbers: dict[int, str] = {}
    for one in sorted(profiles, key=lambda one: (not _is_plain(one), one.size, one.compute)):
        wanted = _ENUMERATED[_is_plain(one)].get(one.compute, ())
        number = next(n for n in (*wanted, *_ELSEWHERE) if n not in numbers)
        numbers[number] = f"{one.id} {one.compute} {one.most} {one.memory_mib} MIG {one.name}"
        spans = " ".join(f"{start}:{one.size}" for start in one.starts)
        answers[f"nvmlDeviceGetGpuInstancePossiblePlacements_v2 {gpu} {one.id}"] = spans
        if one.engines:
            answers[f"profile engines {gpu} {one.id}"] = " ".join(map(str, one.engines))
    return answers | {f"nvmlDeviceGetGpuInstanceProfileInfoV {gpu} {n}": about for n, about in numbers.items()}


def instance_table(name: str, profile: MigProfile, start: int, compute: Mapping[int, int]) -> Table:
    """What it says of a GPU instance, ``0/gi5``: where it is, and the slices of each profile of compute instances."""
    gpu, _, number = name.partition("/gi")
    answers = {
        f"nvmlDeviceGetGpuInstances {gpu} {profile.id}": number,
        f"nvmlDeviceGetGpuInstanceById {gpu} {number}": "",
        f"nvmlGpuInstanceGetInfo {name}": f"{profile.id} {start} {profile.size}",
    }
    for enumerated, slices in compute.items():
        answers[f"nvmlGpuInstanceGetComputeInstanceProfileInfoV {name} {enumerated}"] = f"{enumerated} {slices} 7"
    return answers


def compute_table(name: str, profile: int, mig: str, uuid: str) -> Table:
    """What it says of a compute instance, ``0/gi5/ci0``, and of its MIG device, ``0/0``."""
    instance, _, number = name.partition("/ci")
    return {
        f"nvmlGpuInstanceGetComputeInstances {instance} {profile}": number,
        f"nvmlGpuInstanceGetComputeInstanceById {instance} {number}": "",
        f"nvmlComputeInstanceGetInfo_v2 {name}": f"{profile} 0 1 {mig}",
        f"nvmlDeviceGetUUID {mig}": uuid,
        f"nvmlDeviceGetHandleByUUID {uuid}": mig,
    }


def _is_plain(profile: MigProfile) -> bool:
    return not set("+-") & set(profile.name)


def link_words(gbps: float) -> tuple[str, int]:
    """The kernel's words for a PCIe link that NCCL counts as ``gbps``."""
    speeds = [word for word in nccl_bandwidths.LINK_SPEEDS if word.endswith("PCIe")]
    return next((w, n) for w in speeds for n in (16, 8, 4, 2, 1) if nccl_bandwidths.pci_gbps(w, n) == gbps)


def add_link(answers: Table, gpu: int, link: int, remote: str) -> None:
    """Add a link that is up to ``remote``, a bus id; ``UNSEEN_SWITCH`` is a switch."""
    answers[f"nvmlDeviceGetNvLinkState {gpu} {link}"] = "1"
    answers[f"nvmlDeviceGetNvLinkRemotePciInfo_v2 {gpu} {link}"] = remote
    answers[f"nvmlDeviceGetNvLinkRemoteDeviceType {gpu} {link}"] = "2" if remote == UNSEEN_SWITCH else "0"


def _links(machine: Machine, i: int) -> Table:
    """The links of one GPU: first to a switch, then to its peers, then one that is down."""
    gpu = machine.gpus[i]
    remotes = [UNSEEN_SWITCH] * gpu.switch_links
    for j, other in enumerate(machine.gpus):
        direct = machine.links[i][j] - (min(gpu.switch_links, other.switch_links) if i != j else 0)
        assert direct >= 0, "fewer links than both have to a switch"
        remotes += [_nvml_bus_id(other.pci)] * direct
    answers: Table = {}
    for number, remote in enumerate(remotes):
        add_link(answers, gpu.index, number, remote)
    if machine.link_gbps:
        answers[f"nvmlDeviceGetNvLinkState {gpu.index} {len(remotes)}"] = "0"
        answers[f"nvmlDeviceGetFieldValues {gpu.index} 91 0"] = str(len(remotes) + 1)
    return answers


def _mig(at: str, gpu: Gpu) -> Table:
    answers: Table = {} if gpu.mig is None else {f"nvmlDeviceGetMaxMigDeviceCount {at}": "7"}
    for device in gpu.mig or ():
        name = f"{at}/{device.slot}"
        answers |= {
            f"nvmlDeviceGetMigDeviceHandleByIndex {at} {device.slot}": "",
            f"nvmlDeviceGetUUID {name}": device.uuid,
            f"nvmlDeviceGetName {name}": f"{gpu.product} MIG {device.profile}",
            f"nvmlDeviceGetMemoryInfo {name}": str(device.memory_mib << 20),
            f"nvmlDeviceGetGpuInstanceId {name}": str(device.gpu_instance),
            f"nvmlDeviceGetComputeInstanceId {name}": str(device.compute_instance),
        }
        if slices := _SLICES.match(device.profile):
            compute = slices["compute"] or slices["gpu"]
            answers[f"nvmlDeviceGetAttributes_v2 {name}"] = f"{slices['gpu']} {compute} {device.memory_mib}"
        if device.profile_id is not None:
            size = next((one.size for one in gpu.profiles if one.id == device.profile_id), 1)
            placed = f"{device.profile_id} {device.start} {size}"
            answers[f"nvmlDeviceGetGpuInstanceById {at} {device.gpu_instance}"] = ""
            answers[f"nvmlGpuInstanceGetInfo {at}/gi{device.gpu_instance}"] = placed
    return answers


def _c2c(at: str, gbps: float) -> Table:
    if not gbps:
        return {}
    lanes = 5
    answers = {f"nvmlDeviceGetFieldValues {at} 170 0": str(lanes + 1)}
    for lane in range(lanes + 1):  # the last is down
        answers[f"nvmlDeviceGetFieldValues {at} 171 {lane}"] = str(int(lane < lanes))
        answers[f"nvmlDeviceGetFieldValues {at} 172 {lane}"] = str(round(gbps * 1000 / lanes))
    return answers


def _fabric(gpu: Gpu) -> str:
    """The state of its registration: completed on switches, not supported elsewhere."""
    cluster, _, clique = gpu.fabric.partition(".")
    state = 3 if gpu.fabric or gpu.switch_links else 0
    return f"{state} 0 {clique or 0} {cluster.replace('-', '') or '0' * 32}"


def _nvml_bus_id(busid: str) -> str:
    domain, _, rest = busid.partition(":")
    return f"{int(domain, 16):08X}:{rest.upper()}" if busid else ""
