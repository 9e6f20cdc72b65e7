"""`python -m tests.bench.order`: one change of order among many that wait, beside the same queue without tenants.

A change is: a tenant is given a GPU, the queue says who is next, and that one leaves.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Tenant
from dradriver.queue.namespace_tenants import Tenants
from dradriver.queue.tenant_shares import Shares
from dradriver.queue.waiting import Queue
from tests.unit.queue.test_order import workload
from tests.unit.queue.test_waiting import Nodes


def measured(entries: int, tenants: int, *, changes: int) -> list[float]:
    """Return the CPU seconds of each change; without tenants for 0 of them."""
    rng = random.Random(1)
    found, nodes = Tenants(Shares(time.monotonic)), Nodes("a")
    found.follow(Policies(tenants={f"t{number}": Tenant(namespaces=(f"n{number}",)) for number in range(tenants)}))
    queue = Queue(nodes.table, lambda: nodes.free, tenant=found.of, share=found.turn)
    found.shares.lowered.add(queue.lowered)
    spaces = [f"n{number}" for number in range(tenants or 100)]
    for number in range(entries):
        gpus = rng.choice((1, 2, 3, 4, 8))
        queue.put(workload(f"p{number}", spaces[number % len(spaces)], gpus=gpus, since=number % 3600))
    for space in spaces:
        found.shares.holds(space, rng.uniform(0.0, 8.0), 8.0)
    seconds = []
    for number in range(changes):
        begun = time.thread_time()
        found.shares.holds(spaces[number % len(spaces)], 1.0, 1.0)
        head = queue.next()
        assert head is not None
        queue.leave(head[0])
        seconds.append(time.thread_time() - begun)
    return seconds


def main() -> None:
    """Print the median and the 99th percentile of both, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--tenants", type=int, default=100)
    parser.add_argument("--changes", type=int, default=3000)
    given = parser.parse_args()
    medians = []
    for tenants in (given.tenants, 0):
        seconds = sorted(measured(given.entries, tenants, changes=given.changes))
        medians.append(statistics.median(seconds))
        late = seconds[len(seconds) * 99 // 100]
        who = f"{tenants} tenants" if tenants else "no tenants"
        print(f"{given.entries} wait, {who}: {medians[-1] * 1e3:.3f} ms a change, 99 of 100 within {late * 1e3:.3f} ms")
    print(f"ratio {medians[0] / medians[1]:.1f}")


if __name__ == "__main__":
    main()
