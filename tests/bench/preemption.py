"""``python -m tests.bench.preemption``: how long it takes to find out who would have to end on nodes that are full.

CPU time, for a pod and for a gang, what runs there being read already.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Any

from dradriver.api.base.objects import Metadata
from dradriver.api.slices import resource_slices
from dradriver.cluster.records.records import ClaimRecord
from dradriver.controller.loop.worker import Worker
from dradriver.controller.placing.gang_terms import GangTerms
from dradriver.controller.placing.preemption_plan import plan_preemption
from dradriver.controller.placing.preemption_search import Scene
from dradriver.controller.placing.running_workloads import RunningWorkloads
from dradriver.kube.reflector import Change
from dradriver.process import cyclic_gc
from dradriver.queue.pending import Member
from tests.bench.controller import NullClient, bring, full, pod
from tests.fakes.preempting import NOW

SPACE = "ns-0"


def crowd(nodes: int, gpus: int) -> tuple[Worker, NullClient]:
    """Return a worker with nodes of eight GPUs, all of them in use by pods of so many, of five priorities."""
    worker, client = full(nodes, fill_with=0)
    each = 8 // gpus
    for number in range(nodes * each):
        node, place_ = f"node-{number // each:05d}", number % each
        name = f"p{number}"
        obj: dict[str, Any] = pod(number, distinct=False, gpus=gpus)
        obj["metadata"]["namespace"] = SPACE
        obj["spec"] |= {"schedulingGates": [], "nodeName": node, "priority": number * 7 % 5}
        obj["status"] = {"phase": "Running", "startTime": f"2026-01-01T{number % 24:02d}:{number % 60:02d}:00Z"}
        bring(worker, client, obj)
        held = [f"GPU-{number // each:05d}-{place_ * gpus + i}" for i in range(gpus)]
        uid = obj["metadata"]["uid"]
        claim = ClaimRecord(
            metadata=Metadata(name=f"gpus-{name}", namespace=SPACE, uid=f"claim-{number}", resource_version="1"),
            ours=True,
            owners=((name, uid),),
            pin=None,
            devices={(node, resource_slices.device_name(uuid)): None for uuid in held},
            users=(uid,),
        )
        worker.picture.claim_changed(Change(claim.key, None, claim))
    return worker, client


async def measure(nodes: int, gpus: int, times: int) -> None:
    """Print the figures for so many nodes, in use by pods of so many GPUs."""
    worker, client = crowd(nodes, gpus)
    picture = worker.picture
    _ = picture.inventory.fleet
    workloads = RunningWorkloads(picture)
    began = time.thread_time()
    running, _ending = workloads.all()
    first_s = time.thread_time() - began
    cyclic_gc.settle()  # as the controller does
    print(f"{nodes} nodes, {len(running)} pods of {gpus} GPUs: all that runs is read in {1e3 * first_s:.1f} ms once")
    for number, want in enumerate((1, 4, 8)):
        obj: dict[str, Any] = pod(1_000_000 + number, distinct=False, gpus=want)
        bring(worker, client, obj)
        key = obj["metadata"]["namespace"], obj["metadata"]["name"]
        member = Member(picture.pods[key])
        _ = member.wish
        seconds = []
        for _ in range(times):
            picture.version += 1
            began = time.thread_time()
            running, ending = workloads.all()
            found = plan_preemption(
                picture, [member], Scene([(workload, workload.priority) for workload in running], ending, NOW)
            )
            seconds.append(time.thread_time() - began)
        assert found is not None
        print(
            f"  for a pod of {want}: {len(found.victims)} would end; median {1e3 * statistics.median(seconds):.1f} ms, "
            f"worst {1e3 * max(seconds):.1f} ms"
        )
    members = []
    for number in range(8):
        obj = pod(2_000_000 + number, distinct=False, gpus=8)
        bring(worker, client, obj)
        members.append(Member(picture.pods[obj["metadata"]["namespace"], obj["metadata"]["name"]]))
    seconds = []
    for _ in range(times):
        picture.version += 1
        began = time.thread_time()
        running, ending = workloads.all()
        scene = Scene([(workload, workload.priority) for workload in running], ending, NOW)
        together = plan_preemption(picture, members, scene, GangTerms(None, "g", least=8))
        seconds.append(time.thread_time() - began)
    assert together is not None
    print(
        f"  for a gang of 8 x 8: {len(together.victims)} would end; median {1e3 * statistics.median(seconds):.1f} ms, "
        f"worst {1e3 * max(seconds):.1f} ms"
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--times", type=int, default=10)
    given = parser.parse_args()
    asyncio.run(measure(given.nodes, given.gpus, given.times))


if __name__ == "__main__":
    main()
