"""Ports that a server of a test is told to take."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def kept_port() -> Iterator[int]:
    """A port for one server; bound as long as this lasts, so that the kernel gives it to nothing else meanwhile.

    Bound on every address: a port that is free on one may be taken on another, and most servers listen on all.
    """
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("0.0.0.0", 0))
        yield int(kept.getsockname()[1])
