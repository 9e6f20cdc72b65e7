"""The files of ``gputopo serve``'s page: plain HTML, CSS and JavaScript, with the colours of all other pictures.

* ``index.html``: what there is before anything was read.
* ``page.css``: how it looks; ``palette.css`` is made from ``view.palette``.
* ``page.js``: keeps the pieces that the server tells, and the page's state.
* ``cluster.js``: zones and nodes.
* ``lists.js``: who waits, and what is shown as tables.
* ``icon.svg``: for the browser's tab.
"""

from __future__ import annotations

import functools
import hashlib
from importlib import resources
from typing import Final, NamedTuple

from dradriver.view.palette import page_css
from dradriver.view.svg_elements import FONT

_KINDS: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_PALETTE: Final = "palette.css"
FILES: Final = frozenset({"index.html", "page.css", _PALETTE, "page.js", "cluster.js", "lists.js", "icon.svg"})
_SERIES: Final = 256  # colours of holders of one node; there is a plain one for more


class File(NamedTuple):
    """A file: what it holds, of which kind that is, and a name of this content."""

    content: bytes
    kind: str
    etag: str


@functools.cache
def file(name: str) -> File:
    """Return one of ``FILES``."""
    if name == _PALETTE:
        content = (FONT + page_css(_SERIES)).encode()
    else:
        content = (resources.files(__package__) / name).read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:16]
    return File(content, _KINDS[name.rpartition(".")[2]], f'"{digest}"')
