"""aiohttp without the system's certificates, which no process here asks for: API servers have a CA of their own.

aiohttp makes a TLS context of its own while it is imported and reads all of them into it: 2 MB of every process, and
20 ms of its start. A context that somebody makes later (``ServerConfig.ssl_context``) finds them as ever.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_PLACES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")  # OpenSSL's words for the system's, SSL_CTX_set_default_verify_paths


@contextmanager
def _without_certificates() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _PLACES}
    os.environ.update(dict.fromkeys(_PLACES, os.devnull))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


with _without_certificates():
    import aiohttp

__all__ = ["aiohttp"]
