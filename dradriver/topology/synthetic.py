"""Synthetic identifiers of GPUs: profiles and topo -m texts carry no uuids."""

from __future__ import annotations

import hashlib


def synthetic_uuid(name: str, index: int, *, seed: str = "") -> str:
    """Return a made-up GPU identifier, ``GPU-`` and a UUID, that depends only on the arguments.

    ``name`` is the machine's, ``index`` the GPU's number. ``seed`` is a text that differs between machines of the same
    name.
    """
    digest = hashlib.sha256("\0".join((name, seed, str(index))).encode("utf-8", "replace"))
    text = digest.hexdigest()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"
