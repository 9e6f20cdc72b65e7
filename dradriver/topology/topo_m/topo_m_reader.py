"""Converts the text of ``nvidia-smi topo -m`` to a ``Machine``. ``inferred_topology`` adds facts that the text lacks.

The text is a header of column names, one row for each device, a legend, and in newer drivers a legend of NIC names.
These variants of real drivers are read: tabs or blanks between cells, a header without its leading tab, rows of NICs
without affinity cells, NIC columns under the cards' own names (old drivers), SOC instead of SYS (older ones), no NUMA
columns. ``pasted`` finds the matrix in a pasted text with colours, prefixes and wrapped lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from dradriver.topology.ascend import ascend_products
from dradriver.topology.check import check
from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Gpu, Machine, Nic, PathType
from dradriver.topology.synthetic import synthetic_uuid
from dradriver.topology.topo_m import inferred_topology, matrix_cells, pasted
from dradriver.topology.topo_m.implied_products import implied
from dradriver.topology.topo_m.matrix_cells import CPU, GPU, NUMA, Cell, Matrix, error
from dradriver.topology.vendors import ASCEND, NVIDIA, VENDORS, Vendor, links_of

_NIC_NAME = re.compile(r"(?<!\w)(NIC[0-9]{1,4}):[ \t]*(\S+)\s*")
_MP = "this is the output of nvidia-smi topo -mp, which hides NVLink. Write the output of nvidia-smi topo -m."
_P2P = "this is the output of nvidia-smi topo -p2p, which has no paths. Write the output of nvidia-smi topo -m."
# What a legend calls links, and whose they are.
_WHOSE = {
    key: vendor for vendor in VENDORS.values() for key in (f"{vendor.cell}#", *(kind.cell for kind in vendor.kinds))
}


def read(text: str, *, name: str = "", seed: str = "", link_gbps: float | None = None) -> Machine:
    """Return the machine read from the text of ``nvidia-smi topo -m``.

    The text lacks some facts:

    * It has no uuids, bus ids or products. Uuids are made from ``name``, ``seed`` and GPU number. Bus ids and products
      stay empty; a user can add them (``complete``).
    * A cell such as ``NV4`` hides the PCIe path. The path becomes the nearest one that can be proved (PIX if both GPUs
      are PIX to one NIC, and so on). Else it is NODE in one NUMA node, and SYS otherwise.
    * Switches and, in old texts, NUMA nodes are inferred (``inferred_topology``).

    Texts that ``topo_m_writer`` writes for machines of other vendors are also read.

    Args:
        text: The whole output, with or without the legend.
        name: The machine's name.
        seed: A text that gives machines of the same name different uuids.
        link_gbps: Bandwidth of one link, GB/s. None for the bandwidth of the product that the links imply
            (``implied_products``). The product also gives compute capability and PCIe bandwidth.

    Raises:
        TopologyError: With line and column, the cell and what is allowed there. Examples: an unknown cell, two cells
            without a blank, missing rows or cells, an asymmetric matrix, the output of ``topo -mp``.
    """
    # ``matrix`` has the checked cells, ``pasted_matrix`` the lines that they stand in, with the legend.
    lines = pasted.lines_of(text)
    matrix, pasted_matrix = _matrix(lines)
    gpus = [device for device in matrix.devices if GPU.fullmatch(device)]
    nics = [device for device in matrix.devices if not GPU.fullmatch(device)]
    links = tuple(tuple(_links(cell) for cell in _cells(matrix, g, gpus)) for g in gpus)

    # ``topo -mp`` prints the same matrix without links: its text must not be taken for a machine that has none.
    if (place := _hides_links(pasted_matrix)) is not None:
        raise error(place, _MP)
    vendor = _vendor(matrix, gpus, pasted_matrix.legend)

    # The PCIe path of each pair of GPUs; None under a cell of links.
    visible = [[_path(cell) for cell in _cells(matrix, g, gpus)] for g in gpus]
    nic_paths = tuple(tuple(_nic_path(cell) for cell in _cells(matrix, n, gpus)) for n in nics)
    cpu_lists = [matrix.affinity[g].get(CPU, "") for g in gpus]
    numas = inferred_topology.numa_of_gpus(
        cpu_lists, [matrix.affinity[g].get(NUMA, "") for g in gpus], has_numa_column=NUMA in matrix.headings
    )
    switch_links = inferred_topology.switch_links(links) if vendor is NVIDIA else [0] * len(gpus)
    paths = inferred_topology.paths(visible, nic_paths, numas)

    # The text names no product: its links and paths imply the likeliest one, and with it the bandwidths.
    product_guess = implied(links, paths, switched=any(switch_links), vendor=vendor)

    # Another link speed than the guessed product's: then its compute capability does not hold either.
    if link_gbps is not None and product_guess.link_gbps not in (0, link_gbps):
        product_guess = msgspec.structs.replace(product_guess, link_gbps=link_gbps, capability="")

    # Newer drivers call NICs NIC0, NIC1, … and print their names in a legend below the matrix.
    nic_names = _nic_names(lines[pasted_matrix.after :], pasted_matrix.after + 1, nics)
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
                    pcie_gbps=product_guess.pcie_gbps,
                    compute_capability=product_guess.capability,
                    vendor=vendor.word,
                )
                for i, device in enumerate(gpus)
            ),
            links=links,
            paths=paths,
            nics=tuple(
                Nic(name=nic, numa=inferred_topology.nic_numa(row, numas))
                for nic, row in zip(nic_names, nic_paths, strict=True)
            ),
            nic_paths=nic_paths,
            nic_pairs=tuple(tuple(_nic_pair(cell) for cell in _cells(matrix, n, nics)) for n in nics) if nics else None,
            numa=inferred_topology.numa_nodes(numas, cpu_lists),
            link_gbps=product_guess.link_gbps,
            socket_gbps=product_guess.socket_gbps,
            socket_gbps_or=product_guess.socket_gbps_or,
            blocks=ascend_products.blocks(links) if vendor is ASCEND else None,
        )
    )


def _matrix(lines: Sequence[str]) -> tuple[Matrix, pasted.PastedMatrix]:
    """Return the cells of the text's only matrix, and its lines in the text.

    If the text has a matrix of ``topo -m``, outputs of the command's other options are ignored. An error is raised if
    there is no matrix, or if two matrices differ.
    """
    every = pasted.matrices(lines)
    if not every:
        raise error(
            pasted.row_without_header(lines), "there is no header. The text must start with a line of GPU0, GPU1, …"
        )
    matrices = [
        (_whole(found), found)
        for found in every
        if found.p2p is None and not found.is_mp and (len(every) == 1 or _hides_links(found) is None)
    ]
    if not matrices:
        place = every[0].p2p
        command = every[0].command
        raise error(place, _P2P) if place else error(command[1:] if command else (1, 1), _MP)
    first, found = matrices[0]
    for other, where in matrices[1:]:
        if other.texts() != first.texts():
            raise error(where.header.start.place(0), "a second matrix begins here. Write the text of one machine.")
    return first, found


def _whole(found: pasted.PastedMatrix) -> Matrix:
    """Return the cells of a matrix in the text.

    If lines are wrapped, all ways of joining them are tried. Exactly one result must be a valid matrix.
    """
    wrapped = found.wrapped
    if wrapped is None:
        return matrix_cells.read(found, lambda entry: entry.start)
    matrices: list[Matrix] = []
    errors: set[str] = set()
    for join in pasted.joins():
        try:
            matrix = matrix_cells.read(found, join(found))
        except TopologyError as refusal:
            errors.add(str(refusal))
        else:
            if all(matrix.texts() != other.texts() for other in matrices):
                matrices.append(matrix)
    if len(matrices) == 1:
        return matrices[0]
    if len(errors) == 1 and not matrices:
        raise TopologyError(errors.pop())
    place = wrapped.place(0)
    raise error(place, "the line before seems to be wrapped here. Write the lines as nvidia-smi prints them.")


def _cells(matrix: Matrix, name: str, columns: Sequence[str]) -> list[Cell]:
    chosen = set(columns)
    pairs = zip(matrix.devices, matrix.rows[name], strict=True)
    return [cell for device, cell in pairs if device in chosen]


def _links(cell: Cell) -> int:
    found = links_of(cell.text)
    return found[1] if found else 0


def _path(cell: Cell) -> PathType | None:
    """Return the PCIe path that a GPU's cell shows.

    The result is None if the cell shows links instead.
    """
    return PathType.SELF if cell.text == "X" else pasted.PATHS.get(cell.text)


def _nic_path(cell: Cell) -> PathType:
    return pasted.PATHS[cell.text]


def _nic_pair(cell: Cell) -> PathType:
    return PathType.SELF if cell.text == "X" else _nic_path(cell)


def _vendor(matrix: Matrix, gpus: Sequence[str], legend: Mapping[str, int]) -> Vendor:
    """Return the vendor of the GPUs, by the names of the links in the cells.

    Without links in the cells, return the vendor whose links the legend names, else NVIDIA. Links of two vendors are an
    error. ``gpus`` are the names of the GPU rows.
    """
    first, vendor = "", None
    for gpu in gpus:
        for cell in matrix.rows[gpu]:
            if (linked := links_of(cell.text)) is None:
                continue
            if vendor is None:
                first, vendor = cell.text, linked[0]
            elif linked[0] is not vendor:
                raise error(cell.place, f"{cell.text} and {first} are in one matrix. All links must be of one vendor.")
    return vendor or next((_WHOSE[key] for key in legend if key in _WHOSE), NVIDIA)


def _hides_links(found: pasted.PastedMatrix) -> tuple[int, int] | None:
    """Return line and column of a legend which shows that ``topo -mp`` printed the text.

    The legend of ``topo -mp`` has SYS but no links. Without legend and command, the matrix of ``topo -mp`` looks like
    that of ``topo -m`` for a machine without NVLink, and is read as one. The result is None if nothing shows ``topo
    -mp``.
    """
    words = (word for row in found.rows for line in (row.start, *row.rest) for word in line.text.split())
    if "SYS" not in found.legend or not _WHOSE.keys().isdisjoint(found.legend) or any(map(links_of, words)):
        return None
    return found.legend["SYS"], 1


def _nic_names(lines: Sequence[str], start: int, nics: Sequence[str]) -> list[str]:
    names: dict[str, str] = {}
    for number, line in enumerate(lines, start):
        match = _NIC_NAME.search(line)
        if match and match.end() == len(line):
            nic, name = match.groups()
            if nic not in nics or nic in names or name in names.values():
                raise error((number, 1), f"{nic}: {name}. The legend must name each NIC of the header once.")
            names[nic] = name
    return [names.get(nic, nic) for nic in nics]
