"""Reads from NVML the facts of each GPU alone.

A GPU that does not identify itself is left out.
"""

from __future__ import annotations

import re
from collections import Counter

import msgspec

from dradriver.node.discovery.problem import Problem
from dradriver.node.vendors.nvidia.discovery import mig_state
from dradriver.node.vendors.nvidia.discovery.failed_queries import NEWER, UNSUPPORTED, Answers, NvmlQuery
from dradriver.node.vendors.nvidia.discovery.nvml_interface import (
    INVALID_ARGUMENT,
    REMOTE_GPU,
    REMOTE_UNKNOWN,
    Fabric,
    Handle,
    Nvml,
    NvmlError,
)
from dradriver.topology.identifiers import is_bus_id
from dradriver.topology.machine import MigDevice, MigProfile

_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# From this compute capability on, NCCL reads link states as field values. Here one call reads those of all links.
_HOPPER = 9
# Links of the largest known GPU. If NVML does not give the number of links, each of these is tried.
_MOST_LINKS = 36


class Link(msgspec.Struct, frozen=True):
    """One NVLink that is up.

    Attributes:
        ends_in: ``REMOTE_GPU``, ``REMOTE_SWITCH``, …
        remote: Bus id of the other end; empty if the link ends in a switch, or if NVML does not report the bus id.
    """

    ends_in: int
    remote: str = ""


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as NVML describes it; fields with the names of ``Gpu`` fields have the same meaning.

    Attributes:
        handle: NVML's handle, for further queries.
        capability: Major and minor number of the compute capability; None if unknown.
        pcie: Generation and lanes of the GPU's PCIe link; None if unknown.
        links: The GPU's NVLinks that are up.
        link_mbps: Signalling rate of one NVLink, MB/s; 0 if unknown.
        fabric: The GPU's state in its NVLink fabric.
        mig: The GPU's MIG devices; None if MIG mode is off.
        profiles: The profiles of MIG instances that the GPU can have.
        persistent: Whether persistence mode is on; True if the product does not have this mode.
        unsure: True if a query failed, so that some values are the last good answer or a default.
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
        """Return the GPU's compute capability as a number, as NCCL does: 90 for 9.0; 0 if it is not known."""
        return 0 if self.capability is None else self.capability[0] * 10 + self.capability[1]


class Gpus(msgspec.Struct, frozen=True):
    """The GPUs that answer, and the numbers of those that do not.

    Attributes:
        found: All GPUs that answer, by index.
        lost: Number of GPUs that are lost or need a reset.
        silent: Number of GPUs that did not identify themselves, but are not lost. The next reading may find them.
    """

    found: tuple[GpuFacts, ...]
    lost: int
    silent: int


def read_gpus(nvml: Nvml, problems: list[Problem], answers: Answers | None = None) -> Gpus:
    """Return the facts of all GPUs that answer to NVML.

    Args:
        nvml: The open library.
        problems: This function adds facts that could not be read.
        answers: Answers of earlier readings, used if a query fails.

    Raises:
        NvmlError: NVML does not even say how many GPUs there are.
    """
    answering: list[GpuFacts] = []
    lost = silent = 0
    for index in range(nvml.count()):
        # A query notes what fails. ``query.lost`` is set if NVML calls the GPU lost, or in need of a reset.
        query = NvmlQuery(f"GPU {index}", problems, answers)
        gpu = _read(nvml, index, query)
        if gpu is None or query.lost:
            query.note("GPU", "the GPU is left out, because it cannot be allocated in this state")
            lost += query.lost
            silent += not query.lost
            continue

        # Two GPUs with one identity: one of the answers is wrong, and containers might get each other's GPU.
        twin = next((g for g in answering if g.uuid == gpu.uuid or g.minor == gpu.minor), None)
        if twin is not None:
            query.note("GPU", f"the GPU is left out, because it has the UUID or minor number of GPU {twin.index}")
            silent += 1
            continue
        answering.append(gpu)
    uses_of_bus_id = Counter(gpu.pci for gpu in answering if gpu.pci)
    gpus = tuple(gpu if uses_of_bus_id[gpu.pci] < 2 else _without_bus_id(gpu, problems) for gpu in answering)
    return Gpus(gpus, lost, silent)


def _without_bus_id(gpu: GpuFacts, problems: list[Problem]) -> GpuFacts:
    """Return a copy of a GPU without its bus id, and add a problem.

    The caller uses this if two GPUs report the same bus id, because either may be wrong.
    """
    text = f"{gpu.pci!r} is reported by more than one GPU, so it counts for none of them"
    problems.append(Problem(f"GPU {gpu.index}", "nvmlDeviceGetPciInfo_v3", text))
    return msgspec.structs.replace(gpu, pci="")


def _read(nvml: Nvml, index: int, query: NvmlQuery) -> GpuFacts | None:
    """Return the facts of the GPU with an NVML index; None if the GPU cannot be used.

    A GPU that does not identify itself cannot be used.

    Args:
        nvml: The open library.
        index: NVML's number of the GPU.
        query: Asks NVML about this GPU and notes failures. This function sets the GPU's uuid in it, so that earlier
            answers are found.
    """
    # 1. Its identity. The bus id may be missing, uuid and minor number may not.
    handle = query.ask(nvml.gpu, index, default=None, quiet=frozenset())
    if handle is None:
        return None
    uuid = query.ask(nvml.uuid, handle, default="", quiet=frozenset())
    if not uuid:
        return None
    if not _UUID.fullmatch(uuid):
        query.note("nvmlDeviceGetUUID", f"{uuid!r} is no GPU's uuid")
        return None
    query.who = uuid
    in_mig_mode = mig_state.mode(nvml, handle, query)
    minor = query.ask_once(nvml.minor, handle, default=None)
    if minor is None:
        if not query.failed:
            query.note("nvmlDeviceGetMinorNumber", "it has no /dev/nvidiaN, as under WSL, which is not supported")
        return None
    pci = query.ask_once(nvml.bus_id, handle, default="", quiet=frozenset())
    if pci and not is_bus_id(pci):
        query.note("nvmlDeviceGetPciInfo_v3", f"{pci!r} is no bus id")
        pci = ""

    # 2. Capability and memory. A GPU that fails both queries knows only its name, and work would fail on it.
    capability = query.ask_once(nvml.compute_capability, handle, default=None)
    memory_mib = query.ask_once(nvml.memory_mib, handle, default=None)
    if capability is None and memory_mib is None and query.failed:
        return None
    if memory_mib is None and not query.failed:
        effect = "as on GPUs that use the CPU's memory. The GPU is not shared, and no pod gets it that requests memory"
        query.note("nvmlDeviceGetMemoryInfo", f"it tells no memory of its own, {effect}")

    # 3. Links, MIG devices and the rest. From Hopper on one call reads all links.
    at_once = capability is not None and capability[0] >= _HOPPER
    links = _links(nvml, handle, query, at_once=at_once)
    # NCCL derives the bandwidth of a link from the compute capability. The rate is needed only without one.
    link_mbps = 0
    if links and not capability:
        first_link, _ = links[0]
        link_mbps = query.ask(nvml.link_mbps, handle, first_link, default=0, quiet=NEWER)
    sliced = mig_state.read(nvml, handle, query, on=in_mig_mode)

    # C2C: the coherent link to the GPU's own CPU (Grace).
    lanes = query.ask_once(nvml.c2c_lanes, handle, default=0, quiet=NEWER | {INVALID_ARGUMENT})
    c2c_gbps = 0.0
    if lanes:
        c2c_gbps = query.ask(nvml.c2c_gbps, handle, lanes, default=0.0, quiet=NEWER | {INVALID_ARGUMENT})
    facts = GpuFacts(
        handle=handle,
        index=index,
        uuid=uuid,
        minor=minor,
        pci=pci,
        product=query.ask_once(nvml.product, handle, default=""),
        capability=capability,
        memory_mib=memory_mib or 0,
        power_watts=query.ask_once(nvml.power_watts, handle, default=0),
        pcie=query.ask_once(nvml.pcie_link, handle, default=None),
        links=tuple(link for _, link in links),
        link_mbps=link_mbps,
        c2c_gbps=c2c_gbps,
        fabric=query.ask(nvml.fabric, handle, default=Fabric(), quiet=NEWER),
        mig=sliced.devices,
        profiles=sliced.profiles,
        persistent=query.ask(nvml.persistent, handle, default=True, quiet=NEWER),
    )
    return msgspec.structs.replace(facts, unsure=query.failed)


def _links(nvml: Nvml, gpu: Handle, query: NvmlQuery, *, at_once: bool) -> list[tuple[int, Link]]:
    """Return the GPU's NVLinks that are up, each with its number.

    A link's other end is a fact that is asked once. It is asked again only after the link was down.

    Args:
        nvml: The open library.
        gpu: The GPU.
        query: Asks NVML about this GPU.
        at_once: Whether one call can read the states of all links.
    """
    count = query.ask_once(nvml.link_count, gpu, default=None, quiet=NEWER | {INVALID_ARGUMENT})
    # Without a count each number is tried, and NVML answers "invalid argument" for links that do not exist.
    quiet = UNSUPPORTED | {INVALID_ARGUMENT} if count is None else UNSUPPORTED
    states = query.ask(nvml.links_active, gpu, count, default=None, quiet=NEWER) if count and at_once else None

    def link_active(gpu: Handle, number: int) -> bool:
        # ``states`` may be an earlier answer, with fewer links.
        if states is None or number >= len(states):
            return nvml.link_active(gpu, number)
        state = states[number]
        if isinstance(state, NvmlError):
            # A new error: the traceback of one that is raised at every reading would grow.
            raise NvmlError(state.query, state.code, state.said)
        return state

    links = []
    for number in range(_MOST_LINKS if count is None else count):
        at = f"link {number}"
        if count is None:
            is_active = query.ask_once(
                nvml.link_active, gpu, number, default=None, quiet=quiet, at=f"as to whether it has {at}"
            )
            if is_active is None:  # there is no link of this number
                continue
        if not query.ask(link_active, gpu, number, default=False, quiet=quiet, at=at):
            query.unsettle(at)
            continue
        # The other end: a GPU, by its bus id, or a switch.
        ends_in = query.ask_once(nvml.link_remote_type, gpu, number, default=REMOTE_UNKNOWN, quiet=NEWER, at=at)
        remote = ""
        if ends_in in (REMOTE_GPU, REMOTE_UNKNOWN):
            remote = query.ask_once(nvml.link_remote, gpu, number, default="", quiet=frozenset(), at=at)
        links.append((number, Link(ends_in, remote)))
    return links
