"""Builds Kubernetes, containerd, Helm and NVIDIA's container toolkit into the cache, once for each set of inputs."""

import fcntl
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import progress
from tests.cluster.errors import ClusterError, last_lines
from tests.cluster.settings import CONTAINERD, HELM, NVIDIA_TOOLKITS, PROMETHEUS, Program, cache_folder, minor_of

_HERE = Path(__file__).parent
_STAMP = "made-of.json"  # in a target's folder: a hash of its inputs, and of each file
_GO_BUILD = ("go", "build", "-trimpath", "-buildvcs=false")
_GO_INSTALL = ("go", "install", "-trimpath", "-ldflags=-s -w")
_KUBERNETES_LINKS = ("kubectl", "kubelet", "kube-apiserver")


@dataclass(frozen=True)
class Target:
    """One thing to build.

    Attributes:
        name: What it is called, also its folder in the cache.
        inputs: Everything the result depends on: versions, flags and sources.
        seconds: How long a first build takes on two cores.
        build: Builds into the given folder, with the given log.
    """

    name: str
    inputs: str
    seconds: int
    build: Callable[["Target", Path, Path], None]

    @property
    def folder(self) -> Path:
        """Where the binaries are once built."""
        return cache_folder() / "bin" / self.name

    @property
    def built(self) -> bool:
        """Whether the binaries are there, stem from these inputs, and are what was built."""
        try:
            return bool(json.loads((self.folder / _STAMP).read_text()) == self._stamp(self.folder))
        except (OSError, ValueError):
            return False

    def ensure(self) -> Path:
        """Builds unless built. Returns the folder.

        Raises:
            ClusterError: The build failed.
        """
        if self.built:
            return self.folder
        with _lock(cache_folder() / f"build-{self.name}.lock"):
            if not self.built:
                self._build()
        return self.folder

    def _build(self) -> None:
        log = cache_folder() / f"build-{self.name}.log"
        fresh = self.folder.with_name(self.name + ".new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        log.write_bytes(b"")
        self.build(self, fresh, log)
        (fresh / _STAMP).write_text(json.dumps(self._stamp(fresh)))
        shutil.rmtree(self.folder, ignore_errors=True)
        fresh.rename(self.folder)

    def _stamp(self, folder: Path) -> dict[str, object]:
        return {"inputs": hashlib.sha256(self.inputs.encode()).hexdigest(), "files": _contents(folder)}


def _contents(folder: Path) -> dict[str, str]:
    """Returns the hash of each file of a folder but the stamp; of a link, where it leads."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file() and name != _STAMP:
            status = path.stat()
            found[name] = _hash(path, status.st_size, status.st_mtime_ns)
    return found


@functools.cache
def _hash(path: Path, _size: int, _changed_ns: int) -> str:
    """Returns the hash of a file, computed once in a process unless size or time change."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def kubernetes(version: str) -> Target:
    """Returns the multi-call binary `kube` of a Kubernetes version, with links to it."""
    module = _HERE / f"kubernetes-{minor_of(version)}"
    sources = [_HERE / "multicall/main.go", module / "go.mod", module / "go.sum"]
    major, minor, _ = version.split(".")
    flags, tags = "-s -w", "-tags=providerless"
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
        flags += f" -X {package}.gitVersion=v{version}"
        flags += f" -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"

    def build(target: Target, folder: Path, log: Path) -> None:
        source = folder / "source"
        source.mkdir()
        for file in sources:
            shutil.copy(file, source)
        command = [*_GO_BUILD, tags, f"-ldflags={flags}", f"-o={folder / 'kube'}", "."]
        _go(target, command, log=log, folder=source)
        shutil.rmtree(source)
        for name in _KUBERNETES_LINKS:
            (folder / name).symlink_to("kube")

    return Target(
        name=f"kubernetes-{version}",
        inputs="\n".join([version, *_GO_BUILD, tags, flags, *(file.read_text() for file in sources)]),
        seconds=330,
        build=build,
    )


def containerd() -> Target:
    """Returns containerd with its shim and `ctr`."""
    path = "github.com/containerd/containerd/v2/cmd"
    packages = [f"{path}/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")]
    return _installed(f"containerd-{CONTAINERD}", packages, "no_btrfs,no_devmapper,no_zfs", 45)


def helm() -> Target:
    """Returns Helm."""
    return _installed(f"helm-{HELM}", ["helm.sh/helm/v4/cmd/helm"], "", 60)


def nvidia_toolkit(version: str) -> Target:
    """Returns `nvidia-ctk` of a release, with `nvidia-cdi-hook` from 1.16 on.

    They are built in the module itself, whose hash is pinned here and whose go.sum pins the rest.
    """
    module, pinned = "github.com/NVIDIA/nvidia-container-toolkit", NVIDIA_TOOLKITS[version]
    flags = f"-s -w -extldflags=-Wl,-z,lazy -X {module}/internal/info.version={version}"  # a driver may lack symbols

    def build(target: Target, folder: Path, log: Path) -> None:
        source = _module(f"{module}@v{version}", pinned)
        names = [name for name in ("nvidia-ctk", "nvidia-cdi-hook") if (source / "cmd" / name).is_dir()]
        command = [*_GO_BUILD, "-mod=readonly", f"-ldflags={flags}", f"-o={folder}/"]
        command += [f"./cmd/{name}" for name in names]
        _go(target, command, log=log, folder=source, CGO_ENABLED="1")  # NVML's library is loaded by cgo

    return Target(f"nvidia-toolkit-{version}", "\n".join([version, pinned, *_GO_BUILD, flags]), 20, build)


def prometheus() -> Target:
    """Returns Prometheus and `promtool`, without the discovery of clouds, which is most of what they are built from."""
    module, (version, pinned), tags = "github.com/prometheus/prometheus", PROMETHEUS, "remove_all_sd"

    def build(target: Target, folder: Path, log: Path) -> None:
        command = [*_GO_BUILD, "-mod=readonly", "-ldflags=-s -w", f"-tags={tags}"]
        command += [f"-o={folder}/", "./cmd/prometheus", "./cmd/promtool"]
        _go(target, command, log=log, folder=_module(f"{module}@v{version}", pinned), GOWORK="off")

    return Target(f"prometheus-{version}", "\n".join([version, pinned, *_GO_BUILD, tags]), 200, build)


def program(of: Program) -> Target:
    """Returns a program of others, as the file `manager`.

    It is built as NVIDIA's toolkit is: in the module itself, whose go.sum pins the rest.
    """
    flags = "-s -w"

    def build(target: Target, folder: Path, log: Path) -> None:
        command = [*_GO_BUILD, "-mod=readonly", f"-ldflags={flags}", f"-o={folder / 'manager'}", of.package]
        _go(target, command, log=log, folder=source(of))

    inputs = "\n".join([of.version, of.pinned, of.package, *_GO_BUILD, flags])
    return Target(f"{of.name}-{of.version}", inputs, of.seconds, build)


def source(of: Program) -> Path:
    """Returns the folder of a program's source, with its charts and manifests; nobody may write there.

    Raises:
        ClusterError: It cannot be had, or is another one than the hash says.
    """
    return _module(f"{of.module}@v{of.version}", of.pinned)


def targets(version: str) -> list[Target]:
    """Returns everything a cluster of this Kubernetes version is made of."""
    return [kubernetes(version), containerd(), helm()]


def _installed(name: str, packages: list[str], tags: str, seconds: int) -> Target:
    version = "v" + name.rpartition("-")[2]

    def build(target: Target, folder: Path, log: Path) -> None:
        command = [*_GO_INSTALL, f"-tags={tags}", *(f"{package}@{version}" for package in packages)]
        _go(target, command, log=log, folder=folder, GOBIN=str(folder))

    return Target(name, "\n".join([version, tags, *_GO_INSTALL, *packages]), seconds, build)


def _module(name: str, pinned: str) -> Path:
    """Returns the folder of a module's source.

    Raises:
        ClusterError: It cannot be had, or is another one than the hash says.
    """
    command = ["go", "mod", "download", "-json", name]
    done = subprocess.run(
        command, cwd="/", env=_environment(), capture_output=True, text=True, timeout=600, check=False
    )
    found = json.loads(done.stdout or "{}")
    if found.get("Sum") != pinned:
        what = found.get("Error") or done.stderr.strip() or f"its hash is {found['Sum']}"
        raise ClusterError(f"{name}, pinned as {pinned}: {what}")
    return Path(found["Dir"])


def _environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "", **extra}


def _go(target: Target, command: list[str], *, log: Path, folder: Path, **extra: str) -> None:
    """Runs go and tells how it is getting on."""
    environment = _environment(**extra)
    start = time.monotonic()
    with log.open("ab") as out:
        process = subprocess.Popen(["nice", "-n", "5", *command], cwd=folder, env=environment, stdout=out, stderr=out)
        try:
            while process.poll() is None:
                progress.advance(f"building {target.name}", time.monotonic() - start, target.seconds)
                try:
                    process.wait(1 if sys.stdout.isatty() else 15)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if process.returncode != 0:
        raise ClusterError(f"building {target.name} failed (log: {log}):\n{last_lines(log)}")
    print(f"built {target.name} in {time.monotonic() - start:.0f} s", flush=True)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
