"""Certificates from files that somebody else renews: a mounted Secret of cert-manager's or of the user's own."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from dradriver.process.replaced_files import Followed
from webhook import tls

logger = logging.getLogger(__name__)


class Mounted(Followed):
    """Serves ``tls.crt`` and ``tls.key`` of a folder, and serves them anew when they change."""

    def __init__(self, folder: Path, *, context: ssl.SSLContext) -> None:
        super().__init__(folder / "tls.crt", folder / "tls.key", what=f"certificates in {folder}")
        self._folder = folder
        self._context = context

    def ready(self) -> bool:
        """Return whether a mounted certificate is served."""
        return self._taken is not None

    def take(self, contents: tuple[bytes, ...]) -> None:
        """Serve the mounted certificate with its key.

        Raises:
            OSError: The pair is damaged, or of two versions (``ssl.SSLError``); what was served goes on.
            UnicodeDecodeError: A file is no text.
        """
        certificate, key = (content.decode("ascii") for content in contents)
        tls.load(self._context, certificate=certificate + "\n", key=key)
        logger.info("serving the certificate in %s", self._folder)
