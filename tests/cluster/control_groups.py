"""The control groups that a node's pods live in."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from tests.cluster.waiting import wait_for

_CONTROLLERS = frozenset({"cpu", "cpuset", "memory", "pids", "io", "hugetlb"})


def create(name: str) -> None:
    """Makes the group in every hierarchy of the machine.

    Raises:
        OSError: A hierarchy is not writable.
    """
    for hierarchy in _hierarchies():
        _hand_down_controllers(hierarchy)
        (hierarchy / name).mkdir(exist_ok=True)
        # A version 1 cpuset is useless until it has been given processors and memory nodes.
        for setting in ("cpuset.cpus", "cpuset.mems"):
            file = hierarchy / name / setting
            if file.exists() and hierarchy.name.startswith("cpuset"):
                file.write_text((hierarchy / setting).read_text())


def remove(name: str) -> None:
    """Removes the group and all below it; its processes must have ended.

    Raises:
        ClusterError: The kernel does not let go of it.
    """
    for hierarchy in _hierarchies():
        top = hierarchy / name
        wait_for(f"end of control group {top}", lambda top=top: _removed(top), seconds=10)  # type: ignore[misc]


def _removed(top: Path) -> bool:
    try:
        for folder, _, _ in os.walk(top, topdown=False):
            os.rmdir(folder)
    except OSError:
        return not top.exists()
    return True


def _hand_down_controllers(hierarchy: Path) -> None:
    """On version 2, lets groups below have the controllers that the kubelet asks for."""
    offered, handed_down = hierarchy / "cgroup.controllers", hierarchy / "cgroup.subtree_control"
    if not offered.exists():
        return
    missing = set(offered.read_text().split()) & _CONTROLLERS - set(handed_down.read_text().split())
    for controller in sorted(missing):
        with suppress(OSError):  # the kubelet tells which one it cannot do without
            handed_down.write_text(f"+{controller}")


def _hierarchies() -> list[Path]:
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    found = {Path(where) for _, where, kind, *_ in mounts if kind in ("cgroup", "cgroup2")}
    return sorted(path for path in found if os.access(path, os.W_OK))
