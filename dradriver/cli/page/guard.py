"""The guard of the page: it refuses other sites' pages and, on a shared machine, readers without the page's key.

A page of another site can make a browser ask any address, under a name of its own that it lets point there (DNS
rebinding): so the Host must be one that this page is known by. What a browser says of where a request comes from
(Sec-Fetch-Site) is believed where it says that.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection
from typing import Final

from dradriver.kube.http import aiohttp
from dradriver.view.terminal_text import plain

# isort: split
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response

LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})
ANY: Final = "*"
_LONGEST: Final = 255  # of a Host

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
    "Server": "gputopo",
}


class Guard:
    """What a request must have.

    Attributes:
        key: What a reader must have been told; empty where everybody may read who reaches the page.
        cookie: The name of the cookie that holds it: cookies of all ports of an address are in one jar.
    """

    def __init__(self, hosts: Collection[str], *, with_key: bool) -> None:
        """Make one.

        Args:
            hosts: Names by which the page is known beside this machine's own; ``ANY`` for all.
            with_key: Whether readers must know a key.
        """
        self.key = secrets.token_urlsafe(16) if with_key else ""
        self.cookie = f"gputopo-{secrets.token_hex(4)}"
        self._hosts = {host.lower() for host in hosts} | LOCAL

    def refusal(self, request: BaseRequest) -> Response | None:
        """Return the answer to a request for the page that the guard refuses; None for a request that it lets pass."""
        if request.method != aiohttp.hdrs.METH_GET:
            return _refuse(405, "this page is only read", Allow="GET")
        host = name_of(request.headers.get(aiohttp.hdrs.HOST, ""))
        if ANY not in self._hosts and host not in self._hosts:
            return _refuse(
                421,
                f"this page is not known as {plain(host[:_LONGEST])!r}: serve it with --host {plain(host[:_LONGEST])}",
            )
        site = request.headers.get("Sec-Fetch-Site", "none")
        if site not in ("none", "same-origin") and request.headers.get("Sec-Fetch-Mode") != "navigate":
            return _refuse(403, "another site's page may not read this one")
        return self._unlock(request) if self.key else None

    def _unlock(self, request: BaseRequest) -> Response | None:
        if _same(request.cookies.get(self.cookie, ""), self.key):
            return None
        if _same(request.query.get("key", ""), self.key):
            answer = Response(status=303, headers=HEADERS | {"Location": "./"})
            # Lax: whoever follows the link on another site is let in; of what such a site's page asks for, Strict would
            # keep off no more than Sec-Fetch-Site does, and nothing here changes anything.
            answer.set_cookie(self.cookie, self.key, httponly=True, samesite="Lax")
            return answer
        return _refuse(401, "open the address that gputopo serve printed: its key lets you read this page")


def name_of(host: str) -> str:
    """Return the name in a request's Host header as the guard compares it: no port, no brackets, lower case."""
    name, bracket, _ = host.partition("]")
    name = name.removeprefix("[") if bracket else host.partition(":")[0]
    return name.lower()


def _same(given: str, key: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), key.encode())


def _refuse(status: int, why: str, **headers: str) -> Response:
    return Response(status=status, text=why + "\n", headers=HEADERS | headers)
