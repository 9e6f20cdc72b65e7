"""Completes a machine with facts given by hand: the GPUs' product, the CPUs' model, bus ids, and the NCCL version.

A ``nvidia-smi topo -m`` text has none of these facts. Products are spelled as NVML spells them, bandwidths are NCCL's
(topo.h).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from dradriver.topology.amd import amd_products
from dradriver.topology.ascend import ascend_products
from dradriver.topology.check import check
from dradriver.topology.errors import TopologyError
from dradriver.topology.identifiers import is_bus_id
from dradriver.topology.machine import Cpu, Machine
from dradriver.topology.nccl import nccl_bandwidths
from dradriver.topology.vendors import AMD, ASCEND, Vendor

_T = TypeVar("_T")

PRODUCTS = {  # name as NVML spells it: compute capability times ten, PCIe GB/s
    "Tesla P100-SXM2-16GB": (60, 12.0),
    "Tesla V100-SXM2-32GB": (70, 12.0),
    "Tesla V100-PCIE-32GB": (70, 12.0),
    "Tesla T4": (75, 12.0),
    "NVIDIA A100-SXM4-80GB": (80, 24.0),
    "NVIDIA A100 80GB PCIe": (80, 24.0),
    "NVIDIA A30": (80, 24.0),
    "NVIDIA A10": (86, 24.0),
    "NVIDIA A40": (86, 24.0),
    "NVIDIA RTX A6000": (86, 24.0),
    "NVIDIA GeForce RTX 3090": (86, 24.0),
    "NVIDIA GeForce RTX 4090": (89, 24.0),
    "NVIDIA L4": (89, 24.0),
    "NVIDIA L40S": (89, 24.0),
    "NVIDIA H100 PCIe": (90, 48.0),
    "NVIDIA H100 NVL": (90, 48.0),
    "NVIDIA H100 80GB HBM3": (90, 48.0),
    "NVIDIA H200": (90, 48.0),
    "NVIDIA B200": (100, 48.0),
}
CPUS = {  # as /proc/cpuinfo numbers them
    "broadwell": Cpu(arch="x86_64", vendor="GenuineIntel", family=6, model=79),
    "skylake": Cpu(arch="x86_64", vendor="GenuineIntel", family=6, model=85),
    "cascadelake": Cpu(arch="x86_64", vendor="GenuineIntel", family=6, model=85),
    "icelake": Cpu(arch="x86_64", vendor="GenuineIntel", family=6, model=106),
    "sapphirerapids": Cpu(arch="x86_64", vendor="GenuineIntel", family=6, model=143),
    "emeraldrapids": Cpu(arch="x86_64", vendor="GenuineIntel", family=6, model=207),
    "rome": Cpu(arch="x86_64", vendor="AuthenticAMD", family=23, model=49),
    "milan": Cpu(arch="x86_64", vendor="AuthenticAMD", family=25, model=1),
    "genoa": Cpu(arch="x86_64", vendor="AuthenticAMD", family=25, model=17),
    "turin": Cpu(arch="x86_64", vendor="AuthenticAMD", family=26, model=2),
    "grace": Cpu(arch="arm64"),
}
_NUMBERS = re.compile(r"(GenuineIntel|AuthenticAMD)[ :/](\d{1,3})[ :/](\d{1,3})")
_WORDS = re.compile(r"[a-z0-9]+")


def complete(
    machine: Machine, *, product: str = "", cpu: str = "", bus_ids: Sequence[str] = (), nccl_version: str = ""
) -> Machine:
    """Return a machine with its product, CPU, bus ids or NCCL version replaced.

    Only arguments that are not empty replace the machine's own values.

    Args:
        machine: The machine.
        product: A product's name, or some of its words that fit no other product: ``a40``, ``H100 PCIe``.
        cpu: A short name of a known CPU (``CPUS``), or vendor, family and model: ``GenuineIntel 6 85``.
        bus_ids: One for each GPU, in the order of their numbers. Then, optionally, one for each NIC.
        nccl_version: The NCCL version in the containers of jobs, such as ``2.23``.

    Raises:
        TopologyError: The product, CPU or NCCL version is unknown, the words fit several products, or a bus id is
            invalid or missing. The message says what to write instead.
    """
    gpus = machine.gpus
    if product:
        # Fields of ``Gpu`` by name, and what one link of the product carries, GB/s.
        product_fields, link_gbps = _fields_of_product(machine.vendor, product)

        # Blocks are the GPUs that may be used together. Only Ascend's follow from the product.
        has_derived_blocks = machine.vendor is ASCEND and machine.blocks == ascend_products.blocks(
            machine.links, machine.gpus[0].product
        )
        gpus = tuple(msgspec.structs.replace(gpu, **product_fields) for gpu in gpus)
        # Blocks that followed from the old product follow from the new one; blocks written in a profile stay.
        if has_derived_blocks:
            machine = msgspec.structs.replace(
                machine, blocks=ascend_products.blocks(machine.links, product_fields["product"])
            )
        if machine.link_gbps:  # 0: the GPUs have no links, or their bandwidth is not published
            machine = msgspec.structs.replace(machine, link_gbps=link_gbps)
    if bus_ids:
        count, nics = len(gpus), machine.nics
        if len(bus_ids) not in (count, count + len(nics)) or not all(map(is_bus_id, bus_ids)):
            for_nics = f", and then for each of {len(nics)} NICs or for none" if nics else ""
            raise TopologyError(
                f"bus ids: {', '.join(bus_ids)}: the number of bus ids does not fit. Write one such as 0000:06:00.0 "
                f"for each of {count} GPUs, by index{for_nics}."
            )

        # The GPUs' bus ids come first. Without any for NICs these keep their own.
        gpus = tuple(msgspec.structs.replace(gpu, pci=pci) for gpu, pci in zip(gpus, bus_ids, strict=False))
        nics_with_ids = zip(nics, bus_ids[count:], strict=False)
        nics = tuple(msgspec.structs.replace(nic, pci=pci) for nic, pci in nics_with_ids) or nics
        machine = msgspec.structs.replace(machine, nics=nics)
    machine = msgspec.structs.replace(machine, gpus=gpus)

    # A source that does not name the CPUs leaves two possible bandwidths between sockets: ``socket_gbps`` and
    # ``socket_gbps_or``. The CPU decides between them, so 0 (none) replaces the second.
    if cpu:
        model = _cpu(cpu)
        machine = msgspec.structs.replace(
            machine, cpu=model, socket_gbps=nccl_bandwidths.socket_gbps(model), socket_gbps_or=0.0
        )
    if nccl_version:
        machine = msgspec.structs.replace(machine, nccl_version=nccl_version)
    return check(machine)


def with_bus_ids(machine: Machine) -> Machine:
    """Return the machine with made-up bus ids for GPUs that have none: ``0000:10:00.0``, …."""
    return msgspec.structs.replace(
        machine,
        gpus=tuple(
            gpu if gpu.pci else msgspec.structs.replace(gpu, pci=f"{i // 24:04x}:{16 + 8 * (i % 24):02x}:00.0")
            for i, gpu in enumerate(machine.gpus)
        ),
    )


def _fields_of_product(vendor: Vendor, text: str) -> tuple[dict[str, Any], float]:
    """Return the GPU fields that follow from a product, and the bandwidth of one link.

    ``text`` is the product's name, or some of its words. The bandwidth is in GB/s; 0 for Ascend, whose links have no
    known rate.
    """
    if vendor is AMD:
        of_amd = {part.product: (part.architecture, part.pcie_gbps) for part in amd_products.PARTS.values()}
        name, (architecture, pcie) = _product(text, of_amd)
        said = {"product": name, "pcie_gbps": pcie, "architecture": architecture}
        return said, amd_products.link_gbps(architecture)
    if vendor is ASCEND:
        name, (_, pcie) = _product(text, {product: (None, pcie) for product, pcie in ascend_products.PRODUCTS.items()})
        return {"product": name, "pcie_gbps": pcie}, 0.0
    name, (sm, pcie) = _product(text, PRODUCTS)
    capability = f"{sm // 10}.{sm % 10}"
    said = {
        "product": name,
        "pcie_gbps": pcie,
        "architecture": nccl_bandwidths.architecture(sm),
        "compute_capability": capability,
    }
    return said, nccl_bandwidths.link_gbps(sm)


def _product(text: str, products: Mapping[str, tuple[_T, float]]) -> tuple[str, tuple[_T, float]]:
    wanted = set(_WORDS.findall(text.lower()))
    fitting = [name for name in products if wanted and wanted <= set(_WORDS.findall(name.lower()))]
    exact = [name for name in products if name.lower() == text.strip().lower()]
    known = {products[name] for name in fitting}
    if not exact and len(known) != 1:
        problem = f"{text!r} matches several products" if fitting else f"{text!r} is not a known product"
        raise TopologyError(f"product: {problem}. Write one of: {', '.join(fitting or products)}.")
    name = (exact or fitting)[0]
    return name, products[name]


def _cpu(text: str) -> Cpu:
    name = re.sub(r"[\s_-]", "", text.lower())
    if name in CPUS:
        return CPUS[name]
    numbers = _NUMBERS.fullmatch(text.strip())
    if numbers is None:
        raise TopologyError(
            f"cpu: {text!r} is not known. Write one of: {', '.join(CPUS)}. Or write vendor, family and model from "
            f"/proc/cpuinfo, for example GenuineIntel 6 85."
        )
    return Cpu(arch="x86_64", vendor=numbers[1], family=int(numbers[2]), model=int(numbers[3]))
