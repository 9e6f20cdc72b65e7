"""Makes everything that a release consists of, as files in one folder.

Usage: python -m image.release [--output DIR] [--platform linux/amd64 ...] [--repository NAME] [--url URL]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

if not __package__:  # run as a file
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from image import archive, assemble, build, packages
from tests.cluster.errors import Unavailable

ROOT: Final = assemble.ROOT


def release(
    output: Path, *, platforms: Sequence[str], repository: str = packages.NAME, url: str = "", root: Path = ROOT
) -> list[Path]:
    """Make a release; returns its files, SHA256SUMS last.

    Args:
        output: The folder for them; an earlier release in it goes once this one is whole.
        platforms: What the image is to run on, of ``build.PLATFORMS``; empty: no image.
        repository: Where the chart has its image pulled from, and what the image in the archive is called.
        url: Where on the web the files will be had, for Krew's manifest.
        root: The checkout, but for the image, which is made of this one.

    Raises:
        Unavailable: This machine cannot build an image; the message is the reason in one line.
        AssembleError: apt, pip or a compiler failed.
        ReleaseError: Another part cannot be made.
    """
    if output.exists() and any(output.iterdir()) and not (output / packages.CHECKSUMS).exists():
        raise packages.ReleaseError(f"{output} has files that are of no release: name another folder")
    output.parent.mkdir(parents=True, exist_ok=True)
    # Beside it, and in its place when all is there: of one that fails nothing is left, and the last one stays.
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}-") as beside:
        made = Path(beside) / "release"
        made.mkdir()
        seconds = _seconds(root)
        files = [image(made, platforms, repository=repository)] if platforms else []
        files.append(packages.chart(root, made, repository=repository))
        wheel = packages.wheel(root, made)
        files += [wheel, *packages.plugin(root, made, wheel, url=url)]
        files += [packages.bill_of_materials(root, made), packages.changelog(root, made, seconds=seconds)]
        files.append(packages.checksums(made, files))
        if output.exists():
            shutil.rmtree(output)
        made.rename(output)
    return [output / path.name for path in files]


def image(output: Path, platforms: Sequence[str], *, repository: str = packages.NAME) -> Path:
    """Build the image for each platform, and one archive with all of them.

    Raises:
        Unavailable: This machine cannot build one; the message is the reason in one line.
        AssembleError: apt, pip or a compiler failed.
    """
    number = packages.version(ROOT)
    reference = f"{repository}:{number}"
    target = output / f"{packages.NAME}-{number}-image.tar"
    with tempfile.TemporaryDirectory(dir=output, prefix=".image-") as folder:
        built = []
        for platform in platforms:
            one = Path(folder) / f"{platform.replace('/', '-')}.tar"
            built.append(build.build(one, reference=reference, machine=build.PLATFORMS[platform]))
        archive.merge(target, built, reference=reference)
    return target


def _seconds(root: Path) -> int:
    """Return the release's date: SOURCE_DATE_EPOCH, or the last commit's.

    Raises:
        ReleaseError: There is neither.
    """
    said = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not said:
        command = ["git", "log", "-1", "--format=%ct"]
        try:
            said = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout.strip()
        except OSError:
            said = ""
    if not said.isdecimal():
        raise packages.ReleaseError(
            "the release's date is the last commit's, and this is no checkout of git: set SOURCE_DATE_EPOCH to its "
            "seconds since 1970"
        )
    return int(said)


def main() -> None:
    """Make the release that the command line asks for."""
    parser = argparse.ArgumentParser(prog="image.release", description="Make everything that a release consists of.")
    parser.add_argument("--output", type=Path, help="the folder for the files (default: dist/VERSION)")
    parser.add_argument("--platform", nargs="*", choices=build.PLATFORMS, default=[*build.PLATFORMS],
                        help="what the image runs on; none: no image (default: %(default)s)")  # fmt: skip
    parser.add_argument("--repository", default=packages.NAME, help="where the chart has its image pulled from")
    parser.add_argument("--url", default="", help="where the files will be had, for Krew's manifest")
    arguments = parser.parse_args()
    try:
        output = arguments.output or ROOT / "dist" / packages.version(ROOT)
        files = release(output, platforms=arguments.platform, repository=arguments.repository, url=arguments.url)
    except (Unavailable, assemble.AssembleError, packages.ReleaseError) as error:
        sys.exit(str(error))
    for path in files:
        print(f"{path.stat().st_size / 1e6:9.2f} MB  {path}")


if __name__ == "__main__":
    main()
