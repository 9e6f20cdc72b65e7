"""`python -m tests.bench.throughput`: starts a control plane, measures inside, and leaves nothing behind."""

from __future__ import annotations

from tests.bench.throughput import launch, options


def main(arguments: list[str]) -> int:
    """Measure and return the exit status."""
    asked = options.parse(arguments)
    module = "tests.bench.throughput.inside"
    return launch.outside(module, arguments, name=asked.name, version=None, json=asked.json)


if __name__ == "__main__":
    launch.start(main)
