"""docs/internals/kubelet.md against the kubelet's sources, if the cache of Go modules has them, and our tests."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster.settings import DEFAULT_KUBERNETES
from tests.paths import REPO

PAGE = (REPO / "docs/internals/kubelet.md").read_text()


@functools.cache
def sources() -> Path:
    """The kubelet's folder; the test is skipped where Kubernetes has not been built."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no Go, and so no sources of the kubelet")
    cache = subprocess.run([go, "env", "GOMODCACHE"], capture_output=True, text=True, check=True, timeout=60).stdout
    found = Path(cache.strip()) / f"k8s.io/kubernetes@v{DEFAULT_KUBERNETES}/pkg/kubelet"
    if not found.is_dir():
        pytest.skip("the sources of the kubelet are not there: start the local cluster once, which builds it")
    return found


def test_every_step_is_the_kubelets() -> None:
    assert f"Kubernetes {DEFAULT_KUBERNETES}" in PAGE
    named = re.findall(r"`([a-z_/]+\.go)(?:::(\w+))?`", PAGE)
    assert len(named) > 10
    for file, function in named:
        text = (sources() / file).read_text()
        assert re.search(rf"func (\([^)]*\) )?{function}\(", text), (file, function)
    dra = "\n".join(path.read_text() for path in sorted((sources() / "cm/dra").rglob("*.go")))
    steps = set(re.findall(r"`(\w+)`", PAGE)) - {"SyncPod", "NoSchedule", "firstAvailable", "pluginmanager", "sun_path"}
    assert steps
    assert {step for step in steps if step not in dra} <= {"v1alpha1"}


def test_every_number_that_a_test_has_is_on_the_page() -> None:
    rows = {int(number) for number in re.findall(r"(?m)^\| (\d+) \|", PAGE)}
    tests = [path.read_text() for path in sorted((REPO / "tests").rglob("test_*.py"))]
    numbers = {int(number) for text in tests for number in re.findall(r"def test_trap_(\d+)_", text)}
    assert rows == set(range(1, 19))
    assert numbers
    assert numbers <= rows
