"""The checker's rules for PCI devices, GPUs, links and NICs.

The argument ``notes`` of the functions collects the findings, the places that break a rule.
"""

from __future__ import annotations

import re

from dradriver.topology.identifiers import short_bus_id
from dradriver.topology.nccl import nccl_bandwidths, pcilinks
from dradriver.topology.nccl.device_tree import IDS, MOST_LANES
from dradriver.topology.nccl.findings import Notes
from dradriver.topology.nccl.invented_switches import INVENTED
from dradriver.topology.nccl.nvlink_elements import MOST_LINKS, SWITCH_CLASS
from dradriver.topology.nccl.xml import Element, all_below, has_below, strtol

_HIDDEN_SWITCH = ("fffffff:ffff:ff", "fffffff:ff:ff.0")  # what NVML says in a virtual machine
_BUS_ID = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_CLASS = re.compile(r"0x[0-9a-f]{6}")
_CPU_CLASS = "0x068001"  # POWER
_COUNT = re.compile(r"0|[1-9][0-9]{0,8}")  # 010 is 8 to NCCL
_ENDS = ("0x02", "0x03", "0x0680")  # classes of devices below which NCCL does not look
_SPEED = re.compile(r"-?(0|[1-9][0-9]{0,8})")  # of NICs; some drivers say -1
_OVERRIDES = {
    "dev": "NVML's number, which starts at 0 in a container",
    "sm": "the compute capability",
    "gdr": "whether GPUDirect RDMA works",
}


def has_gpu(element: Element) -> bool:
    """Return whether NCCL counts some device below ``element`` of a topology file as a GPU."""
    return any((pci.get("class") or "").startswith("0x03") or _gpu_children(pci) for pci in all_below(element, "pci"))


def check(root: Element, notes: Notes) -> None:
    """Check the devices below the root element of a topology file; report errors to ``notes``."""
    seen: dict[str, Element] = {}
    for pci in all_below(root, "pci"):
        _check_pci(pci, seen, notes)
    if not any((pci.get("class") or "0x03").startswith("0x03") or has_below(pci, "gpu") for pci in seen.values()):
        notes.add("no-gpu", root.place)
    _check_links({busid: gpu for busid, pci in seen.items() for gpu in _gpu_children(pci)[:1]}, notes)
    names: dict[str, Element] = {}
    for net in all_below(root, "net"):
        _check_net(net, names, notes)
    _check_pcilinks(root, notes)


def _check_pcilinks(root: Element, notes: Notes) -> None:
    """Check all links between PCIe switches, ``<pcilink>``; report errors to ``notes``.

    NCCL follows these links in both directions.
    """
    switches = {short_bus_id(pci.get("busid") or ""): pci for pci in all_below(root, "pci") if pcilinks.is_switch(pci)}
    links = {
        (busid, short_bus_id(link.get("target") or "")): link
        for busid, pci in switches.items()
        for link in pci.children
        if link.name == "pcilink"
    }
    for link in all_below(root, "pcilink"):
        if not _BUS_ID.fullmatch(short_bus_id(link.get("target") or "")):
            notes.add("pcilink", link.place_of("target"), text=link.get("target"))
    for (busid, target), link in links.items():
        if not _BUS_ID.fullmatch(target):
            continue
        if target not in switches or target == busid:
            notes.add("pcilink-dropped", link.place_of("target"), text=target)
        elif (target, busid) not in links:
            notes.add("pcilink-one-way", link.place_of("target"), name=busid, target=target)


def _gpu_children(pci: Element) -> list[Element]:
    return [child for child in pci.children if child.name == "gpu"]


def _check_pci(pci: Element, seen: dict[str, Element], notes: Notes) -> None:
    """Check a ``<pci>`` element: bus id, class, speed, children and device ids.

    The ids of vendor and device are required only above NICs, because NCCL needs them there.

    Args:
        pci: The element.
        seen: The elements so far, by bus id. The function adds ``pci``.
        notes: Collects the findings: the name of a rule, the line and column, and the values for its text.
    """
    busid = pci.get("busid") or ""
    is_switch = any(child.name == "pci" for child in pci.children)
    if not busid:
        notes.add("no-busid", pci.place_of("busid"))
    elif not _BUS_ID.fullmatch(busid) and is_switch:
        notes.add("busid-switch", pci.place_of("busid"), text=busid)
    elif not _BUS_ID.fullmatch(busid):
        # NVML writes eight digits of domain, /sys four: only the form is wrong then.
        short = short_bus_id(busid)
        rule = "busid-form" if _BUS_ID.fullmatch(short) else "busid"
        notes.add(rule, pci.place_of("busid"), text=pci.get("busid"), short=short)
    elif busid in seen:
        # The same GPU in two places is a different mistake from two devices with one bus id.
        is_plain = not is_switch and not any(child.name in ("pci", "nic") for child in seen[busid].children)
        rule = "gpu-twice" if is_plain and not has_below(pci, "net") else "busid-twice"
        notes.add(rule, pci.place_of("busid"), text=busid, line=seen[busid].place[0])
    seen.setdefault(busid, pci)
    has_network = has_below(pci, "net")
    _check_class(pci, notes, network=has_network)
    _note_misplaced_children(pci, notes)
    _check_speed(pci, notes, network=has_network)
    for second in _gpu_children(pci)[1:2]:
        notes.add("two-gpus", second.place)

    # The ids of vendor and device. A switch that this driver invented has none in /sys.
    missing = [name for name in IDS if pci.get(name) is None]
    if has_network and missing and not busid.startswith(INVENTED):
        notes.add("ids" if is_switch else "ids-nic", pci.place, text=", ".join(missing))


def _note_misplaced_children(pci: Element, notes: Notes) -> None:
    """Report to ``notes`` the child elements of ``pci`` that NCCL does not find.

    NCCL does not find them because it takes the device above them for a GPU or NIC, and does not look below it.
    """
    kind = (pci.get("class") or "").lower()
    first = {child.name: child for child in reversed(pci.children)}
    what = next((f"a <{name}>" for name in ("gpu", "nic") if name in first), f"class {kind}")
    if "pci" in first and (what != f"class {kind}" or kind.startswith(_ENDS)):
        notes.add("below-device", first["pci"].place, text=what)
    if "nic" in first and ("gpu" in first or kind.startswith("0x03")):
        notes.add("nic-in-gpu", first["nic"].place)
    if "gpu" in first and kind.startswith("0x02"):
        notes.add("gpu-in-nic", first["gpu"].place, text=kind)
    if "pcilink" in first and (what != f"class {kind}" or kind.startswith(_ENDS)):
        notes.add("pcilink-place", first["pcilink"].place, text=what)


def _check_class(pci: Element, notes: Notes, *, network: bool) -> None:
    kind = pci.get("class")
    invented = (pci.get("busid") or "").startswith(INVENTED)
    shared = network and not invented and any(child.name == "pci" for child in pci.children)
    if kind is None and invented:
        notes.add("no-class-switch", pci.place)
    elif kind is None:
        notes.add("no-class-net" if network else "no-class", pci.place, once="" if network else "no-class")
    elif not _CLASS.fullmatch(kind):
        notes.add("class-net" if shared else "class", pci.place_of("class"), text=kind)
    elif kind.startswith("0x0604") and kind != "0x060400":
        notes.add("class-net" if shared else "bridge-class", pci.place_of("class"), text=kind)


def _check_speed(pci: Element, notes: Notes, *, network: bool) -> None:
    speed, width = pci.get("link_speed"), pci.get("link_width")
    for name, value in (("link_speed", speed), ("link_width", width)):
        if value is None and network:
            notes.add("no-speed", pci.place, name=name)
    if speed is not None and speed.lower() in nccl_bandwidths.NO_SPEED:
        notes.add("speed-empty", pci.place_of("link_speed"), once="speed-empty", text=speed)
    elif speed is not None and nccl_bandwidths.lane_rate(speed) is None:
        notes.add("speed", pci.place_of("link_speed"), once=f"speed {speed}", text=speed)
    if width == "":
        notes.add("width-empty", pci.place_of("link_width"), once="width-empty")
    elif width is not None and not _COUNT.fullmatch(width):
        lanes = strtol(width) or 16
        notes.add("width", pci.place_of("link_width"), once=f"width {width}", text=width, lanes=lanes)
    elif width is not None and int(width) > MOST_LANES:
        notes.add("width-most", pci.place_of("link_width"), once=f"width {width}", text=width)


def _check_links(gpus: dict[str, Element], notes: Notes) -> None:
    """Check every GPU, and that both GPUs of a pair list equally many links.

    Args:
        gpus: The ``<gpu>`` elements by bus id.
        notes: Collects the findings: the name of a rule, the line and column, and the values for its text.
    """
    # By pair of bus ids: the links that the first GPU lists to the second, and the last such element.
    counts: dict[tuple[str, str], tuple[int, Element]] = {}
    links_of: dict[str, list[Element]] = {}
    for busid, gpu in gpus.items():
        _check_gpu(gpu, notes)
        links_of[busid] = [child for child in gpu.children if child.name == "nvlink"]
        total = 0
        for link in links_of[busid]:
            count = _check_link(link, busid, gpus, notes)
            total += count
            target = short_bus_id(link.get("target") or "")
            if target in gpus and target != busid:
                # A GPU may list links to one target in several elements: they add up.
                count_before, _ = counts.get((busid, target), (0, link))
                counts[busid, target] = count_before + count, link
        if total > MOST_LINKS:
            notes.add("links-most", gpu.place, count=total)
    for (a, b), (count, link) in counts.items():
        count_back, _ = counts.get((b, a), (0, link))
        if count_back != count:
            notes.add("one-way", link.place_of("count"), count=count, name=a, target=b, back=count_back)
    _note_lost_switch_links(gpus, links_of, notes)

    # NCCL believes the file: once one GPU lists links, a GPU that lists none has none.
    if any(links_of.values()):
        for busid, links in links_of.items():
            rule = "believed" if links else "no-links"
            notes.add(rule, links[0].place if links else gpus[busid].place, once=rule)


def _note_lost_switch_links(gpus: dict[str, Element], linked: dict[str, list[Element]], notes: Notes) -> None:
    """Report to ``notes`` the GPUs that have fewer links to switches than other GPUs.

    ``linked`` has the link elements of each GPU.
    """
    up = dict.fromkeys(gpus, 0)
    for busid, links in linked.items():
        for link in links:
            kind, count = link.get("tclass"), link.get("count") or ""
            to_gpu = link.get("target") in gpus if kind is None else kind.startswith("0x03") or kind == _CPU_CLASS
            if not to_gpu and _COUNT.fullmatch(count):
                up[busid] += int(count)
    most = max(up.values(), default=0)
    for busid, total in up.items():
        if total < most:
            notes.add("switch-lost", gpus[busid].place, count=total, most=most)


def _check_gpu(gpu: Element, notes: Notes) -> None:
    for name, what in _OVERRIDES.items():
        value = gpu.get(name)
        if value is not None and not _COUNT.fullmatch(value):
            notes.add("no-number", gpu.place_of(name), name=name, text=value)
        elif value is not None:
            notes.add("override", gpu.place_of(name), once=f"override {name}", name=name, text=what)
    if gpu.get("rank") is not None:
        notes.add("own-note", gpu.place_of("rank"), once="own rank", name="rank")
    for c2c in gpu.children:
        if c2c.name == "c2c" and not all(_COUNT.fullmatch(c2c.get(name) or "") for name in ("bw", "count")):
            notes.add("c2c", c2c.place)


def _check_link(link: Element, busid: str, gpus: dict[str, Element], notes: Notes) -> int:
    """Report the errors of a link element to ``notes``, and return its number of links.

    The number is 0 if the element has none. ``busid`` is the GPU that lists the link, ``gpus`` are all GPUs of the file
    by bus id.
    """
    written, count, kind = link.get("target") or "", link.get("count") or "", link.get("tclass")
    target = short_bus_id(written)  # so it is looked for among GPUs; its class in /sys by what is written
    if not _BUS_ID.fullmatch(target if kind else written) and written not in _HIDDEN_SWITCH:
        rule = "target" if kind is None or kind.startswith("0x03") else "switch-target"
        notes.add(rule, link.place_of("target"), text=link.get("target"))
    if not _COUNT.fullmatch(count):
        notes.add("count", link.place_of("count"), text=link.get("count"))
    elif int(count) > MOST_LINKS:
        notes.add("count-most", link.place_of("count"), text=count)
    if target == busid:
        notes.add("to-itself", link.place_of("target"))
    elif kind is None and target in gpus:
        notes.add("switch-guess", link.place)
    elif kind is None:
        notes.add("no-tclass", link.place, once="no-tclass")
    elif kind not in (SWITCH_CLASS, _CPU_CLASS) and not kind.startswith("0x03"):
        notes.add("tclass" if target in gpus else "switch-class", link.place_of("tclass"), text=kind)
    elif kind.startswith("0x03") and target not in gpus:
        notes.add("dropped", link.place_of("target"), text=target)
    return int(count) if _COUNT.fullmatch(count) else 0


def _check_net(net: Element, names: dict[str, Element], notes: Notes) -> None:
    name = net.get("name")
    if not name:
        notes.add("net-name", net.place)
    elif name in names:
        notes.add("net-twice", net.place_of("name"), text=name, line=names[name].place[0])
    else:
        names[name] = net
    if net.get("speed") is not None and not _SPEED.fullmatch(net.get("speed") or ""):
        notes.add("no-number", net.place_of("speed"), name="speed", text=net.get("speed"))
    notes.add("net", net.place, once="net")
