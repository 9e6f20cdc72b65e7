"""Reads links between PCIe switches (``<pcilink>``), by which NCCL since 2.22 avoids the way over the CPU.

Switches of Broadcom can be joined in this way. NCCL counts a path over these links as PXB (``ncclTopoAddPciLinks`` in
``topo.cc``, ``ncclTopoSetPaths`` in ``paths.cc``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dradriver.topology.identifiers import short_bus_id
from dradriver.topology.nccl.xml import Element
from dradriver.topology.pcie_paths import Place

Links = Mapping[str, frozenset[str]]
"""The switches that each switch is linked to, by bus id; both sides have the link."""

_PAST_THE_CPU = 2  # links from a switch to another one through the CPU


def is_switch(pci: Element) -> bool:
    """Return whether a ``<pci>`` element is a switch to NCCL: neither a GPU nor a NIC.

    Only switches may have a ``<pcilink>``.
    """
    kind = (pci.get("class") or "").lower()
    return not kind.startswith(("0x02", "0x03", "0x0680")) and not any(c.name in ("gpu", "nic") for c in pci.children)


def links(switches: Iterable[Element]) -> Links:
    """Return, for each switch, the switches that a ``<pcilink>`` joins to it.

    A link counts only if both switches have a ``<pcilink>`` element for it. NCCL refuses or drops other links.
    """
    targets = {
        short_bus_id(pci.get("busid") or ""): {
            short_bus_id(c.get("target") or "") for c in pci.children if c.name == "pcilink"
        }
        for pci in switches
        if is_switch(pci)
    }
    return {a: frozenset(b for b in targets[a] if b != a and a in targets.get(b, ())) for a in targets}


def joined(links: Links) -> Callable[[Place, Place], bool]:
    """Return a function that says whether NCCL uses ``links`` between the places of two devices.

    ``links`` are the links between switches (``<pcilink>``). NCCL uses the way with fewer steps: over these links, or
    over the PCI tree. If both have the same number of steps, NCCL uses the links, which are faster.
    """
    ways = {switch: _steps(links, switch) for switch, others in links.items() if others}

    def linked(place: Place) -> list[tuple[int, str]]:
        return [(depth, switch) for depth, switch in enumerate(place.switches) if switch in ways]

    def by_links(a: Place, b: Place) -> bool:
        most = _PAST_THE_CPU + (a.numa is None or a.numa != b.numa)
        return any(
            other in ways[switch] and ways[switch][other] <= most + i + j
            for i, switch in linked(a)
            for j, other in linked(b)
        )

    return by_links


def _steps(links: Links, start: str) -> dict[str, int]:
    """Return how many links lie between a switch, ``start``, and each switch that it reaches.

    If there are several ways, the shortest one is counted. Switches that cannot be reached are left out.
    """
    steps, border = {start: 0}, [start]
    for switch in border:
        for other in links[switch]:
            if other not in steps:
                steps[other] = steps[switch] + 1
                border.append(other)
    return steps
