"""The GPUs that a node lost: an annotation of the node's first ResourceSlice.

All slices of a node are a *pool*. A lost GPU is not a device any more, so it has no entry in the slices. The node agent
writes the annotation, and reads it after a restart. ``gputopo`` and its page show it. ``read`` checks each entry
separately, for two reasons: everyone who may write slices can write any text, and an agent of an older release keeps
the annotation unchanged.
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
    """A GPU that was on the node and has disappeared.

    Attributes:
        index: Its number on the node, which it keeps.
        pci: Its address on the PCI bus; empty if that is not known.
        uuid: Its UUID.
        since: When the node agent first saw that it was lost, in whole seconds since 1970. 0 if that is not known:
            older releases did not write it.
    """

    index: int
    pci: str
    uuid: str
    since: int = 0

    @property
    def described(self) -> str:
        """Return index, PCI address and UUID of a lost GPU, as text for people."""
        return f"GPU{self.index} ({', '.join(filter(None, (self.pci, self.uuid)))})"


_ENTRIES: Final = msgspec.json.Decoder(list[msgspec.Raw])
_ENTRY: Final = msgspec.json.Decoder(LostGpu)


def _is_sound(gpu: LostGpu) -> bool:
    return 0 <= gpu.index < _MOST and gpu.since >= 0 and max(map(len, (gpu.pci, gpu.uuid))) <= _LONGEST


def of(gpu: Gpu) -> LostGpu:
    """Return the entry for a GPU that the node has lost, from the GPU's last known data."""
    return LostGpu(gpu.index, gpu.pci, gpu.uuid)


def note(pool: Sequence[dict[str, Any]], lost: Iterable[LostGpu]) -> None:
    """Write the lost GPUs into the annotation of a pool's first slice.

    If there are no lost GPUs, the slice is not changed.
    """
    entries = sorted(lost)[:_MOST]
    if pool and entries:
        pool[0]["metadata"]["annotations"][names.LOST_GPUS] = msgspec.json.encode(entries).decode()


def read(pool: Iterable[ResourceSlice], machine: Machine | None) -> tuple[LostGpu, ...]:
    """Return the lost GPUs in the slices of one generation of a pool, each once, by index.

    Args:
        pool: The slices.
        machine: The node's machine; None if it is not known. A GPU of the machine is never returned, even if a slice
            lists it as lost.

    Returns:
        The entries that can be read and are within bounds. Empty if the whole text cannot be read.
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
