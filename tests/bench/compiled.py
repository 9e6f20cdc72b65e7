"""Processes that find every module compiled, as in the image: half a second and 15 MiB less."""

from __future__ import annotations

import functools
import os
import tempfile


def environment() -> dict[str, str]:
    """Return this process's environment, for processes of which the first compiles for those after it."""
    own = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return own | {"PYTHONPYCACHEPREFIX": _folder().name}


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for as long as this process lives."""
    return tempfile.TemporaryDirectory(prefix="pyc-")
