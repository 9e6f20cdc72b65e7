"""The command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.cluster.settings import DEFAULT_KUBERNETES, KUBERNETES_VERSIONS


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the options; a wrong one ends the process with an explanation."""
    found = argparse.ArgumentParser(prog="python -m tests.bench.tenants", description=__doc__)
    add = found.add_argument
    add("--nodes", type=int, default=200, help="nodes of eight GPUs (default: %(default)s)")
    add("--pods", type=int, default=2000, help="pods of all teams (default: %(default)s)")
    add("--teams", type=int, default=5, help="how many (default: %(default)s)")
    add("--lives", type=float, nargs=2, default=(5, 20), metavar=("LEAST", "MOST"), help="seconds from when a pod is "
        "bound until it is deleted (default: 5 20)")  # fmt: skip
    add("--seed", type=int, default=1, help="of sizes, priorities and lives (default: %(default)s)")
    add("--version", choices=KUBERNETES_VERSIONS, default=DEFAULT_KUBERNETES, help="of Kubernetes (default: "
        "%(default)s)")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="write every figure there")
    add("--log", type=Path, metavar="FILE", help="keep the controller's log there")
    add("--name", default="tenants", help="name of the control plane, for two at a time (default: %(default)s)")
    options = found.parse_args(arguments)
    options.profile = None
    return options
