"""Converts the output of ``amd-smi topology`` (text or JSON) or ``rocm-smi --showtopo`` (text) to a ``Machine``.

Both commands print one matrix for each property, below a title. ``amd-smi`` prints titles such as ``WEIGHT TABLE:``,
and names GPUs by their bus ids. ``rocm-smi`` prints ``==== Weight between two GPUs ====`` and names such as ``GPU0``.
JSON has the same matrices (``smi_json``). This module reads the link type, the weight (the driver's measure of
distance) and, from ``amd-smi``, the bandwidth. It skips other matrices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from dradriver.topology.amd import smi_json
from dradriver.topology.amd.amd_products import SOCKET_GBPS, likely
from dradriver.topology.check import check
from dradriver.topology.errors import TopologyError
from dradriver.topology.identifiers import is_bus_id
from dradriver.topology.machine import Gpu, Machine, NumaNode, PathType
from dradriver.topology.synthetic import synthetic_uuid
from dradriver.topology.vendors import AMD

_T = TypeVar("_T")

MARK = re.compile(r"^(ACCESS|WEIGHT|HOPS|LINK TYPE) TABLE:|^=+ .* between two GPUs =+$", re.MULTILINE)
_TITLE = re.compile(r"={3,}\s*(\S.*?)\s*={3,}|([A-Z][A-Z -]*) TABLE:")
_TABLES = {
    "link type between two gpus": "type", "link type": "type",
    "weight between two gpus": "weight", "weight": "weight",
    "numa bw": "bandwidth",
    "numa nodes": "numa",
}  # fmt: skip
_GPU = re.compile(r"GPU([0-9]{1,4})")
_NUMA = re.compile(r"GPU(?:\[| )([0-9]{1,4})\]?\s*:\s*\(Topology\) Numa Node:\s*(-?[0-9]{1,4})\s*")
_RATES = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_TYPES = {"XGMI": True, "PCIE": False, "UNKNOWN": False}
_SELF = ("SELF", "0", "N/A")
# Every GPU of a hive has a link of type xGMI to every other; these weights alone are direct ones (RCCL,
# rocm_smi_getLinkInfo: 15 is one hop, 13 and 41 are partitions'). Some releases print 0 throughout.
_DIRECT = (0, 13, 15, 41)
_SAME_NODE = 40  # of a path over PCIe: 20 to the CPU and 20 back (kfd_crat.c); more crosses to another socket
_MOST_LINKS = 8  # xGMI links of any part
_MOST_GPUS = 256


class _Table(msgspec.Struct):
    names: list[str]
    line: int
    rows: dict[str, list[str]] = {}
    lines: dict[str, int] = {}


def read(text: str, *, name: str = "", seed: str = "") -> Machine:
    """Return the machine that a text of ``amd-smi topology`` or ``rocm-smi --showtopo`` shows.

    The texts lack some facts:

    * There are no product names, and only ``amd-smi`` prints bus ids. Uuids are made up. GPUs are numbered in the
      text's order.
    * The number of links of a pair is its maximum bandwidth divided by its minimum, which only ``amd-smi`` prints; else
      it is 1. If the weight shows a way over other GPUs, the pair has no link.
    * Only ``rocm-smi`` prints NUMA nodes, from which the PCIe path of a pair follows: NODE or SYS. If they are unknown,
      the weight of a pair without links shows its path. For a pair with links, the path is then SYS.
    * The bandwidth of one link follows from the pattern of the links; ``complete`` can correct it.

    Args:
        text: The whole output, or the JSON of ``amd-smi topology --json``.
        name: The machine's name.
        seed: A text that gives machines of the same name different uuids.

    Raises:
        TopologyError: With the line: no table of link types, a row or cell is missing, a cell is unknown, or the two
            sides of a pair differ.
    """
    tables, numas = (_of_json(text), {}) if text.lstrip().startswith("[") else _tables(text)
    if "type" not in tables:
        raise TopologyError(
            "amd-smi topology, line 1: the table of link types is missing. Write the whole output of amd-smi "
            "topology, or of rocm-smi --showtopo."
        )

    # Matrices, GPUs x GPUs: whether an xGMI link joins them, the driver's weight (a distance), the number of links.
    type_table = tables["type"]
    linked = _matrix(type_table, type_table.names, _type)
    weights = _matrix(tables["weight"], type_table.names, _weight) if "weight" in tables else None
    link_counts = _matrix(tables["bandwidth"], type_table.names, _links_by_bandwidth) if "bandwidth" in tables else None
    gpu_range = range(len(type_table.names))
    for i in gpu_range:
        for j in range(i):
            if linked[i][j] != linked[j][i]:
                raise _error(
                    type_table.lines[type_table.names[i]],
                    f"{type_table.names[i]} to {type_table.names[j]} is not as back",
                )
    links = [[0] * len(gpu_range) for _ in gpu_range]
    paths = [[PathType.SELF] * len(gpu_range) for _ in gpu_range]

    # NUMA nodes are listed by GPU number, which only names like GPU0 have; bus ids have none.
    nodes = [numas.get(int(match[1])) if (match := _GPU.fullmatch(device)) else None for device in type_table.names]
    for i in gpu_range:
        for j in gpu_range:
            if i == j:
                continue
            weight = weights[i][j] if weights else 0
            # Linked pairs with another weight reach each other through further GPUs.
            if linked[i][j] and weight in _DIRECT:
                links[i][j] = min(link_counts[i][j], link_counts[j][i]) if link_counts else 1
            if nodes[i] is not None and nodes[j] is not None:
                is_near = nodes[i] == nodes[j]
            else:
                # Without NUMA nodes only the weight of an unlinked pair tells; of a linked one it is the link's.
                is_near = not linked[i][j] and 0 < weight <= _SAME_NODE
            paths[i][j] = PathType.NODE if is_near else PathType.SYS

    # Both directions of a pair must agree: the fewer links and the farther path hold.
    for i in gpu_range:
        for j in range(i):
            links[i][j] = links[j][i] = min(links[i][j], links[j][i])
            paths[i][j] = paths[j][i] = max(paths[i][j], paths[j][i])

    # The texts do not name products: bandwidths of one link and of a GPU's PCIe link, GB/s, of the likeliest product.
    link_gbps, pcie_gbps = likely(links)
    return check(
        Machine(
            name=name,
            gpus=tuple(
                Gpu(
                    index=i,
                    uuid=synthetic_uuid(name, i, seed=seed),
                    minor=i,
                    pci=device if is_bus_id(device) else "",
                    numa=nodes[i],
                    pcie_gbps=pcie_gbps,
                    vendor=AMD.word,
                )
                for i, device in enumerate(type_table.names)
            ),
            links=tuple(map(tuple, links)),
            paths=tuple(map(tuple, paths)),
            numa=tuple(NumaNode(id=node) for node in sorted({node for node in nodes if node is not None})),
            link_gbps=link_gbps if any(map(any, links)) else 0.0,
            socket_gbps=SOCKET_GBPS,
        )
    )


def _error(line: int, message: str) -> TopologyError:
    return TopologyError(f"amd-smi topology, line {line}: {message}")


def _tables(text: str) -> tuple[dict[str, _Table], dict[int, int]]:
    """Return the tables of a text by what they contain, and the NUMA node of each GPU.

    A table is the matrix of one property, such as the link type, below a title. Tables that are not needed are skipped.
    The NUMA nodes are empty if the text has none.

    Raises:
        TopologyError: A column or row of a table is invalid, or a device has no row.
    """
    # ``kind`` is what the lines below the last title are: a key of ``tables``, "numa", or empty for what is skipped.
    tables: dict[str, _Table] = {}
    numas: dict[int, int] = {}
    kind = ""
    for number, line in enumerate(text.splitlines(), 1):
        title = _TITLE.fullmatch(line.strip())
        words = line.split()
        if title is not None:
            kind = _TABLES.get((title[1] or title[2]).lower(), "")
        elif kind == "numa":
            numa_line = _NUMA.fullmatch(line.strip())
            if numa_line is not None and int(numa_line[2]) >= 0:
                numas[int(numa_line[1])] = int(numa_line[2])
        elif not kind or not words or words[0] == "WARNING:":
            continue
        elif kind not in tables:
            tables[kind] = _empty_table(words, number)
        elif len(tables[kind].rows) < len(tables[kind].names):
            _add_row(tables[kind], words, number)
    for table in tables.values():
        missing = next((device for device in table.names if device not in table.rows), None)
        if missing is not None:
            raise _error(table.line, f"the row of {missing} is missing. Write the whole output.")
    return tables, numas


def _of_json(text: str) -> dict[str, _Table]:
    """Return the tables in the JSON of ``amd-smi topology``, by what they contain.

    Errors are reported with line 1, because the JSON has no lines of its own.
    """
    tables: dict[str, _Table] = {}
    for kind, cells in smi_json.matrices(text).items():
        tables[kind] = table = _empty_table(list(cells), 1)
        for device, row in cells.items():
            missing = next((other for other in table.names if other not in row), None)
            if missing is not None:
                raise _error(1, f"{device} has no cell for {missing}. Write the whole output.")
            _add_row(table, [device, *(row[other] for other in table.names)], 1)
    return tables


def _empty_table(words: Sequence[str], number: int) -> _Table:
    names = [word.lower() if is_bus_id(word.lower()) else word for word in words]
    wrong = next((word for word in names if not _GPU.fullmatch(word) and not is_bus_id(word)), None)
    if wrong is not None:
        raise _error(number, f"{wrong!r} is no GPU. Columns are bus ids (0000:0c:00.0) or GPU0, GPU1, …")
    if len(set(names)) < len(names) or len(names) > _MOST_GPUS:
        raise _error(
            number, f"the table has {len(names)} columns. It must have one for each GPU, and at most {_MOST_GPUS}."
        )
    return _Table(names=names, line=number)


def _add_row(table: _Table, words: Sequence[str], number: int) -> None:
    device, cells = words[0].lower() if is_bus_id(words[0].lower()) else words[0], words[1:]
    if device not in table.names or device in table.rows:
        raise _error(number, f"{device!r}: a row for each column, once, is expected here")
    if len(cells) != len(table.names):
        raise _error(number, f"{device} has {len(cells)} cells, and {len(table.names)} are needed.")
    table.rows[device] = list(cells)
    table.lines[device] = number


def _matrix(table: _Table, names: Sequence[str], value: Callable[[str], _T | None]) -> list[list[_T]]:
    """Return the values of a table as a square matrix, with rows and columns in the order of ``names``.

    Args:
        table: The table.
        names: The GPUs.
        value: Converts the text of a cell, also of a cell on the diagonal, to its value; None for an unknown text.

    Raises:
        TopologyError: The table has other GPUs than ``names``, or a cell is unknown.
    """
    if set(names) != set(table.names):
        raise _error(table.line, "other GPUs than in the table of link types")
    at: Mapping[str, int] = {device: i for i, device in enumerate(table.names)}
    out: list[list[_T]] = []
    for device in names:
        row: list[_T] = []
        for other in names:
            cell = table.rows[device][at[other]]
            if (entry := value(cell)) is None:
                raise _error(table.lines[device], f"{cell!r} between {device} and {other} is not known here")
            row.append(entry)
        out.append(row)
    return out


def _type(cell: str) -> bool | None:
    return False if cell in _SELF else _TYPES.get(cell)


def _weight(cell: str) -> int | None:
    if cell in _SELF:
        return 0
    return int(cell) if cell.isascii() and cell.isdigit() and len(cell) < 10 else None


def _links_by_bandwidth(cell: str) -> int | None:
    """Return the number of links of a pair of GPUs, from a cell with its minimum and maximum bandwidth.

    The result is 1 if the bandwidths do not show the number, and None if the cell has another form.
    """
    rates = _RATES.fullmatch(cell)
    if rates is None:
        return 1 if cell in _SELF else None
    least, most = int(rates[1]), int(rates[2])
    return max(1, min(round(most / least), _MOST_LINKS)) if least else 1
