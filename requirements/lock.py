"""Writes the locked requirements from pyproject.toml; versions that are locked already stay unless --upgrade is given.

runtime.txt  what the image holds: wheels for Linux, on x86_64 and aarch64
dev.txt      everything for developing and testing, on any platform
build.txt    what builds our wheel
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# A machine's own package sources stay out of the files.
COMMON = (
    "--python-version=3.11",
    "--generate-hashes",
    "--no-annotate",
    "--quiet",
    "--no-emit-index-url",
    "--no-emit-find-links",
)


def main() -> None:
    """Write the three files."""
    app = tomllib.loads((ROOT / "image/contents.toml").read_text())["app"]
    wanted = [*(f"--extra={part}" for part in app["extras"]), *(f"--group={group}" for group in app["groups"])]
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    # The image's pip may run under another Python than the image's: no markers, which it would judge by its own.
    image = ("--only-binary=:all:", "--python-platform=x86_64-manylinux_2_36")
    lock("runtime.txt", "pyproject.toml", *wanted, *image)
    check("runtime.txt", "aarch64-manylinux_2_36")
    lock("dev.txt", "pyproject.toml", "--all-extras", "--group=dev", "--universal")
    lock("build.txt", "-", "--only-binary=:all:", "--universal", text="\n".join(backend))


def lock(name: str, source: str, *options: str, text: str = "") -> None:
    """Resolve ``source``, or ``text`` for ``-``, into requirements/``name``.

    Raises:
        CalledProcessError: Nothing satisfies the requirements; uv has said why.
    """
    command = [sys.executable, "-m", "uv", "pip", "compile", source, *options, *COMMON]
    command += ["--custom-compile-command=make lock", f"--output-file=requirements/{name}", *sys.argv[1:]]
    subprocess.run(command, cwd=ROOT, input=text, text=True, check=True)


def check(name: str, platform: str) -> None:
    """See that what is locked for one machine is there for another too, under the same hashes.

    Raises:
        CalledProcessError: A wheel is missing; uv has said which.
    """
    command = [sys.executable, "-m", "uv", "pip", "install", "--dry-run", "--quiet", "--only-binary=:all:", "--no-deps"]
    command += [f"--python-platform={platform}", "--require-hashes", "--target=/nowhere", "--requirement"]
    subprocess.run([*command, f"requirements/{name}"], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
