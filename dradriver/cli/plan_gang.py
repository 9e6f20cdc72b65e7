"""``gputopo plan --gang``: the nodes that a gang of pods would get in a cluster as it is now."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from dradriver import __version__
from dradriver.allocator import GangChoice, GangRequest, NoPlaceError, Whole, place_gang
from dradriver.allocator.choice.numbering import listed
from dradriver.allocator.choice.phrases import nodes_within, wanted
from dradriver.api.policies.policy_sections import Policies
from dradriver.cli.cluster import access, installation, policies_in_force
from dradriver.cli.cluster.free_gpus import open_nodes
from dradriver.cli.cluster.largest_gangs import stand
from dradriver.cli.cluster.listed_cluster import Scene, read_whole
from dradriver.cli.plan_question import Question, request
from dradriver.counted import counted
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.view.document import Column, Document, Table, report, table, words
from dradriver.view.output import show_as, warn
from dradriver.view.terminal_text import plain

_SIZE = re.compile(r"(?a:(?:(\d{1,4})-)?(\d{1,4})x(\d{1,2}))")
_PREFERRED = "preferred "
_PARTS: Final = "--gang: the pods of a gang want whole GPUs"


def gpus(text: str, alone: Mapping[str, object]) -> int:
    """Return the number of GPUs of each pod from the value of ``gputopo plan --gang``.

    Args:
        text: The value: ``8x8`` is 8 pods with 8 GPUs each, ``4-8x8`` is 4 to 8 pods.
        alone: The values of the options that are about one machine; None for an option that was not given.

    Raises:
        click.UsageError: The value has another form, or one of the options in ``alone`` was given.
    """
    if needless := [option for option, value in alone.items() if value is not None]:
        raise click.UsageError(f"--gang looks at a cluster and says how many GPUs: leave out {', '.join(needless)}")
    return _size(text)[2]


class Where(NamedTuple):
    """The user's options for the cluster, the driver's namespace, and the namespace that requests GPUs."""

    kubeconfig: str | None
    context: str | None
    driver_namespace: str | None
    namespace: str | None


def run(
    text: str,
    question: Question,
    near: str,
    *,
    file: Policies | None,
    where: Where,
    output: str,
    no_color: bool,
) -> None:
    """Print the nodes that a gang of pods would get in the cluster, for ``gputopo plan --gang``.

    Args:
        text: The gang: ``8x8`` is 8 pods with 8 GPUs each, ``4-8x8`` is 4 to 8 pods.
        question: The request of each pod.
        near: The network level that must hold all pods, as in the annotation: ``leaf``, ``preferred leaf``.
        file: The policies of the user's file; None to use the driver's policies.
        where: The cluster, and the namespace whose GPUs count.
        output: The format.
        no_color: Whether to print without colours.

    Raises:
        ClusterError: The cluster cannot be read.
        NoPlaceError: The cluster has no place for the gang.
        DriverError: The request of a pod is not possible.
        click.UsageError: The gang is written wrongly, or its pods request fractions of GPUs.
    """
    if question.share or question.memory or question.cores or question.mig_profile:
        raise click.UsageError(_PARTS)
    server = access.server(None if where.kubeconfig is None else Path(where.kubeconfig), where.context)
    scene = asyncio.run(_read(server, file, where.driver_namespace))
    installation.tell(scene.absence, output, no_color=no_color)
    pod_request = request(question, scene.policies)
    if not isinstance(pod_request, Whole):  # the name of a policy can stand for a fraction
        raise click.UsageError(_PARTS)
    least_pods, most_pods, _ = _size(text)  # ``question`` has the GPUs of each pod already
    near = near.strip()
    level = near.removeprefix(_PREFERRED).strip()
    is_required = bool(near) and level == near  # without the word "preferred"
    gang = GangRequest(pod=pod_request, pods=most_pods, least_pods=least_pods, near=level, near_required=is_required)
    choice = place(scene, gang, where.namespace or server.namespace)
    show_as(output, document=lambda: document(gang, choice), data=lambda: data(choice), no_color=no_color)


def _size(text: str) -> tuple[int | None, int, int]:
    """Return the smallest number of pods, the number of pods, and the GPUs of each.

    For ``4-8x8`` these are 4, 8 and 8. The first value is None if the text has only one number of pods.
    """
    match = _SIZE.fullmatch(text)
    if match is None or int(match[2]) < max(1, int(match[1] or 1)):
        raise click.UsageError(f"--gang: write pods x GPUs of each, as 8x8, or 4-8x8 for as many as fit: {text!r}")
    return (None if match[1] is None else max(1, int(match[1]))), int(match[2]), int(match[3])


def place(scene: Scene, gang: GangRequest, namespace: str) -> GangChoice:
    """Return the places of a namespace's gang on open nodes of the listed cluster.

    Only GPUs count, not CPU and memory.

    Raises:
        NoPlaceError: There is no place.
    """
    stand(scene, namespace)
    try:
        return place_gang(scene.picture.fleets.of(namespace), gang, eligible=open_nodes(scene))
    except NoPlaceError as error:
        raise NoPlaceError(plain(str(error))) from None


async def _read(server: ServerConfig, file: Policies | None, driver_namespace: str | None) -> Scene:
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        followed = await policies_in_force.read(client, server, driver_namespace, file)
        scene = await read_whole(client, server, followed, driver_namespace, pods_too=False)
    for trouble in scene.unread:
        warn(trouble)
    return scene


def data(choice: GangChoice) -> dict[str, Any]:
    """Return the JSON data of ``gputopo plan --gang -o json``. Later releases only add fields.

    The data has no ``busbw_gbps`` if no bandwidth is predicted.
    """
    # A single GPU has no all-reduce, so it needs no prediction.
    is_predicted = [pod.busbw_gbps > 0 or len(pod.gpus) == 1 for pod in choice.pods]
    return {
        "network_level": choice.reach,
        "nodes": list(choice.nodes),
        **({"busbw_gbps": choice.busbw_gbps} if all(is_predicted) else {}),
        "fallback": list(choice.fallback),
        "pods": [
            {
                "node": pod.node,
                "gpus": list(pod.gpus),
                "ring": list(pod.ring),
                **({"busbw_gbps": pod.busbw_gbps} if has_busbw else {}),
            }
            for pod, has_busbw in zip(choice.pods, is_predicted, strict=True)
        ],
    }


def document(request: GangRequest, choice: GangChoice) -> Document:
    """Return the output of ``gputopo plan --gang`` for people: the places of the gang's pods."""
    nodes = nodes_within(plain(choice.reach), len(choice.nodes))
    rows = [
        ("request", f"{counted(request.pods, 'pod')} with {wanted(request.pod)} each"),
        ("placed", f"{counted(len(choice.pods), 'pod')} on {nodes}"),
    ]
    if choice.busbw_gbps:
        rows.append(("busbw", f"{choice.busbw_gbps:g} GB/s, the slowest of them"))
    if choice.fallback:
        rows.append(("preferred, not met", ", ".join(map(plain, choice.fallback))))
    columns = Column("pod", number=True), Column("node"), Column("GPUs"), Column("level")
    pods = tuple(
        words(str(index), plain(pod.node), listed(pod.gpus), pod.level.value if len(pod.gpus) > 1 else "")
        for index, pod in enumerate(choice.pods)
    )
    return report(table(rows=rows), Table(title="Placements", columns=columns, rows=pods))
