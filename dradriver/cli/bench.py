"""``gputopo bench allreduce``: what NCCL reaches on a set of GPUs, beside what was predicted for it."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from dradriver import __version__
from dradriver.api.base import names
from dradriver.cli import nccl_tests
from dradriver.cli.cluster import access, cluster_reading
from dradriver.cli.cluster.cluster_options import output_options, server_options
from dradriver.cli.inputs import Number, content
from dradriver.cli.nccl_tests import Measured, NcclTestsError
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import PODS, Resource
from dradriver.view.document import Cell, Document, Notes, Tone, report
from dradriver.view.output import show_as, show_documents
from dradriver.view.terminal_text import plain

_JOBS: Final = Resource("batch", "v1", "jobs", "Job", namespaced=True)
_LOOK_S: Final = 1.0
_LOW: Final = 0.8
_MOST_GPUS: Final = 32
_SIZE: Final = re.compile(r"[1-9][0-9]{0,11}[KMG]?", re.ASCII)


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured beside what was predicted. All text in it is safe to print.

    Attributes:
        node: Where; empty where that is not known.
        gpus: The GPUs' uuids; empty where they are not known.
        level: How near they are, as the driver says it.
        measured: What was measured.
        predicted_gbps: The bus bandwidth predicted, GB/s; None where nothing was.
        ratio: Measured over predicted; None without a prediction.
    """

    node: str
    gpus: tuple[str, ...]
    level: str
    measured: Measured
    predicted_gbps: float | None
    ratio: float | None


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def bench() -> None:
    """Measure what was predicted."""


@bench.command()
@click.option("--image", metavar="IMAGE", help="An image with nccl-tests' all_reduce_perf in its PATH, and a shell.")
@click.option("--gpus", type=click.IntRange(2, _MOST_GPUS), default=8, show_default=True, help="How many GPUs.")
@click.option("--policy", default="best-effort", show_default=True, help="Their gpu.topology/policy.")
@click.option("--node", default="", metavar="NAME", help="The node; else any.")
@click.option("--max-size", "most", default="8G", show_default=True, metavar="SIZE", help="The largest message.")
@click.option(
    "--timeout", "timeout_s", type=click.IntRange(10, 86_400), default=900, show_default=True, metavar="SECONDS"
)
@click.option("--print", "printed", is_flag=True, help="Print the Job and run nothing.")
@click.option("--read", "file", metavar="FILE", help="Run nothing: read what nccl-tests printed; - is standard input.")
@click.option("--predicted", type=Number(min=0, min_open=True), metavar="GB/s", help="With --read: what was predicted.")
@click.option("-n", "--namespace", default="default", show_default=True, metavar="NAME", help="The Job's namespace.")
@server_options
@output_options
def allreduce(
    image: str | None,
    gpus: int,
    policy: str,
    node: str,
    most: str,
    timeout_s: int,
    printed: bool,
    file: str | None,
    predicted: float | None,
    namespace: str,
    kubeconfig: str | None,
    context: str | None,
    output: str,
    no_color: bool,
) -> None:
    """Run nccl-tests' all_reduce_perf over a set of GPUs of one node, and compare it with gpu.topology/busbw.

    It creates a Job, waits for it, and reads from its pod what was measured at the largest size. The Job goes by itself
    after ten minutes. With --read any output of nccl-tests is read, also of a run over several nodes.
    """
    if file is not None:
        measured = nccl_tests.read(content(file).decode("utf-8", "replace"))
        found = _compared(measured, predicted)
    else:
        if image is None:
            raise click.UsageError("--image: name one with nccl-tests in it, or --read what it printed")
        if not _SIZE.fullmatch(most):
            raise click.UsageError(f"--max-size: {most!r} is no size; write 128M or 8G")
        name = f"gputopo-allreduce-{secrets.token_hex(3)}"
        job = nccl_tests.job(
            name, namespace=namespace, image=image, gpus=gpus, policy=policy, node=node, most=most, deadline_s=timeout_s
        )
        if printed:
            show_documents([job])
            return
        server = access.server(None if kubeconfig is None else Path(kubeconfig), context)
        pod = asyncio.run(run_job(server, job, timeout_s=timeout_s))
        found = _compared(nccl_tests.read(_printed(pod)), None, pod)
    show_as(output, document=lambda: document(found), data=lambda: msgspec.to_builtins(found), no_color=no_color)
    if found.measured.wrong:
        raise click.exceptions.Exit(1)


async def run_job(server: ServerConfig, job: dict[str, Any], *, timeout_s: float) -> dict[str, Any]:
    """Create the Job that measures all-reduce, and return its pod when that has ended.

    Raises:
        ClusterError: The server refuses.
        NcclTestsError: It does not end in time.
    """
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    until = time.monotonic() + timeout_s
    pod: dict[str, Any] = {}
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        try:
            await client.create(_JOBS, job)
        except (ApiError, Unreachable) as error:
            raise cluster_reading.refused(error, server, _JOBS, namespace=namespace) from error
        while time.monotonic() < until:
            label = f"batch.kubernetes.io/job-name={name}"
            pods: list[dict[str, Any]] = await cluster_reading.listed(
                client, server, PODS, dict, namespace=namespace, label_selector=label
            )
            pod = pods[0] if pods else {}
            if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                return pod
            await asyncio.sleep(_LOOK_S)
    more = f"kubectl -n {namespace} describe pods -l batch.kubernetes.io/job-name={name} says more"
    why = ((pod.get("metadata") or {}).get("annotations") or {}).get(names.REASON) or more
    raise NcclTestsError(
        f"Job {name} has not ended after {timeout_s:.0f} s: {plain(str(why))}; --timeout gives it longer"
    )


def _printed(pod: dict[str, Any]) -> str:
    """Return the last of what the pod's container printed."""
    for one in (pod.get("status") or {}).get("containerStatuses") or ():
        message = ((one.get("state") or {}).get("terminated") or {}).get("message")
        if message:
            return str(message)
    status = pod.get("status") or {}
    told = status.get("message") or status.get("reason") or status.get("phase")
    raise NcclTestsError(f"pod {plain(str(pod['metadata']['name']))} left nothing behind: {plain(str(told))}")


def _compared(measured: Measured, predicted: float | None, pod: dict[str, Any] | None = None) -> Compared:
    annotations = {} if pod is None else pod["metadata"].get("annotations") or {}
    if predicted is None and (said := annotations.get(names.BUSBW)) is not None:
        predicted = nccl_tests.number(said)
    return Compared(
        node="" if pod is None else plain((pod.get("spec") or {}).get("nodeName") or ""),
        gpus=tuple(plain(each) for each in annotations.get(names.ALLOCATED, "").split(",") if each),
        level=plain(annotations.get(names.LEVEL, "")),
        measured=measured,
        predicted_gbps=predicted,
        ratio=round(measured.busbw_gbps / predicted, 3) if predicted else None,
    )


def document(found: Compared) -> Document:
    """Return what ``gputopo bench allreduce`` prints: measured bandwidths next to the predicted one."""
    measured = found.measured
    where = f"{len(found.gpus)} GPUs of node {found.node}, {found.level}: " if found.gpus else ""
    lines = [Cell(f"{where}measured {measured.busbw_gbps:.1f} GB/s bus bandwidth at {_size(measured.size)}")]
    if found.predicted_gbps is None or found.ratio is None:
        lines.append(Cell("nothing was predicted for them"))
    else:
        low = found.ratio < _LOW
        more = ": look at gputopo verify --job NODE, and at what else runs on these links" if low else ""
        text = f"predicted {found.predicted_gbps:.1f} GB/s: {found.ratio:.0%} of it was reached{more}"
        lines.append(Cell(text, Tone.WARNING if low else Tone.PLAIN))
    if measured.average_gbps is not None:
        lines.append(Cell(f"average over all sizes, small ones included: {measured.average_gbps:.1f} GB/s"))
    if measured.wrong:
        lines.append(Cell("values came out wrong: GPUs or links are ill", Tone.ERROR))
    return report(Notes(lines=tuple(lines)))


def _size(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"
