"""The first process of a node's namespaces: arranges its mounts, then reaps orphans.

Started by `sandbox.py` as `unshare ... python inside.py NODE_FOLDER CACHE_FOLDER NAME`.
Everything mounted here is seen by the node's processes only and goes away with
them; the machine's own folders are covered, never written to.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

# What the node keeps (a folder below its own), and where its processes see it.
KEPT = {
    "kubelet": "/var/lib/kubelet",
    "cni": "/var/lib/cni",
    "cdi": "/run/cdi",
    "static-cdi": "/etc/cdi",
    "cni-networks": "/etc/cni/net.d",
    "pod-logs": "/var/log/pods",
    "container-logs": "/var/log/containers",
}
# The parents of these mount points: thin copies, so that a missing folder can be made.
COVERED = ("/etc", "/var/lib", "/var/log")
# The kubelet sets these for the whole machine unless they read as it wants them.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}


def main() -> None:
    """Does what the module says; never returns while the node lives."""
    node, cache, name = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    arrange_mounts(node, cache)
    socket.sethostname(name)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    (node / "ready").touch()
    reap()


def arrange_mounts(node: Path, cache: Path) -> None:
    """Gives the node its own /run and its own Kubernetes folders."""
    cache_fd = os.open(cache, os.O_PATH | os.O_DIRECTORY)
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    for covered in COVERED:
        upper, work = (Path("/run/covered", covered[1:].replace("/", "-"), part) for part in ("upper", "work"))
        upper.mkdir(parents=True)
        work.mkdir()
        layers = f"lowerdir={covered},upperdir={upper},workdir={work}"
        mount("-t", "overlay", "-o", layers, "overlay", covered)
    # The cache may lie below what was just covered: bring the real one back.
    cache.mkdir(parents=True, exist_ok=True)
    mount("--no-canonicalize", "--bind", f"/proc/self/fd/{cache_fd}", str(cache), fd=cache_fd)
    os.close(cache_fd)
    for folder, seen_at in KEPT.items():
        (node / folder).mkdir(exist_ok=True)
        Path(seen_at).mkdir(parents=True, exist_ok=True)
        mount("--bind", str(node / folder), seen_at)
    for setting, value in KERNEL_SETTINGS.items():
        stand_in = Path("/run/kernel-settings", setting)
        stand_in.parent.mkdir(parents=True, exist_ok=True)
        stand_in.write_text(f"{value}\n")
        mount("--bind", str(stand_in), f"/proc/sys/{setting}")
    # Volumes mounted by the kubelet must reach containers that already run.
    mount("--make-rshared", "/")


def mount(*arguments: str, fd: int | None = None) -> None:
    """Runs mount(8).

    Raises:
        CalledProcessError: It failed; its own message is in the log.
    """
    subprocess.run(["mount", *arguments], check=True, pass_fds=[] if fd is None else [fd])


def reap() -> None:
    """Collects the exit status of every orphan, for ever."""
    while True:
        signal.sigwait({signal.SIGCHLD})
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            continue


if __name__ == "__main__":
    main()
