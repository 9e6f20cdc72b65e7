"""The images every node has from the start: the one that holds a pod, and busybox for tests."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.cluster import oci
from tests.cluster.requirements import busybox
from tests.cluster.settings import BUSYBOX_IMAGE, PAUSE_IMAGE

_ENTRYPOINTS = {PAUSE_IMAGE: ["/bin/sleep", "infinity"], BUSYBOX_IMAGE: ["/bin/sh"]}


def test_images(folder: Path) -> list[Path]:
    """Returns the images' tars, written to `folder` unless they are there.

    Raises:
        OSError: The machine's busybox cannot be read, or the folder not be written.
    """
    source = busybox().read_bytes() + Path(oci.__file__).read_bytes() + repr(_ENTRYPOINTS).encode()
    version = hashlib.sha256(source).hexdigest()[:12]
    tars = []
    for reference, entrypoint in _ENTRYPOINTS.items():
        tar = folder / f"{reference.rpartition('/')[2].partition(':')[0]}-{version}.tar"
        if not tar.exists():
            oci.write_busybox_tar(tar, busybox=busybox(), reference=reference, entrypoint=entrypoint)
        tars.append(tar)
    return tars
