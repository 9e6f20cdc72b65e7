"""Which GPUs of a node may be had in parts: plain data, without numpy."""

from __future__ import annotations

from typing import Final

import msgspec


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What a node's GPUs are offered as, by the machine's own numbers; a GPU in none of these is whole or nothing.

    Attributes:
        shared: May be had in shares, several at a time.
        sliced: May be had in MIG slices, made where they are wanted.
        parts_only: Of these, those that are never had whole: MIG mode is on and only a reset would end it.
    """

    shared: frozenset[int] = frozenset()
    sliced: frozenset[int] = frozenset()
    parts_only: frozenset[int] = frozenset()


WHOLE: Final = Offer()
