"""Builds the driver's image without a container engine: Debian's Python, locked wheels, NVIDIA's toolkit, our wheel.

Everything is kept in the cache folder by a hash of what it was made from: with unchanged inputs a build is instant, and
after a change of our own code only our wheel is built again. Needs root on Debian, for chroot and apt, and Go.

Usage: python -m image.build [--output FILE.tar] [--reference NAME:TAG] [--platform linux/arm64]
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

if not __package__:  # run as a file
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from image import assemble
from tests.cluster.errors import Unavailable
from tests.cluster.oci import write_oci_tar
from tests.cluster.settings import cache_folder

REFERENCE: Final = "gpu-topology-dra:test"
PLATFORMS: Final = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
_DEBIANS: Final = {"x86_64": "amd64", "aarch64": "arm64"}  # Go calls them so, too
_BASE_INPUTS: Final = ("image/contents.toml", "image/assemble.py", "image/build.py", "requirements/[br]*.txt")
_TOOLKIT_INPUTS: Final = ("image/toolkit/*",)
_OCI_WRITER: Final = "tests/cluster/oci.py"
_OUR_INPUTS: Final = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "dradriver/**/*",
    "webhook/**/*",
    _OCI_WRITER,
)
_OURS: Final = ("dradriver", "webhook")


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Write files that all may read, whatever the builder's umask: in the image nobody but root owns them."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


@_readable()
def build(
    output: Path | None = None, *, reference: str = REFERENCE, machine: str = "", wheel: Path | None = None
) -> Path:
    """Return the path of the image's OCI tar. It is built from the working tree, unless it exists already.

    Args:
        output: Where to put it; in the cache folder unless given.
        reference: The image's name and tag.
        machine: What it runs on, as uname says it; this machine by default.
        wheel: The wheel of a release, which the image has in place of the working tree's code.

    Raises:
        Unavailable: This machine cannot build it; the message is the reason in one line.
        AssembleError: apt, pip or the compiler failed.
    """
    contents = assemble.read_contents()
    release = _release(contents)
    machine = machine or platform.machine()
    suffix = "" if machine == platform.machine() else f"-{machine}"
    if suffix and contents["debian"]["release"][release]["python"] != "{}.{}".format(*sys.version_info):
        raise Unavailable("building the image for another machine needs Debian's own version of Python to run this")
    output = (output or cache_folder() / "image" / f"gpu-topology-dra{suffix}.tar").absolute()
    base_key = _hash([release, machine], _BASE_INPUTS)
    if wheel is None:
        key = _hash([base_key, reference], (*_OUR_INPUTS, *_TOOLKIT_INPUTS))
    else:
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        key = _hash([base_key, reference, digest], (_OCI_WRITER, *_TOOLKIT_INPUTS))
    stamp = output.with_name(output.name + ".inputs")
    folder = cache_folder() / "image"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if output.exists() and stamp.exists() and stamp.read_text() == key:
            return output
        base = folder / f"base{suffix}-{base_key[:12]}"
        if not base.exists():
            _say("building the image's base: Debian's Python and the locked wheels (about 20 s)")
            _build_base(base, contents, release, machine)
        rootfs = folder / f"rootfs{suffix}"
        shutil.rmtree(rootfs, ignore_errors=True)
        shutil.copytree(base / "root", rootfs, symlinks=True, copy_function=os.link)
        shutil.copytree(toolkit(machine), rootfs / contents["toolkit"]["folder"].lstrip("/"), copy_function=os.link)
        _add_ours(rootfs, contents, base=base, machine=machine, wheel=wheel)
        stamp.unlink(missing_ok=True)
        run = contents["run"]
        write_oci_tar(
            output,
            reference=reference,
            rootfs=rootfs,
            entrypoint=run["entrypoint"],
            cmd=run["command"],
            env=run["env"],
            user=run["user"],
            workdir=run["workdir"],
            labels=run["labels"],
            machine=machine,
        )
        stamp.write_text(key)
    return output


@_readable()
def toolkit(machine: str = "") -> Path:
    """Return the folder with NVIDIA's container toolkit as the image has it, built unless it is there already.

    Args:
        machine: What it runs on, as uname says it; this machine by default.

    Raises:
        Unavailable: This machine cannot build it; the message is the reason in one line.
        AssembleError: The compiler failed.
    """
    machine = machine or platform.machine()
    here = machine == platform.machine()
    compiler = "cc" if here else f"{machine}-linux-gnu-gcc"
    folder = cache_folder() / "image"
    built = folder / f"toolkit-{machine}-{_hash([machine], _TOOLKIT_INPUTS)[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "toolkit.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if built.exists():
            return built
        for program in ("go", compiler):
            if shutil.which(program) is None:
                debian = "" if here or program == "go" else f" (Debian: gcc-{machine.replace('_', '-')}-linux-gnu)"
                raise Unavailable(f"building NVIDIA's container toolkit for {machine} needs {program}{debian}")
        for old in folder.glob(f"toolkit-{machine}-*"):
            shutil.rmtree(old)
        _say("building NVIDIA's container toolkit (about 10 s)")
        ldconfig = Path("/sbin/ldconfig")
        if not here:
            shutil.rmtree(folder / "toolkit.deb", ignore_errors=True)
            (package,) = _download(["libc-bin"], folder / "toolkit.deb", machine)
            assemble.run(["dpkg", "-x", str(package), str(folder / "toolkit.deb/root")])
            (ldconfig,) = (folder / "toolkit.deb/root").glob("**/sbin/ldconfig")
        fresh = built.with_suffix(".new")
        words = {"GOARCH": _DEBIANS[machine], "CC": compiler, "LDCONFIG": str(ldconfig)}
        assemble.run(["sh", "image/toolkit/build.sh", str(fresh)], **words)
        shutil.rmtree(folder / "toolkit.deb", ignore_errors=True)
        fresh.rename(built)
    return built


def _build_base(base: Path, contents: dict[str, Any], release: str, machine: str) -> None:
    """Make a root with everything but our own code, whole or not at all."""
    for old in base.parent.glob(f"{base.name.rpartition('-')[0]}-{'[0-9a-f]' * 12}"):
        shutil.rmtree(old)
    fresh = base.with_name("new")
    shutil.rmtree(fresh, ignore_errors=True)
    root = fresh / "root"
    for name in ("dev", "etc", "proc", "sys", "tmp", "usr/bin", "usr/lib", "usr/lib64", "var/run"):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:\nnonroot:x:65532:65532:nonroot:/:\n")
    (root / "etc/group").write_text("root:x:0:\nnonroot:x:65532:\n")
    debian = contents["debian"]
    python = debian["release"][release]["python"]
    for link, to in debian["links"].items():
        (root / link.lstrip("/")).symlink_to(to.format(python=python))
    for package in _download(debian["release"][release]["packages"], fresh / "packages", machine):
        assemble.run(["dpkg", "-x", str(package), str(root)])
    assemble.prune(root, [pattern.format(python=python) for pattern in debian["prune"]])
    app = root / contents["app"]["folder"].lstrip("/")
    assemble.install_wheels(app, contents, python=python, machine=machine)
    assemble.prune(app, contents["app"]["prune"])
    _compile(root, [f"/usr/lib/python{python}", contents["app"]["folder"]], machine)
    shutil.rmtree(fresh / "packages")
    fresh.rename(base)


def _add_ours(rootfs: Path, contents: dict[str, Any], *, base: Path, machine: str, wheel: Path | None) -> None:
    """Add our own packages to the root."""
    folder = contents["app"]["folder"]
    app = rootfs / folder.lstrip("/")
    assemble.install_ours(app, tools=base / "tools", wheel=wheel)
    assemble.prune(app, contents["app"]["prune"])
    assemble.write_programs(app, contents["app"]["programs"])
    _compile(rootfs, [f"{folder}/{name}" for name in _OURS], machine)


def _compile(root: Path, folders: list[str], machine: str) -> None:
    """Compile what is in the image's folders, by its own Python where that runs here."""
    if machine == platform.machine():
        assemble.compile_all(folders, python=_in_root(root))
    else:
        assemble.compile_all([f"{root}{folder}" for folder in folders], root=root)


def _download(packages: list[str], folder: Path, machine: str) -> list[Path]:
    """Fetch Debian packages with apt; its lists are fetched first where they lack one.

    Another machine's lists lie beside the packages: what is installed here is not touched.
    """
    folder.mkdir()
    apt = ["apt-get", "-q", "-o", "APT::Sandbox::User=root"]
    if machine != platform.machine():
        state = folder / "apt"
        (state / "lists/partial").mkdir(parents=True)
        (state / "archives/partial").mkdir(parents=True)
        for setting in (
            f"APT::Architecture={_DEBIANS[machine]}",
            f"APT::Architectures::={_DEBIANS[machine]}",
            f"Dir::State::lists={state / 'lists'}",
            "Dir::State::status=/dev/null",
            f"Dir::Cache={state}",
        ):
            apt += ["-o", setting]
    download = ["env", "-C", str(folder), *apt, "download", *packages]
    try:
        assemble.run(download)
    except assemble.AssembleError:
        assemble.run([*apt, "update"])
        assemble.run(download)
    return sorted(folder.glob("*.deb"))


def _in_root(root: Path) -> list[str]:
    path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"  # nothing else of this process: PYTHONPATH would be followed
    return ["env", "-i", path, "chroot", str(root), "/usr/bin/python3"]


def _release(contents: dict[str, Any]) -> str:
    if sys.platform != "linux":
        raise Unavailable("building the image needs Linux")
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    codename = release.get("VERSION_CODENAME", "unknown") if release.get("ID") == "debian" else "unknown"
    if codename not in contents["debian"]["release"]:
        here = release.get("PRETTY_NAME", "unknown")
        raise Unavailable(
            f"building the image needs Debian {' or '.join(contents['debian']['release'])}; this is {here}"
        )
    if os.geteuid() != 0:
        raise Unavailable("building the image needs root")
    return codename


def _hash(words: Iterable[str], patterns: Iterable[str]) -> str:
    digest = hashlib.sha256("\0".join(words).encode())
    for pattern in patterns:
        for path in sorted(assemble.ROOT.glob(pattern)):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"\0{path.relative_to(assemble.ROOT)}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    """Build the image that the command line asks for."""
    parser = argparse.ArgumentParser(prog="image.build", description="Build the image without a container engine.")
    parser.add_argument("--output", type=Path, help="the OCI tar to write (default: in the cache folder)")
    parser.add_argument("--reference", default=REFERENCE, help="the image's name and tag (default: %(default)s)")
    parser.add_argument("--platform", choices=PLATFORMS, help="what it runs on (default: this machine)")
    parser.add_argument("--wheel", type=Path, help="the wheel of a release to install (default: the working tree)")
    arguments = parser.parse_args()
    start = time.monotonic()
    try:
        machine = PLATFORMS.get(arguments.platform, "")
        path = build(arguments.output, reference=arguments.reference, machine=machine, wheel=arguments.wheel)
    except (Unavailable, assemble.AssembleError) as error:
        sys.exit(str(error))
    _say(f"{path}: {path.stat().st_size / 1e6:.0f} MB in {time.monotonic() - start:.1f} s")


if __name__ == "__main__":
    main()
