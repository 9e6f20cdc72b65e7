"""Fixtures of the tests of MPS: a node with a stand-in for NVIDIA's program, and a folder to mount in."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dradriver.node.mps import mount_namespace
from tests.fakes.mps_node import Node, standing


@pytest.fixture
def node() -> Iterator[Node]:
    with standing() as node:
        yield node


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that is not below what a daemon's own mounts hide."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    try:
        yield folder
    finally:
        for mounted in folder.glob("mps/*/*"):
            mount_namespace.unmount(mounted)
        shutil.rmtree(folder)
