"""The GPUs that a node lost: an annotation of its first ResourceSlice, because a lost GPU is no device any more.

The node agent writes it, and reads it after a restart. ``gputopo`` and its page show it. Whoever may write slices may
write anything into it, and an agent of an older release leaves it as it is, so ``read`` checks each entry by itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from dradriver.api.base import names
from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.topology.machine import Gpu, Machine

_MOST: Final = 128  # GPUs of a node (``resource_slices.MOST_GPUS``)
_LONGEST: Final = 64  # characters of an address and of a UUID; they have 40 at most


class LostGpu(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """A GPU that was on the node and is not there any more.

    Attributes:
        index: Its number on the node, which it keeps.
        pci: Its address on the PCI bus; empty if that is not known.
        uuid: Its UUID.
        since: When it was first seen to be lost, in whole seconds since 1970. 0 if that is not known: older releases
            did not write it.
    """

    index: int
    pci: str
    uuid: str
    since: int = 0

    @property
    def described(self) -> str:
        """Return index, PCI address and UUID of a lost GPU, in words."""
        return f"GPU{self.index} ({', '.join(filter(None, (self.pci, self.uuid)))})"


_ENTRIES: Final = msgspec.json.Decoder(list[msgspec.Raw])
_ENTRY: Final = msgspec.json.Decoder(LostGpu)


def _is_sound(gpu: LostGpu) -> bool:
    return 0 <= gpu.index < _MOST and gpu.since >= 0 and max(map(len, (gpu.pci, gpu.uuid))) <= _LONGEST


def of(gpu: Gpu) -> LostGpu:
    """Return a lost GPU, made from the GPU as it was last seen."""
    return LostGpu(gpu.index, gpu.pci, gpu.uuid)


def note(pool: Sequence[dict[str, Any]], lost: Iterable[LostGpu]) -> None:
    """Write the lost GPUs into the annotation of a pool's first slice; none leave it as it is."""
    entries = sorted(lost)[:_MOST]
    if pool and entries:
        pool[0]["metadata"]["annotations"][names.LOST_GPUS] = msgspec.json.encode(entries).decode()


def read(pool: Iterable[ResourceSlice], machine: Machine | None) -> tuple[LostGpu, ...]:
    """Return the lost GPUs that slices of one generation of a pool name, each once, by index.

    Args:
        pool: The slices.
        machine: The node's. GPUs that it has are not lost, whatever the slices say. None if it is not known.

    Returns:
        The entries that can be read and are within bounds; no entry if the whole text cannot be read.
    """
    texts = (piece.metadata.annotations.get(names.LOST_GPUS) for piece in pool)
    text = next((annotation for annotation in texts if annotation is not None), "[]")
    try:
        entries = _ENTRIES.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return ()
    present = set() if machine is None else {gpu.uuid for gpu in machine.gpus}
    lost: dict[str, LostGpu] = {}
    for entry in entries:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            gpu = _ENTRY.decode(entry)
            if _is_sound(gpu) and gpu.uuid not in present:
                lost.setdefault(gpu.uuid, gpu)
    return tuple(sorted(lost.values())[:_MOST])
