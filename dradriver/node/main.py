"""``python -m dradriver node``: the node agent as a process."""

from __future__ import annotations

from dradriver.node.options import parse


def main(argv: list[str]) -> int:
    """Run the agent until a signal ends it and return the process's exit status."""
    options = parse(argv)
    from dradriver.api.ledger import LEDGERS, OURS
    from dradriver.node import addon, agent
    from dradriver.process import run  # --help costs nothing

    ledger = LEDGERS[options.ledger]
    return run.start(agent.run(options) if ledger is OURS else addon.run(options, ledger), options)
