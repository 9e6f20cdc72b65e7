"""``gputopo uninstall``: which pods need the driver, before and after an uninstallation.

The chart's hook runs it before ``helm uninstall`` deletes anything, and people run it afterwards.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click
import msgspec

from dradriver import __version__
from dradriver.api.base import names
from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.api.base.objects import Metadata, Part
from dradriver.api.base.pods import Gate
from dradriver.cli.cluster import access, cluster_reading
from dradriver.cli.cluster.cluster_options import namespace_options, only_namespace, output_options, server_options
from dradriver.counted import counted
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from dradriver.view.document import Cell, Column, Document, Notes, Table, report, words
from dradriver.view.output import show_as
from dradriver.view.terminal_text import plain

_ENDED: Final = ("Succeeded", "Failed")


class State(enum.Enum):
    """The reason why a pod needs the driver: it has GPUs, or waits for them."""

    HAS_GPUS = "has GPUs"
    DELETING = "is being deleted"
    AT_GATE = "waits at its gate"
    WAITS = "waits for GPUs"


_CURES: Final = {
    State.HAS_GPUS: (
        "delete it while the driver is installed. Without a node agent a deleted pod stays in Terminating: if the "
        "driver is uninstalled already, install it again first."
    ),
    State.DELETING: (
        "wait until it has ended. If the driver is uninstalled already, install it again. Or, once its processes have "
        "ended, run kubectl delete pod NAME --force."
    ),
    State.AT_GATE: (
        "the scheduling gate gpu.topology/placement stays, and the driver places the pod once it is installed again. "
        "To run it without the driver, delete it after the uninstallation: its owner creates it again, without a gate. "
        "A pod without an owner must be created again from its manifest."
    ),
    State.WAITS: "as a pod at its gate: install the driver again, or delete the pod after the uninstallation.",
}


class _Spec(Part, frozen=True):
    node_name: str = ""
    scheduling_gates: list[Gate] = msgspec.field(default_factory=list)


class _Status(Part, frozen=True):
    phase: str = ""


class Pod(Part, frozen=True):
    """The fields of a pod that ``gputopo uninstall`` reads."""

    metadata: Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


class Dependent(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that needs the driver. All text in it is safe to print.

    Attributes:
        namespace: Its namespace.
        pod: Its name.
        state: Why it needs the driver.
        node: Its node; empty if it has none.
        owner: Kind and name of the object that creates it again, as ReplicaSet/web-5d4; empty if there is none.
    """

    namespace: str
    pod: str
    state: State
    node: str
    owner: str


@click.command()
@namespace_options("Only this namespace. Default: all namespaces.")
@server_options
@output_options
def uninstall(
    namespace: str | None,
    all_namespaces: bool,
    kubeconfig: str | None,
    context: str | None,
    output: str,
    no_color: bool,
) -> None:
    """Print the pods that need the driver, before or after an uninstallation. The command deletes nothing.

    "helm uninstall" runs this command first, and stops if it lists a pod. After a forced uninstallation, the command
    lists the remaining pods.

    Exit status: 0 no pod needs the driver, 1 pods need it, or the cluster cannot be read, 2 wrong usage.
    """
    server = access.server(None if kubeconfig is None else Path(kubeconfig), context)
    only = only_namespace(namespace, all_namespaces=all_namespaces)
    found = [one for one in asyncio.run(_read(server)) if only in (None, one.namespace)]
    show_as(output, document=lambda: document(found), data=lambda: msgspec.to_builtins(found), no_color=no_color)
    if found:
        raise click.exceptions.Exit(1)


async def _read(server: ServerConfig) -> list[Dependent]:
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        pods = await cluster_reading.listed(client, server, PODS, Pod)
        claims = await cluster_reading.listed(client, server, RESOURCE_CLAIMS, cluster_reading.read_claim)
    return dependents(pods, claims)


def dependents(pods: Iterable[Pod], claims: Iterable[ResourceClaim]) -> list[Dependent]:
    """Return the pods that need the driver, those with GPUs first.

    If another driver allocates the GPUs, a pod with devices does not need this driver: the other driver cleans up the
    pod's claim.
    """
    users = {
        user.uid
        for claim in claims
        if claim.status.allocation is not None
        and any(result.driver == names.DRIVER for result in claim.status.allocation.devices.results)
        for user in claim.status.reserved_for
    }
    dependent_pods = []
    for pod in pods:
        state = _state(pod, has_devices=pod.metadata.uid in users)
        if state is not None:
            owner = next((owner for owner in pod.metadata.owner_references if owner.controller), None)
            dependent_pods.append(
                Dependent(
                    namespace=plain(pod.metadata.namespace),
                    pod=plain(pod.metadata.name),
                    state=state,
                    node=plain(pod.spec.node_name),
                    owner="" if owner is None else plain(f"{owner.kind}/{owner.name}"),
                )
            )
    order = list(State)
    return sorted(
        dependent_pods, key=lambda dependent: (order.index(dependent.state), dependent.namespace, dependent.pod)
    )


def _state(pod: Pod, *, has_devices: bool) -> State | None:
    """Return why a pod needs the driver; None if the pod does not need it."""
    if pod.status.phase in _ENDED:
        return None
    if has_devices:
        return State.DELETING if pod.metadata.deletion_timestamp else State.HAS_GPUS
    if any(gate.name == names.GATE for gate in pod.spec.scheduling_gates):
        return State.AT_GATE
    return State.WAITS if names.LABEL in pod.metadata.labels and not pod.spec.node_name else None


def document(found: list[Dependent]) -> Document:
    """Return the output of ``gputopo uninstall``: the pods that need the driver, and what to do with them."""
    if not found:
        return report(Notes(lines=(Cell("No pod needs the driver."),)))
    columns = (Column("namespace"), Column("pod"), Column("state"), Column("node"), Column("owner"))
    rows = tuple(words(one.namespace, one.pod, one.state.value, one.node, one.owner or "none") for one in found)
    states = [state for state in State if any(one.state is state for one in found)]
    count = counted(len(found), "pod needs", "pods need")
    return report(
        Notes(lines=(Cell(f"{count} the driver. docs/start/install.md#uninstall has more."),)),
        Table(columns=columns, rows=rows),
        Notes(lines=tuple(Cell(f"{state.value}: {_CURES[state]}") for state in states)),
    )
