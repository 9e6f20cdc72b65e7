"""Converts an NCCL topology file (``NCCL_TOPO_FILE``, or a dump of ``NCCL_TOPO_DUMP_FILE``) to a ``Machine``.

A file without ``<gpu>`` elements, as clouds provide them, has no NVLinks. NCCL asks the driver for them, but the
machine read here has no links. Files of this kind have no root complexes either. So two devices of a NUMA node without
a common bridge get the path NODE, never PHB: no path must seem nearer than it is. Devices below two switches that a
``<pcilink>`` joins get PXB, as NCCL counts them.

RCCL writes the same for AMD's machines as version 2, with ``<xgmi>`` in place of ``<nvlink>`` and ``gcn`` in place of
``sm``. In these files a bus id may occur twice, as in two of the models that come with RCCL. Each occurrence is a
separate device, as for RCCL. The machine then has no PCI tree, because a tree could not distinguish two devices with
one bus id.

PXB, PHB and NODE are PCIe paths of ``nvidia-smi topo -m``: over several switches, over a host bridge, over several host
bridges of one NUMA node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from dradriver.reason import capitalized
from dradriver.topology import cpulist
from dradriver.topology.amd import amd_products
from dradriver.topology.check import check
from dradriver.topology.errors import TopologyError
from dradriver.topology.identifiers import is_bus_id
from dradriver.topology.machine import Cpu, Gpu, Machine, NumaNode
from dradriver.topology.nccl import nccl_bandwidths, pcilinks
from dradriver.topology.nccl.device_tree import Devices, Leaf, add_devices, error, number
from dradriver.topology.nccl.invented_switches import INVENTED
from dradriver.topology.nccl.nvlink_elements import link_counts
from dradriver.topology.nccl.xml import Element, all_below, parse, strtol
from dradriver.topology.pcie_paths import Place, path_matrix
from dradriver.topology.synthetic import synthetic_uuid
from dradriver.topology.vendors import AMD

_NUMA = re.compile(r"[0-9]{1,6}")
_MASK = re.compile(r"[0-9a-fA-F]{1,8}(,[0-9a-fA-F]{8}){0,255}")
_PRODUCTS = {  # NVIDIA's device ids (mig-parted, config-default.yaml), names as NVML spells them
    "20b0": "NVIDIA A100-SXM4-40GB",
    "20b2": "NVIDIA A100-SXM4-80GB",
    "20b5": "NVIDIA A100 80GB PCIe",
    "2330": "NVIDIA H100 80GB HBM3",
    "2335": "NVIDIA H200",
    "2901": "NVIDIA B200",
    "2941": "NVIDIA GB200",
}
_COMPUTE = {"20": 80, "23": 90, "29": 100}  # of these parts, by the first two digits
_OTHERS = {
    "graphs": "a graph file, the result of NCCL's search (NCCL_GRAPH_DUMP_FILE)",
    "topology": "a topology of hwloc's",
}
_NCCL, _RCCL = 1, 2  # versions of the file
_MOST_DEVICES = 512  # GPUs and NICs: the square of their number is kept, NCCL itself reads 255 elements
_START = 'Write a topology file, which starts with <system version="1">'


def read(text: str, *, name: str = "", seed: str = "") -> Machine:
    """Return the machine read from the text of an NCCL topology file.

    GPUs are numbered by their attribute ``dev`` if all have one and all differ, else by bus id, as NVML numbers them.
    The GPUs' uuids are made up, because the file has none.

    Args:
        text: The whole file. Some text that NCCL's own parser refuses (tabs, a declaration) is accepted here;
            ``checker`` reports it.
        name: The machine's name.
        seed: A text that gives machines of the same name different uuids.

    Raises:
        TopologyError: With line and column. Examples: the file is no topology file, it is a graph file, it has no GPU,
            or only one side has a link.
    """
    document = parse(text)
    root, fault = document.root, document.broken
    if root is not None and root.name != "system":
        raise error(root, None, f"this is {_OTHERS.get(root.name, f'a file of <{root.name}>')}. {_START}")
    if fault is not None:
        raise TopologyError(
            f"NCCL XML, line {fault.line}, column {fault.column}: {fault.problem}. {capitalized(fault.cure)}."
        )
    if root is None:
        raise TopologyError(f"NCCL XML, line 1, column 1: there is no element. {_START}")

    # ``strtol`` reads a number as NCCL does.
    version = strtol(root.get("version") or "")
    if version not in (_NCCL, _RCCL):
        raise error(
            root, "version", f"version {root.get('version')!r} is unknown. NCCL reads version 1, RCCL also version 2."
        )
    cpus = [child for child in root.children if child.name == "cpu"]
    hosts = {cpu.get("host_hash") for cpu in cpus} - {None}
    if len(hosts) > 1:
        raise error(root, None, f"the file has CPUs of {len(hosts)} hosts. Keep the CPUs of one host_hash.")

    # RCCL may list a device twice, NCCL may not.
    devices, node_of_number = Devices(twice=0 if version == _RCCL else None), {}

    # Each ``<cpu>`` is a NUMA node. ``add_devices`` puts what is below it into ``devices``, each with its place.
    for cpu in cpus:
        numa = _numa_id(cpu)
        if numa is not None:
            if numa in node_of_number:
                raise error(cpu, "numaid", f"numaid {numa} exists twice. Write each NUMA node once.")
            node_of_number[numa] = _numa_node(cpu, numa)
        add_devices(cpu, Place(numa=numa), devices)
    if not devices.gpus:
        raise error(root, None, "no GPU: a <pci> of class 0x03…, or with a <gpu> in it, is one")
    device_count = len(devices.gpus) + len(devices.nics)
    if device_count > _MOST_DEVICES:
        raise error(
            root,
            None,
            f"the file has {device_count} GPUs and NICs, and at most {_MOST_DEVICES} are read. Remove the others.",
        )

    # A function of two places: whether a ``<pcilink>`` joins switches above them.
    joined = pcilinks.joined(pcilinks.links(all_below(root, "pci")))
    return _machine(devices, node_of_number, _cpu_model(cpus), joined, name=name, seed=seed)


def _numa_id(cpu: Element) -> int | None:
    text = cpu.get("numaid")
    if text == "-1":
        return None
    if text is None or not _NUMA.fullmatch(text):
        raise error(cpu, "numaid", f"numaid {text!r} is invalid. Write the number of the NUMA node of the <cpu>.")
    return int(text)


def _numa_node(cpu: Element, numa: int) -> NumaNode:
    mask = cpu.get("affinity") or ""
    if mask and not _MASK.fullmatch(mask):
        raise error(
            cpu,
            "affinity",
            f"affinity {mask!r} is no mask. Write a hex mask as /sys does (000000ff,fff00000), not a list.",
        )
    return NumaNode(id=numa, cpus=cpulist.from_mask(mask), cpumap=mask.lower())


def _cpu_model(cpus: Sequence[Element]) -> Cpu | None:
    """Return the model of the first ``<cpu>`` element that has one; None if none has."""
    for cpu in cpus:
        if cpu.get("arch"):
            family = nccl_bandwidths.family_of(number(cpu, "familyid", 1 << 16) or 0)
            model = number(cpu, "modelid", 1 << 16) or 0
            return Cpu(arch=cpu.get("arch") or "", vendor=cpu.get("vendor") or "", family=family, model=model)
    return None


def _machine(
    devices: Devices,
    nodes: dict[int, NumaNode],
    cpu: Cpu | None,
    joined: Callable[[Place, Place], bool],
    *,
    name: str,
    seed: str,
) -> Machine:
    """Build the machine from a file's devices, with GPUs in the order of their numbers.

    Args:
        devices: The GPUs, NICs and PCI devices.
        nodes: The NUMA nodes by number.
        cpu: The CPUs' model, None if the file has none.
        joined: Returns whether a link between PCI switches connects two places.
        name: The machine's name.
        seed: A text that gives machines of the same name different uuids.
    """
    # GPUs are numbered by NCCL's ``dev``, if each GPU has a different one, else in the order of bus ids as NVML does.
    leaves = sorted(devices.gpus, key=lambda leaf: leaf.busid)
    numbers = [number(leaf.gpu, "dev", 9999) if leaf.gpu else None for leaf in leaves]
    if None in numbers or len(set(numbers)) < len(numbers):
        numbers = list(range(len(leaves)))
    numbered = sorted(zip(numbers, leaves, strict=True), key=lambda pair: pair[0] or 0)
    leaves = [leaf for _, leaf in numbered]

    # Links from GPU to GPU, and each GPU's links to switches: through these a pair has as many as the lesser has.
    direct, switched = link_counts(leaves)
    count = range(len(leaves))
    links = tuple(tuple(0 if i == j else direct[i][j] + min(switched[i], switched[j]) for j in count) for i in count)
    places = tuple(leaf.place for leaf in leaves)
    # Each NIC with its place, by name with numbers in order.
    nics = sorted(devices.nics.values(), key=lambda entry: _natural(entry[0].name))
    return check(
        Machine(
            name=name,
            gpus=tuple(
                _gpu(index or 0, leaf, switch_links=switched[i], uuid=synthetic_uuid(name, index or 0, seed=seed))
                for i, (index, leaf) in enumerate(numbered)
            ),
            links=links,
            paths=path_matrix(places, places, joined=joined),
            nics=tuple(nic for nic, _ in nics),
            nic_paths=path_matrix(tuple(place for _, place in nics), places, joined=joined),
            numa=tuple(nodes[node] for node in sorted(nodes)),
            link_gbps=_link_gbps(leaves) if any(map(any, links)) or any(switched) else 0.0,
            socket_gbps=nccl_bandwidths.socket_gbps(cpu),
            cpu=cpu,
            pci=() if devices.twice else tuple(devices.pci),
            virtual=any(device.busid.startswith(INVENTED) for device in devices.pci) or None,
        )
    )


def _is_amd(leaf: Leaf) -> bool:
    return leaf.pci.get("vendor") == f"0x{amd_products.PCI_VENDOR}" or (
        leaf.gpu is not None and bool(leaf.gpu.get("gcn"))
    )


def _link_gbps(leaves: Sequence[Leaf]) -> float:
    """Return the bandwidth that NCCL or RCCL counts for one link of a file's GPUs.

    The result is in GB/s, in one direction. ``leaves`` are the GPUs. If they are of several kinds, the newest of
    NVIDIA's counts, or the oldest of AMD's.
    """
    if _is_amd(leaves[0]):
        return min(amd_products.link_gbps(_architecture(leaf)) for leaf in leaves)
    return nccl_bandwidths.link_gbps(max(map(_compute, leaves)))


def _part(leaf: Leaf) -> amd_products.Part | None:
    return amd_products.PARTS.get((leaf.pci.get("device") or "")[2:])


def _architecture(leaf: Leaf) -> str:
    """Return the architecture of an AMD GPU, such as ``gfx942``.

    The result is empty if neither the GPU's device id nor the file shows it.
    """
    part = _part(leaf)
    return part.architecture if part else amd_products.architecture((leaf.gpu.get("gcn") or "") if leaf.gpu else "")


def _compute(leaf: Leaf) -> int:
    """Return the compute capability of a GPU times ten: 90 for 9.0.

    ``leaf`` is the GPU in the file. The result is 0 if neither its device id nor the file shows it.
    """
    said = number(leaf.gpu, "sm", 999) if leaf.gpu else None
    device = (leaf.pci.get("device") or "")[2:]
    return said or (_COMPUTE.get(device[:2], 0) if device in _PRODUCTS else 0)


def _gpu(index: int, leaf: Leaf, *, switch_links: int, uuid: str) -> Gpu:
    """Build a GPU from ``leaf``: its ``<pci>`` and ``<gpu>`` elements.

    The attributes of these elements show whether the GPU is AMD's or NVIDIA's. The other arguments are fields of the
    GPU that the elements do not have.
    """
    pci = leaf.pci
    common = Gpu(
        index=index,
        uuid=uuid,
        minor=index,
        pci=leaf.busid,
        numa=leaf.place.numa,
        pcie_gbps=nccl_bandwidths.pci_gbps(pci.get("link_speed") or "", number(pci, "link_width", 64) or 0),
        switch_links=switch_links,
    )
    if _is_amd(leaf):
        part = _part(leaf)
        return msgspec.structs.replace(
            common,
            product=part.product if part else "",
            architecture=_architecture(leaf),
            memory_mib=part.memory_mib if part else 0,
            vendor=AMD.word,
        )

    # NVIDIA: ``compute`` is 90 for compute capability 9.0, 0 if it is not known. ``c2c`` is NVLink to the CPU, ``bw``
    # is in MB/s for each of ``count`` links.
    compute = _compute(leaf)
    c2c = next((child for child in leaf.gpu.children if child.name == "c2c"), None) if leaf.gpu else None
    c2c_gbps = 0.0 if c2c is None else (number(c2c, "bw", 10**7) or 0) * (number(c2c, "count", 100) or 0) / 1000
    return msgspec.structs.replace(
        common,
        product=_PRODUCTS.get((pci.get("device") or "")[2:], ""),
        architecture=nccl_bandwidths.architecture(compute),
        compute_capability=f"{compute // 10}.{compute % 10}" if compute else "",
        c2c_gbps=c2c_gbps,
    )


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts ``mlx5_10`` after ``mlx5_9``, and bus ids by their value as hex numbers."""
    if is_bus_id(name):
        return [(-1, name)]
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.findall(r"[0-9]{1,9}|[^0-9]+", name)]
