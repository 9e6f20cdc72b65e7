"""From a profile to a ``Machine``: product facts once, GPUs and NICs by their place, links by pair.

Every scalar is read as text and converted to the field's type, so ``0000:06:00.0`` and ``7.0`` need no quotes. A field
that the schema does not know, a key given twice and an alias of itself are refused, with the line.
"""

from __future__ import annotations

import re
from itertools import combinations

import msgspec
import yaml

from dradriver.topology import cpulist
from dradriver.topology.check import check, is_cpu_list
from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Cpu, Gpu, Machine, Nic, NumaNode
from dradriver.topology.paths import Place, path_matrix
from dradriver.topology.profiles import mig
from dradriver.topology.profiles.cures import cure
from dradriver.topology.profiles.entries import MOST_LINKS, GpuEntry, NicEntry, Profile
from dradriver.topology.synthetic import synthetic_uuid

_KEY = re.compile(r"[\w-]{1,64}")
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
        return _machine(msgspec.convert(data, Profile, strict=False), seed)
    except msgspec.ValidationError as error:
        at, says = cure(error, data)
        raise TopologyError(f"{source}:{_line(lines, at)}: {at.removeprefix('$.')}: {says}") from None
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
        if not isinstance(key, yaml.ScalarNode) or not _KEY.fullmatch(key.value):
            raise TopologyError(f"{where}: a key must be a word, or in links a pair of GPUs: 0-1")
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


def _machine(profile: Profile, seed: str) -> Machine:
    _check_places(profile)
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
            profiles=mig.profiles(product.name),
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
    totals = [0] * len(gpus)
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
        for gpu in (i, j):
            totals[gpu] += count
            if totals[gpu] > MOST_LINKS:
                raise TopologyError(
                    f"links.{pair}: {count} make {totals[gpu]} links of GPU {gpu}; {MOST_LINKS} in all are the most"
                )
    return tuple(tuple(row) for row in matrix)


def _check_places(profile: Profile) -> None:
    """Refuse a GPU or NIC on a NUMA node that is not listed, and a root complex or a CPU on two nodes."""
    nodes = [node.id for node in profile.numa]
    roots: dict[str, tuple[int, str]] = {}
    entries: list[tuple[str, GpuEntry | NicEntry]] = [(f"gpus[{i}]", gpu) for i, gpu in enumerate(profile.gpus)]
    entries += [(f"nics[{i}]", nic) for i, nic in enumerate(profile.nics)]
    for at, entry in entries:
        if entry.numa is None:
            continue
        if nodes and entry.numa not in nodes:
            listed = ", ".join(map(str, nodes))
            raise TopologyError(f"{at}.numa: {entry.numa}; write a node that numa lists ({listed}), or list it there")
        if entry.root is None:
            continue
        numa, first = roots.setdefault(entry.root, (entry.numa, at))
        if numa != entry.numa:
            raise TopologyError(
                f"{at}.numa: {entry.numa}, but {first} is on node {numa} below the same root {entry.root}; "
                "a root complex is on one node"
            )
    masks = [cpulist.to_mask(node.cpus) if is_cpu_list(node.cpus) else "" for node in profile.numa]
    bits = [int(mask.replace(",", "") or "0", 16) for mask in masks]
    for (j, other), (i, own) in combinations(enumerate(bits), 2):
        if own & other:
            both = cpulist.from_mask(f"{own & other:x}")
            raise TopologyError(f"numa[{i}].cpus: {both} also in numa[{j}]'s; a CPU is on one node")
