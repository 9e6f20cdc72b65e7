"""The rules of the checker: mistakes in a topology file that some NCCL from 2.18 to 2.30 refuses, or that do harm.

Each rule has a name. Its text says what NCCL does and what to write instead; ``{…}`` is filled in for each place. The
behaviour of NCCL was read in its sources (``xml.cc``, ``topo.cc``), and confirmed by running NCCL's graph code on files
with these mistakes.
"""

from __future__ import annotations

import msgspec


class Rule(msgspec.Struct, frozen=True):
    """A rule of the checker.

    ``error`` is true if some NCCL refuses, crashes on or misreads a file that breaks the rule. If it is false, NCCL
    accepts the file, but the mistake can do harm.
    """

    error: bool
    problem: str
    cure: str


_REFUSED = "every NCCL refuses the file"
_NO_BANDWIDTH = "count is a number of links, no bandwidth"
_BUS_ID = "write it as /sys does: 0000:06:00.0"
_NUMA_NODE = "the number that /sys/bus/pci/devices/…/numa_node has"
_NODES = "write every NUMA node, an empty <cpu …/> is enough"


def _error(problem: str, cure: str) -> Rule:
    return Rule(True, problem, cure)


def _warning(problem: str, cure: str) -> Rule:
    return Rule(False, problem, cure)


RULES = {
    # The form: what NCCL's parser, which reads letter by letter, stumbles over.
    "control": _error("control character {text!r}", "remove it"),
    "byte-order-mark": _error(f"a byte order mark: {_REFUSED}", "save the file as UTF-8 without one"),
    "declaration": _error(f"an XML declaration: {_REFUSED}", 'start the file with <system version="1">'),
    "doctype": _error(f"a DOCTYPE or CDATA section: {_REFUSED}", "remove it"),
    "tab": _error(f"a tab: {_REFUSED}", "indent with blanks, in the whole file"),
    "line-break": _error(f"a line break inside a tag: {_REFUSED}", "write each tag on one line"),
    "text": _error(f"text between elements ({{text!r}}): {_REFUSED}", "remove it"),
    "comment": _error(
        "a comment that starts with {text!r}: to NCCL that is an attribute, it refuses the file",
        "begin the comment with a blank",
    ),
    "long-comment": _error("a comment whose first word has {count} characters", "begin the comment with a blank"),
    "closing-tag": _error(f"{{text!r}}: {_REFUSED}", "write </{name}>"),
    "other-end": _error(f"</{{name}}> where {{wanted}} should stand: {_REFUSED}", "write {wanted}"),
    "no-end": _error(f"the file ends inside <{{name}}> of line {{line}}: {_REFUSED}", "write </{name}>"),
    "cut": _error("the file ends inside {what}", "write {end} after it"),
    "no-name": _error("a '<' without an element's name", "write <name …>, because '<' has no other use here"),
    "bad-tag": _error("{text!r} where an attribute or the tag's end should stand", 'write name="value"'),
    "second-root": _warning("<{name}> next to the <system>: NCCL reads only the <system>", "keep one <system>"),
    "second-system": _error(
        "a second <system> with elements in it: NCCL finds devices there too and loses them", "keep one <system>"
    ),
    "long-element": _error(f"an element's name of {{count}} characters: {_REFUSED}", "use 253 at most"),
    "deep": _error("nested deeper than {most} elements", "this describes no machine"),
    "no-value": _error("{name} has no value", 'write {name}="…" or remove it'),
    "blank-at-equals": _error("blanks around the = of {name}: NCCL misreads the attribute", 'write {name}="…"'),
    "twice": _warning("{name} is given twice: NCCL takes the first", "write it once"),
    "no-quotes": _error(f"the value of {{name}} has no quotes: {_REFUSED}", 'write {name}="{text}"'),
    "open-quote": _error("the value of {name} does not start or end with a quote", 'write {name}="…"'),
    "single-quotes": _error("single quotes: NCCL before 2.27 refuses the file", "use double quotes, in the whole file"),
    "long-name": _error("an attribute's name of {count} characters", "use 253 at most"),
    "long-value": _error(
        "{name} has {count} characters: NCCL refuses it from 2.27 on, before that it overwrites its memory",
        "use 253 at most",
    ),
    "entity": _warning("{name} has an entity: NCCL does not decode it", "write the character itself"),
    "odd-value": _warning("{name} has '<', a tab or a line break in its value", "remove it"),
    # The whole.
    "empty": _error(
        "no element: NCCL ignores the file silently and detects the topology by itself",
        'write <system version="1"> with all CPUs, or remove the file',
    ),
    "graph": _error(
        "a graph file, the result of NCCL's search: as a topology file NCCL ignores it",
        "give what NCCL_TOPO_DUMP_FILE writes, not NCCL_GRAPH_DUMP_FILE",
    ),
    "no-system": _error("a file of <{name}>: NCCL ignores it", 'give a file of <system version="1">'),
    "version": _error(f"version {{text!r}}: {_REFUSED}", 'write version="1"'),
    "too-many": _error("{count} elements: NCCL since 2.21 refuses 256 and more", "keep 200, without NICs"),
    "many": _warning(
        "{count} elements: NCCL counts again, up to 255, after merging the trees of all ranks with GPUs and NICs added",
        "keep 200, without NICs",
    ),
    "attributes": _error(
        "<{name}> has {count} attributes{blanks}: NCCL crashes on more than {most}{added}",
        "remove what NCCL finds out by itself, and blanks before > and />",
    ),
    "children": _error(
        "<{name}> has {count} children: NCCL 2.18 to 2.20 have room for 32 and overwrite their memory{more}",
        "put switches between, or leave NICs out",
    ),
    "misplaced": _error("<{name}> directly in <{parent}>: NCCL skips it", "put it in {wanted}"),
    "unknown": _warning("<{name}>: NCCL knows no such element and skips it", "remove it"),
    "unknown-around": _error("<{name}>: NCCL skips it with the devices in it", "remove its tags, keep what is in it"),
    # CPUs.
    "no-cpu": _error("no <cpu>: the file describes nothing", "write every NUMA node as a <cpu>"),
    "numaid": _error(
        "numaid {text!r}: NCCL looks a NUMA node up by its decimal number and refuses a <cpu> without one",
        'write numaid="0", …',
    ),
    "numaid-mixed": _error(
        "GPUs below numaid {text} next to numbered nodes: NCCL looks there for what /sys has on no node alone",
        f"write {_NUMA_NODE}",
    ),
    "numaid-unnumbered": _warning(
        "GPUs below numaid {text} next to numbered nodes: that is right only if /sys has these GPUs on no NUMA node",
        f"compare it with {_NUMA_NODE}",
    ),
    "numaid-unused": _warning("numaid {text!r} of a <cpu> without devices: NCCL leaves it out", "write its number"),
    "numaid-twice": _error("numaid {text} stands in line {line} too: NCCL looks the first up", "write each once"),
    "numa-missing": _warning(
        "no <cpu> for NUMA node {text}: if it has a GPU or NIC, NCCL 2.21 fails and 2.25 sees two systems", _NODES
    ),
    "affinity": _error(
        "affinity {text!r} is no mask: NCCL binds its threads to other CPUs",
        "write the text of /sys/devices/system/node/nodeN/cpumap: 0000ffff,ffffffff",
    ),
    "affinity-unused": _warning(
        "affinity {text!r} is no mask. NCCL ignores a <cpu> without devices", "write a mask: 0000ffff,ffffffff"
    ),
    "affinity-shared": _warning(
        "CPU {text} is in the affinity of the <cpu> in line {line}, too, but belongs to one NUMA node: NCCL binds "
        "threads to far CPUs",
        "write the text of /sys/devices/system/node/nodeN/cpumap of each node",
    ),
    "arch": _error("arch {text!r}: NCCL takes it for another CPU", "write x86_64, arm64 or ppc64"),
    "vendor": _error(
        "vendor {text!r}: NCCL takes it for another CPU",
        "write GenuineIntel, AuthenticAMD, CentaurHauls or '  Shanghai  '",
    ),
    "vendor-unlisted": _warning(
        "vendor {text!r}: NCCL knows no bandwidth between the sockets of such CPUs and counts 5000 GB/s",
        "write what /proc/cpuinfo has",
    ),
    "no-number": _error("{name} {text!r} is no decimal number", "write a decimal number"),
    "no-model": _error("familyid without modelid: NCCL refuses it on Intel and Zhaoxin", "write both or neither"),
    "cpu-facts": _error(
        "no {text}, but a <net> below: NCCL since 2.23 ends with 'Attribute … of node cpu not found' on all ranks",
        "write {text}, or remove the <net>",
    ),
    "cpu-filled": _warning(
        "no {text}, but a <net> below: ranks with a GPU below add what the node has, others do not, so that NCCL "
        "since 2.23 may see the CPU as two",
        "write {text} as NCCL does, or remove the <net>",
    ),
    "host-hash": _error(
        "host_hash {text!r}, but another <cpu> has {other!r}: NCCL 2.21 to 2.26 takes them for CPUs of two machines",
        "remove it everywhere",
    ),
    # PCI devices.
    "busid": _error(
        "busid {text!r}: NCCL compares letter by letter and adds the device a second time, on no NUMA node", _BUS_ID
    ),
    "busid-form": _error(
        "busid {text!r}: NCCL compares letter by letter and adds the device a second time, on no NUMA node",
        'write busid="{short}"',
    ),
    "busid-switch": _warning(
        "busid {text!r} of a switch: NCCL takes the tree below it as it stands, and completes nothing from /sys",
        _BUS_ID,
    ),
    "no-busid": _error("no busid: every NCCL ends with 'Attribute busid of node pci not found'", _BUS_ID),
    "busid-twice": _error("busid {text} stands in line {line} too", "write each device once"),
    "gpu-twice": _warning("busid {text} stands in line {line} too: NCCL uses the first", "write each device once"),
    "no-gpu": _warning("no GPU: NCCL adds those of the process where /sys has them", "write each GPU as a bare <pci>"),
    "class": _warning(
        "class {text!r}: NCCL compares letter by letter. If /sys has the device, /sys decides",
        "write six hex digits as /sys does: 0x030200",
    ),
    "no-class-switch": _error(
        "no class of a switch that no server has: every NCCL ends with 'Attribute class of node pci not found'",
        'write class="0x060400"',
    ),
    "no-class": _warning("no class: NCCL must find it in /sys, and fails without", 'write class="0x030200", …'),
    "no-class-net": _error(
        "no class, but a <net> below: NCCL ends with 'Attribute class of node pci not found' where /sys has no such "
        "device",
        'write class="0x060400", …',
    ),
    "bridge-class": _warning(
        "class {text}: for NCCL only 0x060400 is a bridge. If /sys says 0x060400, NCCL 2.23 and later see two",
        "write the text of /sys/bus/pci/devices/…/class",
    ),
    "class-net": _error(
        "class {text!r} of a switch, but a <net> below: ranks with a GPU below take /sys's, and NCCL since 2.23 sees "
        "the switch as two, with a fraction of the bandwidth",
        'write class="0x060400", or remove the <net>',
    ),
    "below-device": _error(
        "a <pci> in a device with {text}: NCCL takes that for a GPU or NIC and does not look below it",
        'put it in a switch, class="0x060400"',
    ),
    "nic-in-gpu": _error("a <nic> in a GPU: NCCL takes the device for a NIC", "give each its own <pci>"),
    "gpu-in-nic": _error("a <gpu> in a NIC, class {text}: no process has such a GPU", "put it in the GPU's <pci>"),
    "pcilink-place": _error(
        "a <pcilink> in a device with {text}: NCCL since 2.22 ends with 'could not find PCI SW'",
        "put it in the switch's <pci>, or remove it",
    ),
    "kept": _error(
        "keep: NCCL takes what has it for the job's, also where the process has not got it", "remove it everywhere"
    ),
    "ids": _error(
        "no {text}, but a <net> below: not all ranks add them from /sys, and NCCL since 2.23 sees the device as two, "
        "with a fraction of the bandwidth",
        "write all four ids as /sys has them, or remove the <net>",
    ),
    "ids-nic": _warning(
        "no {text}: NCCL adds them from /sys", "write all four ids as /sys has them, or leave the NIC out"
    ),
    "no-speed": _error(
        "no {name}, but a <net> below: every NCCL ends with 'Attribute {name} of node pci not found' on ranks that "
        "cannot read it",
        "write it as /sys has it",
    ),
    "speed": _error(
        "link_speed {text!r}: NCCL silently takes it for Gen 3",
        "write 2.5, 5.0, 8.0, 16.0, 32.0 or 64.0 GT/s PCIe",
    ),
    "speed-empty": _warning(
        "link_speed {text!r}, as a virtual machine's /sys has it: NCCL takes it for Gen 3",
        "write that of the server: 32.0 GT/s PCIe",
    ),
    "width-most": _error("link_width {text}: NCCL multiplies by this number, and no PCIe link is as wide", "write 16"),
    "width": _error("link_width {text!r}: NCCL silently takes it for x{lanes}", 'write link_width="16"'),
    "width-empty": _warning("link_width is empty: NCCL takes it for x16", 'write link_width="16"'),
    "two-gpus": _error("a second <gpu> in one <pci>: NCCL uses the first", "give each GPU its own <pci>"),
    "pcilink": _error("target {text!r} is no bus id", _BUS_ID),
    "pcilink-one-way": _error(
        "a <pcilink> from {name} to {target}, but none back: NCCL since 2.22 ends with 'Failed to find reverse path'",
        "write one in each of the two switches",
    ),
    "pcilink-dropped": _warning("{text} is no other switch of the file: NCCL drops the <pcilink>", "remove it"),
    # GPUs and links.
    "override": _warning("{name} overrides {text}", "remove it"),
    "own-note": _warning("{name} is NCCL's own note", "remove it"),
    "believed": _warning(
        "<nvlink>: NCCL does not ask NVML for this GPU's links and believes the file",
        "remove all <gpu> elements, unless NVML hides the links",
    ),
    "no-links": _warning(
        "this <gpu> has no <nvlink>, others have: NVML is asked for this one alone",
        'write count="0" where links are down',
    ),
    "c2c": _error("a <c2c> without bw or count as numbers", "write MB/s of one link and their number, or remove it"),
    "switch-target": _warning(
        "target {text!r} of a link to a switch: NCCL knows one switch and does not look at it", "write its bus id"
    ),
    "switch-lost": _error(
        "{count} links to switches, other GPUs have {most}: NCCL slows all GPUs down to these, or leaves NVLink out",
        "write the links that are up. Do not write a <gpu> without links",
    ),
    "target": _error(
        "target {text!r} is no bus id as NCCL writes it: the link leads nowhere",
        "write that of the other GPU or of the switch: 0000:0a:00.0",
    ),
    "count": _error("count {text!r} is no decimal number", "write how many links are up"),
    "count-most": _error(
        "count {text}: NCCL believes in as many links of 20 GB/s and more, no GPU has more than 18", _NO_BANDWIDTH
    ),
    "links-most": _error("{count} links of one GPU, no GPU has more than 18", _NO_BANDWIDTH),
    "to-itself": _warning(
        "a link of the GPU to itself, as NVML shows one whose other end is hidden", "remove all <gpu> elements"
    ),
    "switch-guess": _warning(
        "no tclass: where /sys has not the other GPU, NCCL takes it for a switch",
        'write tclass="0x030200"',
    ),
    "no-tclass": _warning("no tclass: NCCL assumes a switch and says so nowhere", 'write tclass="0x068000"'),
    "tclass": _error("tclass {text!r} of a GPU: NCCL takes it for a switch", "write 0x030200"),
    "switch-class": _warning("tclass {text!r}: NCCL takes all but GPUs and CPUs for switches", "write 0x068000"),
    "dropped": _warning("{text} is not in the file: NCCL drops the link", "nothing, if no job has that GPU"),
    "one-way": _error(
        "{count} links from {name} to {target}, but {back} back: NCCL ends with 'Failed to find reverse path'",
        "write the same number at both GPUs",
    ),
    # NICs.
    "net": _warning(
        "a <net>: above a NIC that the file lists, NCCL adds nothing from /sys, so that all must be there and right",
        "list no NICs: NCCL finds them",
    ),
    "net-name": _error("a <net> without a name: NCCL cannot match it to a device", 'write name="mlx5_0", or remove it'),
    "net-twice": _warning(
        "{text} stands in line {line} too: NCCL counts the NIC twice", "write it once, or not at all"
    ),
    # Beside the machine itself.
    "lacks-gpu": _warning("GPU{count} ({text}) is not in the file: NCCL hangs it where /sys has it", "add it"),
    "not-sys": _error(
        "{name} {text!r}, but /sys has {wanted}: NCCL since 2.23 may see this device as two", 'write {name}="{wanted}"'
    ),
    "not-rate": _error(
        "{text} GB/s over PCIe, but this device has {wanted}: NCCL believes the file", "write what /sys has: {cure}"
    ),
    "not-numa": _error(
        "below NUMA node {text}, but this device is on {wanted}: NCCL believes the file",
        'put it below <cpu numaid="{wanted}">',
    ),
    "numa-lacks": _error(
        "no <cpu> for NUMA node {text}, which the machine has: NCCL 2.21 fails and 2.25 sees two systems", _NODES
    ),
}
