"""Imports aiohttp without loading the system's certificates.

On import, aiohttp makes a TLS context and reads all system certificates into it. That costs 2 MB in every process, and
20 ms at its start. This driver does not need them, because API servers have their own CA. A context that is made later
(``ServerConfig.ssl_context``) can still load them.
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
