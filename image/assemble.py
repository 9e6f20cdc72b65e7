"""Fills a folder with everything of ours that an image holds: locked wheels, our wheel, byte code.

Both images are made by it: image/build.py imports it, image/Dockerfile runs it. It needs the standard library and pip.

Usage: python image/assemble.py TARGET      (for the Python that runs it)
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
_NEWEST_GLIBC_MINOR: Final = 36  # Debian 12
_LEGACY_TAGS: Final = ("manylinux2014", "manylinux2010", "manylinux1", "linux")
_LOCKED: Final = ("--require-hashes", "--only-binary=:all:")
_COMPILE: Final = ("-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash")


class AssembleError(Exception):
    """pip or the compiler failed; the message has the end of what it said."""


def read_contents(path: Path = ROOT / "image/contents.toml") -> dict[str, Any]:
    """Return the list of contents, decoded."""
    return tomllib.loads(path.read_text())


def install_wheels(target: Path, contents: dict[str, Any], *, python: str, machine: str = "") -> None:
    """Install the locked wheels into ``target``.

    Args:
        target: The folder to install into.
        contents: The list of contents.
        python: The image's Python, ``3.11``; another one may run this.
        machine: What the image runs on, as uname says it; this machine by default.

    Raises:
        AssembleError: A wheel is missing, or not what the lock's hash says.
    """
    platforms = [f"--platform={tag}" for tag in _platform_tags(machine or platform.machine())]
    lock = ROOT / contents["app"]["requirements"]
    _pip_install(
        target, *_LOCKED, "--no-deps", "--implementation=cp", f"--python-version={python}", *platforms, lock=lock
    )


def install_ours(target: Path, *, tools: Path, wheel: Path | None = None) -> None:
    """Install our wheel into ``target``. It is built first, unless it is given.

    Args:
        target: The folder to install into.
        tools: The folder of the locked build backend. It is filled if it does not exist.
        wheel: The wheel of a release.

    Raises:
        AssembleError: The wheel cannot be built.
    """
    with tempfile.TemporaryDirectory() as folder:
        if wheel is None:
            if not tools.exists():
                _pip_install(tools, *_LOCKED, lock=ROOT / "requirements/build.txt")
            run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], PYTHONPATH=str(tools))
            (wheel,) = Path(folder).glob("*.whl")
        name, version = wheel.name.split("-")[:2]
        # By name: pip would record the path of a file, and no two images would be the same.
        links = f"--find-links={wheel.parent}"
        _pip_install(target, "--upgrade", "--no-index", "--no-deps", links, f"{name}=={version}")


def write_programs(target: Path, programs: Mapping[str, str]) -> None:
    """Write programs that the image's own Python runs into ``target``/bin.

    Args:
        target: The folder that the image has on PYTHONPATH.
        programs: A module and its function, ``module:function``, by the program's name.
    """
    folder = target / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    for name, place in programs.items():
        module, function = place.split(":")
        program = folder / name
        program.write_text(f"#!/usr/bin/python3\nfrom {module} import {function}\n\n{function}()\n")
        program.chmod(0o755)


def prune(target: Path, patterns: Iterable[str]) -> None:
    """Delete what the glob patterns match below ``target``."""
    for pattern in patterns:
        for path in list(target.glob(pattern)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def compile_all(folders: Sequence[str], *, python: Sequence[str] = (sys.executable,), root: Path | None = None) -> None:
    """Compile every module, so that a read-only image never has to.

    Hashes that nobody checks keep the byte code valid whatever an image format does to modification times.

    Args:
        folders: Folders as ``python`` sees them.
        python: The command line that runs the image's Python, or another of its version: byte code has no machine.
        root: What the modules' own paths leave out; the folders are below it.

    Raises:
        AssembleError: A module does not compile.
    """
    strip = () if root is None else ("-s", str(root), "-p", "/")
    run([*python, *_COMPILE, *strip, *folders])


def run(command: Sequence[str], **env: str) -> None:
    """Run a command quietly in the repository's root.

    Raises:
        AssembleError: It failed.
    """
    done = subprocess.run(
        command,
        check=False,
        cwd=ROOT,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        last = "\n".join(done.stdout.splitlines()[-15:])
        raise AssembleError(f"{' '.join(command[:6])} ... failed with {done.returncode}:\n{last}")


def _pip_install(target: Path, *arguments: str, lock: Path | None = None) -> None:
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
    lock_arguments = ("--requirement", str(lock)) if lock else ()
    run([*pip, "install", "--no-compile", "--target", str(target), *arguments, *lock_arguments])


def _platform_tags(machine: str) -> list[str]:
    """Return wheel platforms, best first. pip derives no older glibc from a newer one that is named."""
    tags = [f"manylinux_2_{minor}" for minor in range(_NEWEST_GLIBC_MINOR, 4, -1)]
    return [f"{tag}_{machine}" for tag in (*tags, *_LEGACY_TAGS)]


def main() -> None:
    """Fill the folder that the command line names."""
    if len(sys.argv) != 2:
        sys.exit((__doc__ or "").strip().splitlines()[-1])
    contents = read_contents()
    target = Path(sys.argv[1])
    install_wheels(target, contents, python="{}.{}".format(*sys.version_info))
    with tempfile.TemporaryDirectory() as folder:
        install_ours(target, tools=Path(folder) / "tools")
    prune(target, contents["app"]["prune"])
    write_programs(target, contents["app"]["programs"])
    compile_all([str(target)])


if __name__ == "__main__":
    try:
        main()
    except AssembleError as error:
        sys.exit(str(error))
