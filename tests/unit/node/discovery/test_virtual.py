"""Whether discovery runs in a virtual machine: the CPU's flag on x86, the firmware's words elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from dradriver.node.discovery import sysfs
from dradriver.topology.nccl import nccl_bandwidths
from dradriver.topology.nccl.file_needed import explain
from tests.fakes.hardware import Server

ARM = "processor\t: 0\nBogoMIPS\t: 2000.00\nCPU implementer\t: 0x41\n"
INTEL = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nflags\t\t: fpu vme"


def server(root: Path, cpuinfo: str, *, vendor: str = "", product: str = "") -> Path:
    files = {"proc/cpuinfo": cpuinfo}
    files |= {f"sys/class/dmi/id/{n}": text for n, text in (("sys_vendor", vendor), ("product_name", product)) if text}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("vendor", "product", "virtual"),
    [
        ("Microsoft Corporation", "Virtual Machine", True),
        ("QEMU", "KVM Virtual Machine", True),
        ("QEMU", "", True),
        ("QEMU", "Standard PC (Q35 + ICH9, 2009)", True),
        ("Red Hat", "KVM", True),
        ("Xen", "HVM domU", True),
        ("Google", "Google Compute Engine", True),
        ("OpenStack Foundation", "OpenStack Nova", True),
        ("KubeVirt", "None", True),
        ("VMware, Inc.", "VMware20,1", True),
        ("Alibaba Cloud", "Alibaba Cloud ECS", True),
        ("Amazon EC2", "g5g.16xlarge", True),
        ("Amazon EC2", "g5g.metal", False),
        ("Amazon EC2", "m8g.metal-24xl", False),
        ("NVIDIA", "GB200 NVL", False),
        ("Microsoft Corporation", "C4240", False),
        ("Supermicro", "", False),
        ("", "ARS-221GL-NHIR", False),
        ("", "", None),
    ],
)
def test_the_firmware_says_it_where_the_cpu_has_no_flag(
    vendor: str, product: str, virtual: bool | None, tmp_path: Path
) -> None:
    assert sysfs.cpu(server(tmp_path, ARM, vendor=vendor, product=product))[1] is virtual


@pytest.mark.parametrize(("flag", "virtual"), [("", False), (" hypervisor", True)])
def test_on_x86_the_flag_alone_counts(flag: str, virtual: bool, tmp_path: Path) -> None:
    said = "Virtual Machine" if not virtual else "DGXH100"
    assert sysfs.cpu(server(tmp_path, INTEL + flag, product=said))[1] is virtual


def test_a_discovered_grace_guest_is_a_virtual_machine(tmp_path: Path) -> None:
    there = Server("gb200-nvl72-tray", tmp_path)
    there.sys.file("sys/class/dmi/id/sys_vendor", "Microsoft Corporation")
    there.sys.file("sys/class/dmi/id/product_name", "Virtual Machine")
    machine = there.read().machine
    assert machine.virtual is True
    assert "this is a virtual machine" in explain(machine).reasons[0]


def test_a_vendors_name_keeps_the_blanks_that_nccl_compares(tmp_path: Path) -> None:
    text = "processor\t: 0\nvendor_id\t:   Shanghai  \ncpu family\t: 7\nmodel\t\t: 91\nflags\t\t: fpu\n"
    cpu, _ = sysfs.cpu(server(tmp_path, text))
    assert cpu is not None
    assert (cpu.vendor, nccl_bandwidths.socket_gbps(cpu)) == ("  Shanghai  ", 9.0)
