"""Reads the JSON of ``amd-smi topology`` as the matrices that its text shows.

Up to ROCm 6.1.0 the JSON has for each GPU one object per property, with keys such as ``gpu_0``. Since 6.1.1 each GPU
has a bus id, and a list ``links`` with one entry for each GPU (amdsmi's CHANGELOG).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dradriver.topology.errors import TopologyError
from dradriver.topology.identifiers import is_bus_id

_OLD: Final = {"link_type": "type", "weight": "weight", "numa_bandwidth": "bandwidth"}
_NEW: Final = {"link_type": "type", "weight": "weight", "bandwidth": "bandwidth"}

Matrices = dict[str, dict[str, dict[str, str]]]
"""By what a matrix tells the cells of each row: ``type``, ``weight``, ``bandwidth``."""


def matrices(text: str) -> Matrices:
    """Return the matrices in the JSON of ``amd-smi topology``, by what their cells show.

    The keys are ``type``, ``weight`` or ``bandwidth``, then the GPU of the row, then the GPU of the column. The key of
    a GPU is its bus id, or ``GPU0`` if it has none. Releases of ``amd-smi`` write different forms of JSON; both are
    read.

    Raises:
        TopologyError: The text is not JSON of this command, or a GPU appears twice or has no name.
    """
    try:
        gpus = msgspec.json.decode(text, type=list[dict[str, Any]])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _error("", str(error)) from None
    rows_by_table: Matrices = {}
    for position, gpu in enumerate(gpus):
        name, links = _name(gpu, f"[{position}]"), gpu.get("links")
        if isinstance(links, list):
            named_links = [(link, _name(link, f"[{position}].links[{number}]")) for number, link in enumerate(links)]
            # Since ROCm 6.1.1: from the GPU's list of links, one row for each table.
            rows = {
                kind: {other: str(link[key]) for link, other in named_links if key in link}
                for key, kind in _NEW.items()
            }
        else:
            # Before: the GPU's object has each row itself, and its keys have no bus ids.
            name = f"GPU{gpu.get('gpu')}"
            rows = {kind: _old_row(gpu.get(key)) for key, kind in _OLD.items()}
        for kind, row in rows.items():
            if row and name in rows_by_table.setdefault(kind, {}):
                raise _error(f"[{position}]", f"{name} stands twice")
            if row:
                rows_by_table[kind][name] = row
    return {kind: rows for kind, rows in rows_by_table.items() if rows}


def _old_row(cells: object) -> dict[str, str]:
    if not isinstance(cells, dict):
        return {}
    return {str(key).replace("gpu_", "GPU", 1): str(cell) for key, cell in cells.items()}


def _name(entry: object, at: str) -> str:
    if not isinstance(entry, dict) or type(entry.get("gpu")) is not int:
        raise _error(at, "the number of a GPU is missing. Write the whole output of amd-smi topology --json.")
    bdf = str(entry.get("bdf", "")).lower()
    return bdf if is_bus_id(bdf) else f"GPU{entry['gpu']}"


def _error(at: str, message: str) -> TopologyError:
    return TopologyError(f"amd-smi topology --json{f', {at}' if at else ''}: {message}")
