"""Converts the text of ``npu-smi info -t topo`` (Huawei's Ascend) to a ``Machine``.

The text is a header of NPUs, one row for each NPU, a column of CPUs, and a legend. Chips of an A3 are named
``Phy-ID12`` and have no CPUs. The text can also have the table of ``npu-smi info``, before or after the matrix. Bus
ids, product and memory are taken from the table. ``npu_smi_table`` reads a table without a matrix.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from dradriver.topology.ascend import ascend_products, npu_smi_table
from dradriver.topology.check import check
from dradriver.topology.cpulist import is_cpu_list
from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Gpu, Machine, PathType
from dradriver.topology.synthetic import synthetic_uuid
from dradriver.topology.topo_m import inferred_topology
from dradriver.topology.vendors import ASCEND

MARK = re.compile(r"^[ \t]*(NPU|Phy-ID)[0-9]", re.MULTILINE)
_NPU = re.compile(r"(?:NPU|Phy-ID)([0-9]{1,4})")
_CPU = "CPU Affinity"
# HCCS by way of a switch compares as HCCS does: Huawei publishes no bandwidth of either.
_LINKS = {kind.cell: kind.links for kind in ASCEND.kinds} | {"HCCS_SW": 1}
_PATHS = {"PIX": PathType.PIX, "PXB": PathType.PXB, "PHB": PathType.PHB, "SYS": PathType.SYS, "NA": PathType.SYS}
_ALLOWED = ", ".join(["X", *_LINKS, *_PATHS])
_MOST_NPUS = 256


def read(text: str, *, name: str = "", seed: str = "") -> Machine:
    """Return the machine that the matrix of ``npu-smi info -t topo`` shows.

    Uuids are made up. The number of links is known, but not their bandwidth. NUMA nodes are inferred from the CPUs. If
    a link hides the PCIe path of a pair, the path is inferred from the NUMA nodes, as for ``nvidia-smi topo -m``. Links
    and product show which NPUs may be used together (``ascend_products.blocks``).

    Args:
        text: The whole output.
        name: The machine's name.
        seed: A text that gives machines of the same name different uuids.

    Raises:
        TopologyError: With the line: no header, a row or cell is missing, a cell is unknown, or the two sides of a pair
            differ.
    """
    # The columns' names, by device its cells and its CPU list, and the line of the header.
    devices: list[str] = []
    rows: dict[str, list[str]] = {}
    cpus: dict[str, str] = {}
    header = 0
    for number, line in enumerate(text.splitlines(), 1):
        # ``_CPU`` is the only heading of two words; the other headings are NPUs.
        cells_of_line = line.replace(_CPU, "").split()
        # Lines before the header and after the last row are skipped.
        if not devices:
            if cells_of_line and all(map(_NPU.fullmatch, cells_of_line)):
                devices, header = cells_of_line, number
        elif cells_of_line and len(rows) < len(devices):
            device, cells = cells_of_line[0], cells_of_line[1:]
            if device not in devices or device in rows:
                raise _error(number, f"{device!r}: a row for each column, once, is expected here")
            if not len(devices) <= len(cells) <= len(devices) + 1:
                raise _error(
                    number, f"{device} has {len(cells)} cells. {len(devices)} are needed, then the CPUs of the NPU."
                )
            rows[device], affinity_cells = cells[: len(devices)], cells[len(devices) :]
            _check_cells(devices, device, cells, number)
            cpus[device] = affinity_cells[0] if affinity_cells and is_cpu_list(affinity_cells[0]) else ""
    if not devices:
        raise _error(1, "there is no header. The text must start with a line of NPU0, NPU1, …")

    # Checks of the whole matrix.
    missing = next((device for device in devices if device not in rows), None)
    if missing is not None:
        raise _error(header, f"the row of {missing} is missing. Write the whole output of npu-smi info -t topo.")
    if len(set(devices)) < len(devices) or len(devices) > _MOST_NPUS:
        raise _error(
            header, f"the table has {len(devices)} columns. It must have one for each NPU, and at most {_MOST_NPUS}."
        )
    machine = _machine(devices, rows, cpus, name=name, seed=seed, header=header)

    # Bus ids, product and memory, if the text has the table of ``npu-smi info``, too.
    machine = npu_smi_table.with_table(machine, text)

    # The text may lack the table, or have it for some NPUs only. NPUs of two products have no known blocks.
    products = {gpu.product for gpu in machine.gpus if gpu.product}
    product = next(iter(products), "")
    blocks = ascend_products.blocks(machine.links, product) if len(products) <= 1 else None
    return check(msgspec.structs.replace(machine, blocks=blocks))


def _error(line: int, message: str) -> TopologyError:
    return TopologyError(f"npu-smi info -t topo, line {line}: {message}")


def _check_cells(devices: Sequence[str], device: str, cells: Sequence[str], number: int) -> None:
    for other, cell in zip(devices, cells, strict=False):
        known = cell == "X" if other == device else cell in _LINKS or cell in _PATHS
        if not known:
            raise _error(
                number,
                f"{cell!r} between {device} and {other} is unknown. Allowed: {_ALLOWED}, and X on the diagonal only.",
            )


def _machine(
    devices: Sequence[str], rows: dict[str, list[str]], cpus: dict[str, str], *, name: str, seed: str, header: int
) -> Machine:
    """Build the machine from the matrix's cells, with NPUs in the order of their numbers.

    Args:
        devices: The columns, ``NPU0`` and so on.
        rows: The cells of each device's row, by device.
        cpus: The CPU list of each device; empty if the text has none.
        name: The machine's name.
        seed: A text that gives machines of the same name different uuids.
        header: The line of the header, for messages.

    Raises:
        TopologyError: The two sides of a pair differ.
    """
    numbers = {device: int(match[1]) for device in devices if (match := _NPU.fullmatch(device))}
    order = sorted(devices, key=numbers.__getitem__)  # rows need not be in the order of the numbers
    column = {device: i for i, device in enumerate(devices)}
    cells = [[rows[a][column[b]] for b in order] for a in order]
    for i, row in enumerate(cells):
        for j in range(i):
            if row[j] != cells[j][i]:
                raise _error(header, f"{row[j]} from {order[i]} to {order[j]}, but {cells[j][i]} back")
    links = tuple(tuple(_LINKS.get(cell, 0) for cell in row) for row in cells)

    # A cell of links hides the PCIe path of its pair (None), and the text has no NUMA affinities: both are inferred.
    visible = [[PathType.SELF if cell == "X" else _PATHS.get(cell) for cell in row] for row in cells]
    cpu_lists = [cpus[device] for device in order]
    numas = inferred_topology.numa_of_gpus(cpu_lists, [""] * len(order), has_numa_column=False)
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
            paths=inferred_topology.paths(visible, (), numas),
            numa=inferred_topology.numa_nodes(numas, cpu_lists),
        )
    )
