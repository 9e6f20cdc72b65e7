"""``gputopo explain``: why a pod waits, or which GPUs it got and why no better ones."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from dradriver import __version__
from dradriver.api.base import names
from dradriver.api.base.pods import Pod
from dradriver.api.policies.policy_sections import Policies
from dradriver.cli.cluster import access, cluster_reading, installation, workload_names
from dradriver.cli.cluster.cluster_options import (
    driver_namespace_option,
    namespace_options,
    only_namespace,
    output_options,
    policies_option,
    server_options,
)
from dradriver.cli.cluster.workload_names import WorkloadName
from dradriver.cli.completion import pods
from dradriver.cli.explainer import explain_document
from dradriver.cli.explainer.model import Subject
from dradriver.cli.explainer.subject import subject
from dradriver.cli.inputs import given_policies
from dradriver.counted import counted
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import PODS
from dradriver.view.output import show, show_as, warn
from dradriver.view.terminal_text import plain


@click.command()
@click.argument("workload", required=False, shell_complete=pods)
@namespace_options("The namespace. Default: the context's.")
@server_options
@policies_option
@driver_namespace_option
@output_options
def explain(
    workload: str | None,
    namespace: str | None,
    all_namespaces: bool,
    kubeconfig: str | None,
    context: str | None,
    policies_file: str | None,
    driver_namespace: str | None,
    output: str,
    no_color: bool,
) -> None:
    """Print why a pod waits, or which GPUs it got.

    WORKLOAD is POD, NAMESPACE/POD, KIND/NAME (such as job/train or gang/train) or NAMESPACE/KIND/NAME. If it has
    several pods, the first pod that waits is explained, with its gang, and the other pods with unhealthy GPUs are
    listed. If no pod has the name POD, a gang or owner of that name is explained. Without WORKLOAD, all waiting pods
    are listed, the oldest first, including pods that the scheduler alone places.

    The command makes the controller's decision again from the present state of the cluster. It writes nothing. If no
    driver is installed, it says so first, and what that means for the pod.
    """
    if all_namespaces and workload is not None:
        raise click.UsageError("-A lists the pods that wait in all namespaces. Remove WORKLOAD or -A.")
    wanted = None if workload is None else workload_names.read(workload, namespace)
    server = access.server(None if kubeconfig is None else Path(kubeconfig), context)
    if wanted is None:
        only = only_namespace(namespace, all_namespaces=all_namespaces, usual=server.namespace)
        subjects, absence = asyncio.run(_read_waiting(server, only, driver_namespace))
        installation.tell(absence, output, no_color=no_color)
        show_as(
            output,
            document=lambda: explain_document.waiting(subjects),
            data=lambda: msgspec.to_builtins(subjects),
            no_color=no_color,
        )
        return
    policies = given_policies(policies_file)  # None without a file: then those in force are read
    asyncio.run(_print_explanation(server, wanted, policies, driver_namespace, output=output, no_color=no_color))


async def _read_waiting(
    server: ServerConfig, namespace: str | None, driver_namespace: str | None
) -> tuple[list[Subject], str]:
    """Return the pods that wait, and sentences that no driver is installed (empty if it is, or if that is not known).

    ``namespace`` is the only namespace to list; None for all.
    """
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        labelled = await _labelled(client, server, namespace)
        driver = await installation.read(client, server, driver_namespace)
    waiting = [pod for pod in labelled if (pod.placed or pod.static) and _is_waiting(pod)]
    return [subject(pod) for pod in sorted(waiting, key=_age)], driver.absence


async def _labelled(client: Client, server: ServerConfig, namespace: str | None) -> list[Pod]:
    return await cluster_reading.listed(client, server, PODS, Pod, namespace=namespace, label_selector=names.LABEL)


def _is_ending(pod: Pod) -> bool:
    return pod.finished or pod.metadata.deletion_timestamp is not None


def _is_waiting(pod: Pod) -> bool:
    return not (_is_ending(pod) or pod.spec.node_name)


def _age(pod: Pod) -> tuple[str, str]:
    return pod.metadata.creation_timestamp or "", pod.metadata.uid


async def _print_explanation(
    server: ServerConfig,
    workload: WorkloadName,
    policies: Policies | None,
    driver_namespace: str | None,
    *,
    output: str,
    no_color: bool,
) -> None:
    """Print why a pod waits, or which GPUs it got.

    A table is printed in two parts, because reading the cluster takes a while.
    """
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        workload, (pod, *others) = await _read(client, server, workload)
        driver = await installation.read(client, server, driver_namespace)
        installation.tell(driver.absence, output, no_color=no_color)
        pod_subject = subject(pod)  # what the pod itself says: state, request, conditions
        if output == "table":
            if others:
                name = plain(pod.metadata.name)
                click.echo(f"{workload.words} has {counted(len(others) + 1, 'pod')}. This is {name}.", err=True)
            show(explain_document.head(pod_subject), no_color=no_color)
            sys.stdout.flush()
        # Imported here: loading it takes longer than reading the pod.
        from dradriver.cli.explainer.verdict import verdict

        living = [other for other in others if not other.finished]
        pod_verdict = await verdict(client, server, pod, policies, driver, others=living)
    for trouble in pod_verdict.unread:
        warn(trouble)
    if output == "table":
        second_part = explain_document.rest(pod_verdict)
        if second_part.sections:
            click.echo()
            show(second_part, no_color=no_color)
        return
    show_as(
        output,
        document=lambda: explain_document.head(pod_subject),
        data=lambda: explain_document.data(pod_subject, pod_verdict),
    )


async def _read(client: Client, server: ServerConfig, workload: WorkloadName) -> tuple[WorkloadName, list[Pod]]:
    """Return the pods of a workload, and the workload with its kind.

    The first pod is the one to explain (``_of``). If no pod has the name, a gang or owner with that name is the
    workload.
    """
    namespace = workload.namespace or server.namespace
    if workload.kind != workload_names.POD:
        pods = _of(await _labelled(client, server, namespace), workload)
        if not pods:
            raise cluster_reading.ClusterError(
                f"namespace {namespace} has no pod of {workload.words} that this driver places. "
                "List the pods that wait: gputopo explain -A"
            )
        return workload, pods
    try:
        return workload, [await client.get(PODS, workload.name, namespace=namespace, type=Pod)]
    except ApiError as error:
        if error.not_found:
            labelled = await _labelled(client, server, namespace)
            if kinds := [kind for pod in labelled for kind in workload_names.kinds_of(pod, workload.name)]:
                owner = workload._replace(kind=workload_names.GANG if workload_names.GANG in kinds else kinds[0])
                return owner, _of(labelled, owner)
            raise cluster_reading.ClusterError(
                f"namespace {namespace} has no pod {workload.name}. kubectl get pods -n {namespace} "
                f"lists its pods. Name another namespace with -n."
            ) from error
        raise cluster_reading.refused(error, server, PODS, namespace=namespace) from error
    except Unreachable as error:
        raise cluster_reading.refused(error, server, PODS, namespace=namespace) from error


def _of(pods: Sequence[Pod], workload: WorkloadName) -> list[Pod]:
    """Return the pods of a gang or owner: those that wait, then those that run, then the others.

    The others have ended or are being deleted: their owner may have replaced them. Each of the three parts is sorted
    by age, the oldest pod first.
    """
    return sorted(
        (pod for pod in pods if workload_names.is_of(pod, workload)),
        key=lambda pod: (not _is_waiting(pod), _is_ending(pod), *_age(pod)),
    )
