"""Certificates from files that somebody else renews: a mounted Secret of cert-manager's or of the user's own."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Final

from webhook import tls

logger = logging.getLogger(__name__)

PERIOD_S: Final = 10.0


class Mounted:
    """Serves ``tls.crt`` and ``tls.key`` of a folder, and serves them anew when they change.

    The kubelet replaces the files of a mounted Secret behind a symbolic link, so that between two reads they may be of
    two versions: a pair that does not fit is left for the next look.
    """

    def __init__(self, folder: Path, *, context: ssl.SSLContext) -> None:
        self._folder = folder
        self._context = context
        self._loaded: tuple[str, str] | None = None

    def ready(self) -> bool:
        """True once a certificate is served."""
        return self._loaded is not None

    async def run(self) -> None:
        """Run ``step`` every few seconds for ever; an error is logged when it is another than the one before."""
        last = ""
        while True:
            try:
                self.step()
                last = ""
            except (OSError, UnicodeDecodeError) as error:
                if str(error) != last:
                    logger.warning("certificates in %s: %s", self._folder, error)
                last = str(error)
            await asyncio.sleep(PERIOD_S)

    def step(self) -> None:
        """Serve what the files hold, where it is not served yet.

        Raises:
            OSError: A file cannot be read, or the pair is damaged (``ssl.SSLError``); what was served goes on.
            UnicodeDecodeError: A file is no text.
        """
        pair = (self._folder / "tls.crt").read_text("ascii"), (self._folder / "tls.key").read_text("ascii")
        if pair != self._loaded:
            tls.load(self._context, certificate=pair[0] + "\n", key=pair[1])
            self._loaded = pair
            logger.info("serving the certificate in %s", self._folder)
