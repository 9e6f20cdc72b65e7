"""The users of a node's GPUs, in words: claims, their pods, and since when they have the GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dradriver.api.claims import pins
from dradriver.api.claims.pins import Key
from dradriver.api.slices import resource_slices
from dradriver.cli.cluster import workload_names
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.explainer.explain_document import age
from dradriver.cli.explainer.model import Owner
from dradriver.queue import reservation_access
from dradriver.topology.natural import natural
from dradriver.view.terminal_text import plain

_UNUSED: Final = {
    "Pending": "bound and not running",
    "Succeeded": "finished, the claim not yet gone",
    "Failed": "failed, the claim not yet gone",
}


def holders(scene: Scene, node: str) -> dict[int, tuple[Key, ...]]:
    """Return the claims that have each GPU of a node, by the GPU's number.

    A claim has the whole GPU or a fraction of it. ``scene`` is the listed cluster.
    """
    inventory = scene.picture.inventory
    return {
        number: tuple(inventory.holders((node, resource_slices.device_name(uuid))))
        for number, uuid in inventory.uuids(node).items()
    }


def owners(scene: Scene, held: Mapping[int, tuple[Key, ...]], gpus: tuple[int, ...]) -> tuple[Owner, ...]:
    """Return the claims that use some GPUs of a node, the claim with most first.

    ``scene`` is the listed cluster. ``held`` has the claims of each GPU, as ``holders`` returns them.
    """
    gpus_of: dict[Key, list[int]] = {}
    for number in gpus:
        for key in held.get(number, ()):
            gpus_of.setdefault(key, []).append(number)
    made = [_owner(scene, key, tuple(numbers)) for key, numbers in gpus_of.items()]
    return tuple(sorted(made, key=lambda owner: (-len(owner.gpus), natural(owner.namespace), natural(owner.claim))))


def reservations(scene: Scene, node: str, gpus: Sequence[int], *, pod: Key) -> tuple[str, ...]:
    """Return for which other waiting pods and gangs the GPUs of a node are reserved, in words.

    Args:
        scene: The cluster.
        node: The node.
        gpus: The numbers of the GPUs.
        pod: The explained pod. Reservations for it or its gang are left out.
    """
    inventory = scene.picture.inventory
    uuids = inventory.uuids(node)
    devices = [(node, resource_slices.device_name(uuids[number])) for number in gpus if number in uuids]
    membership = scene.picture.gangs.of(pod)
    own = {pod} if membership is None else {pod, membership.gang}
    whose = dict.fromkeys(map(reservation_access.key_of, filter(None, map(inventory.reserved.whose, devices))))
    return tuple(plain(f"reserved for {'/'.join(key)}") for key in whose if key not in own)


def _owner(scene: Scene, key: Key, gpus: tuple[int, ...]) -> Owner:
    namespace, name = (plain(part) for part in key)
    claim = scene.claims.get(key)
    if claim is None:
        return Owner(namespace=namespace, claim=name, pods=(), promised=False, since="", gpus=gpus, words=namespace)
    promised = claim.status.allocation is None
    users = [user.name for user in claim.status.reserved_for if user.resource == "pods"]
    waiting = pins.owners(claim)
    if promised and waiting:
        users = [name for name, _ in waiting]
    pods = tuple(sorted((plain(user) for user in users), key=natural))
    since = plain(claim.metadata.creation_timestamp or "")
    who = f"{namespace}/{', '.join(pods)}" if pods else f"{namespace}/{name}, a claim that no pod uses"
    keys = [(key[0], user) for user in sorted(users, key=natural)]
    workloads = tuple(dict.fromkeys(filter(None, (workload_names.of_replacing(scene, each) for each in keys))))
    if workloads:
        who = f"{', '.join(workloads)} ({who})"
    words = ("tentatively for " if promised else "used by ") + who + (f", for {spent}" if (spent := age(since)) else "")
    words += _unused(scene, key[0], users)
    return Owner(
        namespace=namespace, claim=name, pods=pods, workloads=workloads, promised=promised, since=since, gpus=gpus,
        words=words,
    )  # fmt: skip


def _unused(scene: Scene, namespace: str, users: Sequence[str]) -> str:
    """Return a note with the state of our pods if they have GPUs and none of them runs.

    Empty if one of them runs, or is not known.

    Args:
        scene: The cluster.
        namespace: The namespace of the pods.
        users: The names of the pods.
    """
    known = [scene.picture.pods.get((namespace, user)) for user in users]
    if not known or any(pod is None or pod.status.phase not in _UNUSED for pod in known):
        return ""
    said = dict.fromkeys(_UNUSED[pod.status.phase] for pod in known if pod is not None and pod.spec.node_name)
    return f", {' and '.join(said)}" if said else ""
