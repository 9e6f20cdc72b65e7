"""Which GPUs a container can be given: those that the NVIDIA Container Toolkit's CDI specification names."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

KIND: Final = "nvidia.com/gpu"
_MOST_BYTES: Final = 4 << 20  # one of eight GPUs with all MIG devices has 200 KB
# YAML or JSON: the form of these two fields tells enough, and reading it all takes a hundred times as long.
_KIND: Final = re.compile(rf"""\bkind["']?\s*:\s*["']?{re.escape(KIND)}["'\s,}}]""")
_NAME: Final = re.compile(r"""\bname["']?\s*:\s*["']?(GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b""")


def cdi_id(uuid: str) -> str:
    """Return the fully qualified CDI id of a GPU, which brings its device node and the driver's libraries."""
    return f"{KIND}={uuid}"


def named(folders: Iterable[Path]) -> frozenset[str]:
    """Return the uuids of the GPUs that specifications in the folders name; what cannot be read names none."""
    found: set[str] = set()
    for folder in folders:
        with contextlib.suppress(OSError):
            for path in sorted(folder.iterdir()):
                if path.suffix in (".json", ".yaml", ".yml"):
                    found |= _named(path)
    return frozenset(found)


def _named(path: Path) -> set[str]:
    with contextlib.suppress(OSError), path.open("rb") as file:
        text = file.read(_MOST_BYTES).decode("utf-8", "replace")
        return set(_NAME.findall(text)) if _KIND.search(text) else set()
    return set()
