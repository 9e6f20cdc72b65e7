"""What the cluster needs from the machine, and how to get it."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from tests.cluster import build, progress
from tests.cluster.errors import Unavailable, last_lines
from tests.cluster.settings import cache_folder, kubernetes_version

CNI_FOLDER = Path("/usr/lib/cni")
_OLDEST_GO = (1, 26)
_CAP_SYS_ADMIN = 21
# The kubelet's longest socket below the cache folder must fit a socket address.
_LONGEST_CACHE_PATH = 50

# Debian package: whether what we need of it is there.
_PACKAGES: dict[str, Callable[[], bool]] = {
    "runc": lambda: bool(_program("runc")),
    "containernetworking-plugins": (CNI_FOLDER / "bridge").exists,
    "busybox-static": lambda: busybox().exists() and b"/ld-linux" not in busybox().read_bytes(),
    "iptables": lambda: bool(_program("iptables-restore")),
    "iproute2": lambda: bool(_program("ip")),
    "util-linux": lambda: bool(_program("nsenter")) and bool(_program("unshare")),
    "mount": lambda: bool(_program("mount")),
}
# The same for the tests' NVML library.
_COMPILER: dict[str, Callable[[], bool]] = {
    "gcc": lambda: any(map(_program, ("cc", "gcc", "clang"))),
    "libc6-dev": lambda: Path("/usr/include/stdio.h").exists(),
}
# The same for the tests of the page.
_BROWSER: dict[str, Callable[[], bool]] = {"chromium": lambda: bool(_program("chromium"))}


def busybox() -> Path:
    """Returns where Debian's busybox is, or would be."""
    return Path("/bin/busybox")


def runc() -> Path:
    """Returns the path of runc.

    Raises:
        Unavailable: There is none.
    """
    found = _program("runc")
    if not found:
        raise Unavailable("needs runc")
    return Path(found)


def why_not(version: str | None = None) -> str | None:
    """Returns why this machine cannot run the cluster of a Kubernetes version, or None. Changes nothing."""
    if sys.platform != "linux":
        return "needs Linux"
    if os.geteuid() != 0:
        return "needs root"
    if not _capability(_CAP_SYS_ADMIN):
        return "needs the capability SYS_ADMIN (network and mount namespaces)"
    if not Path("/sys/fs/cgroup").is_dir() or not os.access("/sys/fs/cgroup", os.W_OK):
        return "needs a writable /sys/fs/cgroup"
    if find_spec("cryptography") is None:
        return "needs the Python package cryptography"
    if len(str(cache_folder())) > _LONGEST_CACHE_PATH:
        return f"needs a shorter cache folder than {cache_folder()}: set GPU_TOPOLOGY_CACHE"
    built = all(target.built for target in build.targets(version or kubernetes_version()))
    if not built and (_go_version() or (0, 0)) < _OLDEST_GO:
        return "needs Go {}.{} or newer".format(*_OLDEST_GO)
    if (missing := missing_packages()) and not _program("apt-get"):
        return "needs " + ", ".join(missing)
    return None


def missing_packages() -> list[str]:
    """Returns the Debian packages that the cluster needs and that are not there."""
    return _missing(_PACKAGES)


def _missing(packages: dict[str, Callable[[], bool]]) -> list[str]:
    return [package for package, present in packages.items() if not present()]


def prepare(version: str) -> None:
    """Installs and builds what is missing for a Kubernetes version.

    Raises:
        Unavailable: This machine cannot run the cluster.
        ClusterError: A build failed.
    """
    if reason := why_not(version):
        raise Unavailable(reason)
    _install_packages(_PACKAGES, cache_folder() / "packages.log")
    for target in build.targets(version):
        target.ensure()


def prepare_compiler() -> None:
    """Installs a C compiler where there is none; without apt-get the tests that want one say so.

    Raises:
        Unavailable: apt-get did not bring it.
    """
    if _program("apt-get"):
        _install_packages(_COMPILER, cache_folder() / "compiler.log")


def prepare_browser() -> None:
    """Installs a Chromium where there is none; without one the tests that want it say so."""
    if _program("apt-get"):
        try:
            _install_packages(_BROWSER, cache_folder() / "browser.log")
        except Unavailable as error:
            print(f"no Chromium: {error}", flush=True)


def _install_packages(packages: dict[str, Callable[[], bool]], log: Path) -> None:
    missing = _missing(packages)
    if not missing:
        return
    progress.announce(f"installing {', '.join(missing)}", 30)
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with log.open("wb") as out:
        for command in (
            ["apt-get", "update"],
            ["apt-get", "install", "-y", "--no-install-recommends", *missing],
        ):
            done = subprocess.run(
                command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environment, check=False
            )
            if done.returncode != 0:
                last = last_lines(log, 1)
                raise Unavailable(f"{' '.join(command[:2])} failed: {last} (log: {log})")
    if still := _missing(packages):
        raise Unavailable(f"needs {', '.join(still)}; apt-get did not bring it (log: {log})")


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin")


def _capability(number: int) -> bool:
    status = Path("/proc/self/status").read_text()
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    return bool(effective and int(effective[1], 16) >> number & 1)


def _go_version() -> tuple[int, int] | None:
    go = shutil.which("go")
    if not go:
        return None
    answer = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False)
    found = re.match(r"go(\d+)\.(\d+)", answer.stdout)
    return (int(found[1]), int(found[2])) if found else None
