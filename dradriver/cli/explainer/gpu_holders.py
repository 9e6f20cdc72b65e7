"""The holders of the GPUs of a node, in words: claims, their pods and the time since when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dradriver.api.claims import pins
from dradriver.api.claims.pins import Key
from dradriver.api.slices import resource_slices
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
    """Return the claims that hold each GPU of a node, or a part of it, by the machine's own GPU number."""
    inventory = scene.picture.inventory
    return {
        number: tuple(inventory.holders((node, resource_slices.device_name(uuid))))
        for number, uuid in inventory.uuids(node).items()
    }


def owners(scene: Scene, held: Mapping[int, tuple[Key, ...]], gpus: tuple[int, ...]) -> tuple[Owner, ...]:
    """Return the holders of some GPUs of a node for ``gputopo explain``, the one with most of these GPUs first."""
    gpus_of: dict[Key, list[int]] = {}
    for number in gpus:
        for key in held.get(number, ()):
            gpus_of.setdefault(key, []).append(number)
    made = [_owner(scene, key, tuple(numbers)) for key, numbers in gpus_of.items()]
    return tuple(sorted(made, key=lambda owner: (-len(owner.gpus), natural(owner.namespace), natural(owner.claim))))


def reservations(scene: Scene, node: str, gpus: Sequence[int], *, pod: Key) -> tuple[str, ...]:
    """Return in words for which waiting pods and gangs, other than a pod and its own, GPUs of a node are reserved."""
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
    words = ("promised to " if promised else "held by ") + who + (f", for {spent}" if (spent := age(since)) else "")
    words += _unused(scene, key[0], users)
    return Owner(namespace=namespace, claim=name, pods=pods, promised=promised, since=since, gpus=gpus, words=words)


def _unused(scene: Scene, namespace: str, users: Sequence[str]) -> str:
    """Return what the API says of pods of ours that hold GPUs and do not run."""
    known = [scene.picture.pods.get((namespace, user)) for user in users]
    if not known or any(pod is None or pod.status.phase not in _UNUSED for pod in known):
        return ""
    said = dict.fromkeys(_UNUSED[pod.status.phase] for pod in known if pod is not None and pod.spec.node_name)
    return f", {' and '.join(said)}" if said else ""
