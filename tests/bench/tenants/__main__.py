"""`python -m tests.bench.tenants`: starts a control plane, measures inside, and leaves nothing behind."""

from __future__ import annotations

from tests.bench.tenants import options
from tests.bench.throughput import launch


def main(arguments: list[str]) -> int:
    """Measure and return the exit status: 1 where what must never be was seen."""
    asked = options.parse(arguments)
    return launch.outside(
        "tests.bench.tenants.inside", arguments, name=asked.name, version=asked.version, json=asked.json
    )


if __name__ == "__main__":
    launch.start(main)
