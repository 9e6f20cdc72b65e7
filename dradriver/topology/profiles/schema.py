"""The schema of a profile and its reader: product facts once, GPUs and NICs by their place, links by pair.

Every scalar is read as text and converted to the field's type, so ``0000:06:00.0`` and ``7.0`` need no quotes. A field
that the schema does not know, a key given twice and an alias of itself are refused, with the line.
"""

from __future__ import annotations

import re

import msgspec
import yaml

from dradriver.topology.check import check
from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Cpu, Gpu, Machine, Nic, NumaNode
from dradriver.topology.paths import Place, path_matrix
from dradriver.topology.synthetic import synthetic_uuid


class Product(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts of the GPU model; the same meaning as in ``Gpu``."""

    name: str
    architecture: str = ""
    compute_capability: str = ""
    memory_mib: int = 0
    power_watts: int = 0
    pcie_gbps: float = 12.0
    c2c_gbps: float = 0.0


class GpuEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU; its index is its position in the list. ``switch`` is the way down from the root: ``s0`` or ``s0/s1``."""

    pci: str  # "" where GPUs of several hosts stand for one machine, whose bus ids are the same on each
    root: str | None = None
    switch: str = ""
    numa: int | None = None
    minor: int | None = None  # the index where left out
    switch_links: int | None = None  # the profile's where left out


class NicEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One NIC, placed like a GPU; ``kind`` and ``gbps`` as in ``Nic``."""

    name: str
    pci: str = ""
    root: str | None = None
    switch: str = ""
    numa: int | None = None
    kind: str = ""
    gbps: float = 0.0


class NumaEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One NUMA node."""

    id: int
    cpus: str = ""


class CpuEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The CPUs' model; the same meaning as in ``Cpu``."""

    arch: str
    vendor: str = ""
    family: int = 0
    model: int = 0


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole profile; ``links`` maps ``0-1`` to the number of direct links of that pair."""

    name: str
    product: Product
    gpus: tuple[GpuEntry, ...]
    nics: tuple[NicEntry, ...] = ()
    numa: tuple[NumaEntry, ...] = ()
    links: dict[str, int] = {}
    switch_links: int = 0
    link_gbps: float = 0.0
    socket_gbps: float = 10.0
    driver_version: str = ""
    fabric: str = ""
    cpu: CpuEntry | None = None
    virtual: bool = False


_ENTRIES = {"gpus": GpuEntry, "nics": NicEntry, "numa": NumaEntry, "product": Product, "cpu": CpuEntry}
_PAIR = re.compile(r"(\d{1,4})-(\d{1,4})")
_MAX_DEPTH = 8


def read(text: str, *, source: str, seed: str = "") -> Machine:
    """Return the machine that a profile's text describes, its uuids derived from the profile's name and ``seed``.

    Args:
        text: YAML of one ``Profile``.
        source: The file's name, for messages.
        seed: Whatever tells two machines of one profile apart, such as the node's name.

    Raises:
        TopologyError: Naming file, line, the bad value and what is allowed.
    """
    try:
        node = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = mark.line + 1 if mark else 1
        raise TopologyError(f"{source}:{line}: not YAML: {error.problem}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise TopologyError(f"{source}:1: not YAML: {error}") from error
    lines: dict[str, int] = {}
    data = _plain(node, "$", lines, source=source)
    try:
        profile = msgspec.convert(data, Profile, strict=False)
        return _machine(profile, seed)
    except msgspec.ValidationError as error:
        message, _, at = str(error).partition(" - at `")
        at = at.rstrip("`") or "$"
        raise TopologyError(
            f"{source}:{_line(lines, at)}: {at.removeprefix('$.')}: {message}{_allowed(message, at)}"
        ) from error
    except TopologyError as error:
        at = "$." + str(error).partition(":")[0]
        raise TopologyError(f"{source}:{_line(lines, at)}: {error}") from None


def _plain(node: yaml.Node | None, at: str, lines: dict[str, int], *, source: str) -> object:
    """Return the node as dicts, lists and strings, and note the line of every place on the way."""
    if node is None:
        raise TopologyError(f"{source}:1: empty; a profile starts with name:, product:, gpus:")
    line = node.start_mark.line + 1
    lines.setdefault(at, line)
    if at.count(".") + at.count("[") > _MAX_DEPTH:
        raise TopologyError(f"{source}:{line}: nested deeper than any profile, or an alias of itself")
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(v, f"{at}[{i}]", lines, source=source) for i, v in enumerate(node.value)]
    plain: dict[str, object] = {}
    for key, value in node.value:
        where = f"{source}:{key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode):
            raise TopologyError(f"{where}: a key must be a word")
        if key.value in plain:
            raise TopologyError(f"{where}: {key.value} is given twice; write it once")
        lines[f"{at}.{key.value}"] = key.start_mark.line + 1
        plain[key.value] = _plain(value, f"{at}.{key.value}", lines, source=source)
    return plain


def _line(lines: dict[str, int], at: str) -> int:
    """Return the line of the place, or of the nearest place around it."""
    while at and at not in lines:
        at = at[: max(at.rfind("."), at.rfind("["))] if "." in at or "[" in at else ""
    return lines.get(at, 1)


def _allowed(message: str, at: str) -> str:
    if "unknown field" not in message:
        return ""
    unknown = message.split("`")[1]
    entry = _ENTRIES.get(at.removeprefix("$.").partition("[")[0], Profile)
    return f"; {unknown} is not one of {', '.join(entry.__struct_fields__)}"


def _machine(profile: Profile, seed: str) -> Machine:
    product = profile.product
    gpus = tuple(
        Gpu(
            index=index,
            uuid=synthetic_uuid(profile.name, index, seed=seed),
            minor=index if entry.minor is None else entry.minor,
            pci=entry.pci,
            pcie_root=entry.root,
            numa=entry.numa,
            product=product.name,
            architecture=product.architecture,
            compute_capability=product.compute_capability,
            memory_mib=product.memory_mib,
            power_watts=product.power_watts,
            pcie_gbps=product.pcie_gbps,
            c2c_gbps=product.c2c_gbps,
            fabric=profile.fabric,
            switch_links=(profile.switch_links if entry.switch_links is None else entry.switch_links),
        )
        for index, entry in enumerate(profile.gpus)
    )
    places = tuple(_place(entry) for entry in profile.gpus)
    cpu = profile.cpu
    return check(
        Machine(
            name=profile.name,
            gpus=gpus,
            links=_links(profile, gpus),
            paths=path_matrix(places, places),
            nics=tuple(
                Nic(name=nic.name, pci=nic.pci, numa=nic.numa, kind=nic.kind, gbps=nic.gbps) for nic in profile.nics
            ),
            nic_paths=path_matrix(tuple(_place(nic) for nic in profile.nics), places),
            numa=tuple(NumaNode(id=node.id, cpus=node.cpus) for node in profile.numa),
            link_gbps=profile.link_gbps,
            socket_gbps=profile.socket_gbps,
            driver_version=profile.driver_version,
            cpu=None if cpu is None else Cpu(arch=cpu.arch, vendor=cpu.vendor, family=cpu.family, model=cpu.model),
            virtual=profile.virtual,
        )
    )


def _place(entry: GpuEntry | NicEntry) -> Place:
    switches = tuple(entry.switch.split("/")) if entry.switch else ()
    return Place(numa=entry.numa, root=entry.root, switches=switches)


def _links(profile: Profile, gpus: tuple[Gpu, ...]) -> tuple[tuple[int, ...], ...]:
    matrix = [[0 if a is b else min(a.switch_links, b.switch_links) for b in gpus] for a in gpus]
    if any(gpu.switch_links for gpu in gpus) and profile.links:
        raise TopologyError("links: given beside switch_links; a machine has one or the other")
    if (profile.links or any(gpu.switch_links for gpu in gpus)) and profile.link_gbps <= 0:
        raise TopologyError("link_gbps: 0, but there are links; write one link's GB/s in one direction")
    given: set[frozenset[int]] = set()
    for pair, count in profile.links.items():
        match = _PAIR.fullmatch(pair)
        i, j = (int(match[1]), int(match[2])) if match else (0, 0)
        if i == j or max(i, j) >= len(gpus):
            raise TopologyError(
                f"links.{pair}: not two GPUs; write two different numbers from 0 to {len(gpus) - 1}: 0-1"
            )
        if frozenset((i, j)) in given:
            raise TopologyError(f"links.{pair}: this pair is given twice; write it once")
        given.add(frozenset((i, j)))
        matrix[i][j] = matrix[j][i] = count
    return tuple(tuple(row) for row in matrix)
