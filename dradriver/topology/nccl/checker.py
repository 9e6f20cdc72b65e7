"""Checks NCCL topology files: finds every place that some NCCL from 2.18 to 2.30 refuses or misreads.

``checker_rules`` has the texts, ``xml`` finds errors of form, and ``device_rules`` checks devices. This module checks
the order and number of elements and the CPUs, and compares the file with a machine. ``gputopo nccl check`` and the
writer call it.

A finding is a place that breaks a rule. The argument ``notes`` of the functions collects the findings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dradriver.topology import cpulist
from dradriver.topology.identifiers import short_bus_id
from dradriver.topology.machine import Machine, PciDevice
from dradriver.topology.nccl import device_rules, nccl_bandwidths
from dradriver.topology.nccl.child_limits import MAX_CHILDREN, wanted_nodes
from dradriver.topology.nccl.device_tree import IDS
from dradriver.topology.nccl.findings import Finding, Notes, finding
from dradriver.topology.nccl.invented_switches import INVENTED, speed_and_width
from dradriver.topology.nccl.xml import Element, all_below, has_below, parse, strtol

MAX_ELEMENTS = 255
SAFE_ELEMENTS = 200
MAX_ATTRIBUTES = 16
_ROOM = 17  # attributes of one element: NCCL has room for one more than it reads
_ADDED: dict[str, tuple[str, ...]] = {  # what some NCCL adds to an element that has it not
    "cpu": ("affinity", "arch", "vendor", "familyid", "modelid", "host_hash"),
    "pci": ("class", *IDS, "link_speed", "link_width"),  # where /sys has the device
    "gpu": ("dev", "sm", "rank", "gdr", "keep", "mlopart"),
    "nvlink": ("tclass",),
    "net": ("keep", "dev", "latency", "speed", "port", "rail", "plane", "guid", "maxconn", "gdr", "net", "coll", "gin",
            "rma"),
}  # fmt: skip
_ADDED_TO_INVENTED = ("link_speed", "link_width")  # empty, for /sys has no such device
_MAX_CHILDREN_2_21 = 128
_OF_THE_WHOLE = {
    "no-cpu", "no-gpu", "numa-missing", "one-way", "dropped", "no-links", "lacks-gpu", "numa-lacks", "pcilink-one-way",
    "pcilink-dropped",
}  # fmt: skip
_CHILDREN = {  # an element in another place is skipped, with all that is in it
    "system": {"cpu"},
    "cpu": {"pci", "nic"},
    "pci": {"pci", "gpu", "nic", "pcilink"},
    "gpu": {"nvlink", "c2c"},
    "nic": {"net"},
}
_KNOWN = {"system"}.union(*_CHILDREN.values())
_MASK = re.compile(r"[0-9a-f]{1,8}(,[0-9a-f]{8})*")  # NCCL before 2.28 stops at a capital
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,8})|0x[0-9a-fA-F]{1,8}")
_NUMA = re.compile(r"-1|0|[1-9][0-9]{0,5}")
_ARCHS = ("x86_64", "arm64", "ppc64")
_VENDORS = ("GenuineIntel", "AuthenticAMD", *nccl_bandwidths.ZHAOXIN)
_UNLISTED = ("HygonGenuine",)  # what other x86 CPUs in GPU servers say of themselves
_MOST_GAPS = 64


def check(text: str, *, machine: Machine | None = None) -> list[Finding]:
    """Return all places of an NCCL topology file that break a rule, by line and column.

    The result is empty for a good file.

    Args:
        text: The whole file.
        machine: If given, the file must also describe this machine's devices as /sys does, and list its NUMA nodes
            (``wanted_nodes``).
    """
    # ``broken`` is what ended the reading early, if anything did. It is a finding, too.
    document = parse(text)
    notes = Notes()
    root, broken = document.root, document.broken
    if root is None and broken is None:
        broken = finding("empty", (1, 1))
    elif root is not None and root.name != "system":
        notes.add("graph" if root.name == "graphs" else "no-system", root.place, name=root.name)
    elif root is not None:
        _check_system(root, notes, machine)
        if machine is not None:
            _compare_with_machine(root, machine, notes)
    for other in document.others:
        _note_other_root(other, notes)
    rule_findings = notes.findings()
    # If reading stopped early, elements that seem to be missing may be in the part that was not read.
    if not document.whole:
        rule_findings = [note for note in rule_findings if note.rule not in _OF_THE_WHOLE]
    findings = [*document.findings, *rule_findings, *([] if broken is None else [broken])]
    return sorted(findings, key=lambda f: (f.line, f.column, not f.error, f.problem))


def _check_system(root: Element, notes: Notes, machine: Machine | None) -> None:
    """Check the root element of a file: version, size, CPUs, NUMA nodes, and all devices below.

    Args:
        root: The ``<system>`` element.
        notes: Collects the findings. ``add`` gets the name of a rule, the line and column, and the values for the
            rule's text. ``checker_rules`` has the text of each rule, and whether breaking it is an error.
        machine: The machine that the file is for; None if it is not known.
    """
    if strtol(root.get("version") or "") != 1:
        notes.add("version", root.place_of("version"), text=root.get("version"))
    _check_shape(root, notes)
    count = _count_loaded(root)
    if count > SAFE_ELEMENTS:
        notes.add("too-many" if count > MAX_ELEMENTS else "many", root.place, count=count)
    cpus = [child for child in root.children if child.name == "cpu"]
    if not cpus:
        notes.add("no-cpu", root.place)

    # A ``<cpu>`` stands for one NUMA node, by its ``numaid``.
    line_of_node: dict[int, int] = {}
    for cpu in cpus:
        _check_numaid(cpu, line_of_node, notes)
        _check_cpu(cpu, notes)
    _check_hosts(cpus, notes)
    _check_masks(cpus, notes)

    # The machine's own NUMA nodes of GPUs and PCI devices: None is among them if some device is on no node.
    machine_nodes: set[int | None] = set()
    if machine is not None:
        machine_nodes = {gpu.numa for gpu in machine.gpus} | {device.numa for device in machine.pci or ()}
    cpus_with_devices = {cpu.get("numaid"): cpu for cpu in cpus if any(child.name == "pci" for child in cpu.children)}

    # A virtual machine without NUMA has all its devices on node -1. Next to numbered nodes that is a mistake,
    # unless the machine itself has devices without a node.
    unnumbered = cpus_with_devices.get("-1")
    if (
        unnumbered is not None
        and device_rules.has_gpu(unnumbered)
        and len(cpus_with_devices) > 1
        and None not in machine_nodes
    ):
        rule = "numaid-unnumbered" if machine is None else "numaid-mixed"
        notes.add(rule, unnumbered.place_of("numaid"), text=-1)

    # NCCL 2.21 to 2.26 fails if a node below the highest one is missing.
    highest_node = max(line_of_node, default=0)
    missing = [str(numa) for numa in range(min(highest_node, _MOST_GAPS)) if numa not in line_of_node]
    if missing:
        notes.add("numa-missing", root.place, text=", ".join(missing))
    device_rules.check(root, notes)


def _note_other_root(root: Element, notes: Notes) -> None:
    """Report to ``notes`` an element that is not below the first ``<system>``."""
    if root.name == "system" and strtol(root.get("version") or "") != 1:
        notes.add("version", root.place_of("version"), text=root.get("version"))
    elif root.name == "system" and root.children:
        notes.add("second-system", root.place)
    else:
        notes.add("second-root", root.place, name=root.name[:40])


def _check_shape(element: Element, notes: Notes) -> None:
    """Check an element and all elements below it, and report errors to ``notes``.

    An element must not have too many attributes or children, and must be in an allowed place.
    """
    # NCCL counts a blank too many in a tag as an attribute.
    name, count = element.name, len(element.attributes) + element.blanks
    added_by_nccl = _ADDED_TO_INVENTED if (element.get("busid") or "").startswith(INVENTED) else _ADDED.get(name, ())

    # NCCL adds attributes to what it reads, and has a fixed number of places for them.
    added_count = sum(element.get(attribute) is None for attribute in added_by_nccl)
    attribute_limit = min(MAX_ATTRIBUTES, _ROOM - added_count)
    added_text = f", for it adds {added_count}" if added_count else ""
    if count > attribute_limit:
        blanks_text = f", {element.blanks} of them blanks too many" if element.blanks else ""
        notes.add(
            "attributes",
            element.place,
            name=name[:40],
            count=count,
            blanks=blanks_text,
            most=attribute_limit,
            added=added_text,
        )
    if element.get("keep") == "1":
        notes.add("kept", element.place_of("keep"), once="kept")

    # Only children that NCCL looks for count. The others are skipped with all that is in them.
    children = sum(child.name in _CHILDREN.get(name, set()) for child in element.children)
    if children > MAX_CHILDREN:
        versions_text = f", 2.21 to 2.28 refuse more than {_MAX_CHILDREN_2_21}" if children > _MAX_CHILDREN_2_21 else ""
        notes.add("children", element.place, name=name, count=children, more=versions_text)
    for child in element.children:
        if child.name in _CHILDREN.get(name, set()):
            _check_shape(child, notes)
        elif child.name in _KNOWN:
            parents_text = " or ".join(f"<{parent}>" for parent, names in _CHILDREN.items() if child.name in names)
            notes.add("misplaced", child.place, name=child.name, parent=name, wanted=parents_text or "no element")
        elif any(has_below(child, name) for name in _KNOWN):
            notes.add("unknown-around", child.place, name=child.name[:40])
        else:
            notes.add("unknown", child.place, once=f"unknown {child.name}", name=child.name[:40])


def _count_loaded(element: Element) -> int:
    """Return the number of elements that NCCL loads from an element and those below it.

    Elements that NCCL skips do not count. NCCL limits the number that it loads.
    """
    names = _CHILDREN.get(element.name, set())
    return 1 + sum(_count_loaded(child) for child in element.children if child.name in names)


def _check_numaid(cpu: Element, lines: dict[int, int], notes: Notes) -> None:
    text = cpu.get("numaid")
    if text is None or not _NUMA.fullmatch(text):
        notes.add("numaid" if cpu.children else "numaid-unused", cpu.place_of("numaid"), text=text)
    elif int(text) in lines and not cpu.children:
        notes.add("numaid-unused", cpu.place_of("numaid"), text=text)
    elif int(text) in lines:
        notes.add("numaid-twice", cpu.place_of("numaid"), text=text, line=lines[int(text)])
    else:
        lines[int(text)] = cpu.place[0]


def _check_cpu(cpu: Element, notes: Notes) -> None:
    """Check that NCCL can use the attributes of a ``<cpu>`` element; report errors to ``notes``."""
    arch, vendor, mask = cpu.get("arch"), cpu.get("vendor"), cpu.get("affinity")
    # Only x86 CPUs have vendor, family and model. A file without ``arch`` is checked as one of an x86 CPU.
    intel_or_amd = arch in (None, "x86_64")
    if mask is not None and not _MASK.fullmatch(mask):
        notes.add("affinity" if cpu.children else "affinity-unused", cpu.place_of("affinity"), text=mask)
    if arch is not None and arch not in _ARCHS:
        notes.add("arch", cpu.place_of("arch"), text=arch)
    if intel_or_amd and vendor is not None and vendor not in _VENDORS:
        notes.add("vendor-unlisted" if vendor in _UNLISTED else "vendor", cpu.place_of("vendor"), text=vendor)
    for name in ("familyid", "modelid"):
        if cpu.get(name) is not None and not _NUMBER.fullmatch(cpu.get(name) or ""):
            notes.add("no-number", cpu.place_of(name), name=name, text=cpu.get(name))
    if (
        vendor in ("GenuineIntel", *nccl_bandwidths.ZHAOXIN)
        and cpu.get("familyid") is not None
        and cpu.get("modelid") is None
    ):
        notes.add("no-model", cpu.place_of("familyid"))

    # topo.cc fails without ``required_names``. It fills in the others from /sys, which has no CPU mask for node -1.
    required_names = ["arch", *(["vendor"] if intel_or_amd else [])]
    model_names = ["familyid", "modelid"] if intel_or_amd else []
    mask_names = ["affinity"] if cpu.get("numaid") != "-1" else []

    # ``cpu-facts`` says what is required, ``cpu-filled`` what NCCL fills in. Only for AMD's CPUs NCCL works without
    # family and model.
    if vendor != "AuthenticAMD":
        required_names, model_names = [*required_names, *model_names], []
    for rule, names in (("cpu-facts", required_names), ("cpu-filled", [*mask_names, *model_names])):
        missing = [name for name in names if cpu.get(name) is None]
        if missing and has_below(cpu, "net"):
            notes.add(rule, cpu.place, text=", ".join(missing))


def _check_hosts(cpus: Sequence[Element], notes: Notes) -> None:
    """Report to ``notes`` if the attribute ``host_hash`` differs between CPUs.

    Different values are an error, because NCCL 2.21 to 2.26 take the CPUs for those of several machines. One value for
    all CPUs has the same effect as no attribute, so it is only noted.
    """
    hosts = list(dict.fromkeys(cpu.get("host_hash") for cpu in cpus))
    for cpu in cpus:
        host = cpu.get("host_hash")
        if host is not None and len(hosts) == 1:
            notes.add("own-note", cpu.place_of("host_hash"), once="own host_hash", name="host_hash")
        elif host is not None:
            other = next(other for other in hosts if other != host)
            notes.add("host-hash", cpu.place_of("host_hash"), once="host-hash", text=host, other=other)


def _check_masks(cpus: Sequence[Element], notes: Notes) -> None:
    """Report to ``notes`` the CPUs that two NUMA nodes have in their masks.

    ``cpus`` are the ``<cpu>`` elements, one for each NUMA node.
    """
    masks: list[tuple[int, int]] = []  # line and mask
    taken = told = 0
    for cpu in cpus:
        text = cpu.get("affinity") or ""
        mask = int(text.replace(",", ""), 16) if _MASK.fullmatch(text) else 0
        if mask & taken and told < _MOST_GAPS:
            told += 1
            line, other = next((line, other) for line, other in masks if other & mask)
            shared = cpulist.from_mask(f"{mask & other:x}")
            notes.add("affinity-shared", cpu.place_of("affinity"), text=shared, line=line)
        taken |= mask
        masks.append((cpu.place[0], mask))


def _compare_with_machine(root: Element, machine: Machine, notes: Notes) -> None:
    """Report to ``notes`` what differs between the file and the machine.

    A difference is a value that contradicts the machine's /sys, or a device or NUMA node that the file lacks.
    """
    cpus = [cpu for cpu in root.children if cpu.name == "cpu"]

    # By bus id, the file's element and the ``numaid`` of the ``<cpu>`` that it is below.
    listed = {short_bus_id(element.get("busid") or ""): element for element in all_below(root, "pci")}
    node_in_file = {
        short_bus_id(pci.get("busid") or ""): cpu.get("numaid") for cpu in cpus for pci in all_below(cpu, "pci")
    }
    for gpu in machine.gpus:
        if gpu.pci and gpu.pci not in listed:
            notes.add("lacks-gpu", root.place, count=gpu.index, text=gpu.pci)

    # A machine without a PCI tree (of a profile, for example) has at least its GPUs, with their PCIe bandwidth.
    of_gpus = [PciDevice(gpu.pci, None, gpu.numa, "", "", *speed_and_width(gpu.pcie_gbps)) for gpu in machine.gpus]
    tree: Sequence[PciDevice] = machine.pci or of_gpus

    # NCCL puts a device below the NUMA node of its highest bridge. Parents come first in the tree.
    node_in_sys: list[int | None] = []
    for device in tree:
        node_in_sys.append(device.numa if device.parent is None else node_in_sys[device.parent])
    for device, sys_node in zip(tree, node_in_sys, strict=True):
        element = listed.get(device.busid)
        if element is None:
            continue
        _note_other_rate(element, device, notes)
        file_value = node_in_file.get(device.busid)
        is_leaf = not device.kind.startswith("0x06")  # PCI class 06 is a bridge
        if is_leaf and file_value not in (None, "-1") and sys_node is not None and file_value != str(sys_node):
            notes.add("not-numa", element.place, text=file_value, wanted=sys_node)

        # Class, vendor, device and subsystem ids: what either side does not say is not compared.
        ids = (f"0x{part}" for part in device.ids.split(":") if part)
        for name, sys_value in [("class", device.kind), *zip(IDS, ids, strict=False)]:
            file_value = element.get(name)
            if sys_value and file_value is not None and file_value != sys_value:
                notes.add("not-sys", element.place_of(name), name=name, text=file_value, wanted=sys_value)
    nodes_in_file = {cpu.get("numaid") for cpu in cpus}
    missing = [str(node.id) for node in wanted_nodes(machine) if str(node.id) not in nodes_in_file]
    if missing:
        notes.add("numa-lacks", root.place, text=", ".join(missing))


def _note_other_rate(element: Element, device: PciDevice, notes: Notes) -> None:
    """Report a PCIe rate in the file that differs from the rate in /sys.

    NCCL uses the rate of the file. If the file has no speed or width, NCCL takes it from /sys.
    """
    speed, width = element.get("link_speed"), element.get("link_width")
    if nccl_bandwidths.lane_rate(device.link_speed) is None or (speed is None and width is None):
        return
    lanes = device.link_width if width is None else strtol(width)
    rate = nccl_bandwidths.pci_gbps(device.link_speed if speed is None else speed, lanes)
    wanted = nccl_bandwidths.pci_gbps(device.link_speed, device.link_width)
    if rate != wanted:
        place = element.place_of("link_speed" if width is None else "link_width")
        cure = f'link_speed="{device.link_speed}" link_width="{device.link_width}"'
        notes.add("not-rate", place, text=f"{rate:g}", wanted=f"{wanted:g}", cure=cure)
