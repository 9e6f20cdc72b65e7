"""Writes a container image as an OCI layout tar, with the standard library alone.

One folder becomes one uncompressed layer. The result depends on the folder's
content only: entries are sorted, times are zero, everything belongs to root.
"""

import hashlib
import io
import json
import os
import platform
import shutil
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_oci_tar(
    path: Path,
    *,
    reference: str,
    rootfs: Path,
    entrypoint: Sequence[str],
    cmd: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    user: str = "",
    workdir: str = "/",
    labels: Mapping[str, str] | None = None,
    machine: str = "",
) -> None:
    """Writes `rootfs` as the image `reference` to the tar file `path`.

    Modes, symbolic links and hard links are kept; owners and times are not.

    Args:
        path: The tar to write; it is replaced as a whole or not at all.
        reference: The image's full name, `registry/name:tag`. A runtime looks
            for `docker.io/library/x:tag` when a pod says `x:tag`, see `qualified`.
        rootfs: The folder that becomes the image's root.
        entrypoint: The command.
        cmd: Its default arguments.
        env: The environment.
        user: `uid`, `uid:gid` or a name; empty means root.
        workdir: The working folder.
        labels: The image's labels.
        machine: What it runs on, as uname says it; this machine by default.

    Raises:
        OSError: The folder cannot be read or the tar cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".oci-") as folder:
        layer = Path(folder) / "layer"
        with layer.open("w+b") as out:
            _write_layer(out, rootfs)
            layer_digest = _digest(out)
        settings: dict[str, object] = {
            "Entrypoint": list(entrypoint),
            "Cmd": list(cmd),
            "Env": [f"{key}={value}" for key, value in sorted((env or {}).items())],
            "User": user,
            "WorkingDir": workdir,
            "Labels": dict(labels or {}),
        }
        config = _json(
            {
                "architecture": _ARCHITECTURES.get(machine or platform.machine(), machine or platform.machine()),
                "os": "linux",
                "config": {key: value for key, value in settings.items() if value},
                "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
            }
        )
        manifest = _json(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": _descriptor(_CONFIG, config),
                "layers": [{"mediaType": _LAYER, "digest": layer_digest, "size": layer.stat().st_size}],
            }
        )
        index = _json(
            {
                "schemaVersion": 2,
                "mediaType": _INDEX,
                "manifests": [
                    {
                        **_descriptor(_MANIFEST, manifest),
                        "annotations": {
                            "io.containerd.image.name": qualified(reference),
                            "org.opencontainers.image.ref.name": reference.rpartition(":")[2],
                        },
                    }
                ],
            }
        )
        image = Path(folder) / "image"
        with tarfile.open(image, "w", format=tarfile.PAX_FORMAT) as tar:
            _add_bytes(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
            _add_bytes(tar, "index.json", index)
            for blob in (config, manifest):
                _add_bytes(tar, _blob_name(_sha256(blob)), blob)
            with layer.open("rb") as data:
                entry = _entry(_blob_name(layer_digest))
                entry.size = layer.stat().st_size
                tar.addfile(entry, data)
        image.replace(path)


def qualified(reference: str) -> str:
    """Returns the full name a runtime uses for a short image name.

    `busybox:1` becomes `docker.io/library/busybox:1`, `a/b:1` becomes
    `docker.io/a/b:1`; a name that starts with a host stays as it is.
    """
    if ":" not in reference.rpartition("/")[2]:
        reference += ":latest"
    host, slash, _ = reference.partition("/")
    if slash and ("." in host or ":" in host or host == "localhost"):
        return reference
    return f"docker.io/{reference}" if slash else f"docker.io/library/{reference}"


def write_busybox_tar(path: Path, *, busybox: Path, reference: str, entrypoint: Sequence[str]) -> None:
    """Writes an image that holds a static busybox and links for all its programs.

    Args:
        path: The tar to write.
        busybox: The static binary.
        reference: The image's name.
        entrypoint: The command.

    Raises:
        OSError: A file cannot be read or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".rootfs-") as folder:
        rootfs = Path(folder)
        rootfs.chmod(0o755)
        for name in ("bin", "dev", "etc", "proc", "root", "sys", "tmp", "var/run"):
            (rootfs / name).mkdir(parents=True)
        (rootfs / "tmp").chmod(0o1777)
        (rootfs / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (rootfs / "etc/group").write_text("root:x:0:\n")
        shutil.copy(busybox, rootfs / "bin/busybox")
        (rootfs / "bin/busybox").chmod(0o755)
        for name in _BUSYBOX_PROGRAMS.split():
            (rootfs / "bin" / name).symlink_to("busybox")
        write_oci_tar(
            path,
            reference=reference,
            rootfs=rootfs,
            entrypoint=entrypoint,
            env={"PATH": "/bin"},
        )


# A fixed list: asking the binary itself would need a machine that can run it.
# Without wget: in Debian's static build it crashes.
_BUSYBOX_PROGRAMS = (
    "[ ash awk base64 basename cat chmod cp cut date dd df dirname du echo env expr false find "
    "grep head hostname httpd id ip kill killall ls md5sum mkdir mkfifo mknod mount mv nc nslookup "
    "ping printf ps pwd readlink rm rmdir sed seq sh sha256sum sleep sort stat stty tail tar tee "
    "test time timeout touch tr true umount uname uniq vi wc which xargs yes"
)


def _write_layer(out: IO[bytes], rootfs: Path) -> None:
    first_name: dict[tuple[int, int], str] = {}
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for item in _walk(rootfs):
            name = item.relative_to(rootfs).as_posix()
            entry = tar.gettarinfo(item, arcname=name)
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = 0
            if entry.islnk() or entry.isreg():
                # gettarinfo links to paths it saw by inode; make that
                # independent of files linked from outside the folder.
                status = item.lstat()
                earlier = first_name.setdefault((status.st_dev, status.st_ino), name)
                if earlier != name:
                    entry.type, entry.linkname, entry.size = tarfile.LNKTYPE, earlier, 0
                else:
                    entry.type, entry.linkname, entry.size = tarfile.REGTYPE, "", status.st_size
            if entry.isreg():
                with item.open("rb") as data:
                    tar.addfile(entry, data)
            else:
                tar.addfile(entry)


def _walk(folder: Path) -> list[Path]:
    found = []
    for parent, folders, files in os.walk(folder):
        found += [Path(parent) / name for name in folders + files]
    return sorted(found, key=lambda item: item.relative_to(folder).parts)


def _entry(name: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.mode = 0o644
    return entry


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = _entry(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


def _descriptor(media_type: str, data: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _sha256(data), "size": len(data)}


def _blob_name(digest: str) -> str:
    return "blobs/sha256/" + digest.partition(":")[2]


def _sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _digest(out: IO[bytes]) -> str:
    out.seek(0)
    # file_digest wants a reader with readinto, which a w+b file is.
    return "sha256:" + hashlib.file_digest(out, "sha256").hexdigest()  # type: ignore[arg-type]


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
