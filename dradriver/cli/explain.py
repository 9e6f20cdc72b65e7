"""``gputopo explain``: why a pod waits, or what it got and why nothing better."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click
import msgspec

from dradriver import __version__
from dradriver.api.base import names
from dradriver.api.base.pods import Pod
from dradriver.api.policies.policy_sections import Policies
from dradriver.cli.cluster import access, cluster_reading, policies_in_force
from dradriver.cli.cluster.cluster_options import (
    all_namespaces_option,
    driver_namespace_option,
    namespace_option,
    output_options,
    policies_option,
    server_options,
)
from dradriver.cli.completion import pods
from dradriver.cli.explainer import explain_document
from dradriver.cli.explainer.model import Subject
from dradriver.cli.explainer.subject import subject
from dradriver.cli.inputs import given_policies
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import PODS
from dradriver.view.output import show, show_as, warn


@click.command()
@click.argument("pod", required=False, shell_complete=pods)
@namespace_option
@all_namespaces_option
@server_options
@policies_option
@driver_namespace_option
@output_options
def explain(
    pod: str | None,
    namespace: str | None,
    all_namespaces: bool,
    kubeconfig: str | None,
    context: str | None,
    policies_file: str | None,
    driver_namespace: str | None,
    output: str,
    no_color: bool,
) -> None:
    """Say why POD waits: what it asks for, what is free, who holds the rest, its turn; or what it got.

    The controller's own decision is made again from what the cluster says now; nothing is written. Without POD all
    pods that wait are listed, the oldest first, static ones among them.
    """
    if all_namespaces and (pod is not None or namespace is not None):
        raise click.UsageError("-A lists the pods that wait in all namespaces; leave out POD and -n")
    name = "" if pod is None else pod.removeprefix("pod/").removeprefix("pods/")
    if pod is not None and (not name or "/" in name or name in (".", "..")):
        raise click.UsageError(f"{pod!r} is no pod's name; give the name alone, and the namespace by -n")
    server = access.server(None if kubeconfig is None else Path(kubeconfig), context)
    pod_namespace = None if all_namespaces else namespace or server.namespace  # None for all
    if pod_namespace is None or not name:
        subjects = asyncio.run(_read_waiting(server, pod_namespace))
        show_as(
            output,
            document=lambda: explain_document.waiting(subjects),
            data=lambda: msgspec.to_builtins(subjects),
            no_color=no_color,
        )
        return
    policies = given_policies(policies_file)  # None without a file: then those in force are read
    asyncio.run(
        _print_explanation(server, pod_namespace, name, policies, driver_namespace, output=output, no_color=no_color)
    )


async def _read_waiting(server: ServerConfig, namespace: str | None) -> list[Subject]:
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        labelled = await cluster_reading.listed(
            client, server, PODS, Pod, namespace=namespace, label_selector=names.LABEL
        )
    ours = [pod for pod in labelled if pod.placed or pod.static]
    waiting = [pod for pod in ours if not (pod.finished or pod.spec.node_name or pod.metadata.deletion_timestamp)]
    waiting.sort(key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.uid))
    return [subject(pod) for pod in waiting]


async def _print_explanation(
    server: ServerConfig,
    namespace: str,
    name: str,
    policies: Policies | None,
    driver_namespace: str | None,
    *,
    output: str,
    no_color: bool,
) -> None:
    """Print why a pod waits, or what it got. A table comes in two parts, because reading the cluster takes a while."""
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        pod = await _read(client, server, namespace, name)
        pod_subject = subject(pod)  # what the pod itself says: state, request, conditions
        if output == "table":
            show(explain_document.head(pod_subject), no_color=no_color)
            sys.stdout.flush()
        # Imported here: loading it takes longer than reading the pod.
        from dradriver.cli.explainer.verdict import verdict

        namespace_of_driver = await policies_in_force.driver_namespace(client, driver_namespace)
        pod_verdict = await verdict(client, server, pod, policies, namespace_of_driver)
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


async def _read(client: Client, server: ServerConfig, namespace: str, name: str) -> Pod:
    try:
        return await client.get(PODS, name, namespace=namespace, type=Pod)
    except ApiError as error:
        if error.not_found:
            raise cluster_reading.ClusterError(
                f"{server.url}: namespace {namespace} has no pod {name}; name another namespace with -n"
            ) from error
        raise cluster_reading.refused(error, server, PODS, namespace=namespace) from error
    except Unreachable as error:
        raise cluster_reading.refused(error, server, PODS, namespace=namespace) from error
