"""Serves a certificate from files that another program renews: a Secret of cert-manager or of the user."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from dradriver.process.replaced_files import Followed
from webhook import tls

logger = logging.getLogger(__name__)


class Mounted(Followed):
    """Serves ``tls.crt`` and ``tls.key`` of a folder, and loads them again when they change."""

    def __init__(self, folder: Path, *, context: ssl.SSLContext) -> None:
        super().__init__(folder / "tls.crt", folder / "tls.key", what=f"certificates in {folder}")
        self._folder = folder
        self._context = context

    def ready(self) -> bool:
        """Return whether a certificate from the mounted files is served, so that requests can be answered."""
        return self._taken is not None

    def take(self, contents: tuple[bytes, ...]) -> None:
        """Serve this mounted certificate and key from now on.

        Args:
            contents: The contents of the certificate's file and the key's file.

        Raises:
            OSError: The pair is damaged, or of two versions (``ssl.SSLError``); the server continues with its present
                pair.
            UnicodeDecodeError: A file is not text.
        """
        certificate, key = (content.decode("ascii") for content in contents)
        tls.load(self._context, certificate=certificate + "\n", key=key)
        logger.info("serving the certificate in %s", self._folder)
