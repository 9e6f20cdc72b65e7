"""A release: the same bytes in any folder and at any time, and what whoever has its files does with them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from image import archive, packages, release
from tests.cluster.oci import write_oci_tar
from tests.fakes.chart import run
from tests.paths import REPO

SOURCES = ("dradriver", "webhook", "helm", "changes", "requirements", "image", "protos",
           "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".krew.yaml")  # fmt: skip


def checkout(folder: Path, *, seconds: int) -> Path:
    """Return a copy of the repository's sources, as they are after a release: without fragments of the changelog.

    All files were written at this time.
    """
    folder.mkdir(parents=True)
    for name in SOURCES:
        if (REPO / name).is_dir():
            left_out = ("__pycache__", "*.md") if name == "changes" else ("__pycache__",)
            shutil.copytree(REPO / name, folder / name, ignore=shutil.ignore_patterns(*left_out))
        else:
            shutil.copy(REPO / name, folder / name)
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (seconds, seconds))
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.slow
def test_two_releases_of_one_commit_are_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made in different folders, from files of different times, in different time zones, with different masks."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1790000000")
    found = []
    for name, zone, mask, seconds in (("a", "UTC", 0o022, 10**9), ("b/c", "Asia/Tokyo", 0o077, 1_700_000_000)):
        monkeypatch.setenv("TZ", zone)
        before = os.umask(mask)
        try:
            root = checkout(tmp_path / name, seconds=seconds)
            release.release(tmp_path / f"{seconds}", platforms=(), url="https://example.com/v1", root=root)
        finally:
            os.umask(before)
        found.append(contents(tmp_path / f"{seconds}"))
    number = packages.version(REPO)
    assert found[0] == found[1]
    assert set(found[0]) == {
        *("CHANGELOG.md", "SHA256SUMS", "gputopo.yaml", f"kubectl-gputopo-{number}.tar.gz"),
        *(f"gpu-topology-dra-{number}.tgz", f"gpu-topology-dra-{number}.cdx.json"),
        f"gpu_topology_dra-{number}-py3-none-any.whl",
    }
    made = tmp_path / "1700000000"
    assert subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=made, check=False).returncode == 0
    assert re.search(rf"\n## {re.escape(number)} \(\d{{4}}-\d\d-\d\d\)\n", (made / "CHANGELOG.md").read_text())

    bom = json.loads((made / f"gpu-topology-dra-{number}.cdx.json").read_text())
    locked = [line.split()[0] for line in (REPO / "requirements/runtime.txt").read_text().splitlines() if "==" in line]
    assert [f"{one['name']}=={one['version']}" for one in bom["components"]] == locked
    assert all(one["externalReferences"][0]["hashes"] for one in bom["components"])

    manifest = yaml.safe_load((made / "gputopo.yaml").read_text())["spec"]
    (platform,) = manifest["platforms"]
    assert manifest["version"] == f"v{number}"
    assert platform["uri"] == f"https://example.com/v1/kubectl-gputopo-{number}.tar.gz"
    assert platform["sha256"] == found[0][f"kubectl-gputopo-{number}.tar.gz"]


def members(archived: Path) -> set[str]:
    with tarfile.open(archived) as tar:
        return {name.partition("/")[2] for name in tar.getnames()}


def test_the_chart_has_no_file_that_is_not_of_it(tmp_path: Path) -> None:
    root = checkout(tmp_path / "checkout", seconds=10**9)
    chart = root / "helm/gpu-topology-dra"
    wanted = {path.relative_to(chart).as_posix() for path in chart.rglob("*") if path.is_file()} - {".helmignore"}
    (chart / "files/__pycache__").mkdir()
    (chart / "files/__pycache__/smoke.cpython-311.pyc").write_bytes(b"")
    assert members(packages.chart(root, tmp_path)) == wanted, "unpacked, without git"
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.com", "-C", str(root))
    for words in (("init", "-q"), ("add", "helm")):
        subprocess.run([*git, *words], check=True)
    (chart / "templates/mine.yaml.orig").write_text("kind: [")
    assert members(packages.chart(root, tmp_path)) == wanted, "what git has, and nothing else"


@pytest.mark.helm
def test_helm_itself_leaves_the_same_out(tmp_path: Path) -> None:
    root = checkout(tmp_path / "checkout", seconds=10**9)
    chart = root / "helm/gpu-topology-dra"
    (chart / "files/__pycache__").mkdir()
    (chart / "files/__pycache__/smoke.cpython-311.pyc").write_bytes(b"")
    done = run("package", str(chart), "--destination", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (made,) = tmp_path.glob("*.tgz")
    assert not [name for name in members(made) if "pyc" in name]


@pytest.mark.helm
def test_helm_reads_the_packaged_chart_as_the_checkouts(tmp_path: Path) -> None:
    made = packages.chart(REPO, tmp_path)
    command = ("--namespace", "x", "--kube-version", "1.37.2")
    packaged = run("template", "gpu-topology", str(made), *command)
    assert packaged.returncode == 0, packaged.stderr
    assert packaged.stdout == run("template", "gpu-topology", str(REPO / "helm/gpu-topology-dra"), *command).stdout


@pytest.mark.helm
def test_the_chart_of_a_forges_release_pulls_from_its_registry(tmp_path: Path) -> None:
    made = packages.chart(REPO, tmp_path, repository="registry.example.com:5000/team/gpu-topology-dra")
    shown = run("template", "gpu-topology", str(made), "--namespace", "x", "--kube-version", "1.37.2").stdout
    images = {line.split("image: ")[1] for line in shown.splitlines() if "image: " in line}
    assert images == {f"registry.example.com:5000/team/gpu-topology-dra:{packages.version(REPO)}"}


@pytest.mark.slow
def test_a_changelog_goes_on_from_the_last_one(tmp_path: Path) -> None:
    root = checkout(tmp_path / "checkout", seconds=10**9)
    text = "# Changes\n\n<!-- towncrier release notes start -->\n"
    (root / "CHANGELOG.md").write_text(f"{text}\n## 0.0.1 (2020-01-01)\n\n### New\n\n- The first thing.\n")
    out = tmp_path / "out"
    out.mkdir()
    gathered = packages.changelog(root, out, seconds=1790000000).read_text()
    assert gathered == "# Changes\n\n\n## 0.0.1 (2020-01-01)\n\n### New\n\n- The first thing.\n"
    (root / "changes/a.bugfix.md").write_text("A thing works.\n")
    (root / "changes/b.breaking.md").write_text("A value has another name.\n")
    gathered = packages.changelog(root, out, seconds=1790000000).read_text()
    wanted = ["# Changes", f"## {packages.version(REPO)} (2026-09-21)", "### What you have to change",
              "- A value has another name.", "### Fixed", "- A thing works.", "## 0.0.1 (2020-01-01)",
              "### New", "- The first thing."]  # fmt: skip
    assert [line for line in gathered.splitlines() if line] == wanted
    (root / "CHANGELOG.md").write_text(f"{text}\n## {packages.version(REPO)} (2026-01-01)\n")
    with pytest.raises(packages.ReleaseError, match="raise the version"):
        packages.changelog(root, out, seconds=0)
    (root / "CHANGELOG.md").write_text("# Changes\n")
    with pytest.raises(packages.ReleaseError, match="towncrier release notes start"):
        packages.changelog(root, out, seconds=0)


def image(path: Path, machine: str) -> Path:
    """An image with one file that says what it is for; another is the same in all."""
    rootfs = path.with_suffix(".d")
    rootfs.mkdir()
    (rootfs / "machine").write_text(machine)
    write_oci_tar(path, reference="any:1", rootfs=rootfs, entrypoint=["/machine"], machine=machine)
    return path


def blobs(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        names = tar.getnames()
        assert len(set(names)) == len(names)
        found = {member.name: tar.extractfile(member) for member in tar}
        return {name: data.read() for name, data in found.items() if data}


def test_one_archive_has_the_image_of_each_machine(tmp_path: Path) -> None:
    target = tmp_path / "image.tar"
    archive.merge(
        target,
        [image(tmp_path / "one.tar", "x86_64"), image(tmp_path / "two.tar", "aarch64")],
        reference="registry.example.com/a/driver:1.2",
    )
    found = blobs(target)

    def blob(descriptor: dict[str, Any]) -> bytes:
        data = found["blobs/" + descriptor["digest"].replace(":", "/")]
        assert hashlib.sha256(data).hexdigest() == descriptor["digest"].partition(":")[2]
        assert len(data) == descriptor["size"]
        return data

    (entry,) = json.loads(found["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == "registry.example.com/a/driver:1.2"
    assert entry["annotations"]["org.opencontainers.image.ref.name"] == "1.2"
    layers = {}
    for manifest in json.loads(blob(entry))["manifests"]:
        inner = json.loads(blob(manifest))
        assert json.loads(blob(inner["config"]))["architecture"] == manifest["platform"]["architecture"]
        (layer,) = inner["layers"]
        layers[manifest["platform"]["architecture"]] = blob(layer)
    assert b"x86_64" in layers["amd64"]
    assert b"aarch64" in layers["arm64"]


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """The plugin as Krew installs it: unpacked, with a link to its program."""
    wheel = tmp_path / "gpu_topology_dra-1.2-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    out = tmp_path / "out"
    out.mkdir()
    (packed,) = packages.plugin(REPO, out, wheel)
    with tarfile.open(packed) as tar:
        # Python before 3.11.4 takes no filter, and has none; from 3.12 on it warns of its absence.
        tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _path: member)
        tar.extractall(tmp_path / "store")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/kubectl-gputopo").symlink_to(tmp_path / "store/kubectl-gputopo")
    return tmp_path


@pytest.mark.parametrize(
    ("runners", "wanted"),
    [
        (("uv", "pipx"), "uv tool run --quiet --from {spec} kubectl-gputopo explain a pod"),
        (("pipx",), "pipx run --quiet --spec {spec} kubectl-gputopo explain a pod"),
    ],
)
def test_the_plugin_runs_its_wheel(plugin: Path, runners: tuple[str, ...], wanted: str) -> None:
    for name in runners:
        (plugin / "bin" / name).write_text('#!/bin/sh\necho "${0##*/}" "$@"\n')
        (plugin / "bin" / name).chmod(0o755)
    done = subprocess.run(
        [plugin / "bin/kubectl-gputopo", "explain", "a pod"],
        env={"PATH": f"{plugin / 'bin'}:/usr/bin:/bin"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    wheel = plugin / "store/gpu_topology_dra-1.2-py3-none-any.whl"
    assert wheel.read_bytes() == b"wheel"
    assert done.stdout.strip() == wanted.format(spec=f"gpu-topology-dra[cli] @ file://{wheel}")


def test_the_plugin_runs_in_a_folder_of_any_name(plugin: Path) -> None:
    odd = plugin / "a b#c%d?e"
    shutil.move(plugin / "store", odd)
    (plugin / "bin/uv").write_text('#!/bin/sh\necho "$5"\n')
    (plugin / "bin/uv").chmod(0o755)
    done = subprocess.run(
        [odd / "kubectl-gputopo"], env={"PATH": f"{plugin / 'bin'}:/usr/bin:/bin"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (wheel,) = odd.glob("*.whl")
    assert done.stdout.strip() == f"gpu-topology-dra[cli] @ {wheel.as_uri()}"


def test_the_plugin_says_what_it_needs(plugin: Path) -> None:
    for tool in ("sh", "dirname", "readlink", "sed"):
        (plugin / "bin" / tool).symlink_to(shutil.which(tool) or "")
    done = subprocess.run(
        [plugin / "bin/kubectl-gputopo"], env={"PATH": str(plugin / "bin")}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "install one of them" in done.stderr) == (1, True)


def test_a_folder_of_other_files_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(packages.ReleaseError, match="name another folder"):
        release.release(tmp_path, platforms=())
    assert (tmp_path / "mine").exists()


@pytest.mark.slow
def test_a_release_that_fails_leaves_nothing_and_blocks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1790000000")
    root, folder = checkout(tmp_path / "sources", seconds=1_700_000_000), tmp_path / "releases"
    folder.mkdir()
    out = folder / "out"
    real = packages.wheel

    def fails(_: Path, __: Path) -> Path:
        raise packages.ReleaseError("hatchling failed")

    def made() -> None:
        release.release(out, platforms=(), root=root)

    monkeypatch.setattr(packages, "wheel", fails)
    with pytest.raises(packages.ReleaseError, match="hatchling"):
        made()
    assert [*folder.iterdir()] == []
    monkeypatch.setattr(packages, "wheel", real)
    made()
    before = contents(out)
    monkeypatch.setattr(packages, "wheel", fails)
    with pytest.raises(packages.ReleaseError, match="hatchling"):
        made()
    assert contents(out) == before, "the last one stays"
    assert [*folder.iterdir()] == [out]


def test_a_checkout_without_a_date_is_told_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "none"))
    with pytest.raises(packages.ReleaseError, match="set SOURCE_DATE_EPOCH"):
        release.release(tmp_path / "out", platforms=(), root=tmp_path)
