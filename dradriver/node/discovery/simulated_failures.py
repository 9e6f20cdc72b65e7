"""The failures of a simulated machine, in a file that ``gputopo fault`` writes and the node agent reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from dradriver.node import atomic_files
from dradriver.node.errors import SetupError
from dradriver.node.faults import KINDS, Fault
from dradriver.topology.machine import Gpu, Machine

FOLDER: Final = Path("/var/lib/kubelet/plugins/gpu.topology/simulated")  # where the chart's agent looks
_GPU: Final = re.compile(r"gpu-?([0-9]{1,3})|([0-9]{1,3})", re.IGNORECASE)
_MOST_LINK: Final = 127


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The failures of one simulated GPU.

    Attributes:
        lost: Whether the driver does not report the GPU any more.
        nvlink: Numbers of the GPU's NVLinks that are down. Links to switches have the lowest numbers. Then come the
            links to other GPUs, in the order of these GPUs.
        xid: An XID in the kernel's log.
        faults: Other kinds of faults.
    """

    lost: bool = False
    nvlink: tuple[int, ...] = ()
    xid: int | None = None
    faults: tuple[str, ...] = ()

    @property
    def kinds(self) -> frozenset[str]:
        """Return the kinds of all faults that the GPU has because of these failures."""
        has = {"lost": self.lost, "nvlink": bool(self.nvlink), "xid": self.xid is not None}
        return frozenset({*self.faults, *(kind for kind, is_so in has.items() if is_so)})


Failures = Mapping[str, Failure]
"""By GPU: its uuid, or ``gpu-3`` by its number in the whole machine."""


def path(folder: Path, node: str) -> Path:
    """Return the file with the simulated failures of a node; several nodes may share a folder."""
    return folder / f"{node}.json"


def read(file: Path) -> Failures:
    """Return the simulated failures in a file; empty if there is no file.

    Raises:
        SetupError: The file cannot be read, or names an impossible failure.
    """
    try:
        failures = msgspec.json.decode(file.read_bytes(), type=dict[str, Failure])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError, UnicodeError) as error:
        raise SetupError(f"{file}: {error}. Write it with gputopo fault fail.") from error
    for failure in failures.values():
        check(failure)
    return failures


def write(file: Path, failures: Failures) -> None:
    """Write the simulated failures into a file; if there are none, remove the file.

    Raises:
        SetupError: The file cannot be written, or a failure is impossible.
    """
    for failure in failures.values():
        check(failure)
    try:
        if failures:
            file.parent.mkdir(parents=True, exist_ok=True)
            atomic_files.write(file, msgspec.json.format(msgspec.json.encode(failures)) + b"\n")
        else:
            atomic_files.remove(file)
    except OSError as error:
        raise SetupError(f"{file}: {error}. Run the command on the node, as root, or name another --dir.") from error


def check(failure: Failure) -> None:
    """Check that a simulated GPU can have these failures; raise if not.

    Raises:
        SetupError: The failure is impossible; the message says why.
    """
    if unknown := set(failure.faults) - KINDS.keys():
        raise SetupError(f"{min(unknown)[:32]!r} is no kind of fault. Write one of {', '.join(sorted(KINDS))}.")
    if failure.xid is not None and not 0 < failure.xid < 1000:
        raise SetupError(f"XID {failure.xid}: write a number from 1 to 999")
    if any(not 0 <= link <= _MOST_LINK for link in failure.nvlink):
        raise SetupError(f"NVLink {max(failure.nvlink)}: write numbers from 0 to {_MOST_LINK}")


def name(text: str) -> str:
    """Return the name of a GPU in the file of simulated failures, from the text that a user typed.

    The name for ``3``, ``gpu3`` and ``gpu-3`` is ``gpu-3``. A uuid stays a uuid, in lower case.

    Raises:
        SetupError: The text is neither a GPU's number nor a uuid.
    """
    match = _GPU.fullmatch(text)
    if match is not None:
        return f"gpu-{int(match[1] or match[2])}"
    if text.upper().startswith("GPU-") and len(text) == 40:
        return "GPU-" + text[4:].lower()
    raise SetupError(f"{text[:64]!r} is no GPU: write gpu-3, or its uuid")


def of(failures: Failures, gpu: Gpu) -> Failure | None:
    """Return the simulated failures of a GPU; None if it has none."""
    return failures.get(gpu.uuid) or failures.get(f"gpu-{gpu.index}")


def applied(machine: Machine, failures: Failures) -> Machine:
    """Return a copy of the machine without the links that simulated failures broke.

    Lost GPUs stay in the copy; ``simulated_machine`` removes them.
    """
    gpus = list(machine.gpus)
    links = [list(row) for row in machine.links]

    # Links of each pair that do not go through switches.
    direct = [
        [links[i][j] - min(a.switch_links, b.switch_links) if i != j else 0 for j, b in enumerate(gpus)]
        for i, a in enumerate(gpus)
    ]
    for i, gpu in enumerate(machine.gpus):
        failure = of(failures, gpu)
        # Link numbers count a GPU's links to switches first, then those to each peer.
        for link in sorted(set(failure.nvlink)) if failure is not None else ():
            peers = [j for j, count in enumerate(direct[i]) for _ in range(max(count, 0))]
            if link < gpu.switch_links:
                gpus[i] = msgspec.structs.replace(gpus[i], switch_links=gpus[i].switch_links - 1)
            elif link - gpu.switch_links < len(peers):
                j = peers[link - gpu.switch_links]
                direct[i][j] -= 1
                direct[j][i] -= 1

    # The links of each pair again: direct ones, and through switches those of the GPU with fewer.
    for i, a in enumerate(gpus):
        for j, b in enumerate(gpus):
            if i != j and machine.links[i][j]:
                links[i][j] = max(direct[i][j], 0) + min(a.switch_links, b.switch_links)
    return msgspec.structs.replace(machine, gpus=tuple(gpus), links=tuple(map(tuple, links)))


def faults(machine: Machine, failures: Failures) -> dict[str, tuple[Fault, ...]]:
    """Return the faults that the simulated failures name for each GPU, by uuid."""
    by_uuid: dict[str, tuple[Fault, ...]] = {}
    for gpu in machine.gpus:
        failure = of(failures, gpu)
        if failure is None:
            continue
        some = [Fault(kind, "", f"simulated fault: {kind}") for kind in failure.faults]
        if failure.xid is not None:
            some.append(Fault("xid", str(failure.xid), f"XID {failure.xid} in the simulated kernel's log"))
        if some:
            by_uuid[gpu.uuid] = tuple(some)
    return by_uuid
