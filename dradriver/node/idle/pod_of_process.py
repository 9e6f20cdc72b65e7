"""Finds the pod of a process by its control group, which the kubelet names after the pod's uid."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")  # of the host: the agent is in its namespace of processes
_LONGEST: Final = 65_536  # bytes
# kubelet, cm/pod_container_manager_linux.go: "pod" and the uid, by systemd's driver with "_" for "-".
_POD: Final = re.compile(r"[/-]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})[./]", re.ASCII)


def pod_of(pid: int, proc: Path = PROC) -> str | None:
    """Return the uid of a process's pod; None if it has no pod, has ended, or cannot be read."""
    try:
        with (proc / str(pid) / "cgroup").open("rb") as file:
            text = file.read(_LONGEST).decode("ascii", "replace")
    except OSError:
        return None
    found = _POD.search(text.replace("\n", "/\n"))
    return None if found is None else found[1].replace("_", "-")
