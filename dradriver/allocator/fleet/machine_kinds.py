"""Computes the bandwidths of a machine's GPU sets, and its MIG layouts, in another process.

The controller starts the process (``python -m`` this module) and stores its answers. A MIG layout is a table for one
kind of GPU: it lists each state of the GPU, that is, which memory slices MIG instances take. The figures of a machine
with 16 GPUs and links of different widths take seconds. A client that may write ResourceSlices could publish a new kind
of machine every second, and the controller must not stop for that. The process reads kinds from its standard input and
writes an answer for each to its standard output, until the input ends or the process is killed. The process has no
state and can be restarted at any time.
"""

from __future__ import annotations

import os
import pickle
import resource
import sys
from collections.abc import Iterator
from typing import IO, Final

import msgspec

from dradriver.allocator.fleet.node_group import without_uuids
from dradriver.allocator.parts import layouts
from dradriver.allocator.parts.layouts import Profiles
from dradriver.allocator.sets import facts, tables
from dradriver.allocator.sets.canonical import canonical
from dradriver.allocator.sets.shape import Shape, shape_of
from dradriver.topology.machine import Machine

_HEAD: Final = 8  # bytes of a message's length, before it
_END: Final = b""  # the message after the last part of an answer
_MOST_MESSAGE: Final = 64 << 20
_MEMORY_BYTES: Final = 192 << 20  # of one process at most: 125 MB for 16 GPUs with links of all widths, half of it used
_NICENESS: Final = 10


class MachineKind(msgspec.Struct, frozen=True):
    """The properties of a machine on which the bandwidths of its GPU sets depend.

    Machines of one kind can have other names and other GPU numbers.

    Attributes:
        shape: Links, PCIe paths and the like. The GPUs are in the canonical order that all equal machines share.
        profiles: The different lists of MIG profiles of the machine's GPUs.
    """

    shape: Shape
    profiles: tuple[Profiles, ...]


def kind_of(machine: Machine) -> MachineKind | None:
    """Return the kind of a machine: all machines of one kind share their figures.

    Figures are, for example, the bandwidths of all sets of GPUs. The result is None if the machine has too many GPUs
    for them.
    """
    if len(machine.gpus) > tables.MAX_GPUS:
        return None
    bare = without_uuids(machine)
    return MachineKind(canonical(shape_of(bare))[0], layouts.kinds(bare))


def known(machine: Machine) -> bool:
    """Return whether the costly figures of a machine's kind are computed.

    These are the bandwidths of all sets of GPUs, and the MIG layouts. If so, a fleet can add the machine without delay.
    The result is also True for a machine with more than 16 GPUs, which has no figures.
    """
    if len(machine.gpus) > tables.MAX_GPUS:
        return True  # it refuses it
    bare = without_uuids(machine)
    return tables.known(shape_of(bare)) and all(map(layouts.known, layouts.kinds(bare)))


def computed(kind: MachineKind) -> Iterator[bytes]:
    """Compute the costly figures of a kind of machine, and yield them as messages.

    The first messages have the bandwidths of all sets of GPUs, the later ones the MIG layouts. A message has at most 3
    MB. The receiver passes the messages to the function ``keep`` in this order.
    """
    yield pickle.dumps(facts.Facts(kind.shape))
    for profiles in kind.profiles:
        yield pickle.dumps(layouts.layout_of(profiles))


def keep(kind: MachineKind, part: int, message: bytes) -> None:
    """Store the figures in one message that the other process computed for ``kind``.

    The figures are the bandwidths of all sets of GPUs, or a MIG layout. ``part`` is the number of the message in the
    answer, from 0.
    """
    figures = pickle.loads(message)  # noqa: S301  # our own code's, from a pipe that nobody else holds
    if part == 0:
        facts.keep(kind.shape, figures)
    else:
        layouts.keep(kind.profiles[part - 1], figures)


def serve(asked: IO[bytes], answers: IO[bytes]) -> None:
    """Read kinds of machines from ``asked``, and write the figures of each to ``answers``.

    Figures are the bandwidths of all sets of GPUs and the MIG layouts. The figures of one kind are written as several
    messages, each with its length. The function returns when ``asked`` ends.
    """
    while head := asked.read(_HEAD):
        kind = msgspec.msgpack.decode(asked.read(int.from_bytes(head)), type=MachineKind)
        for message in (*computed(kind), _END):
            answers.write(len(message).to_bytes(_HEAD))
            answers.write(message)
        answers.flush()


def answer(answers: IO[bytes]) -> Iterator[bytes]:
    """Read one answer of the other process, and yield its messages.

    The messages have the figures of one kind of machine, such as the bandwidths of its sets of GPUs.

    Raises:
        EOFError: The stream ended before the last message, or it has no valid answer.
    """
    while size := int.from_bytes(_read(answers, _HEAD)):
        if size > _MOST_MESSAGE:
            raise EOFError(f"a message of {size} bytes")
        yield _read(answers, size)


def _read(answers: IO[bytes], size: int) -> bytes:
    data = answers.read(size)
    if len(data) < size:
        raise EOFError("the process that makes them ended")
    return data


def question(kind: MachineKind) -> bytes:
    """Return the bytes that ask the other process for a machine kind's figures."""
    text = msgspec.msgpack.encode(kind)
    return len(text).to_bytes(_HEAD) + text


if __name__ == "__main__":
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    serve(sys.stdin.buffer, sys.stdout.buffer)
