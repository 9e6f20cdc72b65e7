"""The guard of the page: it refuses other sites' pages and, on a shared machine, readers without the page's key.

A page of another site can make a browser send requests to this page (DNS rebinding): it resolves a name of its own to
this page's address. So the Host must be a known name of this page. If the browser reports the origin of a request
(Sec-Fetch-Site), the guard uses it.
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
    """The conditions that a request for the page must meet.

    Attributes:
        key: The secret that a reader must have; empty if all who reach the page may read it.
        cookie: The name of the cookie with the key. It is random, because a browser shares cookies among all ports
            of an address.
    """

    def __init__(self, hosts: Collection[str], *, with_key: bool) -> None:
        """Create the guard, and a key if one is required.

        Args:
            hosts: Host names of the page in addition to ``LOCAL``; ``ANY`` for all.
            with_key: Whether readers must have a key.
        """
        self.key = secrets.token_urlsafe(16) if with_key else ""
        self.cookie = f"gputopo-{secrets.token_hex(4)}"
        self._hosts = {host.lower() for host in hosts} | LOCAL

    def refusal(self, request: BaseRequest) -> Response | None:
        """Return the response to a request that the guard does not let through; None if it lets the request through.

        A request with the right key in its address gets a cookie and is redirected to the address without the key.
        Each other response refuses the request.
        """
        if request.method != aiohttp.hdrs.METH_GET:
            return _refuse(405, "this page accepts only GET requests", Allow="GET")
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
    """Return the name in a Host header for comparison: without port and brackets, in lower case."""
    name, bracket, _ = host.partition("]")
    name = name.removeprefix("[") if bracket else host.partition(":")[0]
    return name.lower()


def _same(given: str, key: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), key.encode())


def _refuse(status: int, why: str, **headers: str) -> Response:
    return Response(status=status, text=why + "\n", headers=HEADERS | headers)
