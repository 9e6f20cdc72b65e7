"""Which GPUs of a node may be had in parts: plain data, without numpy."""

from __future__ import annotations

from typing import Final

import msgspec


class ShareRule(msgspec.Struct, frozen=True):
    """How a GPU is shared, where it is not simply as much as there is, in shares of any size.

    Attributes:
        memory_mib: How much memory all shares together may have, in MiB; 0 for as much as there is. One share has never
            more than there is.
        equal: How many shares there are, all of one size; 0 where each has a size of its own.
    """

    memory_mib: int = 0
    equal: int = 0


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What a node's GPUs are offered as, by the machine's own numbers; a GPU in none of these is whole or nothing.

    Attributes:
        shared: May be had in shares, several at a time.
        sliced: May be had in MIG slices, made where they are wanted.
        parts_only: The GPUs among these that are never handed out whole: MIG mode is on and only a reset would end it.
        rules: How some of them are shared, by number, ascending.
        tenants: Who alone may have more parts of some that have parts on them, by number, ascending: any numbers but 0,
            as ``Fleet.rank`` is given them.
    """

    shared: frozenset[int] = frozenset()
    sliced: frozenset[int] = frozenset()
    parts_only: frozenset[int] = frozenset()
    rules: tuple[tuple[int, ShareRule], ...] = ()
    tenants: tuple[tuple[int, int], ...] = ()


WHOLE: Final = Offer()
