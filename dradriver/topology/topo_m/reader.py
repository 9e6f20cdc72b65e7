"""From the text of ``nvidia-smi topo -m`` to a ``Machine``: the grammar. ``infer`` adds what the text does not say.

The text is a header of column names, one row a device, a legend, and in newer drivers a legend of NIC names. Found in
the wild and read: colour codes, tabs or blanks between cells, a header without its leading tab, rows of NICs without
affinity cells, NIC columns under the cards' own names (old drivers), SOC for SYS (older ones), no NUMA columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from dradriver.topology.ascend import rules
from dradriver.topology.check import check, is_cpu_list
from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Gpu, Machine, Nic, PathType
from dradriver.topology.synthetic import synthetic_uuid
from dradriver.topology.topo_m import infer
from dradriver.topology.topo_m.implied import implied
from dradriver.topology.vendors import ASCEND, NVIDIA, VENDORS, Vendor, links_of

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU = re.compile(r"GPU([0-9]{1,4})")
_DEVICE = re.compile(r"[A-Za-z][\w.:-]{0,63}")
_NIC_NAME = re.compile(r"\s*(NIC[0-9]{1,4}):\s*(\S+)\s*")
_PATHS = {path.name: path for path in PathType if path is not PathType.SELF} | {"SOC": PathType.SYS}
_CPU, _NUMA, _MEMORY = _AFFINITIES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_ALLOWED = "X, NV1 to NV99 or links of another vendor, " + ", ".join(_PATHS)
_MOST_DEVICES = 512
# What a legend calls links, and whose they are.
_WHOSE = {
    key: vendor for vendor in VENDORS.values() for key in (f"{vendor.cell}#", *(kind.cell for kind in vendor.kinds))
}


class _Cell(msgspec.Struct, frozen=True):
    text: str
    line: int  # both from 1, colour codes not counted
    column: int


class _Matrix(msgspec.Struct):
    """The cells as they stand: ``rows[name]`` has one cell a device; ``affinity[name]`` maps heading to text."""

    devices: list[str]
    headings: list[str]
    rows: dict[str, list[_Cell]] = {}
    affinity: dict[str, dict[str, str]] = {}


def read(text: str, *, name: str = "", seed: str = "", link_gbps: float | None = None) -> Machine:
    """Return the machine that a ``nvidia-smi topo -m`` text shows.

    The text has no uuids, bus ids or products: uuids are made from ``name``, ``seed`` and GPU number, the others stay
    empty (``complete`` adds them by hand). The PCIe path under an ``NV#`` cell is hidden: it becomes the nearest that
    can be proved (PIX where both GPUs are PIX to one NIC, …), else NODE in one NUMA node, else SYS. Switches and, in
    old texts, NUMA nodes are inferred too; see ``infer``. What ``write`` makes of another vendor's machine is
    read, too.

    Args:
        text: The whole output, with or without the legend.
        name: The machine's name.
        seed: Tells machines of the same name apart.
        link_gbps: Bandwidth of one link. Left out: that of the product that the links imply (``implied``); it
            also tells compute capability and PCIe.

    Raises:
        TopologyError: With line and column, what stands there and what may: unknown or glued cells, rows or cells
            missing, an asymmetric matrix, the output of ``topo -mp``.
    """
    lines = _COLOUR.sub("", text).splitlines()
    matrix, end = _matrix(lines)
    gpus = [device for device in matrix.devices if _GPU.fullmatch(device)]
    nics = [device for device in matrix.devices if not _GPU.fullmatch(device)]
    _check_symmetry(matrix)
    links = tuple(tuple(_links(cell) for cell in _cells(matrix, g, gpus)) for g in gpus)
    legend = {line.split("=")[0].strip(): n for n, line in enumerate(lines[end - 1 :], end) if "=" in line}
    _refuse_mp(legend, links)
    vendor = _vendor(matrix, gpus, legend)
    visible = [[_path(cell) for cell in _cells(matrix, g, gpus)] for g in gpus]
    nic_paths = tuple(tuple(_nic_path(cell) for cell in _cells(matrix, n, gpus)) for n in nics)
    cpus = [matrix.affinity[g].get(_CPU, "") for g in gpus]
    numas = infer.numa(cpus, [matrix.affinity[g].get(_NUMA, "") for g in gpus], said=_NUMA in matrix.headings)
    switch_links = infer.switch_links(links) if vendor is NVIDIA else [0] * len(gpus)
    paths = infer.paths(visible, nic_paths, numas)
    likely = implied(links, paths, switched=any(switch_links), vendor=vendor)
    if link_gbps is not None and likely.link_gbps not in (0, link_gbps):
        likely = msgspec.structs.replace(likely, link_gbps=link_gbps, capability="")
    names = _nic_names(lines, end, nics)
    return check(
        Machine(
            name=name,
            gpus=tuple(
                Gpu(
                    index=int(device[3:]),
                    uuid=synthetic_uuid(name, int(device[3:]), seed=seed),
                    minor=int(device[3:]),
                    pci="",
                    numa=numas[i],
                    switch_links=switch_links[i],
                    pcie_gbps=likely.pcie_gbps,
                    compute_capability=likely.capability,
                    vendor=vendor.word,
                )
                for i, device in enumerate(gpus)
            ),
            links=links,
            paths=paths,
            nics=tuple(
                Nic(name=nic, numa=infer.nic_numa(row, numas)) for nic, row in zip(names, nic_paths, strict=True)
            ),
            nic_paths=nic_paths,
            numa=infer.numa_nodes(numas, cpus),
            link_gbps=likely.link_gbps,
            socket_gbps=likely.socket_gbps,
            socket_gbps_or=likely.socket_gbps_or,
            blocks=rules.blocks(links) if vendor is ASCEND else None,
        )
    )


def _error(line: int, column: int, message: str) -> TopologyError:
    return TopologyError(f"topo -m, line {line}, column {column}: {message}")


def _matrix(lines: Sequence[str]) -> tuple[_Matrix, int]:
    """Return the matrix and the number of the line after its last row."""
    matrix: _Matrix | None = None
    for number, line in enumerate(lines, 1):
        if matrix is None:
            if "topo -mp" in line or "topo --matrix_pci" in line:
                raise _error(number, line.find("topo") + 1, _MP)
            matrix = _header(line, number)
        elif line.strip():
            _row(matrix, line, number)
            if len(matrix.rows) == len(matrix.devices):
                return matrix, number + 1
    if matrix is None:
        raise _error(1, 1, "no header; the text starts with a line of GPU0, GPU1, …")
    missing = next(device for device in matrix.devices if device not in matrix.rows)
    raise _error(len(lines) + 1, 1, f"the row of {missing} is missing; give the whole output of nvidia-smi topo -m")


_MP = "this is the output of nvidia-smi topo -mp, which hides NVLink; give that of nvidia-smi topo -m"


def _header(line: str, number: int) -> _Matrix | None:
    joined = line
    for heading in _AFFINITIES:
        joined = joined.replace(heading, heading.replace(" ", "_"))
    words = [_Cell(m[0].replace("_", " "), number, m.start() + 1) for m in re.finditer(r"\S+", joined)]
    raw = [m[0] for m in re.finditer(r"\S+", joined)]
    if not raw or not _GPU.fullmatch(raw[0]) or "X" in raw:
        return None
    devices: list[str] = []
    headings: list[str] = []
    for cell, word in zip(words, raw, strict=True):
        if cell.text in _AFFINITIES:
            headings.append(cell.text)
        elif headings or not _DEVICE.fullmatch(word):
            raise _error(
                number, cell.column, f"{word!r} is no column; devices stand first, then {', '.join(_AFFINITIES)}"
            )
        elif word.startswith("GPU") and not _GPU.fullmatch(word):
            raise _error(number, cell.column, f"{word!r} is no GPU; columns of GPUs are GPU0 to GPU9999")
        elif word in devices:
            raise _error(number, cell.column, f"{word} stands twice in the header")
        else:
            devices.append(word)
    numbers = [int(m[1]) for d in devices if (m := _GPU.fullmatch(d))]
    if numbers != sorted(numbers) or len(set(numbers)) != len(numbers):
        raise _error(number, 1, "the GPU columns are not in ascending order")
    if len(devices) > _MOST_DEVICES:
        raise _error(number, 1, f"{len(devices)} devices; at most {_MOST_DEVICES} are read")
    return _Matrix(devices=devices, headings=headings)


def _row(matrix: _Matrix, line: str, number: int) -> None:
    cells = _split(line, number)
    name = cells[0].text
    if name not in matrix.devices:
        raise _error(number, cells[0].column, f"{name!r} has no column in the header")
    if name in matrix.rows:
        raise _error(number, cells[0].column, f"a second row of {name}")
    width = len(matrix.devices)
    body, rest = cells[1 : width + 1], cells[width + 1 :]
    for cell in body:
        if cell.text != "X" and cell.text not in _PATHS and links_of(cell.text) is None:
            raise _error(number, cell.column, f"{cell.text!r} is no cell of {name}'s row; allowed: {_ALLOWED}")
    if len(body) < width:
        missing = matrix.devices[len(body)]
        raise _error(number, len(line) + 1, f"{name}'s row ends before its cell for {missing}")
    for device, cell in zip(matrix.devices, body, strict=True):
        _check_cell(name, device, cell)
    matrix.rows[name] = body
    matrix.affinity[name] = _affinity(matrix, name, rest)


def _split(line: str, number: int) -> list[_Cell]:
    """Return the words of a row; between two tabs may also be nothing, which is an empty cell."""
    if "\t" not in line.strip():
        return [_Cell(m[0], number, m.start() + 1) for m in re.finditer(r"\S+", line)]
    cells, start = [], 0
    for piece in line.split("\t"):
        words = list(re.finditer(r"\S+", piece))
        if words:
            cells += [_Cell(m[0], number, start + m.start() + 1) for m in words]
        elif cells:  # before the first word it is indentation
            cells.append(_Cell("", number, start + 1))
        start += len(piece) + 1
    return cells


def _check_cell(name: str, device: str, cell: _Cell) -> None:
    if (cell.text == "X") != (name == device):
        raise _error(
            cell.line,
            cell.column,
            f"{cell.text!r} between {name} and {device}; X marks the device itself, nothing else",
        )
    both_gpus = _GPU.fullmatch(name) and _GPU.fullmatch(device)
    if links_of(cell.text) is not None and not both_gpus:
        raise _error(cell.line, cell.column, f"{cell.text} between {name} and {device}; links join GPUs alone")


def _affinity(matrix: _Matrix, name: str, rest: Sequence[_Cell]) -> dict[str, str]:
    """Map headings to the texts after a row's cells: by position, for an empty cell between tabs is a value too."""
    known = {h: c.text for h, c in zip(matrix.headings, rest, strict=False) if c.text not in ("", "N/A")}
    for heading, cell in zip(matrix.headings, rest, strict=False):
        if heading != _MEMORY and heading in known and not is_cpu_list(cell.text):
            raise _error(
                cell.line, cell.column, f"{cell.text!r} is no {heading} of {name}; write numbers: 0-19,40-59, or N/A"
            )
    return known


def _check_symmetry(matrix: _Matrix) -> None:
    position = {device: i for i, device in enumerate(matrix.devices)}
    for a in matrix.devices:
        for b in matrix.devices[: position[a]]:
            here, there = matrix.rows[a][position[b]], matrix.rows[b][position[a]]
            if here.text != there.text:
                raise _error(
                    here.line,
                    here.column,
                    f"{a} to {b} is {here.text}, but {b} to {a} (line {there.line}) is {there.text}",
                )


def _cells(matrix: _Matrix, name: str, columns: Sequence[str]) -> list[_Cell]:
    chosen = set(columns)
    pairs = zip(matrix.devices, matrix.rows[name], strict=True)
    return [cell for device, cell in pairs if device in chosen]


def _links(cell: _Cell) -> int:
    found = links_of(cell.text)
    return found[1] if found else 0


def _path(cell: _Cell) -> PathType | None:
    """Return the visible PCIe path of a GPU's cell, None where links hide it."""
    return PathType.SELF if cell.text == "X" else _PATHS.get(cell.text)


def _nic_path(cell: _Cell) -> PathType:
    return _PATHS[cell.text]


def _vendor(matrix: _Matrix, gpus: Sequence[str], legend: Mapping[str, int]) -> Vendor:
    """Return whose links the cells are; where there are none, those that the legend tells of."""
    first, vendor = "", None
    for gpu in gpus:
        for cell in matrix.rows[gpu]:
            if (linked := links_of(cell.text)) is None:
                continue
            if vendor is None:
                first, vendor = cell.text, linked[0]
            elif linked[0] is not vendor:
                raise _error(cell.line, cell.column, f"{cell.text} beside {first}; all links are of one vendor")
    return vendor or next((_WHOSE[key] for key in legend if key in _WHOSE), NVIDIA)


def _refuse_mp(legend: Mapping[str, int], links: Sequence[Sequence[int]]) -> None:
    """Raise if the legend knows SYS but no links: then ``topo -mp`` printed the text.

    Its matrix alone, with neither legend nor prompt, is letter for letter what ``topo -m`` prints of a machine without
    NVLink, and is read as such.
    """
    if not any(map(any, links)) and "SYS" in legend and _WHOSE.keys().isdisjoint(legend):
        raise _error(legend["SYS"], 1, _MP)


def _nic_names(lines: Sequence[str], end: int, nics: Sequence[str]) -> list[str]:
    names: dict[str, str] = {}
    for number, line in enumerate(lines[end - 1 :], end):
        match = _NIC_NAME.fullmatch(line)
        if match:
            nic, name = match.groups()
            if nic not in nics or nic in names or name in names.values():
                raise _error(number, 1, f"{nic}: {name}; the legend names each NIC of the header once")
            names[nic] = name
    return [names.get(nic, nic) for nic in nics]
