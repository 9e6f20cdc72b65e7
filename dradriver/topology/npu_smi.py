"""From the text of ``npu-smi info -t topo`` to a ``Machine``: Huawei's Ascend.

A header of NPUs, one row each, a column of CPUs, a legend. Chips of an A3 are named ``Phy-ID12`` and have no CPUs. The
table of ``npu-smi info`` may stand before or after it: bus ids, product and memory are taken from there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from dradriver.topology.check import check, is_cpu_list
from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Blocks, Gpu, Machine, PathType
from dradriver.topology.synthetic import synthetic_uuid
from dradriver.topology.topo_m import infer
from dradriver.topology.vendors import ASCEND

MARK = re.compile(r"^[ \t]*(NPU|Phy-ID)[0-9]", re.MULTILINE)
_NPU = re.compile(r"(?:NPU|Phy-ID)([0-9]{1,4})")
_CPU = "CPU Affinity"
# Links, by the number that compares: SIO joins the two dies of a module and carries more than HCCS, with or without a
# switch. Huawei publishes no bandwidth of either.
_LINKS = {"SIO": 2, "HCCS": 1, "HCCS_SW": 1}
_PATHS = {"PIX": PathType.PIX, "PXB": PathType.PXB, "PHB": PathType.PHB, "SYS": PathType.SYS, "NA": PathType.SYS}
_ALLOWED = ", ".join(["X", *_LINKS, *_PATHS])
_MOST = 256
# ``npu-smi info``: a line with an NPU's number and name, then one for each of its chips, with the number of the device
# where an NPU has several, its bus id, and what is used of each memory.
_NAME = re.compile(r"\|\s*([0-9]{1,4})\s+([0-9A-Za-z-]{1,32})\s*\|\s*[A-Za-z]+\s*\|.*")
_CHIP = re.compile(r"\|\s*[0-9]{1,4}(?:\s+([0-9]{1,4}))?\s*\|\s*([0-9A-Fa-f]{4}:[0-9A-Fa-f:.]{7})\s*\|(.*)")
_USED = re.compile(r"/\s*([0-9]{1,9})\b")
# Several dies of an A3 are whole modules, two dies joined by SIO: mind-cluster, docs/en/scheduling/usage/
# basic_scheduling/01_affinity_scheduling/03_ascend_ai_processor_based_affinity.
_MODULES = (1, 2, 4, 6, 8, 10, 12, 14, 16)


def read(text: str, *, name: str = "", seed: str = "") -> Machine:
    """Return the machine that the text shows.

    Identities are made up. Links compare, but carry no figure. NUMA nodes follow from the CPUs, and hidden paths from
    them, as in a ``nvidia-smi topo -m`` text. Where dies are joined by SIO, several are had as whole modules.

    Args:
        text: The whole output.
        name: The machine's name.
        seed: Tells machines of the same name apart.

    Raises:
        TopologyError: With the line: no header, a row or cell missing, an unknown cell, two sides that differ.
    """
    devices: list[str] = []
    rows: dict[str, list[str]] = {}
    cpus: dict[str, str] = {}
    header = 0
    for number, line in enumerate(text.splitlines(), 1):
        words = line.replace(_CPU, "").split()
        if not devices:
            if words and all(map(_NPU.fullmatch, words)):
                devices, header = words, number
        elif words and len(rows) < len(devices):
            device, cells = words[0], words[1:]
            if device not in devices or device in rows:
                raise _error(number, f"{device!r}: a row for each column, once, is expected here")
            if not len(devices) <= len(cells) <= len(devices) + 1:
                raise _error(number, f"{device} has {len(cells)} cells; {len(devices)} are needed, then its CPUs")
            rows[device], after = cells[: len(devices)], cells[len(devices) :]
            _check_cells(devices, device, cells, number)
            cpus[device] = after[0] if after and is_cpu_list(after[0]) else ""
    if not devices:
        raise _error(1, "no header; the text starts with a line of NPU0, NPU1, …")
    missing = next((device for device in devices if device not in rows), None)
    if missing is not None:
        raise _error(header, f"the row of {missing} is missing; give the whole output of npu-smi info -t topo")
    if len(set(devices)) < len(devices) or len(devices) > _MOST:
        raise _error(header, f"{len(devices)} columns; each NPU stands once, and {_MOST} are the most")
    machine = _machine(devices, rows, cpus, name=name, seed=seed, header=header)
    return check(_with_table(machine, text))


def _with_table(machine: Machine, text: str) -> Machine:
    """Return the machine with what a table of ``npu-smi info`` says of its NPUs."""
    known: dict[int, dict[str, Any]] = {}
    number, product = 0, ""
    for line in text.splitlines():
        if (named := _NAME.fullmatch(line.strip())) is not None:
            number, product = int(named[1]), named[2]
        elif product and (chip := _CHIP.fullmatch(line.strip())) is not None:
            known[int(chip[1] or number)] = {
                "pci": chip[2].lower(),
                "product": product if product.startswith("Ascend") else f"Ascend {product}",
                "memory_mib": max(map(int, _USED.findall(chip[3])), default=0),
            }
    gpus = (msgspec.structs.replace(gpu, **known.get(gpu.index, {})) for gpu in machine.gpus)
    return msgspec.structs.replace(machine, gpus=tuple(gpus))


def _modules(cells: Sequence[Sequence[str]]) -> Blocks | None:
    """Return the modules of two dies, if any two are joined by SIO."""
    if not any("SIO" in row for row in cells):
        return None
    of = [min((j for j, cell in enumerate(row) if cell == "SIO" or j == i)) for i, row in enumerate(cells)]
    return Blocks(of=tuple(of), counts=_MODULES, whole=True)


def _error(line: int, message: str) -> TopologyError:
    return TopologyError(f"npu-smi info -t topo, line {line}: {message}")


def _check_cells(devices: Sequence[str], device: str, cells: Sequence[str], number: int) -> None:
    for other, cell in zip(devices, cells, strict=False):
        known = cell == "X" if other == device else cell in _LINKS or cell in _PATHS
        if not known:
            raise _error(number, f"{cell!r} between {device} and {other}; allowed: {_ALLOWED}, X on the diagonal alone")


def _machine(
    devices: Sequence[str], rows: dict[str, list[str]], cpus: dict[str, str], *, name: str, seed: str, header: int
) -> Machine:
    numbers = {device: int(match[1]) for device in devices if (match := _NPU.fullmatch(device))}
    order = sorted(devices, key=numbers.__getitem__)  # rows need not be in the order of the numbers
    column = {device: i for i, device in enumerate(devices)}
    cells = [[rows[a][column[b]] for b in order] for a in order]
    for i, row in enumerate(cells):
        for j in range(i):
            if row[j] != cells[j][i]:
                raise _error(header, f"{row[j]} from {order[i]} to {order[j]}, but {cells[j][i]} back")
    links = tuple(tuple(_LINKS.get(cell, 0) for cell in row) for row in cells)
    visible = [[PathType.SELF if cell == "X" else _PATHS.get(cell) for cell in row] for row in cells]
    lists = [cpus[device] for device in order]
    numas = infer.numa(lists, [""] * len(order), said=False)
    return check(
        Machine(
            name=name,
            gpus=tuple(
                Gpu(
                    index=numbers[device],
                    uuid=synthetic_uuid(name, numbers[device], seed=seed),
                    minor=numbers[device],
                    pci="",
                    numa=numas[i],
                    pcie_gbps=24.0,  # a 910 has PCIe 4 x16; no later one is slower
                    vendor=ASCEND.word,
                )
                for i, device in enumerate(order)
            ),
            links=links,
            paths=infer.paths(visible, (), numas),
            numa=infer.numa_nodes(numas, lists),
            blocks=_modules(cells),
        )
    )
