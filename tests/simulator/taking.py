"""What claims take of GPUs, read from claims as Kubernetes keeps them. Not the controller's own code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dradriver.api.base import names
from tests.fakes.apistore import Object
from tests.fakes.control_plane.devices import pins, results

Gpu = tuple[str, str]
"""Pool and name of a GPU's own device."""


class Part(NamedTuple):
    """A share of a GPU, or a MIG slice of it; a slice without a profile lies where only the node agent knows."""

    cores: int = 0
    memory_mib: int = 0
    slices: int = 0
    profile: str = ""
    start: int = 0

    @property
    def hidden(self) -> bool:
        return self.slices > 0 and not self.profile


Takes = tuple[Part, ...] | None
"""Parts of a GPU, or None for all of it."""


class Home(NamedTuple):
    """What a device is: a GPU, or a placement of a MIG profile on one. ``slices`` are all that the GPU has."""

    gpu: Gpu
    uuid: str
    memory_mib: int
    slices: int
    part: Part | None = None


Homes = Mapping[str, Home]
"""Devices by name."""


def selected(request: Object, homes: Homes) -> frozenset[str]:
    """Return the names of the devices that a request is pinned to; none where any will do."""
    found: set[str] = set()
    for pin in pins(request) if "exactly" in request else ():
        if not pin.profile:
            found.update(uuid.lower() for uuid in pin.uuids)
        for name, home in homes.items() if pin.profile else ():
            if home.part and (home.uuid, home.part.profile, home.part.start) == (*pin.uuids, pin.profile, pin.start):
                found.add(name)
    return frozenset(found)


def asked(claim: Object, homes: Homes) -> dict[Gpu, Takes]:
    """Return what a claim is pinned to."""
    found: dict[Gpu, Takes] = {}
    for request in claim["spec"].get("devices", {}).get("requests", ()):
        exactly = request.get("exactly", {})
        amounts = exactly.get("capacity", {}).get("requests", {})
        for name in sorted(selected(request, homes)):
            if (home := homes.get(name)) is not None:
                _put(found, home, _taken(claim, request["name"], home, amounts))
    return found


def given(claim: Object, homes: Homes) -> dict[Gpu, Takes]:
    """Return what a claim was allocated; one for monitoring takes nothing from anybody."""
    found: dict[Gpu, Takes] = {}
    for result in results(claim):
        if not result.get("adminAccess") and (home := homes.get(result["device"])) is not None:
            _put(found, home, _taken(claim, result["request"], home, result.get("consumedCapacity", {})))
    return found


def together(homes: Homes, gpu: Gpu, loads: Sequence[Takes]) -> bool:
    """Return whether a GPU holds all of this at once."""
    if len(loads) < 2:
        return True
    if any(takes is None for takes in loads):
        return False
    home = homes[gpu[1]]
    parts = [part for takes in loads for part in takes or ()]
    cells = [cell for part in parts if part.profile for cell in range(part.start, part.start + part.slices)]
    return (
        not (any(part.cores for part in parts) and any(part.slices for part in parts))
        and sum(part.cores for part in parts) <= 100
        and sum(part.memory_mib for part in parts) <= home.memory_mib
        and sum(part.slices for part in parts) <= home.slices
        and len(cells) == len(set(cells))
    )


def says_amounts(claim: Object) -> bool:
    """Return whether each of a claim's requests says all that the chart's admission policy wants to hear."""
    wanted = {
        names.SHARE_CLASS: {names.CAPACITY_CORES, names.CAPACITY_MEMORY},
        names.MIG_CLASS: {names.CAPACITY_MEMORY_SLICES, names.CAPACITY_COMPUTE_SLICES},
    }
    every = (request["exactly"] for request in claim["spec"]["devices"]["requests"])
    return all(
        wanted.get(e["deviceClassName"], set()) <= e.get("capacity", {}).get("requests", {}).keys() for e in every
    )


def amount(text: str) -> int:
    """Return a plain number, or MiB."""
    return int(text.removesuffix("Mi"))


def _put(found: dict[Gpu, Takes], home: Home, taken: Part | None) -> None:
    before = found.get(home.gpu, ())
    found[home.gpu] = None if taken is None or before is None else (*before, taken)


def _taken(claim: Object, request: str, home: Home, amounts: Mapping[str, str]) -> Part | None:
    if home.part is not None:
        return home.part
    if names.CAPACITY_MEMORY_SLICES in amounts:
        size = amount(amounts[names.CAPACITY_MEMORY_SLICES])
        for told in _configured(claim, request):
            return Part(slices=size, profile=told["profile"], start=told["starts"][home.uuid])
        return Part(slices=size) if size < home.slices else None
    cores = amount(amounts.get(names.CAPACITY_CORES, "100"))
    return Part(cores, amount(amounts[names.CAPACITY_MEMORY])) if cores < 100 else None


def _configured(claim: Object, request: str) -> Iterator[Object]:
    """Give where the controller wants a request's MIG slice."""
    configs: Iterable[Object] = claim["spec"].get("devices", {}).get("config", ())
    for config in configs:
        told = config["opaque"].get("parameters", {}).get("mig", {})
        if request in told:
            yield told[request]
