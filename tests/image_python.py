"""Runs pytest on what the image ships: its minor of Python, and the packages of requirements/runtime.txt.

The development environment can hold other packages: the oldest tools that we support generate the stubs, and need an
old protobuf. Test tools have the versions of requirements/dev.txt. If no such Python is installed, the tests run in the
development environment, and a line says so.

Usage: python -m tests.image_python [arguments of pytest]
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from image import assemble
from tests.paths import REPO

FOLDER: Final = REPO / ".venv-image"


def minors(contents: dict[str, Any], codename: str) -> list[str]:
    """Return the minors of Python that images have, such as 3.13: first that of an image that is built here."""
    releases = contents["debian"]["release"]
    names = sorted(releases, key=lambda name: name != codename)
    return [releases[name]["python"] for name in names]


def interpreter(minors: Iterable[str]) -> str | None:
    """Return a Python of the first of these minors that is installed, Debian's own if there is one."""
    for minor in minors:
        for program in (f"/usr/bin/python{minor}", shutil.which(f"python{minor}")):
            if program and _answer(program, "import sys; print('{}.{}'.format(*sys.version_info))") == minor:
                return program
    return None


def tools(dev: str, runtime: str, project: dict[str, Any]) -> str:
    """Return the lock of what tests need beside the image's packages: dev.txt without those and without linters."""
    left_out = {_name(entry) for entry in project["dependency-groups"]["lint"]}
    left_out |= {_name(block) for block in _blocks(runtime)}
    return "\n".join(block for block in _blocks(dev) if _name(block) not in left_out) + "\n"


def environment(program: str) -> Path:
    """Return the Python of an environment with the image's packages and the tools, made anew where a lock changed.

    Raises:
        CalledProcessError: A package cannot be installed; pip has said why.
    """
    lock = REPO / "requirements" / "runtime.txt"
    text = tools(
        (REPO / "requirements" / "dev.txt").read_text(),
        lock.read_text(),
        tomllib.loads((REPO / "pyproject.toml").read_text()),
    )
    made_of = "\n".join((program, _answer(program, "import sys; print(sys.version)"), lock.read_text(), text))
    digest = hashlib.sha256(made_of.encode()).hexdigest()
    python, stamp = FOLDER / "bin" / "python", FOLDER / "made-of"
    if not stamp.exists() or stamp.read_text() != digest:
        shutil.rmtree(FOLDER, ignore_errors=True)
        subprocess.run([program, "-m", "venv", "--without-pip", str(FOLDER)], check=True)
        (FOLDER / "tools.txt").write_text(text)
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(python),
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        locks = [f"--requirement={path}" for path in (lock, FOLDER / "tools.txt")]
        subprocess.run([*pip, "--no-deps", "--require-hashes", *locks], check=True)
        stamp.write_text(digest)
    return python


def main(argv: list[str]) -> int:
    """Run pytest with these arguments and return its exit status."""
    try:
        codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    except OSError:
        codename = ""
    wanted = minors(assemble.read_contents(), codename)
    program = interpreter(wanted)
    if program is None:
        missing = " or ".join(f"python{minor}" for minor in wanted)
        if os.environ.get("CI"):
            print(f"Part of CI: the tests run on the image's Python. Install {missing}.", file=sys.stderr)
            return 1
        print(f"The image's Python is not installed ({missing}): the tests run on {sys.executable}.", file=sys.stderr)
    python = sys.executable if program is None else str(environment(program))
    shown = "import sys, google.protobuf as p; print(f'Python {sys.version.split()[0]}, protobuf {p.__version__}')"
    print(_answer(python, shown), flush=True)
    return subprocess.run([python, "-m", "pytest", *argv], cwd=REPO, check=False).returncode


def _answer(program: str, code: str) -> str:
    """What a Python prints; nothing where it does not run."""
    try:
        done = subprocess.run([program, "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def _blocks(lock: str) -> list[str]:
    """Each package of a lock with its hashes."""
    return [block for block in re.split(r"\n(?=\S)", lock.strip()) if not block.startswith("#")]


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
