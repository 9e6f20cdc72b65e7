"""A simulated machine from a profile, in place of a real one; everything except CUDA works with it.

A profile is a description of a machine in a YAML file (``topology/profiles``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Container, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from dradriver.node import atomic_files
from dradriver.node.container_edits import Edits
from dradriver.node.discovery import link_faults, simulated_failures
from dradriver.node.errors import SetupError
from dradriver.node.faults import Fault, Faults
from dradriver.node.gpu_work import GpuWork
from dradriver.topology import load, peer_access, profiles
from dradriver.topology.machine import Gpu, Machine
from dradriver.topology.vendors import NVIDIA

LOST: Final = "lost"
PROCESSES: Final = "processes"
WORK: Final = "work"
_ENUMERATED: Final = ".enumerated"  # how the files end that agents of simulated nodes write


class _Enumerated(msgspec.Struct, frozen=True):
    """A record of the last time that the simulated driver numbered the GPUs.

    Attributes:
        loaded: Id of the boot and of the loading of the driver after which the driver numbered the GPUs.
        without: The uuids of the GPUs that were missing at that time, so they got no number.
        gpus: The uuids of all GPUs of the whole machine, by number; for ``gputopo fault``.
    """

    loaded: str
    without: frozenset[str]
    gpus: tuple[str, ...] = ()


class Simulated:
    """The machine of a profile or file, with uuids that are unique to this node.

    Files in the folder change the machine:

    - ``lost``: one GPU per line (uuid, or index in the whole machine). These GPUs are missing. The others keep their
      indices, as with NVML, until the node is rebooted or the driver is loaded again. Then the remaining GPUs are
      numbered again.
    - The node's file of ``simulated_failures``: other failures.
    - ``processes``: a line for each process, with the GPU's uuid and the pid.
    - ``work``: a line for each GPU that has known work, with its uuid and the percentage of time in which it works.

    Attributes:
        faults: The faults of GPUs at the last reading.
        vendor: The vendor of the GPUs.
    """

    sound: frozenset[str] = frozenset()
    read_s = 0.0
    reset: frozenset[str] = frozenset()
    slow = False

    def __init__(
        self,
        source: str,
        *,
        node: str,
        folder: Path,
        seen: Callable[[Gpu], Gpu] = lambda gpu: gpu,
        loaded: Callable[[], str] = str,
        edits_of: Mapping[str, Callable[[Gpu], Edits]] = MappingProxyType({}),
    ) -> None:
        """Read the profile or file of the machine.

        Args:
            source: The name of a profile, or the path of a file that describes a machine.
            node: The node's name.
            folder: The folder with the files that describe failures.
            seen: Returns a copy of an NVIDIA GPU with the MIG mode and MIG devices that it has now.
            loaded: Returns an id that is new after each boot and each load of the simulated driver.
            edits_of: By vendor, a function that returns the container edits of a GPU. For a vendor without an entry,
                containers get no edits.
        """
        self._whole = load.read_machine(source, seed=node)
        self.vendor = self._whole.vendor
        self._given = edits_of.get(self.vendor.word)

        # Files in which an administrator or a test says which GPUs are lost, and which processes and work they have.
        self._lost = folder / LOST
        self._processes = folder / PROCESSES
        self._work = folder / WORK
        self._failures = simulated_failures.path(folder, node)
        self._seen = seen
        self._loaded = loaded

        # A driver numbers the GPUs that it finds when it is loaded. The file keeps that over restarts of the agent.
        self._enumerated_file = _enumerated_file(folder, node)
        self._enumerated: _Enumerated | None = None
        self._is_noted = False  # whether the file has ``_enumerated``
        self.faults: Faults = {}

    @property
    def uuids(self) -> frozenset[str]:
        """Return the uuids of the simulated profile's GPUs, also of those that are lost."""
        return frozenset(gpu.uuid for gpu in self._whole.gpus)

    def edits(self, gpu: Gpu) -> Edits:
        """Return the container edits of a simulated GPU: its device nodes, which are ``/dev/null`` on the host."""
        return Edits() if self._given is None else self._given(gpu)

    def processes(self, gpus: Collection[str]) -> dict[str, tuple[int, ...]]:
        """Return the process ids that the file ``processes`` names for each simulated GPU.

        Raises:
            SetupError: The file cannot be read.
        """
        words = _words(self._processes)
        try:
            pairs = [(gpu, int(pid)) for gpu, pid in zip(words[::2], words[1::2], strict=True)]
        except ValueError as error:
            raise SetupError(f"{self._processes}: {error}. Write a GPU's UUID and a pid in each line.") from error
        return {gpu: tuple(sorted(pid for uuid, pid in pairs if uuid == gpu)) for gpu in gpus}

    def work(self, gpus: Mapping[str, int]) -> dict[str, GpuWork]:
        """Return the work of each simulated GPU, from the file ``work``.

        Raises:
            SetupError: A file cannot be read.
        """
        words = _words(self._work)
        try:
            percent = {gpu: int(said) for gpu, said in zip(words[::2], words[1::2], strict=True)}
        except ValueError as error:
            raise SetupError(f"{self._work}: {error}. Write a GPU's UUID and a percentage in each line.") from error
        some = [gpu for gpu in gpus if gpu in percent]
        pids = self.processes(some)
        return {gpu: GpuWork(percent[gpu], frozenset(pids[gpu] if percent[gpu] else ())) for gpu in some}

    def read(self) -> Machine:
        """Return the simulated machine without the GPUs and links that the files say are lost or broken.

        Raises:
            SetupError: A file cannot be read.
        """
        broken = simulated_failures.read(self._failures)
        lost = set(_words(self._lost))
        machine = self._whole
        if self.vendor.parts:
            machine = msgspec.structs.replace(machine, gpus=tuple(map(self._seen, machine.gpus)))
        if broken:
            machine = simulated_failures.applied(machine, broken)
            lost |= {
                gpu.uuid
                for gpu in machine.gpus
                if (fails := simulated_failures.of(broken, gpu)) is not None and fails.lost
            }
        named, short = simulated_failures.faults(machine, broken), self._links_lost(machine)
        left = self._numbered(without(machine, lost))
        self.faults = {gpu.uuid: (*named.get(gpu.uuid, ()), *short.get(gpu.uuid, ())) for gpu in left.gpus}
        return left

    def _numbered(self, remaining: Machine) -> Machine:
        """Return the machine with the numbers that the simulated driver gave its GPUs.

        ``remaining`` is the machine without lost GPUs.
        """
        present = {gpu.uuid for gpu in remaining.gpus}
        missing = frozenset(gpu.uuid for gpu in self._whole.gpus) - present

        # Which GPUs were missing when the driver was loaded: by this process, else by the file.
        enumerated_before, loaded = self._enumerated, self._loaded()
        if enumerated_before is None:
            with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeError):
                enumerated_before = msgspec.json.decode(self._enumerated_file.read_bytes(), type=_Enumerated)
        is_same = enumerated_before is not None and enumerated_before.loaded == loaded
        enumerated = _Enumerated(
            loaded,
            enumerated_before.without & missing if enumerated_before is not None and is_same else missing,
            tuple(gpu.uuid for gpu in self._whole.gpus),
        )
        self._enumerated = enumerated
        if enumerated != enumerated_before or not self._is_noted:
            with contextlib.suppress(OSError):  # without the file nothing is lost: this process remembers it
                self._enumerated_file.parent.mkdir(parents=True, exist_ok=True)
                atomic_files.write(self._enumerated_file, msgspec.json.encode(enumerated), durable=False)
                self._is_noted = True
        if not enumerated.without:
            return remaining
        numbered = (gpu.uuid for gpu in self._whole.gpus if gpu.uuid not in enumerated.without)
        numbers = {uuid: number for number, uuid in enumerate(numbered)}
        gpus = tuple(msgspec.structs.replace(gpu, index=numbers[gpu.uuid]) for gpu in remaining.gpus)
        return msgspec.structs.replace(remaining, gpus=gpus)

    def _links_lost(self, machine: Machine) -> dict[str, tuple[Fault, ...]]:
        """Return the link faults of GPUs, by uuid.

        A GPU of NVIDIA is compared with GPUs of the same product. A GPU of another vendor is compared with the profile,
        because the GPUs of these vendors do not all have the same number of links.
        """
        now = link_faults.of_machine(machine)
        if self.vendor is NVIDIA:
            return link_faults.refused(machine, peer_access.kept_off(machine)) | link_faults.lost(now)
        before = {one.uuid: one.links for one in link_faults.of_machine(self._whole)}
        return {
            one.uuid: (Fault("nvlink", "lost", f"{one.links} of {before[one.uuid]} {self.vendor.link} links are up"),)
            for one in now
            if one.links < before[one.uuid]
        }

    def close(self) -> None:
        """Do nothing, because a simulated machine keeps nothing open."""


def _enumerated_file(folder: Path, node: str) -> Path:
    return folder / f"{node}{_ENUMERATED}"


def gpus_of(folder: Path, node: str) -> tuple[str, ...]:
    """Return the uuids of a simulated node's GPUs by number, from the file that its agent wrote.

    Raises:
        SetupError: No agent of a simulated machine has run for that node, or its file cannot be read.
    """
    try:
        return msgspec.json.decode(_enumerated_file(folder, node).read_bytes(), type=_Enumerated).gpus
    except FileNotFoundError:
        known = sorted(path.name.removesuffix(_ENUMERATED) for path in folder.glob(f"*{_ENUMERATED}"))
        raise SetupError(
            f"node {node[:253]} has no simulated machine in {folder}, which has "
            f"{', '.join(known) or 'none at all'}. Only demo nodes can have simulated faults. Run the command "
            "where their agent runs."
        ) from None
    except (OSError, msgspec.MsgspecError, UnicodeError) as error:
        raise SetupError(f"{folder}: what the agent of node {node[:253]} wrote cannot be read: {error}") from error


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeError) as error:
        raise SetupError(f"{path}: {error}. Write one GPU in each line.") from error


def source_for(node: str, *, machines: Mapping[str, str], default: str | None) -> str:
    """Return the profile or file of a node's simulated machine.

    Args:
        node: The node's name.
        machines: A profile or file for single nodes, by node name.
        default: The profile or file of all other nodes; None if there is none.

    Raises:
        SetupError: There is neither a profile for the node nor a default.
    """
    source = machines.get(node, default)
    if source is None:
        raise SetupError(
            f"node {node} has no simulated machine. Write --simulated-default=PROFILE or "
            f"--simulated-machine={node}=PROFILE. Profiles: {', '.join(profiles.names())}"
        )
    return source


def without(machine: Machine, lost: Container[str]) -> Machine:
    """Return a simulated machine without the GPUs whose uuid or index is in ``lost``; the others keep their indices."""
    left = [i for i, gpu in enumerate(machine.gpus) if gpu.uuid not in lost and str(gpu.index) not in lost]
    return machine if len(left) == len(machine.gpus) else machine.subset(left)
