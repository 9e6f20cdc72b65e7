"""Limits how many bytes of large request bodies the server holds at once, and shares them among the senders.

``server.Endpoint`` calls it. A *loan* is the right of one body to use some of these bytes. When a body turns out to be
large, the endpoint first borrows as many bytes as the body has. Then it reads the remaining bytes of the body. As with
connections (``dradriver/process/server_connections.py``), an address that waits takes bytes from the address that holds
most.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final

from webhook.body import RATE

# For so many seconds small bodies overtake a large one. A request times out after ``server.WAIT_S``, and a large body
# gets its loan a term or two after it is due.
MOST_DELAY_S: Final = 1.0
TERM_S: Final = 0.5  # no loan is revoked before; an API server sends the largest body in a fifth of that


@dataclass(eq=False, slots=True)
class _Loan:
    address: str
    size: int
    revoke: Callable[[], None]
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    due: float = 0.0  # by the loop's clock, as the next
    term_end: float = 0.0


class Budget:
    """Lends bytes to bodies: first to the address with the fewest bytes.

    Among addresses with the same number of bytes, the body that is due first gets its bytes first. A body is due after
    the time that its bytes take at the speed ``RATE``, and after ``MOST_DELAY_S`` seconds at the latest. So small
    bodies overtake large ones, and no body waits forever.

    An address that sends alone can hold all bytes. If another address that holds less must wait, the address that holds
    most loses its oldest loan. A loan is not revoked before its term is over. Loans of one address never revoke each
    other.

    Args:
        size: How many bytes can be lent at once. No single loan can be larger.
        term_s: Seconds for which a loan cannot be revoked.
    """

    def __init__(self, size: int, *, term_s: float = TERM_S) -> None:
        self._free, self._term_s = size, term_s
        self._waiting: list[_Loan] = []  # loans that wait for free bytes
        self._lent: dict[_Loan, None] = {}  # the oldest first
        self._held: collections.Counter[str] = collections.Counter()  # bytes by address
        self._timer: asyncio.TimerHandle | None = None  # the next look whether a loan's term is over

    def is_waited_for(self) -> bool:
        """Return whether a body waits because too few bytes are left to borrow."""
        return bool(self._waiting)

    @contextlib.asynccontextmanager
    async def lent(self, size: int, *, address: str, revoke: Callable[[], None]) -> AsyncIterator[None]:
        """Wait until a body can borrow bytes, and reserve them while the ``async with`` block runs.

        Args:
            size: Number of bytes.
            address: The sender's address. Addresses with fewer reserved bytes are served first.
            revoke: Called if other addresses wait for these bytes. The function must make the ``async with`` block end
                soon. It can be called more than once.
        """
        due = asyncio.get_running_loop().time() + min(size / RATE, MOST_DELAY_S)
        loan = _Loan(address, size, revoke, due=due)
        # ``_lend`` gives bytes to loans in their order, and then sets their ``turn``.
        self._waiting.append(loan)
        self._lend()
        try:
            await loan.turn
            yield
        finally:
            # The block has ended: give the bytes back. Or the wait was cancelled.
            if loan in self._lent:
                del self._lent[loan]
                self._free += size
                self._held[address] -= size
                if not self._held[address]:
                    del self._held[address]
            else:
                self._waiting.remove(loan)
            self._lend()

    def _lend(self) -> None:
        while self._waiting:
            first = min(self._waiting, key=lambda loan: (self._held[loan.address], loan.due))
            if first.size > self._free:
                break
            self._waiting.remove(first)
            self._lent[first] = None
            self._free -= first.size
            self._held[first.address] += first.size
            first.term_end = asyncio.get_running_loop().time() + self._term_s
            if not first.turn.done():  # else cancelled: its block gives the bytes back in a moment
                first.turn.set_result(None)
        else:
            self._stop_timer()
            return
        self._revoke_for(first)

    def _revoke_for(self, first: _Loan) -> None:
        self._stop_timer()
        larger = [loan for loan in self._lent if self._held[loan.address] > self._held[first.address]]
        if not larger:
            return
        oldest = max(larger, key=lambda loan: self._held[loan.address])
        loop = asyncio.get_running_loop()
        if oldest.term_end <= loop.time():
            oldest.revoke()
        else:
            self._timer = loop.call_at(oldest.term_end, self._lend)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
