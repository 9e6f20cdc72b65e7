"""The command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.bench.throughput import parts, workloads
from tests.paths import REPO

MODES = ("burst", "steady", "start", "writes")


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the options; a wrong one ends the process with an explanation."""
    found = argparse.ArgumentParser(prog="python -m tests.bench.throughput", description=__doc__)
    add = found.add_argument
    add("--mode", choices=(*MODES, "all"), default="burst", help="default: %(default)s")
    add("--nodes", type=int, nargs="+", default=[200], help="sizes of the cluster, one after another (default: 200)")
    add("--machine", default="dgx-h100", help="profile or file that every node is (default: %(default)s)")
    add("--pods", type=int, default=400, help="pods of a burst (default: %(default)s)")
    add("--gpus", type=int, default=4, help="GPUs of a pod (default: %(default)s)")
    add("--parts", choices=parts.KINDS, help="hand GPUs out in parts so; `ours` asks by annotation, `part` by a "
        "template")  # fmt: skip
    add("--rounds", type=int, default=3, help="bursts of each variant, in turns; starts (default: %(default)s)")
    add("--variants", nargs="+", default=list(workloads.DEFAULT), metavar="NAME", help=workloads.HELP)
    add("--rate", type=float, default=20, help="pods a second in steady mode (default: %(default)s)")
    add("--seconds", type=float, default=60, help="length of steady mode (default: %(default)s)")
    add("--connections", type=int, default=32, help="how many pods are created at a time (default: %(default)s)")
    add("--tree", type=Path, action="append", metavar="PATH", help="checkout whose driver and chart run (default: this "
        "one); given again, each takes its turn in the same run")  # fmt: skip
    add("--driver-stays", action="store_true", help="let the driver run during the other variants too; else it runs "
        "while it is measured only, so that it takes nothing from them")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="write every figure there")
    add("--profile", type=Path, metavar="DIR", help="write profiles of all processes there; slows "
        "them down")  # fmt: skip
    add("--name", default="throughput", help="name of the control plane, for two at a time (default: %(default)s)")
    options = found.parse_args(arguments)
    options.tree = [tree.absolute() for tree in options.tree or [REPO]]
    options.nodes = sorted(options.nodes)
    if options.profile is not None:
        options.profile = options.profile.absolute()
    if unknown := [name for name in options.variants if not workloads.known(name)]:
        found.error(f"--variants: {unknown[0]} is none of {workloads.HELP}")
    if not options.parts and workloads.PART in options.variants:
        found.error("--variants part: say with --parts of what")
    for tree in options.tree:
        if not (tree / "dradriver").is_dir():
            found.error(f"--tree {tree}: no checkout of the driver there")
    if len({tree.name for tree in options.tree}) < len(options.tree):
        found.error("--tree: folders of the same name; results are told apart by it")
    return options
