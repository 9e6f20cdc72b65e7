"""Writes the Go module for a Kubernetes version: `python -m tests.cluster.new_version 1.37.2`.

Kubernetes' own go.mod requires its parts at v0.0.0 and points them at folders of
its repository. As a dependency these pointers do not count, so our go.mod
requires every part itself, at the version that belongs to it. Afterwards add the
version to `settings.py`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cluster.settings import minor_of

ETCD = "v3.6.12"
_HERE = Path(__file__).parent


def main(version: str) -> None:
    """Writes go.mod and go.sum of the version's folder.

    Raises:
        CalledProcessError: There is no such version, or go cannot resolve it.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        answer = json.loads(go("mod", "download", "-json", f"k8s.io/kubernetes@v{version}", folder=folder))
        (folder / "go.mod").write_text(module(version, Path(answer["GoMod"]).read_text()))
        shutil.copy(_HERE / "multicall/main.go", folder)
        go("mod", "tidy", folder=folder)
        target = _HERE / f"kubernetes-{minor_of(version)}"
        target.mkdir(exist_ok=True)
        for file in ("go.mod", "go.sum"):
            shutil.copy(folder / file, target)
        print(target)


def module(version: str, upstream: str) -> str:
    """Returns the go.mod to start from.

    Args:
        version: The version of Kubernetes.
        upstream: Kubernetes' own go.mod.
    """
    language = re.search(r"^go (\S+)", upstream, re.MULTILINE)
    assert language, "every go.mod names its version of Go"
    parts = re.findall(r"^\s*(?:replace )?(k8s\.io/\S+) => \./staging", upstream, re.MULTILINE)
    needed = [part for part in parts if not part.startswith("k8s.io/sample-")]
    lines = [f"go.etcd.io/etcd/server/v3 {ETCD}", f"k8s.io/kubernetes v{version}"]
    lines += [f"{part} v0.{version.removeprefix('1.')}" for part in needed]
    required = "".join(f"\t{line}\n" for line in lines)
    return f"module gpu.topology/tests/cluster\n\ngo {language[1]}\n\nrequire (\n{required})\n"


def go(*arguments: str, folder: Path) -> str:
    """Returns go's output."""
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod"}
    return subprocess.run(
        ["go", *arguments], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


if __name__ == "__main__":
    main(sys.argv[1])
