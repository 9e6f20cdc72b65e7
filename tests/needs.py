"""What some tests cannot do without, and what becomes of them where it is missing.

A test of the real cluster is skipped, and fails in CI, which must have one. Tests with a mark of ``LACKING`` are left
out together, with one line that says so.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

import pytest

from image import build as image
from tests.cluster import build, why_not
from tests.cluster.errors import Unavailable
from tests.paths import SHARED_DATA


def real_cluster(version: str | None = None) -> None:
    """Skip the test where no cluster of a Kubernetes version can run; None for the one that tests run on."""
    if reason := why_not(version):
        missing(f"the real cluster cannot run here: {reason}")


def missing(what: str) -> NoReturn:
    """Skip the test for want of something; in CI it fails."""
    if os.environ.get("CI"):
        pytest.fail(f"part of CI: {what}")
    pytest.skip(what)


@functools.cache
def helm() -> Path | None:
    """Helm from the variable HELM, the cluster's cache or the path; in CI it is built if need be."""
    if own := os.environ.get("HELM"):
        return Path(own)
    target = build.helm()
    if target.built or os.environ.get("CI"):
        return target.ensure() / "helm"
    found = shutil.which("helm")
    return Path(found) if found else None


def chromium() -> str:
    """The path of a Chromium; without one the test is skipped, and fails in CI."""
    if found := os.environ.get("CHROMIUM") or shutil.which("chromium"):
        return found
    missing("no Chromium: install chromium, which make test does where there is apt-get, or set CHROMIUM to its path")


@functools.cache
def nvidia_toolkit(version: str) -> Path:
    """The folder with NVIDIA's container toolkit of a release; not built it skips the test, in CI it is built."""
    target = build.nvidia_toolkit(version)
    if not target.built and not os.environ.get("CI"):
        missing(f"{target.name} is not built: python -m tests.cluster build")
    return target.ensure()


@functools.cache
def prometheus() -> Path:
    """The folder with Prometheus and promtool; not built it skips the test, in CI it is built."""
    target = build.prometheus()
    if not target.built and not os.environ.get("CI"):
        missing(f"{target.name} is not built: python -m tests.cluster build")
    return target.ensure()


@functools.cache
def image_toolkit() -> Path:
    """The folder with NVIDIA's container toolkit as the image has it, built if need be."""
    try:
        return image.toolkit()
    except Unavailable as error:
        missing(str(error))


def no_helm() -> str:
    """Return why charts cannot be rendered here; empty where they can."""
    return "" if helm() else "no Helm: set HELM to its path, or start the local cluster once, which builds it"


def no_shared_data() -> str:
    """Return why the texts of real machines cannot be read here; empty where they can."""
    return "" if SHARED_DATA.is_dir() else "the texts of real machines are not beside the repository"


LACKING: Final[Mapping[str, Callable[[], str]]] = {"helm": no_helm, "shared_data": no_shared_data}


def left_out(
    items: Sequence[pytest.Item], lacking: Mapping[str, Callable[[], str]] = LACKING
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests that stay, and those that go for want of what their mark names.

    One of each mark stays, to be skipped with the reason and the number of all.
    """
    stay, go = list(items), []
    for mark, why in lacking.items():
        marked = [item for item in stay if item.get_closest_marker(mark)]
        if marked and (reason := why()):
            marked[0].add_marker(pytest.mark.skip(reason=f"{len(marked)} tests: {reason}"), append=False)
            go += marked[1:]
            stay = [item for item in stay if item not in marked[1:]]
    return stay, go
