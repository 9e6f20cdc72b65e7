"""Prints the figures of a cluster as JSON.

Others: ``python -m tests.bench.allocator`` and, on up to thousands of nodes, ``python -m tests.bench.throughput``.
"""

from __future__ import annotations

import asyncio
import json
import sys

from tests import deploy
from tests.bench import memory, pod_start
from tests.cluster import Cluster, why_not


def main() -> int:
    """Print all figures and return the process's exit status."""
    if reason := why_not():
        print(f"left out, the figures on a cluster: {reason}")
        return 0
    cluster = Cluster()
    cluster.up()
    deploy.install(cluster)
    print(json.dumps({"pod_start": asyncio.run(pod_start.measure(cluster)), "rss_mib": memory.measure()}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
