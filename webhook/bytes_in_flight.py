"""How many bytes of large request bodies the server holds at once, and how the senders' addresses share these bytes.

``server.Endpoint`` borrows the size of a large body before it reads the body on. As with connections
(``dradriver/process/server_connections.py``), the address that holds most gives way to one that waits and holds less.
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
    """Bytes that are lent out: first to the address that holds least, then to the body that is due first.

    A body is due after the time that it takes at ``RATE``, and after ``MOST_DELAY_S`` at the latest. So small bodies
    overtake large ones, and none waits forever.
    An address that sends alone can hold all bytes. If an address waits that holds less than another, the oldest loan of
    the address that holds most is revoked once its term is over. Loans of one address never revoke each other.

    Args:
        size: Most bytes lent at once; no single loan may be larger.
        term_s: Seconds for which a loan cannot be revoked.
    """

    def __init__(self, size: int, *, term_s: float = TERM_S) -> None:
        self._free, self._term_s = size, term_s
        self._waiting: list[_Loan] = []  # loans that wait for free bytes
        self._lent: dict[_Loan, None] = {}  # the oldest first
        self._held: collections.Counter[str] = collections.Counter()  # bytes by address
        self._timer: asyncio.TimerHandle | None = None  # the next look whether a loan's term is over

    def is_waited_for(self) -> bool:
        """Return whether a body waits for bytes in flight."""
        return bool(self._waiting)

    @contextlib.asynccontextmanager
    async def lent(self, size: int, *, address: str, revoke: Callable[[], None]) -> AsyncIterator[None]:
        """Wait until a body may have so many bytes in flight, and reserve them while the block runs.

        Args:
            size: Number of bytes.
            address: The sender's address. Addresses with fewer reserved bytes are served first.
            revoke: Makes the block end soon, because others wait; it may be called more than once.
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
