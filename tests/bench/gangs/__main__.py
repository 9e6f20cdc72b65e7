"""`python -m tests.bench.gangs`: starts a control plane, measures inside, and leaves nothing behind."""

from __future__ import annotations

from tests.bench.gangs import options
from tests.bench.throughput import launch


def main(arguments: list[str]) -> int:
    """Measure and return the exit status: 1 where what must never be was seen."""
    asked = options.parse(arguments)
    return launch.outside(
        "tests.bench.gangs.inside", arguments, name=asked.name, version=asked.version, json=asked.json
    )


if __name__ == "__main__":
    launch.start(main)
