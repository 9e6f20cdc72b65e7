"""What each tool says of one cluster at one moment: controller, Events, metrics, commands and the page."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from prometheus_client import REGISTRY

from dradriver.api.base import names
from dradriver.api.base.allocating_driver import OURS, Ledger, bound
from dradriver.api.base.pods import Pod
from dradriver.api.policies.policies_reader import read
from dradriver.controller.loop.cluster_gauges import Figures
from dradriver.kube.resources import CONFIG_MAPS, PODS
from tests.fakes.commands import CommandLine, command_line, run_all
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.installed import policies_map
from tests.fakes.serving import served
from tests.fakes.situations import POLICIES, SITUATIONS, Site, Situation

Key = tuple[str, str]
Data = dict[str, Any]

NAMESPACES: Final = ("default", "vision", "language", "other")
PLANNED: Final = ("default", "language")


class Answers(msgspec.Struct, kw_only=True):
    """What the tools say. Pods are named by namespace and name.

    Attributes:
        sites: The situations, with what is expected of them.
        reasons: The annotation of each pod that has one.
        events: The last Event of each pod that has one.
        explained: ``gputopo explain POD`` of each pod that is not bound.
        listed: ``gputopo explain -A`` by pod.
        queue: ``gputopo queue`` by pod or gang.
        free: ``gputopo free`` by the namespace that asks.
        plans: Whether ``gputopo plan --gang`` finds a place for a pod, by the namespace that asks and the pod's GPUs.
        topo: ``gputopo topo --cluster`` by node.
        page: The pieces of the page.
        metrics: The samples of the controller's metrics, by name and labels' values.
        findings: ``gputopo verify``.
        warnings: What the commands say on standard error, by command.
    """

    sites: dict[str, Site]
    reasons: dict[Key, str] = {}
    events: dict[Key, str] = {}
    explained: dict[Key, Data] = {}
    listed: dict[Key, Data] = {}
    queue: dict[str, Data] = {}
    free: dict[str, Data] = {}
    plans: dict[tuple[str, int], bool] = {}
    topo: dict[str, Data] = {}
    page: dict[str, Any] = {}
    metrics: dict[str, dict[tuple[str, ...], float]] = {}
    findings: list[Data] = []
    warnings: dict[str, set[str]] = {}


async def ask(
    folder: Path,
    situations: Mapping[str, Situation] = SITUATIONS,
    *,
    kind: type[GpuCluster] = GpuCluster,
    ledger: Ledger = OURS,
) -> Answers:
    """Bring about situations on one cluster, and return what everything says of it.

    Args:
        folder: Takes files.
        situations: By name.
        kind: The cluster's.
        ledger: The driver that allocates its GPUs.
    """
    with bound(ledger):
        answers, cluster = await _brought_about(situations, kind)
    pods = [pod["metadata"] for pod in cluster.all(PODS) if not pod["spec"].get("nodeName")]
    keys = [(pod["namespace"], pod["name"]) for pod in pods]
    async with command_line(cluster.store, folder) as shell:
        await _run(shell, keys, answers)
    async with served(cluster.store) as made:
        answers.page = json.loads(gzip.decompress(made.page.feed.whole()))["set"]
    return answers


async def _brought_about(situations: Mapping[str, Situation], kind: type[GpuCluster]) -> tuple[Answers, GpuCluster]:
    """Return a cluster with all situations, and what its controller says."""
    cluster, events = kind(), dict[Key, str]()

    async def record(pod: Pod, message: str) -> None:
        events[pod.metadata.namespace, pod.metadata.name] = message

    cluster.record_waiting = record
    cluster.restart()
    cluster.put(CONFIG_MAPS, policies_map(POLICIES))
    cluster.worker.follow(read(POLICIES.encode(), source="the table"))
    sites = {name: Site(cluster, name) for name in situations}
    running = [situations[name](site) for name, site in sites.items()]
    while running:
        running = [each for each in running if next(each, running) is None]
        await run_all(cluster)

    answers = Answers(sites=sites, events=events)
    for pod in cluster.all(PODS):
        metadata = pod["metadata"]
        if reason := metadata["annotations"].get(names.REASON):
            answers.reasons[metadata["namespace"], metadata["name"]] = reason
    await _count(cluster, answers)
    return answers, cluster


async def _count(cluster: GpuCluster, answers: Answers) -> None:
    """Have the controller count its figures once, and take them."""
    figures = asyncio.create_task(Figures(cluster.worker.picture, cluster.worker.reasons).run())
    await asyncio.sleep(1)
    for family in REGISTRY.collect():
        for sample in family.samples:
            if sample.name.startswith("gpu_topology_"):
                answers.metrics.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    figures.cancel()
    await asyncio.gather(figures, return_exceptions=True)


async def _run(shell: CommandLine, keys: list[Key], answers: Answers) -> None:
    async def data(command: str) -> Any:
        result = await shell.run(command, "-o", "json")
        answers.warnings.setdefault(command.split()[0], set()).update(result.stderr.splitlines())
        return json.loads(result.stdout)

    shell.api.fail(
        times=math.inf, method="POST", path="selfsubjectaccessreviews", status=201, body=b'{"status":{"allowed":true}}'
    )
    answers.findings = (await data("verify"))["findings"]
    answers.topo = {node["node"]: node for node in await data("topo --cluster")}
    answers.queue = {one["name"]: one for one in await data("queue")}
    answers.listed = {(one["namespace"], one["pod"]): one for one in await data("explain -A")}
    for namespace in NAMESPACES:
        free = answers.free[namespace] = await data(f"free -n {namespace}")
        largest = max((one["size"] for one in free["sets"]), default=1)
        for gpus in (largest, 2 * largest) if namespace in PLANNED else ():
            result = await shell.run(f"plan --gang 1x{gpus} -n {namespace}")
            answers.plans[namespace, gpus] = result.exit_code == 0
    for namespace, name in keys:
        answers.explained[namespace, name] = await data(f"explain {name} -n {namespace}")
