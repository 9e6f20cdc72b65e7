"""What is costly to know of a kind of machine, so that another process can compute it: ``python -m`` this module.

A machine of 16 GPUs with links of all widths takes seconds, and whoever may publish a machine can describe another one
every second. That process reads kinds from its standard input and answers each on its standard output, until the input
ends or it is killed; it keeps nothing and can be started anew at any time.
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
    """What figures depend on, without the machine's names and numbering.

    Attributes:
        shape: In its canonical numbering.
        profiles: The different lists of MIG profiles that its GPUs have.
    """

    shape: Shape
    profiles: tuple[Profiles, ...]


def kind_of(machine: Machine) -> MachineKind | None:
    """Return the kind of a machine, by which tables are computed; None if it has more GPUs than tables hold."""
    if len(machine.gpus) > tables.MAX_GPUS:
        return None
    bare = without_uuids(machine)
    return MachineKind(canonical(shape_of(bare))[0], layouts.kinds(bare))


def known(machine: Machine) -> bool:
    """Return whether all costly tables of a machine's kind are computed, so that a fleet can add it at once."""
    if len(machine.gpus) > tables.MAX_GPUS:
        return True  # it refuses it
    bare = without_uuids(machine)
    return tables.known(shape_of(bare)) and all(map(layouts.known, layouts.kinds(bare)))


def computed(kind: MachineKind) -> Iterator[bytes]:
    """Yield the costly tables of a kind of machine as messages for ``keep`` of 3 MB at most, in their order."""
    yield pickle.dumps(facts.Facts(kind.shape))
    for profiles in kind.profiles:
        yield pickle.dumps(layouts.layout_of(profiles))


def keep(kind: MachineKind, part: int, message: bytes) -> None:
    """Store tables of a kind of machine that another process computed: the message of number ``part``, from 0."""
    figures = pickle.loads(message)  # noqa: S301  # our own code's, from a pipe that nobody else holds
    if part == 0:
        facts.keep(kind.shape, figures)
    else:
        layouts.keep(kind.profiles[part - 1], figures)


def serve(asked: IO[bytes], answers: IO[bytes]) -> None:
    """Answer kinds of machines until the input ends: read each, compute its costly tables, write them as messages."""
    while head := asked.read(_HEAD):
        kind = msgspec.msgpack.decode(asked.read(int.from_bytes(head)), type=MachineKind)
        for message in (*computed(kind), _END):
            answers.write(len(message).to_bytes(_HEAD))
            answers.write(message)
        answers.flush()


def answer(answers: IO[bytes]) -> Iterator[bytes]:
    """Yield the messages with the costly tables of a kind of machine that another process computed.

    Raises:
        EOFError: The answer ends before its end, or is none.
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
    """Return the bytes by which another process is asked for the costly tables of a kind of machine."""
    text = msgspec.msgpack.encode(kind)
    return len(text).to_bytes(_HEAD) + text


if __name__ == "__main__":
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    serve(sys.stdin.buffer, sys.stdout.buffer)
