"""The measurements themselves, next to the control plane: `python -m ...inside VERSION OPTIONS...`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time

from dradriver.kube.client import Client
from dradriver.kube.config import from_kubeconfig
from tests.bench.gangs import options
from tests.bench.gangs.big import big
from tests.bench.gangs.churn import Churn
from tests.bench.gangs.preempt import ON, policies, preempt
from tests.bench.throughput import chart, launch
from tests.bench.throughput.driver import Driver
from tests.bench.throughput.launch import say
from tests.bench.throughput.machines import Machines
from tests.bench.throughput.numbers import middle, spread
from tests.bench.throughput.stage import Stage
from tests.bench.throughput.workloads import OURS
from tests.cluster.nodeless import Nodeless

_CONNECTIONS = 32
_LEAF, _ZONE = 16, 256  # nodes of one


async def main(plane: Nodeless, asked: argparse.Namespace) -> int:
    """Measure what the options ask for, and return the exit status."""
    others_end = asked.mode == "preempt"
    found = await chart.render(plane.helm, asked.tree, plane.folder / "helm", *([ON] if others_end else []))
    folder = plane.folder / "driver"
    if others_end:
        found.use_policies(policies(), folder / "policies.yaml")
    driver = Driver(asked.tree, found, folder, profiles=asked.profile)
    async with Client(from_kubeconfig(plane.kubeconfig), user_agent="gangs", timeout_s=120) as client:
        stage = Stage(
            client,
            chart.Kubectl(plane.binaries / "kubectl", plane.kubeconfig),
            kubeconfig=plane.kubeconfig,
            machines=Machines(client, "dgx-h100", connections=_CONNECTIONS, labels=place),
            drivers={OURS: driver},
            gpus=asked.gpus,
            parts=None,
            connections=_CONNECTIONS,
            driver_stays=False,
            profiles=asked.profile,
        )
        await stage.prepare()
        begun = time.monotonic()
        await stage.machines.grow(asked.nodes)
        await stage.quiet()
        say(f"{asked.nodes} nodes are there after {time.monotonic() - begun:.0f} s; load {os.getloadavg()[0]:.1f}")
        try:
            measure = {"big": rounds, "churn": churn, "preempt": preempting}[asked.mode]
            figures = await measure(stage, asked)
        finally:
            if asked.log is not None:
                shutil.copy(folder / "controller.log", asked.log)
    content = {"options": {key: str(value) for key, value in vars(asked).items()}, "cores": os.cpu_count()}
    (plane.folder / launch.RESULTS).write_text(json.dumps(content | figures, indent=1))
    return int(bool(figures["wrong"]))


def place(number: int) -> dict[str, str]:
    """Return the labels that say where in the network a node is."""
    leaf, zone = number // _LEAF, number // _ZONE
    return {
        "topology.kubernetes.io/zone": f"zone-{zone}",
        "network.topology.nvidia.com/leaf": f"leaf-{leaf}",
        "network.topology.nvidia.com/spine": f"spine-{zone}",
    }


async def rounds(stage: Stage, asked: argparse.Namespace) -> dict[str, object]:
    """Have the big gang come several times."""
    found = []
    async with stage.ready_for(OURS):
        for number in range(asked.rounds):
            each = await big(stage, f"big{number}", asked.pods, asked.gpus)
            say(" ".join(f"{key} {value:.2f}" for key, value in each.items() if key.endswith("_s"))
                + f"; load {os.getloadavg()[0]:.1f}, {each['cores_busy']:.1f} cores by these processes")  # fmt: skip
            found.append(each)
    keys = ("claims_s", "ungated_s", "seated_s", "first_bound_s", "bound_s")
    say(f"a gang of {asked.pods} pods of {asked.gpus} GPUs on {asked.nodes} nodes, seconds after its last pod: "
        f"median (min-max) of {asked.rounds} rounds")  # fmt: skip
    for key in keys:
        say(f"  {key.removesuffix('_s').replace('_', ' '):<12} {spread((each[key] for each in found), 2)}")
    costs = {part: middle(each["cpu_ms_a_pod"][part] for each in found) for part in found[0]["cpu_ms_a_pod"]}
    say("  ms CPU a pod: " + ", ".join(f"{part} {cost:.1f}" for part, cost in costs.items()))
    say("  requests a pod: " + ", ".join(f"{what} {count:g}" for what, count in found[-1]["requests_a_pod"].items()))
    return {"big": found, "wrong": [each for each in found if not each["whole"]]}


async def churn(stage: Stage, asked: argparse.Namespace) -> dict[str, object]:
    """Have gangs come and go."""
    each = Churn(stage, asked, say)
    await each.run()
    return each.figures()


async def preempting(stage: Stage, asked: argparse.Namespace) -> dict[str, object]:
    """Have a gang come for whom others end, several times."""
    return await preempt(stage, asked, say)


if __name__ == "__main__":
    launch.inside(main, options.parse)
