"""What processes and the API server have spent."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.api import Api

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PARTS = ("kube-apiserver", "kube-scheduler", "kube-controller-manager", "etcd")
_REQUEST = re.compile(r"apiserver_request_total\{(.*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def control_plane() -> dict[str, int]:
    """Return the process ids of the control plane's parts, as seen inside."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0") if folder.name.isdigit() else []
        except OSError:  # gone meanwhile
            continue
        if len(words) > 1 and words[0].endswith(b"/kube") and (part := words[1].decode()) in _PARTS:
            found[part.removeprefix("kube-")] = int(folder.name)
    return found


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def memory_mib(pid: int) -> dict[str, float]:
    """Return a process's resident set now and at its largest, in MiB."""
    status = dict(re.findall(r"(\w+):\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text()))
    return {"rss_mib": round(int(status["VmRSS"]) / 1024, 1), "peak_mib": round(int(status["VmHWM"]) / 1024, 1)}


class Usage:
    """The CPU time of some processes, from now on."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._before = {part: cpu_seconds(pid) for part, pid in pids.items()}
        self._begun = time.monotonic()

    def spent(self) -> dict[str, float]:
        """Return the CPU seconds of each process since the beginning."""
        return {part: cpu_seconds(pid) - self._before[part] for part, pid in self._pids.items()}

    def cores(self) -> float:
        """Return how many cores all of them together have kept busy."""
        return sum(self.spent().values()) / max(time.monotonic() - self._begun, 1e-6)


def requests(api: Api) -> Counter[str]:
    """Return how many requests the API server has answered, by `VERB resource/subresource`, all but watches."""
    counts: Counter[str] = Counter()
    for line in (api.get("/metrics") or "").splitlines():
        if found := _REQUEST.fullmatch(line):
            labels = dict(_LABEL.findall(found[1]))
            if labels["verb"] not in ("WATCH", "CONNECT") and labels["resource"]:
                target = "/".join(filter(None, (labels["resource"], labels["subresource"])))
                counts[f"{labels['verb']} {target}"] += int(float(found[2]))
    return counts
