"""Runs one part of the driver: ``python -m dradriver node|controller|mps``.

Only the modules of that part are imported: the node agent, for example, never loads numpy.
"""

from __future__ import annotations

import sys

from dradriver import __version__

_USAGE = """usage: python -m dradriver node|controller|mps [options]

  node        the agent of one node: publishes its GPUs, prepares claims
  controller  the cluster's controller: chooses GPUs for pods
  mps         one node's MPS control daemons, for shares of GPUs with limits

python -m dradriver node --help, for one, lists the options."""


def main(argv: list[str]) -> int:
    """Run the part that the first argument names, and return the process's exit status."""
    if argv[:1] == ["--version"]:
        print(__version__)
        return 0
    if argv[:1] == ["node"]:
        from dradriver.node.main import main as node

        return node(argv[1:])
    if argv[:1] == ["controller"]:
        from dradriver.controller.main import main as controller

        return controller(argv[1:])
    if argv[:1] == ["mps"]:
        from dradriver.node.mps.main import main as mps

        return mps(argv[1:])
    asked = argv[:1] in (["-h"], ["--help"])
    print(_USAGE, file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
