"""Builds the devices of a slice for a GPU: whole, shared by several claims, or in equal shares."""

from __future__ import annotations

import re
from typing import Any, Final

from dradriver.api.base import gang_barrier_device, names
from dradriver.api.policies.gpu_modes import Mode
from dradriver.topology.groups import Groups
from dradriver.topology.machine import Machine

MOST_TEXT: Final = 64  # bytes in a string attribute, resource/v1 types.go (DeviceAttributeMaxValueLength)

MOST_SAID: Final = 32  # attributes and capacities of a device (ResourceSliceMaxAttributesAndCapacitiesPerDevice)
_GROUP_SIZES: Final = (2, 4, 8)
_TWINS: Final = {f"nvlink{what}": f"link{what}" for what in ("Domain", *(f"Group{size}" for size in _GROUP_SIZES))}
_TWIN_RATES: Final = {f"nvlinkGroup{size}GBps": f"linkGroup{size}GBps" for size in _GROUP_SIZES}
_SHARE: Final = re.compile(r"(.+)-share-[0-9]{1,2}")

Device = dict[str, Any]


def whole(machine: Machine, groups: Groups, position: int, *, name: str) -> Device:
    """Return the ResourceSlice device of a GPU that only one claim can use.

    Args:
        machine: The machine.
        groups: The groups of well-linked GPUs of the machine.
        position: The position of the GPU in ``machine.gpus``.
        name: The name of the device.
    """
    device: Device = {
        "name": name,
        "attributes": _of_type(machine.vendor.type) | identity(machine, position) | _links(groups, position),
    }
    if memory_mib := machine.gpus[position].memory_mib:
        device["capacity"] = {names.CAPACITY_MEMORY: {"value": f"{memory_mib}Mi"}}
    return device


def neutral(device: Device) -> Device:
    """Return a whole GPU's device with copies of the link attributes under vendor-neutral names.

    There are two sets of copies. The first has ``linkDomain``, ``linkGroup2``, ``linkGroup4`` and ``linkGroup8``. The
    second has the rates of these groups, under the same names with ``GBps`` at the end. A set is added only if the
    device has room for all of it. On a machine with eight linked GPUs of a multi-node fabric, there is no room for the
    rates. A GPU that can be divided has more attributes and capacities, and room for neither set.
    """
    attributes: dict[str, Any] = device["attributes"]
    for twins in (_TWINS, _TWIN_RATES):
        said = {twin: attributes[name] for name, twin in twins.items() if name in attributes}
        if len(attributes) + len(device.get("capacity", ())) + len(said) <= MOST_SAID:
            attributes = attributes | said
    return device | {"attributes": attributes}


def shared(machine: Machine, groups: Groups, position: int, mode: Mode, *, name: str) -> Device:
    """Return the ResourceSlice device of a GPU that several claims can share.

    - A claim that requests no amount of a capacity gets all of it, which is the default. So a claim for a whole GPU
      need not mention shares.
    - The sum of the shares' memory can exceed the GPU's memory, but a single claim cannot get more than the GPU's
      memory.
    - The sum of the shares' compute cannot exceed the GPU's compute. So a claim with a whole GPU is alone on it.
    - If shares are equal, a claim gets one share or all of them. Amounts in between are rounded up (KEP-5075).

    ``groups`` are the machine's groups of well-linked GPUs, ``position`` is the GPU's position in ``machine.gpus``.
    ``mode`` says how the GPU is handed out, ``name`` is the name of the device.
    """
    gpu = machine.gpus[position]
    # With overcommit, the sum of all shares may be more than the GPU's memory. One share may not.
    total_mib = int(gpu.memory_mib * mode.memory_overcommit)
    device = whole(machine, groups, position, name=name)
    device["attributes"] |= _sharing(mode)
    if mode.fractions_only:  # the class of whole GPUs asks for another type, that of shares for none
        device["attributes"] |= _of_type("share")
    return device | {
        "allowMultipleAllocations": True,
        "capacity": {
            names.CAPACITY_CORES: divisible(100, 100, parts=mode.equal_shares),
            names.CAPACITY_MEMORY: divisible(total_mib, gpu.memory_mib, unit="Mi", parts=mode.equal_shares),
        },
    }


def equal_shares(machine: Machine, position: int, mode: Mode, *, shares: int, name: str) -> list[Device]:
    """Return a GPU as several devices of equal size, one for each share.

    The node agent publishes these devices if the API server does not support shared devices. No device is the whole
    GPU, because the server would allocate it in addition to the shares. Memory cannot be overcommitted: each device has
    its fraction of the GPU's memory.

    Args:
        machine: The machine.
        position: The position of the GPU in ``machine.gpus``.
        mode: How the GPU is handed out.
        shares: The number of shares.
        name: The device name of the whole GPU, from which the names of the shares are made.
    """
    gpu = machine.gpus[position]
    attributes = _of_type("share") | identity(machine, position) | _sharing(mode)
    attributes["parentUUID"] = attributes.pop("uuid")
    capacity = {
        names.CAPACITY_CORES: {"value": str(100 // shares)},
        names.CAPACITY_MEMORY: {"value": f"{gpu.memory_mib // shares}Mi"},
    }
    return [
        {"name": share_name(name, number), "attributes": dict(attributes), "capacity": capacity}
        for number in range(shares)
    ]


def share_name(gpu: str, number: int) -> str:
    """Return the device name of one of a GPU's equal shares: the GPU's device name and a number."""
    return f"{gpu}-share-{number}"


def gpu_of_share(name: str) -> str | None:
    """Return the device name of the GPU that an equal share belongs to; None for other names."""
    match = _SHARE.fullmatch(name)
    return match[1] if match else None


def semver(version: str) -> str | None:
    """Return a GPU driver's version as semantic version 2.0.0, for an attribute; None if that is impossible.

    For example, ``535.104.05`` becomes ``535.104.5``.
    """
    match = re.match(r"(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?(?:$|[^\d])", version)
    return ".".join(str(int(part or 0)) for part in match.groups()) if match else None


def _of_type(name: str) -> dict[str, dict[str, Any]]:
    return {"type": {"string": name}}


def _sharing(mode: Mode) -> dict[str, dict[str, Any]]:
    attributes: dict[str, dict[str, Any]] = {"shareable": {"bool": True}, "sharing": {"string": mode.shared}}
    if mode.equal_shares:
        attributes["equalShares"] = {"int": mode.equal_shares}
    return attributes | exclusive(mode)


def exclusive(mode: Mode) -> dict[str, dict[str, Any]]:
    """Return the attribute ``exclusiveTo`` if a GPU's fractions belong to one namespace at a time.

    The result is empty if several namespaces can have fractions of the GPU at the same time (``mode``).
    """
    return {"exclusiveTo": {"string": mode.exclusive_to}} if mode.exclusive_to else {}


def divisible(total: int, most: int, *, unit: str = "", parts: int = 0) -> dict[str, Any]:
    """Return a device capacity that claims can divide, with its request policy.

    A claim can have any whole number up to ``most``. If ``parts`` is given, a claim can only have one of the equal
    parts, or all of the capacity.

    Args:
        total: The value of the capacity.
        most: The most that one claim can have, which is also the default.
        unit: The unit of the quantity, such as ``Mi``.
        parts: The number of equal parts; 0 for any size.
    """
    policy: dict[str, Any] = {"default": f"{most}{unit}"}
    if parts:
        policy["validValues"] = [f"{number}{unit}" for number in sorted({max(most // parts, 1), most})]
    else:
        policy["validRange"] = {"min": f"1{unit}", "step": f"1{unit}", "max": f"{most}{unit}"}
    return {"value": f"{total}{unit}", "requestPolicy": policy}


def identity(machine: Machine, position: int) -> dict[str, dict[str, Any]]:
    """Return the attributes that a GPU has in common with its shares and MIG slices.

    Unknown values are left out: empty texts, versions that are no semantic version, NUMA nodes below 0. Attributes with
    a domain have their full name from ``names``; the others belong to the driver's own domain.

    ``position`` is the GPU's position in ``machine.gpus``.
    """
    gpu = machine.gpus[position]
    attributes: dict[str, dict[str, Any]] = {
        "uuid": {"string": gpu.uuid},
        "index": {"int": gpu.index},
        "minor": {"int": gpu.minor},
        "vendor": {"string": gpu.vendor},
        **gang_barrier_device.KNOWN,  # says that this agent prepares claims with gang barrier devices
    }
    # Attributes are typed: string, version, int. An empty text is an unknown value.
    texts = {
        "productName": gpu.product,
        "boardName": gpu.board,
        "architecture": gpu.architecture,
        "fabric": gpu.fabric,
        "nic": _nearest_nic(machine, position),
        names.PCI_BUS_ID: gpu.pci,
        names.PCIE_ROOT: gpu.pcie_root,
    }
    attributes |= {key: {"string": _cut_to_limit(text)} for key, text in texts.items() if text}
    versions = {
        "cudaComputeCapability": gpu.compute_capability,
        "driverVersion": machine.driver_version,
        "cudaDriverVersion": machine.cuda_version,
    }
    for key, text in versions.items():
        if (version := semver(text)) is not None:
            attributes[key] = {"version": version}
    if gpu.numa is not None and gpu.numa >= 0:
        attributes[names.NUMA_NODE] = {"int": gpu.numa}
    return attributes


def _links(groups: Groups, position: int) -> dict[str, dict[str, Any]]:
    """Return the attributes for a GPU's NVLink domain and for its groups of 2, 4 and 8 linked GPUs.

    A group's attributes are its number and, if known, its bandwidth. ``position`` is the GPU's position in the machine.
    """
    attributes: dict[str, dict[str, Any]] = {}
    if (domain := groups.domain[position]) is not None:
        attributes["nvlinkDomain"] = {"int": domain}
    for size in _GROUP_SIZES:
        number = groups.by_size[size][position] if size in groups.by_size else None
        if number is not None:
            attributes[f"nvlinkGroup{size}"] = {"int": number}
            if rate := groups.line_gbps[size][number]:  # nobody publishes that of all links
                attributes[f"nvlinkGroup{size}GBps"] = {"int": rate}
            if size > 2 and (least := groups.any_gbps[size][number]):
                attributes[f"nvlinkGroup{size}AnyGBps"] = {"int": least}
    return attributes


def _cut_to_limit(text: str) -> str:
    """Return the start of ``text`` that fits into a string attribute, without splitting a character."""
    return text.encode()[:MOST_TEXT].decode(errors="ignore")


def _nearest_nic(machine: Machine, position: int) -> str | None:
    if not machine.nics:
        return None
    nearest = min(range(len(machine.nics)), key=lambda n: (machine.nic_paths[n][position], n))
    return machine.nics[nearest].name
