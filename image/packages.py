"""The parts of a release beside the image: chart, wheel, bill of materials, changelog, kubectl's plugin.

Each is a function of the checkout, the version and a date: the same bytes in any folder, at any time.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable
from pathlib import Path
from string import Template
from typing import Any, Final

NAME: Final = "gpu-topology-dra"
CHECKSUMS: Final = "SHA256SUMS"
_CHART: Final = Path("helm") / NAME
_REPOSITORY: Final = f"  repository: {NAME}\n"
_MARKER: Final = "<!-- towncrier release notes start -->\n"


class ReleaseError(Exception):
    """A part of the release cannot be made; the message says why, and what to do."""


def version(root: Path) -> str:
    """Return the version that the checkout says it is.

    Raises:
        ReleaseError: dradriver/__init__.py says none.
    """
    found = re.search(r'(?m)^__version__ = "([^"]+)"$', (root / "dradriver/__init__.py").read_text("utf-8"))
    if found is None:
        raise ReleaseError('dradriver/__init__.py has no line __version__ = "1.2.3": write it')
    return found[1]


def chart(root: Path, folder: Path, *, repository: str = NAME) -> Path:
    """Package the chart, as ``helm package`` does but for the time of day in it.

    Args:
        root: The checkout.
        folder: Where to put it.
        repository: Where its image is pulled from, as ``image.repository`` of its values.

    Raises:
        ReleaseError: The chart's own value cannot be found.
    """
    files = {path.relative_to(root / _CHART).as_posix(): path.read_bytes() for path in _chart_files(root)}
    if repository != NAME:
        values = files["values.yaml"].decode()
        if values.count(_REPOSITORY) != 1:
            raise ReleaseError(f"helm/{NAME}/values.yaml has not one line {_REPOSITORY.strip()}: write it as it was")
        files["values.yaml"] = values.replace(_REPOSITORY, f"  repository: {repository}\n").encode()
    target = folder / f"{NAME}-{version(root)}.tgz"
    target.write_bytes(_tgz({f"{NAME}/{name}": (data, 0o644) for name, data in files.items()}))
    return target


def _chart_files(root: Path) -> list[Path]:
    """Return the chart's files: those that git has, for what tests and editors leave there is none of it.

    What is no checkout of git has what was unpacked.
    """
    there = [path for path in sorted((root / _CHART).rglob("*")) if path.is_file()]
    there = [path for path in there if not path.name.startswith(".") and "__pycache__" not in path.parts]
    command = ["git", "ls-files", "-z", "--", str(_CHART)]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return there
    tracked = {root / name for name in done.stdout.split("\0") if name} if done.returncode == 0 else set()
    return [path for path in there if path in tracked] if tracked else there


def wheel(root: Path, folder: Path) -> Path:
    """Build the wheel, whose extra ``cli`` is gputopo.

    Raises:
        ReleaseError: hatchling failed; the message has what it said.
    """
    folder = folder.absolute()
    before = {*folder.glob("*.whl")}
    # A fixed time for all files of it: hatchling's own.
    environment = {key: value for key, value in os.environ.items() if key != "SOURCE_DATE_EPOCH"}
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], root, environment)
    (made,) = {*folder.glob("*.whl")} - before
    return made


def bill_of_materials(root: Path, folder: Path) -> Path:
    """Write what Python packages the image holds, with versions and hashes, as CycloneDX 1.6.

    Raises:
        ReleaseError: cyclonedx-py failed; the message has what it said.
    """
    command = [sys.executable, "-W", "ignore", "-m", "cyclonedx_py", "requirements", "requirements/runtime.txt"]
    environment = {key: value for key, value in os.environ.items() if key != "SOURCE_DATE_EPOCH"}
    text = _run([*command, "--output-reproducible", "-o", "-"], root, environment)
    bom: dict[str, Any] = json.loads(text)
    for component in bom["components"]:
        del component["description"]  # the line of the lock, hashes and all, which stand beside it
    number = version(root)
    bom["metadata"]["component"] = {
        "bom-ref": "root",
        "type": "container",
        "name": NAME,
        "version": number,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }
    references = sorted(component["bom-ref"] for component in bom["components"])
    bom["dependencies"] = [{"ref": "root", "dependsOn": references}]
    target = folder / f"{NAME}-{number}.cdx.json"
    target.write_text(json.dumps(bom, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return target


def changelog(root: Path, folder: Path, *, seconds: int) -> Path:
    """Write CHANGELOG.md with the fragments of changes/ as this version's section, where there are any.

    Args:
        root: The checkout, which stays as it is.
        folder: Where to put it.
        seconds: The release's date, as seconds since 1970.

    Raises:
        ReleaseError: towncrier failed, CHANGELOG.md lacks its marker, or it has this version already.
    """
    head, marker, older = (root / "CHANGELOG.md").read_text("utf-8").partition(_MARKER)
    if not marker:
        raise ReleaseError(f"CHANGELOG.md lacks the line {_MARKER.strip()}, below which releases stand: write it")
    news = ""
    if any((root / "changes").glob("*.md")):
        if f"\n## {version(root)} (" in older:
            raise ReleaseError(
                f"CHANGELOG.md has a section of {version(root)}, and changes/ has later changes: "
                "raise the version in dradriver/__init__.py and Chart.yaml"
            )
        date = time.strftime("%Y-%m-%d", time.gmtime(seconds))
        command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", version(root), "--date", date]
        news = _run(command, root, dict(os.environ)).strip() + "\n"
    target = folder / "CHANGELOG.md"
    title = head.partition("\n")[0]
    target.write_text(f"{title}\n\n{news}{older}", encoding="utf-8")
    return target


def plugin(root: Path, folder: Path, built: Path, *, url: str = "") -> list[Path]:
    """Write the archive that Krew installs as ``kubectl gputopo``, and its manifest where the archive's place is known.

    Args:
        root: The checkout.
        folder: Where to put them.
        built: The wheel, which the plugin runs by uv or pipx.
        url: The folder on the web from which the release's files will be had; empty: no manifest.
    """
    script = Template((root / "image/kubectl-gputopo.sh").read_text("utf-8")).safe_substitute(WHEEL=built.name)
    members = {
        "LICENSE": ((root / "LICENSE").read_bytes(), 0o644),
        built.name: (built.read_bytes(), 0o644),
        "kubectl-gputopo": (script.encode(), 0o755),
    }
    archive = folder / f"kubectl-gputopo-{version(root)}.tar.gz"
    archive.write_bytes(_tgz(members))
    if not url:
        return [archive]
    manifest = folder / "gputopo.yaml"
    words = {
        "VERSION": version(root),
        "URL": f"{url.rstrip('/')}/{archive.name}",
        "SHA256": hashlib.sha256(archive.read_bytes()).hexdigest(),
    }
    manifest.write_text(Template((root / ".krew.yaml").read_text("utf-8")).substitute(words), encoding="utf-8")
    return [archive, manifest]


def checksums(folder: Path, files: Iterable[Path]) -> Path:
    """Write what ``sha256sum --check`` reads, of files in the folder."""
    lines = []
    for path in sorted(files):
        with path.open("rb") as data:
            lines.append(f"{hashlib.file_digest(data, 'sha256').hexdigest()}  {path.name}\n")
    target = folder / CHECKSUMS
    target.write_text("".join(lines), encoding="utf-8")
    return target


def _tgz(members: dict[str, tuple[bytes, int]]) -> bytes:
    """Return a compressed archive of files with their modes: no time, nobody's."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(members):
            data, mode = members[name]
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            tar.addfile(entry, io.BytesIO(data))
    return gzip.compress(plain.getvalue(), mtime=0)


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise ReleaseError(f"{' '.join(command[1:5])} ... failed with {done.returncode}:\n{last}")
    return done.stdout


if __name__ == "__main__":
    print(version(Path(__file__).resolve().parent.parent))
