"""The checks that every ``Machine`` must pass, from any source.

A ``Machine`` is the model of one GPU server. A PCI tree lists its devices and bridges, each after the bridge above it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from dradriver.topology.cpulist import is_cpu_list
from dradriver.topology.errors import TopologyError
from dradriver.topology.identifiers import is_bus_id, is_identity, is_mig_profile, is_mig_uuid
from dradriver.topology.machine import Blocks, Gpu, Machine, MigProfile, PathType
from dradriver.topology.nccl_version import release
from dradriver.topology.vendors import VENDORS

_CPUMAP = re.compile(r"[0-9a-f]{1,8}(,[0-9a-f]{8})*")
_CLASS = re.compile(r"(0x[0-9a-f]{6})?")
_IDS = re.compile(r"([0-9a-f]{4}(:[0-9a-f]{4}){3})?")
_WORDS = re.compile(r"[ -~]{0,32}")
_MAX_NUMBER = 1e12
MOST_PROFILES = 32  # of one GPU
_MOST_SLICES = 16
_MOST_ENGINES = 16  # kinds of them; NVML tells of five
MOST_OF_AN_ENGINE = 1024
_MOST_LANES = 64
MAX_LINKS = 1024  # far above any part; keeps nonsense out of later arithmetic


def check(machine: Machine) -> Machine:
    """Check a machine against all rules, and return it.

    Readers and decisions rely on the rules, such as different uuids and a PCI tree with parents first.

    Raises:
        TopologyError: The machine breaks a rule. The message has the field, its value and what is allowed there.
    """
    if not machine.gpus:
        raise TopologyError("gpus: the list is empty. A machine has at least one GPU.")
    _check_texts(machine)  # first, because later messages show the texts
    _check_gpus(machine)
    release(machine.nccl_version)  # raises if it is no version
    _check_nics(machine)
    _check_numa_nodes(machine)
    _check_figures(machine)
    _check_pci(machine)

    # The shapes of the matrices first, so that the checks of single cells may use any index.
    count = len(machine.gpus)
    _check_shape(machine.links, "links", count, count)
    _check_shape(machine.paths, "paths", count, count)
    _check_shape(machine.nic_paths, "nic_paths", len(machine.nics), count)
    for i in range(count):
        for j in range(count):
            _check_pair(machine, i, j)
    for nic_position, row in enumerate(machine.nic_paths):
        for j, path in enumerate(row):
            if path is PathType.SELF:
                # The text names the numbers of ``PathType``, because the file has numbers.
                raise TopologyError(
                    f"nic_paths[{nic_position}][{j}]: 0 (self) is not possible between a NIC and a GPU. Write 1 to 5."
                )
    # Paths between two NICs, and which GPUs may be used together: few machines have them.
    if machine.nic_pairs is not None:
        _check_nic_pairs(machine.nic_pairs, len(machine.nics))
    if machine.blocks is not None:
        _check_blocks(machine.blocks, count)
    return machine


def _check_texts(value: object, at: str = "") -> None:
    """Raise an error if a text of the machine cannot be encoded in UTF-8.

    For example, a file name with bytes that are not UTF-8 becomes a text with half a surrogate pair.

    Args:
        value: The machine, or a field of it.
        at: The field's name, such as ``gpus[0].uuid``; empty for the machine.
    """
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            _check_texts(getattr(value, field), f"{at}.{field}" if at else field)
    elif isinstance(value, tuple):
        for i, part in enumerate(value):
            _check_texts(part, f"{at}[{i}]")
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise TopologyError(f"{at}: {value!r} is not valid UTF-8. Write text that UTF-8 can hold.") from None


def _check_gpus(machine: Machine) -> None:
    """Check each GPU's fields: identities differ, numbers are in range, and all GPUs have one vendor.

    Raises:
        TopologyError: The machine breaks a rule. The message has the field, its value and what is allowed there.
    """
    for field in ("index", "uuid", "minor", "pci"):
        first_with: dict[object, int] = {}
        for i, gpu in enumerate(machine.gpus):
            value = getattr(gpu, field)
            # Kubernetes' device names are made of uuids in lower case, so those may not differ by case alone.
            key = value.lower() if isinstance(value, str) else value
            # A bus id may be unknown, which is empty.
            if key in first_with and value != "":
                raise TopologyError(
                    f"gpus[{i}].{field}: {value!r} is also the value of gpus[{first_with[key]}]. Each GPU needs its "
                    f"own."
                )
            first_with[key] = i
    for i, gpu in enumerate(machine.gpus):
        at = f"gpus[{i}]"
        if i and gpu.index <= machine.gpus[i - 1].index:
            raise TopologyError(f"{at}.index: {gpu.index} is not above the previous index. Sort the GPUs by index.")
        if not is_identity(gpu.uuid):
            raise TopologyError(
                f"{at}.uuid: {gpu.uuid!r} is not valid. Write what the vendor's tool prints (nvidia-smi -L: GPU- and "
                f"a UUID): "
                "1 to 63 letters, digits and hyphens. A hyphen must not be at the start or the end."
            )
        if gpu.vendor not in VENDORS or gpu.vendor != machine.gpus[0].vendor:
            raise TopologyError(
                f"{at}.vendor: {gpu.vendor!r} is not allowed. Write one of: {', '.join(VENDORS)}. All GPUs of a "
                f"machine have the same vendor."
            )
        if gpu.pci and not is_bus_id(gpu.pci):
            raise TopologyError(
                f"{at}.pci: {gpu.pci!r} is not a PCI address. Write it as in /sys, for example 0000:06:00.0."
            )
        for field in ("index", "minor", "numa", "memory_mib", "power_watts", "pcie_gbps", "c2c_gbps"):
            _check_number(getattr(gpu, field), f"{at}.{field}")
        # UNSET: the driver's own tools number the GPU as ``index`` does.
        if gpu.driver_index is not msgspec.UNSET:
            _check_number(gpu.driver_index, f"{at}.driver_index")
        for n, device in enumerate(gpu.mig or ()):
            if not is_mig_uuid(device.uuid):
                raise TopologyError(
                    f"{at}.mig[{n}].uuid: {device.uuid!r} is not valid. Write MIG- and a lower-case UUID."
                )
            for field in ("slot", "gpu_instance", "compute_instance", "memory_mib", "profile_id", "start"):
                _check_number(getattr(device, field), f"{at}.mig[{n}].{field}")
        _check_profiles(gpu, at)
        if not 0 <= gpu.switch_links <= MAX_LINKS:
            raise TopologyError(f"{at}.switch_links: {gpu.switch_links} is not allowed. Write 0 to {MAX_LINKS}.")


def _check_profiles(gpu: Gpu, at: str) -> None:
    if len({profile.name for profile in gpu.profiles}) < len(gpu.profiles) or len(gpu.profiles) > MOST_PROFILES:
        raise TopologyError(
            f"{at}.profiles: {len(gpu.profiles)} profiles. At most {MOST_PROFILES} are allowed, each with a name of "
            f"its own."
        )
    for n, profile in enumerate(gpu.profiles):
        check_profile(profile, f"{at}.profiles[{n}]")


def check_profile(profile: MigProfile, at: str) -> None:
    """Check that a MIG profile is possible; ``at`` is its place in the machine, for the message.

    Raises:
        TopologyError: The profile is not possible.
    """
    if not is_mig_profile(profile.name):
        raise TopologyError(
            f"{at}.name: {profile.name!r} is not a MIG profile. Write it as nvidia-smi mig -lgip prints it, for "
            f"example 1g.10gb."
        )
    for field in ("id", "compute", "memory_mib", "most"):
        _check_number(getattr(profile, field), f"{at}.{field}")
    starts = profile.starts
    if not 1 <= profile.size <= _MOST_SLICES or any(not 0 <= s <= _MOST_SLICES - profile.size for s in starts):
        raise TopologyError(
            f"{at}: {profile.size} slices at {starts} do not fit. A GPU has at most {_MOST_SLICES} slices."
        )
    if list(starts) != sorted(set(starts)):
        raise TopologyError(f"{at}.starts: {starts} is not valid. Write each start once, in ascending order.")
    if len(profile.engines) > _MOST_ENGINES or any(not 0 <= count <= MOST_OF_AN_ENGINE for count in profile.engines):
        raise TopologyError(
            f"{at}.engines: {profile.engines} is not valid. Write at most {_MOST_ENGINES} numbers from 0 to "
            f"{MOST_OF_AN_ENGINE}."
        )


def _check_nics(machine: Machine) -> None:
    names: set[str] = set()
    for i, nic in enumerate(machine.nics):
        if not nic.name or nic.name in names:
            raise TopologyError(
                f"nics[{i}].name: {nic.name!r} is empty or occurs twice. Each NIC needs a name of its own."
            )
        names.add(nic.name)
        if nic.pci and not is_bus_id(nic.pci):
            raise TopologyError(
                f"nics[{i}].pci: {nic.pci!r} is not a PCI address. Write it as in /sys, for example 0000:05:00.0."
            )
        _check_number(nic.numa, f"nics[{i}].numa")
        _check_number(nic.gbps, f"nics[{i}].gbps")


def _check_numa_nodes(machine: Machine) -> None:
    for i, node in enumerate(machine.numa):
        if node.id < 0 or (i and node.id <= machine.numa[i - 1].id):
            raise TopologyError(f"numa[{i}].id: {node.id} is out of order. Write the nodes by id from 0, each once.")
        if node.cpus and not is_cpu_list(node.cpus):
            raise TopologyError(
                f"numa[{i}].cpus: {node.cpus!r} is not a CPU list. Write it in ascending order, for example 0-19,40-59."
            )
        if node.cpumap and not _CPUMAP.fullmatch(node.cpumap):
            raise TopologyError(
                f"numa[{i}].cpumap: {node.cpumap!r} is not a CPU map. Write it as in /sys, for example "
                f"000000ff,fff00000."
            )


def _check_figures(machine: Machine) -> None:
    """Check the numbers of the whole machine, such as the bandwidth of links.

    Raises:
        TopologyError: The machine breaks a rule. The message has the field, its value and what is allowed there.
    """
    if machine.cpu is not None:
        _check_number(machine.cpu.family, "cpu.family")
        _check_number(machine.cpu.model, "cpu.model")
    _check_number(machine.link_gbps, "link_gbps")
    _check_number(machine.socket_gbps, "socket_gbps")
    _check_number(machine.socket_gbps_or, "socket_gbps_or")


def _check_pci(machine: Machine) -> None:
    """Check the PCI tree: parents come first, and each device has a bus id of its own.

    Raises:
        TopologyError: The machine breaks a rule. The message has the field, its value and what is allowed there.
    """
    seen: set[str] = set()
    for i, device in enumerate(machine.pci):
        at = f"pci[{i}]"
        if not is_bus_id(device.busid) or device.busid in seen:
            raise TopologyError(
                f"{at}.busid: {device.busid!r} is not a PCI address, or occurs twice. Write each once as in /sys, for "
                f"example 0000:06:00.0."
            )
        seen.add(device.busid)
        if device.parent is not None and not 0 <= device.parent < i:
            raise TopologyError(
                f"{at}.parent: {device.parent} is not valid. Write the position of a bridge before this device, or "
                f"none."
            )
        for field, value, form, example in (
            ("kind", device.kind, _CLASS, "0x030200"),
            ("ids", device.ids, _IDS, "10de:2335:10de:18be"),
            ("link_speed", device.link_speed, _WORDS, "32.0 GT/s PCIe"),
        ):
            if not form.fullmatch(value):
                raise TopologyError(
                    f"{at}.{field}: {value!r} is not valid. Write it as in /sys, for example {example}."
                )
        _check_number(device.numa, f"{at}.numa")
        if not 0 <= device.link_width <= _MOST_LANES:
            raise TopologyError(f"{at}.link_width: {device.link_width} is not allowed. Write 0 to {_MOST_LANES}.")


def _check_blocks(blocks: Blocks, gpus: int) -> None:
    if len(blocks.of) != gpus or not all(0 <= number < MAX_LINKS for number in blocks.of):
        raise TopologyError(
            f"blocks.of: {blocks.of} is not valid. Write the number of a block for each of {gpus} GPUs."
        )
    if list(blocks.counts) != sorted(blocks.counts):
        raise TopologyError(f"blocks.counts: {blocks.counts} is not valid. Write the counts in ascending order.")
    for at, numbers in (("counts", blocks.counts), *((f"order[{i}]", row) for i, row in enumerate(blocks.order))):
        if len(set(numbers)) < len(numbers) or not all(1 <= number <= MAX_LINKS for number in numbers):
            raise TopologyError(f"blocks.{at}: {numbers} is not valid. Write numbers of GPUs from 1, each once.")


def _check_number(value: float | None, at: str) -> None:
    if value is not None and not 0 <= value <= _MAX_NUMBER:  # written so that NaN fails too
        raise TopologyError(f"{at}: {value} is not valid. Write a number of at least 0, or remove the field.")


def _check_shape(matrix: Sequence[Sequence[object]], at: str, rows: int, columns: int, *, each: str = "GPU") -> None:
    if len(matrix) != rows:
        raise TopologyError(f"{at}: {len(matrix)} rows, but {rows} are needed.")
    for i, row in enumerate(matrix):
        if len(row) != columns:
            raise TopologyError(f"{at}[{i}]: {len(row)} values, but {columns} are needed, one for each {each}.")


def _check_nic_pairs(pairs: Sequence[Sequence[PathType]], count: int) -> None:
    _check_shape(pairs, "nic_pairs", count, count, each="NIC")
    for n, row in enumerate(pairs):
        for m, path in enumerate(row):
            if path != pairs[m][n]:
                raise TopologyError(
                    f"nic_pairs[{n}][{m}]: {path}, but nic_pairs[{m}][{n}] is {pairs[m][n]}. Write the same in both."
                )
            if (n == m) != (path is PathType.SELF):
                raise TopologyError(
                    f"nic_pairs[{n}][{m}]: {path} is not possible here. 0 (self) is on the diagonal, and only there."
                )


def _check_pair(machine: Machine, i: int, j: int) -> None:
    links, paths, at = machine.links, machine.paths, f"[{i}][{j}]"
    if not 0 <= links[i][j] <= MAX_LINKS:
        raise TopologyError(f"links{at}: {links[i][j]} is not allowed. Write 0 to {MAX_LINKS}.")
    if links[i][j] != links[j][i]:
        raise TopologyError(f"links{at}: {links[i][j]}, but links[{j}][{i}] is {links[j][i]}. Write the same in both.")
    if paths[i][j] != paths[j][i]:
        raise TopologyError(f"paths{at}: {paths[i][j]}, but paths[{j}][{i}] is {paths[j][i]}. Write the same in both.")
    if (i == j) != (paths[i][j] is PathType.SELF):
        raise TopologyError(
            f"paths{at}: {paths[i][j]} is not possible here. 0 (self) is on the diagonal, and only there."
        )
    if i == j and links[i][j]:
        raise TopologyError(f"links{at}: {links[i][j]}, but a GPU has no link to itself. Write 0.")
