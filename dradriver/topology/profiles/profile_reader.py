"""Converts a machine profile to a ``Machine``.

A profile has the facts of the product once, GPUs and NICs by their place in the PCI tree, and links by pair.
"""

from __future__ import annotations

import re
from itertools import combinations

from dradriver.topology import cpulist
from dradriver.topology.check import check
from dradriver.topology.cpulist import is_cpu_list
from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Blocks, Cpu, Gpu, Machine, Nic, NumaNode
from dradriver.topology.pcie_paths import Place, path_matrix
from dradriver.topology.profiles import simulated_mig_profiles
from dradriver.topology.profiles.profile_fields import MOST_LINKS, BlocksEntry, GpuEntry, NicEntry, Profile
from dradriver.topology.synthetic import synthetic_uuid
from dradriver.topology.vendors import VENDORS
from dradriver.yamltext import read as yamltext

_PAIR = re.compile(r"(\d{1,4})-(\d{1,4})")
_FORM = yamltext.Form(
    error=TopologyError,
    key=re.compile(r"[\w-]{1,64}"),
    keys="the name of a field, or in links a pair of GPUs such as 0-1",
    start="A profile starts with name:, product:, gpus:.",
    whole="profile",
)


def read(text: str, *, source: str, seed: str = "") -> Machine:
    """Return the machine in a profile's text.

    The uuids of the machine's GPUs are derived from its name and ``seed``.

    Args:
        text: YAML of one ``Profile``.
        source: The file's name, for messages.
        seed: A text that tells two machines of one profile apart, such as the node's name.

    Raises:
        TopologyError: The profile is invalid. The message has file, line, the bad value and what is allowed.
    """
    return Description(text, source=source).machine(seed)


class Description:
    """A profile's text, parsed once for all machines that it describes.

    Args:
        text: YAML of one ``Profile``.
        source: The file's name, for messages.

    Raises:
        TopologyError: The profile is invalid. The message has file, line, the bad value and what is allowed.
    """

    def __init__(self, text: str, *, source: str) -> None:
        self._document = yamltext.read(text, _FORM, source=source)
        self._profile = self._document.convert(Profile)

    def machine(self, seed: str) -> Machine:
        """Return the machine of a profile.

        The uuids of its GPUs are derived from the profile's name and ``seed``.

        Raises:
            TopologyError: The profile is invalid. The message has file, line, the bad value and what is allowed.
        """
        try:
            return _machine(self._profile, seed)
        except TopologyError as error:
            at, _, says = str(error).partition(": ")
            raise self._document.refusal(at, says) from None


def _machine(profile: Profile, seed: str) -> Machine:
    """Build the machine that a profile describes.

    The uuids of its GPUs depend on ``seed``.

    Raises:
        TopologyError: The profile breaks a rule. The message has the field, its value and what is allowed there.
    """
    _check_places(profile)
    # All GPUs are of one product; an entry of a GPU has its place in the machine, and what differs from the others.
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
            profiles=simulated_mig_profiles.profiles(product.name),
            switch_links=(profile.switch_links if entry.switch_links is None else entry.switch_links),
            vendor=profile.vendor,
        )
        for index, entry in enumerate(profile.gpus)
    )

    # Where each GPU hangs: NUMA node, root complex and switches. PCIe paths follow from these.
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
            cuda_version=profile.cuda_version,
            nccl_version=profile.nccl_version,
            cpu=None if cpu is None else Cpu(arch=cpu.arch, vendor=cpu.vendor, family=cpu.family, model=cpu.model),
            virtual=profile.virtual,
            blocks=None if profile.blocks is None else _blocks(profile.blocks, len(gpus)),
        )
    )


def _place(entry: GpuEntry | NicEntry) -> Place:
    switches = tuple(entry.switch.split("/")) if entry.switch else ()
    return Place(numa=entry.numa, root=entry.root, switches=switches)


def _links(profile: Profile, gpus: tuple[Gpu, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the number of links of each pair: through switches, or as the profile lists them by pair.

    Raises:
        TopologyError: The profile uses both forms, the rate of a link is missing, a pair does not name two different
            GPUs or is given twice, or a GPU has too many links.
    """
    # Through switches a pair has as many links as the GPU with fewer.
    link_counts = [[0 if a is b else min(a.switch_links, b.switch_links) for b in gpus] for a in gpus]
    if any(gpu.switch_links for gpu in gpus) and profile.links:
        raise TopologyError("links: a machine has links or switch_links, not both. Remove one of the two.")
    # ``rated``: the vendor publishes what one link carries, so a profile must say it.
    if (
        VENDORS[profile.vendor].rated
        and (profile.links or any(gpu.switch_links for gpu in gpus))
        and profile.link_gbps <= 0
    ):
        raise TopologyError("link_gbps: 0, but there are links. Write the GB/s of one link in one direction.")
    seen_pairs: set[frozenset[int]] = set()
    gpu_links = [0] * len(gpus)
    for pair, count in profile.links.items():
        # A text that is no pair becomes (0, 0), which the next check refuses as it refuses any GPU paired with itself.
        match = _PAIR.fullmatch(pair)
        i, j = (int(match[1]), int(match[2])) if match else (0, 0)
        if i == j or max(i, j) >= len(gpus):
            raise TopologyError(
                f"links.{pair}: this is not a pair of GPUs. Write two different numbers from 0 to {len(gpus) - 1}, "
                f"for example 0-1."
            )
        if frozenset((i, j)) in seen_pairs:
            raise TopologyError(f"links.{pair}: this pair occurs twice. Write it once.")
        seen_pairs.add(frozenset((i, j)))
        link_counts[i][j] = link_counts[j][i] = count
        for gpu in (i, j):
            gpu_links[gpu] += count
            if gpu_links[gpu] > MOST_LINKS:
                raise TopologyError(
                    f"links.{pair}: with these {count} links GPU {gpu} has {gpu_links[gpu]} links. A GPU can have at "
                    f"most {MOST_LINKS}."
                )
    return tuple(tuple(row) for row in link_counts)


def _blocks(entry: BlocksEntry, gpus: int) -> Blocks:
    of = {gpu: number for number, block in enumerate(entry.gpus) for gpu in block}
    if sorted(gpu for block in entry.gpus for gpu in block) != list(range(gpus)):
        raise TopologyError(
            f"blocks.gpus: {entry.gpus} is not valid. Write each of the GPUs 0 to {gpus - 1} in one block."
        )
    wrong = next((key for key in entry.order if not key.isdecimal() or not 1 <= int(key) <= gpus), None)
    if wrong is not None:
        raise TopologyError(f"blocks.order.{wrong}: this is not a number of GPUs. Write a number from 1 to {gpus}.")
    rows = {int(key): row for key, row in entry.order.items()}
    return Blocks(
        of=tuple(of[gpu] for gpu in range(gpus)),
        counts=entry.counts,
        whole=entry.whole,
        order=tuple(rows.get(gpu, ()) for gpu in range(1, max(rows, default=0) + 1)),
    )


def _check_places(profile: Profile) -> None:
    """Check that GPUs and NICs are on NUMA nodes of the profile, if it lists any.

    Each root complex, and each CPU, must belong to one NUMA node only.

    Raises:
        TopologyError: The profile breaks a rule. The message has the field, its value and what is allowed there.
    """
    nodes = [node.id for node in profile.numa]

    # By root complex, its NUMA node and the first field that says so.
    node_of_root: dict[str, tuple[int, str]] = {}
    entries: list[tuple[str, GpuEntry | NicEntry]] = [(f"gpus[{i}]", gpu) for i, gpu in enumerate(profile.gpus)]
    entries += [(f"nics[{i}]", nic) for i, nic in enumerate(profile.nics)]
    for field, entry in entries:
        if entry.numa is None:
            continue
        if nodes and entry.numa not in nodes:
            listed = ", ".join(map(str, nodes))
            raise TopologyError(
                f"{field}.numa: the node {entry.numa} is not in numa. Write one of the nodes {listed}, or add it to "
                f"numa."
            )
        if entry.root is None:
            continue
        numa, first_field = node_of_root.setdefault(entry.root, (entry.numa, field))
        if numa != entry.numa:
            raise TopologyError(
                f"{field}.numa: {entry.numa}, but {first_field} is on node {numa} below the same root {entry.root}. A "
                f"root complex is on one node."
            )

    # Each node's CPUs as one number, a bit for each CPU, so that shared CPUs are one ``&``.
    masks = [cpulist.to_mask(node.cpus) if is_cpu_list(node.cpus) else "" for node in profile.numa]
    bits = [int(mask.replace(",", "") or "0", 16) for mask in masks]
    for (j, other_cpus), (i, cpus) in combinations(enumerate(bits), 2):
        if shared_cpus := cpus & other_cpus:
            both = cpulist.from_mask(f"{shared_cpus:x}")
            raise TopologyError(f"numa[{i}].cpus: {both} is also in numa[{j}]. A CPU is on one node.")
