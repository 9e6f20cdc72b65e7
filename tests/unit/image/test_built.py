"""The image that lies in the cache, if one was built: what its last layer holds, and that its processes start."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
from pathlib import PurePosixPath

import pytest

from image import assemble, build
from tests import needs
from tests.cluster.errors import Unavailable
from tests.cluster.settings import cache_folder

CONTENTS = assemble.read_contents()
ROOTFS = cache_folder() / "image" / "rootfs"
ARCHIVE = cache_folder() / "image" / "gpu-topology-dra.tar"


@pytest.fixture(scope="module")
def built() -> None:
    if not ARCHIVE.exists():
        needs.missing("no image was built here yet: make programs")


@pytest.fixture(scope="module")
def files(built: None) -> set[PurePosixPath]:
    with tarfile.open(ARCHIVE) as tar:

        def read(digest: str) -> bytes:
            data = tar.extractfile("blobs/" + digest.replace(":", "/"))
            assert data
            return data.read()

        index = tar.extractfile("index.json")
        assert index
        manifest = json.loads(read(json.loads(index.read())["manifests"][0]["digest"]))
        config = json.loads(read(manifest["config"]["digest"]))["config"]
        assert config["User"] == CONTENTS["run"]["user"]
        (layer,) = manifest["layers"]
        with tarfile.open(fileobj=tar.extractfile("blobs/" + layer["digest"].replace(":", "/"))) as entries:
            return {PurePosixPath("/", entry.name) for entry in entries if not entry.isdir()}


@pytest.mark.slow
def test_every_module_is_compiled(files: set[PurePosixPath]) -> None:
    (python,) = (path.name for path in files if re.fullmatch(r"/usr/bin/python3\.\d+", str(path)))
    tag = "cpython-" + python.removeprefix("python").replace(".", "")
    modules = {path for path in files if path.suffix == ".py" and path.parts[1] in ("app", "usr")}
    missing = {p for p in modules if p.parent / "__pycache__" / f"{p.stem}.{tag}.pyc" not in files}
    assert len(modules) > 1000
    assert missing == set()


@pytest.mark.slow
def test_nothing_that_is_pruned_is_there(files: set[PurePosixPath]) -> None:
    app = PurePosixPath(CONTENTS["app"]["folder"])
    names = {path.relative_to(app).parts[0] for path in files if path.is_relative_to(app)}
    assert {"dradriver", "webhook", "numpy", "grpc", "cryptography", "aiohttp", "pynvml.py"} <= names
    assert not {
        name for name in names if name.partition("-")[0] in ("kubernetes", "pip", "setuptools", "pygments", "pynvml")
    }
    assert {path.name for path in files if path.parent == app / "bin"} == {*CONTENTS["app"]["programs"]}
    assert not {path for path in files if path.name == "direct_url.json"}
    assert not {path for path in files if path.suffix == ".pyi" or (path.is_relative_to(app) and "tests" in path.parts)}
    assert not {path for path in files if path.name in ("sh", "bash", "apt-get", "dpkg")}


@pytest.mark.slow
@pytest.mark.usefixtures("built")
@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
@pytest.mark.parametrize("user", ["0:0", CONTENTS["run"]["user"]])
def test_what_the_processes_import_is_there(user: str) -> None:
    modules = "dradriver, webhook, numpy, grpc.aio, google.protobuf, cryptography.x509, aiohttp, msgspec, yaml, pynvml"
    program = f"import {modules}, prometheus_client, ssl"
    done = run_inside("/usr/bin/python3", "-W", "error", "-c", program, user=user)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("built")
@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
@pytest.mark.parametrize("words", ["fault fail --help", "topo -m dgx1-v100", "simulate --nodes 1 --jobs 2"])
def test_the_command_line_tool_runs_by_its_name(words: str) -> None:
    done = run_inside("gputopo", *words.split(), user=CONTENTS["run"]["user"])
    assert (done.returncode, done.stderr.strip()) == (0, "")


def run_inside(*command: str, user: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the image, as ``kubectl exec`` does."""
    environment = [f"{key}={value}" for key, value in CONTENTS["run"]["env"].items()]
    chroot = ["/usr/bin/env", "-i", *environment, "/usr/sbin/chroot", f"--userspec={user}", str(ROOTFS)]
    return subprocess.run([*chroot, *command], capture_output=True, text=True, check=False)


def test_files_of_the_image_are_readable_with_any_mask_of_the_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 077 nobody but root could run what is in it."""
    seen = []

    def mask() -> int:
        found = os.umask(0)
        os.umask(found)
        return found

    def release(_: object) -> str:
        seen.append(mask())
        raise Unavailable("not here")

    monkeypatch.setattr(build, "_release", release)
    before = os.umask(0o077)
    try:
        with pytest.raises(Unavailable):
            build.build()
        seen.append(mask())
    finally:
        os.umask(before)
    assert seen == [0o022, 0o077]


def test_a_machine_that_cannot_build_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": "fedora", "PRETTY_NAME": "Fedora 43"})
    with pytest.raises(Unavailable, match="needs Debian bookworm or trixie; this is Fedora 43"):
        build.build()
