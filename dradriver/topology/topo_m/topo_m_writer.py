"""Converts a ``Machine`` to the text that ``nvidia-smi topo -m`` prints for it."""

from __future__ import annotations

from collections.abc import Sequence

from dradriver.topology.machine import Machine, Nic, PathType
from dradriver.topology.pcie_paths import Place, pcie_path

_LEGEND = """\
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
"""


def write(machine: Machine) -> str:
    """Return the text that ``nvidia-smi topo -m`` prints for a machine; ``topo_m_reader`` can read it.

    Links of other vendors have their own names: ``XGMI4``, ``SIO``.

    If a NUMA node, or its CPUs, are not known, the cell is N/A. So is the CPU affinity of a GPU without a known node,
    because a ``Machine`` does not have it. The cell of two NICs is ``Machine.nic_pairs``. If the machine does not have
    it, the cell is the nearest path that can be proved by the NICs' bus ids, the PCI tree or their paths to the GPUs.
    """
    table = cells(machine)
    rows = [[*row[:-1], "", row[-1]] for row in table[1:]]  # two tabs before the last column, as the tool has it
    return "\n".join("\t".join(row) for row in [table[0], *rows]) + "\n\n" + legend(machine)


def legend(machine: Machine) -> str:
    """Return the legend of ``nvidia-smi topo -m``: cells and, if there are NICs, their names."""
    cells = cell_legend(machine)
    return "\n".join([cells, nic_legend(machine)]) if machine.nics else cells


def cell_legend(machine: Machine) -> str:
    """Return the part of the ``nvidia-smi topo -m`` legend that explains cells."""
    vendor = machine.vendor
    numbered = ""
    named = {kind.links: f"  {kind.cell:<4} = {kind.meaning}\n" for kind in vendor.kinds}
    if not named or {count for row in machine.links for count in row} - named.keys() - {0}:
        numbered = f"  {vendor.cell}#  = Connection traversing a bonded set of # {vendor.link}s\n"
    return _LEGEND + "".join(named.values()) + numbered


def nic_legend(machine: Machine) -> str:
    """Return the part of the ``nvidia-smi topo -m`` legend with NIC names; empty without NICs."""
    names = [f"  NIC{n}: {nic.name}" for n, nic in enumerate(machine.nics)]
    return "\n".join(["NIC Legend:\n", *names]) + "\n" if names else ""


def cells(machine: Machine) -> list[list[str]]:
    """Return the header and a row for each device as ``nvidia-smi topo -m`` prints them, of equal length."""
    gpus = [f"GPU{gpu.index}" for gpu in machine.gpus]
    nics = [f"NIC{n}" for n in range(len(machine.nics))]
    cpus = {node.id: node.cpus for node in machine.numa}
    table = [["", *gpus, *nics, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]]
    for i, gpu in enumerate(machine.gpus):
        to_gpus = [_gpu_cell(machine, i, j) for j in range(len(gpus))]
        to_nics = [row[i].name for row in machine.nic_paths]
        affinity = cpus.get(gpu.numa, "") if gpu.numa is not None else ""
        numa = "N/A" if gpu.numa is None else str(gpu.numa)
        table.append([gpus[i], *to_gpus, *to_nics, affinity or "N/A", numa, "N/A"])
    seats = [_seat(machine, nic) for nic in machine.nics]
    for n, row in enumerate(machine.nic_paths):
        to_nics = [_nic_cell(machine, seats, n, m=m) for m in range(len(nics))]
        table.append([nics[n], *(path.name for path in row), *to_nics, "", "", ""])
    return table


def _gpu_cell(machine: Machine, i: int, j: int) -> str:
    if i == j:
        return " X "
    links = machine.links[i][j]
    return machine.vendor.link_cell(links) if links else machine.paths[i][j].name


def _nic_cell(machine: Machine, seats: Sequence[tuple[str, Place]], n: int, *, m: int) -> str:
    if n == m:
        return " X "
    if machine.nic_pairs is not None:
        return machine.nic_pairs[n][m].name
    (card, place), (other, other_place) = seats[n], seats[m]
    if card and card == other:
        return PathType.PIX.name
    ways = zip(machine.nic_paths[n], machine.nic_paths[m], strict=True)
    return min(pcie_path(place, other_place), *(max(way) for way in ways)).name


def _seat(machine: Machine, nic: Nic) -> tuple[str, Place]:
    """Return the bus id of the NIC's card, and the NIC's place in the PCI tree.

    The bus id is without the PCI function, the digit after the dot. The paths between two NICs follow from these. All
    ports and virtual functions of a card are below one bridge. The tree does not have the root, so the highest bridge
    takes its place.
    """
    pci = next((one.pci for one in machine.nics if nic.parent and one.name == nic.parent), nic.pci)
    at = next((device.parent for device in machine.pci if device.busid == nic.pci), None)
    bridges: list[str] = []
    while at is not None:
        bridges.insert(0, machine.pci[at].busid)
        at = machine.pci[at].parent
    return pci.rpartition(".")[0], Place(nic.numa, bridges[0] if bridges else None, tuple(bridges))
