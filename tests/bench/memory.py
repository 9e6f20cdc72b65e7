"""Resident memory of each of our processes on the running cluster."""

from __future__ import annotations

from pathlib import Path

ROLES = {b"dradriver\0node": "node", b"dradriver\0controller": "controller", b"webhook\0": "webhook"}


def measure() -> dict[str, list[float]]:
    """Return the resident set of every process in MiB, by part."""
    found: dict[str, list[float]] = {role: [] for role in ROLES.values()}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            command = (folder / "cmdline").read_bytes()
            status = (folder / "status").read_text()
        except OSError:  # gone meanwhile
            continue
        for mark, role in ROLES.items():
            if b"-m\0" + mark in command:
                resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
                found[role].append(round(int(resident.split()[1]) / 1024, 1))
    return found
