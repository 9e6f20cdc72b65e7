"""A TLS context whose certificate can be replaced while connections are open."""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator
from typing import Final

from prometheus_client import Gauge

ENDS: Final = Gauge(
    "gpu_topology_webhook_certificate_end_timestamp_seconds", "When the certificate that is served ends."
)


def server_context() -> ssl.SSLContext:
    """Return a TLS context without a certificate, for TLS 1.2 and newer.

    Handshakes fail until ``load`` was called.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def load(context: ssl.SSLContext, *, certificate: str, key: str) -> None:
    """Use this certificate for new TLS handshakes; open connections keep theirs.

    The pair is first loaded into a temporary context, so a bad pair does not change the context in use.

    Raises:
        ssl.SSLError: The certificate and key are damaged or do not belong together.
    """
    with _path(certificate + key) as path:
        server_context().load_cert_chain(path)
        context.load_cert_chain(path)
    from cryptography import x509  # 10 MB of memory that nothing else takes where certificates are mounted

    ENDS.set(x509.load_pem_x509_certificate(certificate.encode()).not_valid_after_utc.timestamp())


@contextlib.contextmanager
def _path(text: str) -> Iterator[str]:
    # The ssl module reads files only. One in memory (Linux) never writes the key to a disk, and needs no writable one.
    file = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(file, text.encode())
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)
