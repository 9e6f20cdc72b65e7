"""The GPUs that a node lost: an annotation of its first ResourceSlice, because a lost GPU is no device any more.

The node agent writes it, and reads it after a restart. ``gputopo`` and its page show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from dradriver.api import names
from dradriver.api.dra_objects import ResourceSlice
from dradriver.topology.machine import Gpu

_MOST: Final = 128  # GPUs of a node (``slices.MOST_GPUS``)


class LostGpu(msgspec.Struct, frozen=True, order=True):
    """A GPU that was on the node and is not there any more.

    Attributes:
        index: Its number on the node before it was lost; the numbers of others shift then.
        pci: Its address on the PCI bus; empty if that is not known.
        uuid: Its UUID.
    """

    index: int
    pci: str
    uuid: str

    @property
    def described(self) -> str:
        """Index, PCI address and UUID, in words."""
        return f"GPU{self.index} ({', '.join(filter(None, (self.pci, self.uuid)))})"


_ENTRIES: Final = msgspec.json.Decoder(list[LostGpu])


def of(gpu: Gpu) -> LostGpu:
    """Return a GPU, as it was last seen, as a lost one."""
    return LostGpu(gpu.index, gpu.pci, gpu.uuid)


def note(pool: Sequence[dict[str, Any]], lost: Iterable[LostGpu]) -> None:
    """Write the lost GPUs into the annotations of a pool's first slice; none of them leaves it as it is."""
    entries = sorted(lost)[:_MOST]
    if pool and entries:
        pool[0]["metadata"]["annotations"][names.LOST_GPUS] = msgspec.json.encode(entries).decode()


def read(pool: Iterable[ResourceSlice]) -> tuple[LostGpu, ...]:
    """Return the lost GPUs that slices of one generation of a pool name; none if the text cannot be read."""
    texts = (piece.metadata.annotations.get(names.LOST_GPUS) for piece in pool)
    text = next((one for one in texts if one is not None), "[]")
    try:
        return tuple(sorted(_ENTRIES.decode(text))[:_MOST])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return ()
