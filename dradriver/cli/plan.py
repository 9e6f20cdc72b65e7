"""``gputopo plan``: the GPUs of a machine that a request would get, offline, by the allocator that the controller uses.

Two figures are easily mixed up:

* ``bandwidth_gbps`` is the line rate of the ring's weakest step in one direction (two V100 links: 2 x 25 = 50), as
  ``nvidia-smi nvlink`` shows it. For a ring over PCIe it is the bandwidth that NCCL counts.
* ``busbw_gbps`` is the all-reduce bus bandwidth that NCCL is predicted to reach over all its rings (the same two links:
  40), as nccl-tests prints it. It is left out for machines without a prediction.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import click
import msgspec

from dradriver.allocator import Choice, Estimate, Level, Whole, all_reduce, choose, tables_of
from dradriver.allocator.choice.numbering import listed, mask_of_gpus
from dradriver.allocator.choice.phrases import SEVERAL_RINGS, wanted
from dradriver.api.base.quantity import whole
from dradriver.api.policies.policy_sections import DEFAULTS, Policies
from dradriver.cli import plan_parts
from dradriver.cli.cluster.cluster_options import (
    driver_namespace_option,
    output_options,
    server_options,
)
from dradriver.cli.machine_source import SOURCES, nccl_version_option, warn_of
from dradriver.cli.plan_question import PlanError, Question, free_gpus, numbers, request, with_facts_moved
from dradriver.cli.policies import load
from dradriver.errors import DriverError
from dradriver.topology.load import read_machine
from dradriver.topology.machine import Machine
from dradriver.view.document import Document, report, table
from dradriver.view.output import safe_json, show_as


class Answer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The chosen GPUs of one machine, as JSON.

    ``busbw_gbps`` and ``bandwidth_gbps`` are left out if they are not known for the machine's vendor. The two fields
    ``allreduce_...`` are set only if the question has a message size.
    """

    gpus: tuple[int, ...]
    busbw_gbps: float | None = None
    bandwidth_gbps: float | None = None
    ring: tuple[int, ...]
    level: str
    score: int
    containers: tuple[tuple[int, ...], ...]
    fallback: tuple[str, ...]
    allreduce_seconds: float | None = None
    allreduce_busbw_gbps: float | None = None


@click.command()
@click.option(
    "-m", "--machine", "source", metavar="FILE|PROFILE", help=SOURCES,
)  # fmt: skip
@click.option("--free", metavar="LIST", help="The free GPUs: 0,1,4 or 0-3,6. Default: all GPUs.")
@click.option("--gpus", type=int, metavar="N", help="The number of GPUs.")
@click.option("--containers", metavar="LIST", help="The number of GPUs of each container: 2,2. Default: one container.")
@click.option("--policy", default="", help="The annotation policy.  [default: best-effort]")
@click.option("--workload", default="", metavar="WORD", help="The annotation workload: tensor-parallel.")
@click.option(
    "--policies", "file", metavar="FILE",
    help="The policies file to use. Default: the built-in defaults. With --gang: the policies of the driver in the "
    "cluster. If they cannot be read, the command warns and uses the built-in defaults.",
)  # fmt: skip
@click.option("--required", default="", metavar="WORDS", help="The annotation required: same-numa,nvlink.")
@click.option(
    "--preferred", default="", metavar="WORDS", help="The annotation preferred, best first: nvlink,same-numa."
)
@click.option(
    "--strategy", default="", metavar="WORD", help="The annotation strategy: best-fit, pack, spread, first-fit."
)
@click.option("--min-bandwidth", default="", metavar="GB/S", help="Minimum line rate of the links of the ring.")
@click.option("--min-busbw", default="", metavar="GB/S", help="Minimum predicted all-reduce bus bandwidth.")
@click.option(
    "--product",
    default="",
    metavar="GLOB",
    help="Only GPUs of this product. If the source names no product: the product of all GPUs.",
)
@click.option("--cpu", default="", metavar="NAME", help="The CPU model, if the source does not name it: rome, ….")
@nccl_version_option
@click.option("--architecture", default="", metavar="WORD", help="Only GPUs of this architecture.")
@click.option("--min-memory", default="", metavar="SIZE", help="Only GPUs with at least this memory: 40Gi.")
@click.option("--min-driver", default="", metavar="VERSION", help="Only with this driver version or a later one: 580.")
@click.option("--min-cuda", default="", metavar="VERSION", help="Only if the driver supports this CUDA version: 12.4.")
@click.option("--vendor", default="", metavar="WORD", help="The vendor of the GPUs: nvidia, amd, ascend.")
@click.option(
    "--max-cross-nvswitch-gpus", type=int, metavar="N", help="Maximum number of GPUs outside one NVLink domain."
)
@click.option("--prefer-same-numa", is_flag=True, help="Prefer sets on few NUMA nodes.")
@click.option("--include", default="", metavar="LIST", help="GPUs that must be in the set.")
@click.option("--exclude", default="", metavar="LIST", help="GPUs that must not be in the set.")
@click.option("--message-size", default="", metavar="SIZE", help="Estimate an all-reduce of this size: 64Mi.")
@click.option("--share", default="", metavar="PART", help="A share of a GPU for each container: 0.5.")
@click.option("--memory", default="", metavar="SIZE", help="A share with this memory: 10Gi.")
@click.option("--cores", default="", metavar="PERCENT", help="A share with this percentage of compute: 25.")
@click.option("--mig-profile", default="", metavar="NAME", help="A MIG slice for each container: 1g.10gb.")
@click.option(
    "--fractions", "parts", default="", metavar="LIST", help="Fractions that are allocated already: 0:0.5,3:1g.10gb@6."
)
@output_options
@click.option("--gang", metavar="PODSxGPUS", help="Print the nodes for a gang of this size in the cluster: 8x8, 4-8x8.")
@click.option(
    "--near",
    default="",
    metavar="LEVEL",
    help="For a gang: the network level that holds all pods: leaf, or preferred leaf.",
)
@click.option("-n", "--namespace", metavar="NAME", help="For a gang: its namespace. Default: the context's.")
@server_options
@driver_namespace_option
@click.option(
    "--batch",
    is_flag=True,
    help="Read requests as JSON lines from standard input, and print answers as JSON lines in the same order.",
)
def plan(
    source: str | None,
    free: str | None,
    gpus: int | None,
    containers: str | None,
    policy: str,
    required: str,
    preferred: str,
    output: str,
    no_color: bool,
    batch: bool,
    file: str | None,
    include: str,
    exclude: str,
    gang: str | None,
    near: str,
    namespace: str | None,
    kubeconfig: str | None,
    context: str | None,
    driver_namespace: str | None,
    **words: Any,
) -> None:
    """Print the GPUs of a machine that a request would get, offline. With --gang, print the nodes for a job.

    A line of --batch has the options as keys: {"machine": "dgx1-v100", "free": [0, 1, 4], "gpus": 2, "policy":
    "nvlink"}. In the output, "bandwidth" is the line rate of the ring's weakest link in one direction, and "busbw" is
    the bus bandwidth that all-reduce is predicted to reach.
    """
    # 1. Refuse options that exclude each other. ``file`` is the policies file; "-" is standard input.
    if batch and file == "-":
        raise click.UsageError(
            "--policies cannot read standard input, because --batch reads its "
            "questions there. Write the path of a file."
        )
    cluster_options = {
        "--near": near or None, "--namespace": namespace, "--kubeconfig": kubeconfig, "--context": context,
        "--driver-namespace": driver_namespace,
    }  # fmt: skip
    unused_options = [option for option, value in cluster_options.items() if value is not None]
    if gang is None and unused_options:
        raise click.UsageError(
            f"only --gang PODSxGPUS looks at a cluster: give it, or leave out {', '.join(unused_options)}"
        )

    # 2. With --batch, answer the questions of standard input. With --gang, --batch is refused below.
    file_policies = None if file is None else load(file)
    policies = file_policies or DEFAULTS
    if batch and gang is None:
        answer_lines(sys.stdin.buffer, policies)
        return
    if gang is None and source is None:
        raise click.UsageError("give --machine FILE|PROFILE, --gang PODSxGPUS or --batch")

    # 3. With --gang, look for nodes of a cluster.
    question = Question(
        machine=source or "",
        free=None if free is None else numbers(free, option="--free"),
        gpus=gpus,
        policy=policy,
        required=required,
        preferred=preferred,
        containers=None if containers is None else numbers(containers, option="--containers"),
        include=numbers(include, option="--include"),
        exclude=numbers(exclude, option="--exclude"),
        **words,
    )
    if gang is not None:
        # Imported here: it reads a cluster, and planning offline must start fast.
        from dradriver.cli import plan_gang

        # Options that are about one machine: ``plan_gang.gpus`` refuses them, and returns the GPUs of each pod.
        machine_options = {
            "--machine": source, "--free": free, "--gpus": gpus, "--containers": containers, "--batch": batch or None,
            "--message-size": words["message_size"] or None, "--fractions": words["parts"] or None,
        }  # fmt: skip
        pod_question = msgspec.structs.replace(question, gpus=plan_gang.gpus(gang, machine_options))
        where = plan_gang.Where(kubeconfig, context, driver_namespace, namespace)
        plan_gang.run(gang, pod_question, near, file=file_policies, where=where, output=output, no_color=no_color)
        return

    # 4. Else choose GPUs of one machine. If the machine's source does not say the product, the CPUs or NCCL's version,
    #    ``with_facts_moved`` adds them to the machine from the options. A product that was added is no longer part of
    #    the request.
    machine, question = with_facts_moved(read_machine(question.machine), question, policies)
    warn_of(machine)
    show_as(
        output,
        document=lambda: _document_of(machine, question, policies),
        data=lambda: msgspec.to_builtins(reply(machine, question, policies)),
        no_color=no_color,
    )


def _document_of(machine: Machine, question: Question, policies: Policies) -> Document:
    """Return the output of ``gputopo plan`` for people: the GPUs or fractions that a question gets on a machine."""
    gpu_request = request(question, policies)
    if isinstance(gpu_request, Whole):
        choice = choose(machine, free_gpus(machine, question), gpu_request)
        return document(machine, gpu_request, choice, estimate(machine, question, choice))
    part_choice = plan_parts.choose_parts(machine, question.free, question.parts, gpu_request)
    return plan_parts.document(machine, gpu_request, part_choice)


def reply(machine: Machine, question: Question, policies: Policies) -> Answer | plan_parts.PartAnswer:
    """Return the answer to a question of ``gputopo plan`` about a machine.

    ``policies`` are those of the user's file, or the defaults.

    Raises:
        DriverError: The question is not valid, or the machine has no place for the request.
    """
    gpu_request = request(question, policies)
    if isinstance(gpu_request, Whole):
        choice = choose(machine, free_gpus(machine, question), gpu_request)
        return answer(machine, choice, estimate(machine, question, choice))
    return plan_parts.answer(plan_parts.choose_parts(machine, question.free, question.parts, gpu_request))


def answer_lines(lines: Iterable[bytes], policies: Policies) -> None:
    """Print one JSON line for each line of ``gputopo plan --batch``: an answer or ``{"error": …}``."""
    machines: dict[str, Machine] = {}
    for line in lines:
        if not line.strip():
            continue
        try:
            question = msgspec.json.decode(line, type=Question)
            if question.machine not in machines:
                machines[question.machine] = read_machine(question.machine)
            machine, question = with_facts_moved(machines[question.machine], question, policies)
            answered: Answer | plan_parts.PartAnswer | dict[str, str] = reply(machine, question, policies)
        except (DriverError, msgspec.DecodeError, UnicodeError) as error:
            answered = {"error": str(error)}
        click.echo(as_line(answered))


def as_line(reply: Answer | plan_parts.PartAnswer | dict[str, str]) -> str:
    """Return an answer of ``gputopo plan`` as one line of JSON."""
    return safe_json(msgspec.json.encode(reply).decode())


def answer(machine: Machine, choice: Choice, estimated: Estimate | None) -> Answer:
    """Return the chosen GPUs of one machine as JSON data, for ``gputopo plan -o json`` and ``--batch``.

    ``estimated`` is the time of an all-reduce; None if no message size was given.
    """
    return Answer(
        gpus=choice.gpus,
        busbw_gbps=choice.busbw_gbps if machine.vendor.predicted else None,
        bandwidth_gbps=choice.bandwidth_gbps if machine.vendor.rated else None,
        ring=choice.ring,
        level=choice.level.value,
        score=choice.score,
        containers=choice.containers,
        fallback=tuple(word.value for word in choice.fallback),
        allreduce_seconds=None if estimated is None else float(f"{estimated.seconds:.3g}"),
        allreduce_busbw_gbps=None if estimated is None else float(f"{estimated.busbw_gbps:.3g}"),
    )


def estimate(machine: Machine, question: Question, choice: Choice) -> Estimate | None:
    """Return the time of an all-reduce on the set that ``gputopo plan`` chose.

    The result is None without a message size.

    Raises:
        PlanError: The message size is 0, or the time cannot be predicted for this vendor's links.
        WordError: The message size is no quantity.
    """
    if question.message_size == "":
        return None
    if not machine.vendor.predicted:
        raise PlanError(f"message_size: what an all-reduce takes over {machine.vendor.link} cannot be predicted")
    size = question.message_size if isinstance(question.message_size, int) else whole(question.message_size)
    if size < 1:
        raise PlanError(f"message_size {size}: give a size above zero, as 64Mi")
    return all_reduce(tables_of(machine), mask_of_gpus(machine, choice.gpus), size=size)


def document(machine: Machine, gpu_request: Whole, choice: Choice, estimated: Estimate | None) -> Document:
    """Return the output of ``gputopo plan`` for people about the whole GPUs that it chose.

    Args:
        machine: The machine.
        gpu_request: The request for whole GPUs.
        choice: The chosen GPUs.
        estimated: Time of an all-reduce; None if no message size was given.
    """
    # Some vendors' links have no known rate (``rated``), and some libraries no model of all-reduce (``predicted``): the
    # rows say so. ``choice.level`` is the worst link between neighbours in the ring.
    rate = "line rate" if choice.level is Level.NVLINK else f"as {machine.vendor.library} counts it"
    bandwidth = f"{choice.bandwidth_gbps:g} GB/s, weakest step of the ring, {rate} in one direction"
    if not machine.vendor.rated or (len(choice.gpus) > 1 and not choice.bandwidth_gbps):
        bandwidth = f"not known of {machine.vendor.link}"
    busbw = f"{choice.busbw_gbps:g} GB/s, predicted for all-reduce"
    if not machine.vendor.predicted:
        busbw = f"not predicted over {machine.vendor.link}"
    # ``wanted`` and ``listed`` return the request and GPU numbers as text.
    rows = [
        ("machine", machine.name),
        ("request", wanted(gpu_request)),
        ("GPUs", listed(choice.gpus)),
        ("ring", " - ".join(map(str, choice.ring))),
        ("level", choice.level.value),
        ("bandwidth", bandwidth),
        ("busbw", busbw),
        *([("", SEVERAL_RINGS)] if 0 < choice.bandwidth_gbps < choice.busbw_gbps else []),
        ("score", f"{choice.score} of 100"),
    ]
    if estimated is not None:
        estimate_text = f"{estimated.seconds * 1e6:.0f} us, {estimated.busbw_gbps:.3g} GB/s"
        rows.append(("all-reduce", f"{estimate_text} estimated for a message of this size"))
    if len(choice.containers) > 1:
        rows += [(f"container {number}", listed(gpus)) for number, gpus in enumerate(choice.containers, 1)]
    # Preferences of the request that the chosen set does not have.
    if choice.fallback:
        rows.append(("preferred, not met", ", ".join(word.value for word in choice.fallback)))
    return report(table(rows=rows))
