"""NCCL topology files without a fault, to break, and the rules that a file breaks."""

from __future__ import annotations

import re
from collections.abc import Callable

from dradriver.topology import nccl
from dradriver.topology.machine import Machine

GOOD = """\
<!-- a comment first is fine -->
<system version="1">
  <cpu numaid="0" affinity="0000000f" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:01:00.0" class="0x060400" vendor="0x1000" device="0xc030" subsystem_vendor="0x1000" \
subsystem_device="0x0001" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:02:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
      <pci busid="0000:03:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
    </pci>
  </cpu>
  <cpu numaid="1"/>
</system>
"""
BOTH = GOOD.replace(
    '<cpu numaid="1"/>',
    '<cpu numaid="1"><pci busid="0000:81:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/></cpu>',
)
LINKED = re.sub(
    r'(busid="0000:0(.):00.0" class="0x030200") link_speed="32.0 GT/s PCIe" link_width="16"/>',
    lambda m: f'{m[1]}><gpu><nvlink target="0000:0{5 - int(m[2])}:00.0" count="4" tclass="0x030200"/></gpu></pci>',
    GOOD,
)
NET = GOOD.replace(
    'busid="0000:03:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>',
    'busid="0000:03:00.0" class="0x020700" vendor="0x15b3" device="0x1021" subsystem_vendor="0x15b3" '
    'subsystem_device="0x0001" link_speed="32.0 GT/s PCIe" link_width="16"><nic><net name="mlx5_0"/></nic></pci>',
)
SWITCHED = re.sub(
    r'target="0000:0[23]:00.0" (count="4") tclass="0x030200"', r'target="0000:0a:00.0" \1 tclass="0x068000"', LINKED
)
PCILINKED = GOOD.replace(
    "    </pci>\n",
    '    <pcilink target="0000:41:00.0"/></pci>\n'
    '    <pci busid="0000:41:00.0" class="0x060400"><pcilink target="0000:01:00.0"/>'
    '<pci busid="0000:42:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/></pci>\n',
)


def swap(base: str, old: str, new: str) -> str:
    assert old in base
    return base.replace(old, new, 1)


def rules(text: str, machine: Machine | None = None) -> list[str]:
    return [finding.rule for finding in nccl.check(text, machine=machine)]


NEXT_TO_A_MACHINE = {"lacks-gpu", "not-sys", "numa-lacks"}


def machine_of(text: str, change: Callable[[Machine], Machine] = lambda machine: machine) -> Machine:
    return change(nccl.read(text, name="box"))
