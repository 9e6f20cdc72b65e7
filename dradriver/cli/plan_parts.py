"""``gputopo plan`` for fractions of a GPU: shares and MIG slices of one machine, offline."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from dradriver.allocator import Amount, Fleet, Mig, MigPart, Offer, PartChoice, Share, SharePart
from dradriver.allocator.parts.existing_instances import with_instances
from dradriver.allocator.parts.part_phrases import amount, wanted
from dradriver.allocator.request import Part
from dradriver.api.slices import mig_devices
from dradriver.api.vocabulary import values
from dradriver.api.vocabulary.messages import shown
from dradriver.errors import DriverError
from dradriver.topology.machine import Gpu, Machine
from dradriver.view.document import Document, report, table

_PART = re.compile(r"(?a:(\d{1,4}):(?:(\d*\.\d+)|([^@]{1,24})@(\d{1,2})))")


class PartsError(DriverError):
    """The allocated shares and slices that the user names cannot exist on the machine's GPUs."""

    reason = "BadParts"


class PartAnswer(msgspec.Struct, kw_only=True):
    """The answer to a question that requests fractions of GPUs.

    Attributes:
        gpus: The numbers of the GPUs with a chosen fraction.
        containers: The fractions of each container: ``gpu``, and ``cores`` (percent) and ``memory_mib``, or
            ``profile``, ``start`` and ``size`` (memory slices).
    """

    gpus: tuple[int, ...]
    containers: tuple[tuple[dict[str, Any], ...], ...]


def choose_parts(machine: Machine, free: list[int] | None, on: str, request: Share | Mig) -> PartChoice:
    """Return the fractions of GPUs (shares or MIG slices) that a request of ``gputopo plan`` gets on a machine.

    Args:
        machine: The machine. All its GPUs can be divided; existing MIG instances are allocated as they are.
        free: Numbers of the GPUs that are not allocated whole; None for all.
        on: Allocated shares and MIG slices: ``0:0.5,3:1g.10gb@6``.
        request: The request.

    Raises:
        NoPlaceError: The machine has no place for the request.
        PartsError: The vendor's GPUs cannot be divided, or ``on`` is impossible.
        UnknownGpuError: The machine does not have a GPU of this number.
    """
    if not machine.vendor.parts:
        raise PartsError(f"GPUs of {machine.vendor.word} cannot be divided. Request whole GPUs.")
    machine, offer = offered(machine)  # the offer: which GPUs may be divided, and how
    fleet = Fleet()  # the allocator's cluster, with this machine as its only node
    fleet.set_node(machine.name, machine, [gpu.index for gpu in machine.gpus] if free is None else free)
    fleet.set_offer(machine.name, offer)
    allocated: dict[int, list[Part]] = {}  # by the GPU's number
    gpu_of_number = {gpu.index: gpu for gpu in machine.gpus}
    for text in filter(None, (text.strip() for text in on.split(","))):
        part = _part(text, gpu_of_number)
        allocated.setdefault(part.gpu, []).append(part)
    fleet.set_parts(machine.name, allocated)
    return fleet.rank(request, limit=1)[0]


def offered(machine: Machine) -> tuple[Machine, Offer]:
    """Return the machine as ``gputopo plan`` can divide it, and which of its GPUs can be allocated in fractions.

    If a GPU has MIG instances, these are allocated unchanged. Else instances are created on demand. A GPU in MIG mode
    can be allocated only in slices.
    """
    every = frozenset(gpu.index for gpu in machine.gpus)
    in_mig_mode = frozenset(gpu.index for gpu in machine.gpus if gpu.mig is not None)
    gpus = tuple(_as_it_is(gpu) if gpu.mig else gpu for gpu in machine.gpus)
    return msgspec.structs.replace(machine, gpus=gpus), Offer(
        shared=every - in_mig_mode, sliced=every, parts_only=in_mig_mode
    )


def _as_it_is(gpu: Gpu) -> Gpu:
    there = mig_devices.existing(gpu.mig or (), gpu.profiles)
    return with_instances(gpu, [(profile.name, instance.start or 0) for instance, profile in there])


def _part(word: str, gpus: dict[int, Gpu]) -> Part:
    match = _PART.fullmatch(word)
    if match is None or (gpu := gpus.get(int(match[1]))) is None:
        raise PartsError(
            f"fractions: {shown(word)} is no fraction of a GPU of this machine. Write the number of a GPU and a "
            "share, 0:0.5, or a MIG profile and its start, 3:1g.10gb@6."
        )
    if match[2] is not None:
        cores = values.share(match[2])
        if cores is None:
            raise PartsError(f"fractions: {shown(word)}: write a share in hundredths from 0.01 to 0.99, as 0:0.5")
        return SharePart(gpu=gpu.index, amount=Amount(cores).of(gpu.memory_mib))
    profile = next((profile for profile in gpu.profiles if profile.name == match[3]), None)
    start = int(match[4])
    if profile is None or start not in profile.starts:
        known = ", ".join(f"{other.name}@{start}" for other in gpu.profiles for start in other.starts[:1])
        raise PartsError(
            f"fractions: {shown(word)}: this GPU has no such MIG placement. Its placements: {known or 'none'}, …"
        )
    return MigPart(gpu=gpu.index, profile=profile.name, start=start, size=profile.size)


def answer(choice: PartChoice) -> PartAnswer:
    """Return the chosen fractions of GPUs as JSON data, for ``gputopo plan -o json`` and ``--batch``."""
    return PartAnswer(gpus=choice.gpus, containers=tuple(tuple(map(_plain, parts)) for parts in choice.containers))


def _plain(part: Part) -> dict[str, Any]:
    if isinstance(part, SharePart):
        return {"gpu": part.gpu, "cores": part.amount.cores, "memory_mib": part.amount.memory_mib}
    return {"gpu": part.gpu, "profile": part.profile, "start": part.start, "size": part.size}


def document(machine: Machine, wish: Share | Mig, choice: PartChoice) -> Document:
    """Return the output of ``gputopo plan`` for people about the chosen shares or MIG slices."""
    rows = [("machine", machine.name), ("request", wanted(wish))]
    for number, parts in enumerate(choice.containers, 1):
        rows += [(f"container {number}" if len(choice.containers) > 1 else "fraction", _said(part)) for part in parts]
    return report(table(rows=rows))


def _said(part: Part) -> str:
    if isinstance(part, SharePart):
        return f"GPU {part.gpu}: {amount(part.amount)}"
    last = part.start + part.size - 1
    slices = f"slices {part.start} to {last}" if part.size > 1 else f"slice {part.start}"
    return f"GPU {part.gpu}: {part.profile} at {part.start} (memory {slices})"
