"""``python -m dradriver node``: the node agent as a process."""

from __future__ import annotations

from dradriver.node.agent_options import Options, parse


def main(argv: list[str]) -> int:
    """Run the node agent as the main program until a signal ends it; return the exit status."""
    options = parse(argv)
    from dradriver.process import run  # --help costs nothing

    return run.start(serve(options), options)


async def serve(options: Options) -> None:
    """Run the node agent until cancelled: by the options, the full agent or the agent next to another driver."""
    from dradriver.api.base.allocating_driver import LEDGERS, OURS, bind, current_ledger
    from dradriver.node import addon_agent, agent

    bind(LEDGERS[options.allocating_driver])
    await (agent if current_ledger() is OURS else addon_agent).run(options)
