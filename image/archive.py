"""One OCI archive of an image for several machines, from one for each."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final, cast

from tests.cluster.oci import qualified

_INDEX: Final = "application/vnd.oci.image.index.v1+json"


def merge(path: Path, archives: Sequence[Path], *, reference: str) -> None:
    """Write an archive whose one entry is an index of the images that these have, each with its platform.

    ``ctr images import`` takes the node's own of them, ``skopeo copy --all`` all.

    Args:
        path: The archive to write; it is replaced as a whole or not at all.
        archives: Archives of one image each, as ``write_oci_tar`` makes them.
        reference: The image's name and tag.

    Raises:
        OSError: One cannot be read, or the archive cannot be written.
    """
    fresh = path.with_name(path.name + ".new")
    with tarfile.open(fresh, "w", format=tarfile.PAX_FORMAT) as out:
        _add(out, "oci-layout", _bytes({"imageLayoutVersion": "1.0.0"}))
        manifests, written = [], set[str]()
        for archive in archives:
            with tarfile.open(archive) as tar:
                (manifest,) = _json(tar, "index.json")["manifests"]
                config = _json(tar, _blob(_json(tar, _blob(manifest["digest"]))["config"]["digest"]))
                platform = {key: config[key] for key in ("architecture", "os")}
                manifests.append(
                    {key: manifest[key] for key in ("mediaType", "digest", "size")} | {"platform": platform}
                )
                for member in tar:
                    if member.name.startswith("blobs/") and member.name not in written:
                        out.addfile(member, tar.extractfile(member))
                        written.add(member.name)
        index = _bytes({"schemaVersion": 2, "mediaType": _INDEX, "manifests": manifests})
        digest = "sha256:" + hashlib.sha256(index).hexdigest()
        names = {
            "io.containerd.image.name": qualified(reference),
            "org.opencontainers.image.ref.name": reference.rpartition(":")[2],
        }
        entry = {"mediaType": _INDEX, "digest": digest, "size": len(index), "annotations": names}
        _add(out, _blob(digest), index)
        _add(out, "index.json", _bytes({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [entry]}))
    fresh.replace(path)


def _blob(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _json(tar: tarfile.TarFile, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cast("IO[bytes]", tar.extractfile(name)).read())
    return found


def _bytes(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))
