"""The agent's look at a machine, in a pod's mounts: run by ``host.py`` in a mount namespace of its own.

It reads from its input which host, and what the chart says of the pod; it prints the uuids of the published GPUs.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

from dradriver.node.vendors.nvidia.discovery.driver_root import inside

Object = dict[str, Any]
_MOUNTS = ("dev", "dev/shm", "run")  # what is mounted on a host, so that a read-only mount of its root is none of these
_SYSTEM = ("bin", "etc", "lib", "lib64", "opt", "proc", "sbin", "usr")


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", *map(str, words)], check=True, timeout=30)


def bind(source: Path, at: Path, *, read_only: bool = False) -> None:
    at.mkdir(parents=True, exist_ok=True)
    mount("--rbind", source, at)
    if read_only:
        mount("-o", "remount,bind,ro", at)


def lay(host: Path, pod: Path, keep: list[str], toolkit: Path, spec: Object) -> None:
    """Make the pod's root: this machine's system and the image's toolkit for an image, and the container's volumes."""
    for name in _MOUNTS:
        bind(host / name, host / name)
    pod.mkdir(exist_ok=True)
    mount("-t", "tmpfs", "pod", pod)
    for name in _SYSTEM:
        if Path("/", name).is_symlink():
            (pod / name).symlink_to(os.readlink(f"/{name}"))
        elif Path("/", name).is_dir():
            bind(Path("/", name), pod / name)
    for name in ("sys", "proc/driver"):  # what the kernel says there it says in every container
        if (host / name).is_dir():
            bind(host / name, pod / name)
    for path in keep:
        bind(Path(path), pod / path.lstrip("/"))
    bind(toolkit, pod / "app/toolkit")
    (pod / "dev").mkdir()
    for name, minor in (("null", 3), ("zero", 5), ("random", 8), ("urandom", 9)):
        os.mknod(pod / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(1, minor))
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    (container,) = spec["containers"]
    for one in container["volumeMounts"]:
        at, volume = pod / one["mountPath"].lstrip("/"), volumes[one["name"]]
        if "hostPath" not in volume:
            at.mkdir(parents=True, exist_ok=True)
            mount("-t", "tmpfs", one["name"], at)
            continue
        source = inside(host, volume["hostPath"]["path"])
        assert source is not None
        source.mkdir(parents=True, exist_ok=True)
        bind(source, at, read_only=one.get("readOnly", False))
    if container["securityContext"]["readOnlyRootFilesystem"]:
        mount("-o", "remount,ro", pod)


def main() -> None:
    wanted = json.load(sys.stdin)
    lay(Path(wanted["host"]), Path(wanted["pod"]), wanted["keep"], Path(wanted["toolkit"]), wanted["spec"])
    os.chroot(wanted["pod"])
    os.chdir("/")

    import logging

    from dradriver.node import hardware
    from dradriver.node.agent_options import parse

    logging.basicConfig(level=logging.INFO)
    words = wanted["spec"]["containers"][0]["args"]
    options: Any = parse(words[2:])  # after ``dradriver node``
    discovery = hardware.backend(options, lambda: None).discovery
    sys.stdout.write(json.dumps([gpu.uuid for gpu in discovery.read().gpus]))


if __name__ == "__main__":
    main()
