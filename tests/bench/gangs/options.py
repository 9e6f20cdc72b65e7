"""The command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.cluster.settings import DEFAULT_KUBERNETES, KUBERNETES_VERSIONS
from tests.paths import REPO

MODES = ("big", "churn", "preempt")


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the options; a wrong one ends the process with an explanation."""
    found = argparse.ArgumentParser(prog="python -m tests.bench.gangs", description=__doc__)
    add = found.add_argument
    add("mode", choices=MODES, help="big: one gang on a large cluster; churn: many on a small one, the leader killed; "
        "preempt: one for whom others end on a full one")  # fmt: skip
    add("--nodes", type=int, help="nodes of eight GPUs (default: 1000, of churn 80, of preempt 16)")
    add("--pods", type=int, help="pods of the gang, and most of one of churn (default: 64, of preempt 8)")
    add("--gpus", type=int, default=8, help="GPUs of each pod of the gang, not of churn (default: %(default)s)")
    add("--rounds", type=int, help="how often the gang comes (default: 5, of preempt 20)")
    add("--gangs", type=int, default=120, help="gangs of churn (default: %(default)s, a few minutes)")
    add("--at-once", type=int, default=16, help="gangs of churn that are there at a time (default: %(default)s)")
    add("--kill-every", type=float, nargs=2, default=(45, 90), metavar=("LEAST", "MOST"), help="seconds from one kill "
        "of the controller to the next (default: 45 90)")  # fmt: skip
    add("--seed", type=int, default=1, help="of sizes, lives, graces and kills (default: %(default)s)")
    add("--version", choices=KUBERNETES_VERSIONS, default=DEFAULT_KUBERNETES, help="of Kubernetes; before 1.36 there "
        "are no seats (default: %(default)s)")  # fmt: skip
    add("--tree", type=Path, default=REPO, metavar="PATH", help="checkout whose driver and chart run (default: this)")
    add("--json", type=Path, metavar="FILE", help="write every figure there")
    add("--log", type=Path, metavar="FILE", help="keep the controller's log there")
    add("--profile", type=Path, metavar="DIR", help="write profiles of driver and control plane there; slows them "
        "down")  # fmt: skip
    add("--name", default="gangs", help="name of the control plane, for two at a time (default: %(default)s)")
    options = found.parse_args(arguments)
    options.tree = options.tree.absolute()
    if options.profile is not None:
        options.profile = options.profile.absolute()
    options.nodes = options.nodes or {"big": 1000, "churn": 80, "preempt": 16}[options.mode]
    options.pods = options.pods or (8 if options.mode == "preempt" else 64)
    options.rounds = options.rounds or (20 if options.mode == "preempt" else 5)
    if not (options.tree / "dradriver").is_dir():
        found.error(f"--tree {options.tree}: no checkout of the driver there")
    return options
