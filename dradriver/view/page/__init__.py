"""The files of the page that ``gputopo serve`` shows: HTML, CSS and JavaScript without a framework.

The page has the same colours as all other pictures.

* ``index.html``: the page before any data is read.
* ``page.css``: the styles; ``palette.css`` is made from ``view.palette``.
* ``page.js``: keeps the data that the server sends, and the page's state.
* ``cluster.js``: zones and nodes.
* ``lists.js``: waiting workloads, and everything that is shown as tables.
* ``icon.svg``: the icon for the browser's tab.
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
_SERIES: Final = 256  # colours of pods of one node; there is a plain one for more


class File(NamedTuple):
    """A file of the page: its content, its media type, and the ETag by which browsers cache this content."""

    content: bytes
    kind: str
    etag: str


@functools.cache
def file(name: str) -> File:
    """Return one of the page's files by its name in ``FILES``."""
    if name == _PALETTE:
        content = (FONT + page_css(_SERIES)).encode()
    else:
        content = (resources.files(__package__) / name).read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:16]
    return File(content, _KINDS[name.rpartition(".")[2]], f'"{digest}"')
