"""The facts that NVML tells of each GPU alone. A GPU that does not say who it is, is left out."""

from __future__ import annotations

import re
from collections import Counter

import msgspec

from dradriver.node.discovery.problem import Problem
from dradriver.node.vendors.nvidia.discovery import mig_state
from dradriver.node.vendors.nvidia.discovery.nvml import (
    INVALID_ARGUMENT,
    REMOTE_GPU,
    REMOTE_UNKNOWN,
    Fabric,
    Handle,
    Nvml,
    NvmlError,
)
from dradriver.node.vendors.nvidia.discovery.nvml_query import NEWER, UNSUPPORTED, Answers, NvmlQuery
from dradriver.topology.check import is_bus_id
from dradriver.topology.machine import MigDevice, MigProfile

_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HOPPER = 9  # compute capability from which on NCCL asks for a link's state as a field, as is done here for all at once
_MOST_LINKS = 36  # of the largest part that is known; asked one by one where NVML does not say how many there are


class Link(msgspec.Struct, frozen=True):
    """One NVLink that is up.

    Attributes:
        ends_in: ``REMOTE_GPU``, ``REMOTE_SWITCH``, …
        remote: Bus id of the other end; empty at a switch, or where NVML did not say.
    """

    ends_in: int
    remote: str = ""


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as NVML knows it; the fields that ``Gpu`` has too mean the same.

    Attributes:
        handle: To ask on.
        capability: Major and minor number; None where not known.
        pcie: Generation and lanes of its PCIe link; None where not known.
        links: Its NVLinks that are up.
        link_mbps: Signalling rate of one of them, MB/s; 0 where not known.
        fabric: How it is in its NVLink fabric.
        mig: Its MIG devices; None with MIG mode off.
        profiles: Those that its MIG instances can have.
        persistent: Whether persistence mode is on; True where the product has none.
        unsure: True where a question failed and its last good answer stands, or none.
    """

    handle: Handle
    index: int
    uuid: str
    minor: int
    pci: str
    product: str
    capability: tuple[int, int] | None
    memory_mib: int
    power_watts: int
    pcie: tuple[int, int] | None
    links: tuple[Link, ...]
    link_mbps: int
    c2c_gbps: float
    fabric: Fabric
    mig: tuple[MigDevice, ...] | None
    profiles: tuple[MigProfile, ...] = ()
    persistent: bool = True
    unsure: bool = False

    @property
    def sm(self) -> int:
        """Return the GPU's compute capability as NCCL counts it: 90 for 9.0; 0 if it is not known."""
        return 0 if self.capability is None else self.capability[0] * 10 + self.capability[1]


class Gpus(msgspec.Struct, frozen=True):
    """The GPUs that answer, and how many do not.

    Attributes:
        found: All GPUs that answer, by index.
        lost: How many said that they are lost, or of no use before a reset.
        silent: How many did not say who they are, for no reason that lasts: asked again they may.
    """

    found: tuple[GpuFacts, ...]
    lost: int
    silent: int


def read_gpus(nvml: Nvml, problems: list[Problem], answers: Answers | None = None) -> Gpus:
    """Return the facts of all GPUs that answer to NVML.

    Args:
        nvml: The open library.
        problems: Gets what went wrong.
        answers: Those of earlier readings.

    Raises:
        NvmlError: NVML does not even say how many GPUs there are.
    """
    answering: list[GpuFacts] = []
    lost = silent = 0
    for index in range(nvml.count()):
        asked = NvmlQuery(f"GPU {index}", problems, answers)
        gpu = _read(nvml, index, asked)
        if gpu is None or asked.lost:
            asked.note("GPU", "left out; it cannot be handed out like this")
            lost += asked.lost
            silent += not asked.lost
            continue
        twin = next((g for g in answering if g.uuid == gpu.uuid or g.minor == gpu.minor), None)
        if twin is not None:
            asked.note("GPU", f"left out; it has uuid or minor number of GPU {twin.index}")
            silent += 1
            continue
        answering.append(gpu)
    said = Counter(gpu.pci for gpu in answering if gpu.pci)
    gpus = tuple(gpu if said[gpu.pci] < 2 else _placeless(gpu, problems) for gpu in answering)
    return Gpus(gpus, lost, silent)


def _placeless(gpu: GpuFacts, problems: list[Problem]) -> GpuFacts:
    """Return a GPU without the bus id that another has too: one of them is wrong, and nothing tells which."""
    text = f"{gpu.pci!r} is said by more than one GPU; it counts for none"
    problems.append(Problem(f"GPU {gpu.index}", "nvmlDeviceGetPciInfo_v3", text))
    return msgspec.structs.replace(gpu, pci="")


def _read(nvml: Nvml, index: int, asked: NvmlQuery) -> GpuFacts | None:
    handle = asked.ask(nvml.gpu, index, default=None, quiet=frozenset())
    if handle is None:
        return None
    uuid = asked.ask(nvml.uuid, handle, default="", quiet=frozenset())
    if not uuid:
        return None
    if not _UUID.fullmatch(uuid):
        asked.note("nvmlDeviceGetUUID", f"{uuid!r} is no GPU's uuid")
        return None
    asked.who = uuid
    in_mig_mode = mig_state.mode(nvml, handle, asked)
    minor = asked.ask_once(nvml.minor, handle, default=None)
    if minor is None:
        if not asked.failed:
            asked.note("nvmlDeviceGetMinorNumber", "it has no /dev/nvidiaN, as under WSL, which is not supported")
        return None
    pci = asked.ask_once(nvml.bus_id, handle, default="", quiet=frozenset())
    if pci and not is_bus_id(pci):
        asked.note("nvmlDeviceGetPciInfo_v3", f"{pci!r} is no bus id")
        pci = ""
    capability = asked.ask_once(nvml.compute_capability, handle, default=None)
    memory_mib = asked.ask_once(nvml.memory_mib, handle, default=None)
    if capability is None and memory_mib is None and asked.failed:
        return None  # it knows its name and nothing else: work would fail on it
    if memory_mib is None and not asked.failed:
        said = "as where it has the CPU's; it is not shared, and no pod gets it that asks for memory"
        asked.note("nvmlDeviceGetMemoryInfo", f"it tells no memory of its own, {said}")
    at_once = capability is not None and capability[0] >= _HOPPER
    links = _links(nvml, handle, asked, at_once=at_once)
    sliced = mig_state.read(nvml, handle, asked, on=in_mig_mode)
    lanes = asked.ask_once(nvml.c2c_lanes, handle, default=0, quiet=NEWER | {INVALID_ARGUMENT})
    facts = GpuFacts(
        handle=handle,
        index=index,
        uuid=uuid,
        minor=minor,
        pci=pci,
        product=asked.ask_once(nvml.product, handle, default=""),
        capability=capability,
        memory_mib=memory_mib or 0,
        power_watts=asked.ask_once(nvml.power_watts, handle, default=0),
        pcie=asked.ask_once(nvml.pcie_link, handle, default=None),
        links=tuple(link for _, link in links),
        # NCCL goes by the compute capability; the rate is what is left where that is not known
        link_mbps=0
        if capability or not links
        else asked.ask(nvml.link_mbps, handle, links[0][0], default=0, quiet=NEWER),
        c2c_gbps=asked.ask(nvml.c2c_gbps, handle, lanes, default=0.0, quiet=NEWER | {INVALID_ARGUMENT})
        if lanes
        else 0.0,
        fabric=asked.ask(nvml.fabric, handle, default=Fabric(), quiet=NEWER),
        mig=sliced.devices,
        profiles=sliced.profiles,
        persistent=asked.ask(nvml.persistent, handle, default=True, quiet=NEWER),
    )
    return msgspec.structs.replace(facts, unsure=asked.failed)


def _links(nvml: Nvml, gpu: Handle, asked: NvmlQuery, *, at_once: bool) -> list[tuple[int, Link]]:
    """Return the links that are up with their numbers; what one ends in is a fact while it stays up."""
    count = asked.ask_once(nvml.link_count, gpu, default=None, quiet=NEWER | {INVALID_ARGUMENT})
    # Without a count the links are tried one by one, and those that are not there say "invalid argument".
    quiet = UNSUPPORTED | {INVALID_ARGUMENT} if count is None else UNSUPPORTED
    states = asked.ask(nvml.links_active, gpu, count, default=None, quiet=NEWER) if count and at_once else None

    def link_active(gpu: Handle, number: int) -> bool:
        if states is None or number >= len(states):  # an earlier answer stands, of fewer links
            return nvml.link_active(gpu, number)
        if isinstance(state := states[number], NvmlError):
            raise NvmlError(state.query, state.code, state.said)  # a new one: raised again and again, it would grow
        return state

    links = []
    for number in range(_MOST_LINKS if count is None else count):
        at = f"link {number}"
        if count is None:
            there = asked.ask_once(
                nvml.link_active, gpu, number, default=None, quiet=quiet, at=f"as to whether it has {at}"
            )
            if there is None:
                continue
        if not asked.ask(link_active, gpu, number, default=False, quiet=quiet, at=at):
            asked.unsettle(at)
            continue
        ends_in = asked.ask_once(nvml.link_remote_type, gpu, number, default=REMOTE_UNKNOWN, quiet=NEWER, at=at)
        remote = ""
        if ends_in in (REMOTE_GPU, REMOTE_UNKNOWN):
            remote = asked.ask_once(nvml.link_remote, gpu, number, default="", quiet=frozenset(), at=at)
        links.append((number, Link(ends_in, remote)))
    return links
