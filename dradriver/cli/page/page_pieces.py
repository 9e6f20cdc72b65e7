"""The pieces of the page that change independently, each as JSON under a key.

A *tile* is the field of the page that shows one node. Unchanged facts always give identical JSON.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from dradriver.cli.cluster.free_gpus import free_gpus
from dradriver.cli.explainer import queue_position
from dradriver.cli.explainer.subject import subject
from dradriver.cli.free import document as free_document
from dradriver.cli.idle import document as idle_document
from dradriver.cli.idle import idle_claims
from dradriver.cli.page import page_documents
from dradriver.cli.page.history import STEP_S, History, Sample
from dradriver.cli.page.live_cluster import Live, Tile
from dradriver.cli.tenants import document as tenants_document
from dradriver.cli.tenants import tenants_now
from dradriver.cluster.views.gone_node_views import AGENT_GONE
from dradriver.cluster.views.holder_names import Holder
from dradriver.cluster.views.node_views import GpuView, LostView, NodeView
from dradriver.kube.store import Key
from dradriver.queue.queue_order import Standing, line
from dradriver.topology.natural import natural
from dradriver.topology.network_levels import ZONE
from dradriver.view.document import Document
from dradriver.view.html import fragment
from dradriver.view.terminal_text import cut, plain

MOST_WAITING: Final = 300  # pods that are listed; of the others there is the number
_MOST_WHO: Final = 16  # pods that a node's piece names
_LONG: Final = 200  # characters of a name or a reason in a piece; all of it is shown when it is opened
_ALLOCATED: Final = "asx"  # letters of GPUs that claims have
_UNHEALTHY: Final = "uxm"
_UNALLOCATED: Final = {"free": "f", "unavailable": "c", "reserved": "r", "fractions": "b", "blocked": "b"}

Pieces = dict[str, bytes]

encoder: Final = msgspec.json.Encoder(order="deterministic")


def node_pieces(live: Live, names: Iterable[str]) -> dict[str, bytes | None]:
    """Return the pieces for the tiles of nodes, by name.

    A value is None if this driver publishes no GPUs of the node. If a node's objects cause an error in this program,
    the node is left out of ``live`` and has no tile. The other nodes are shown.
    """
    pieces: dict[str, bytes | None] = {}
    for name in names:
        try:
            pieces[name] = node_piece(live, name)
        except Exception as error:
            live.leave_out(name, error)
            pieces[name] = None
    return pieces


def node_piece(live: Live, name: str) -> bytes | None:
    """Return the piece of the page for the tile of one node; None without GPUs.

    Only GPUs that this driver publishes count. Each GPU is one letter:

    * ``f`` free: a pod can get the whole GPU, as ``gputopo free`` counts it,
    * ``a`` allocated, ``s`` allocated in fractions, ``p`` tentative, ``r`` reserved for a workload that waits,
    * ``b`` not used, and claims can get only fractions of it (MIG mode, shares), or its mode is about to change,
    * ``c`` not used, on a node that takes no new pods, ``n`` not used, and no pod is ever placed on it,
    * ``u`` unhealthy, ``x`` unhealthy and used, ``m`` missing: the node lost it, and its place stays empty.
    """
    live.tiles.pop(name, None)
    view = live.views.get(name)
    if view is None:
        return _gone_piece(live, name)
    of_gpus = letters(live, view)
    # By the GPU's index; GPUs that the node lost and that have no index come last.
    by_number: list[tuple[int, GpuView | LostView]] = [(gpu.gpu.index, gpu) for gpu in view.gpus]
    by_number += [(sys.maxsize if lost.index is None else lost.index, lost) for lost in view.lost]
    in_order = sorted(by_number, key=lambda entry: entry[0])
    gpus = "".join("m" if isinstance(gpu, LostView) else of_gpus[index] for index, gpu in in_order)
    closed = live.closed(name)
    live.tiles[name] = Tile(view.machine.product, gpus, bool(closed))
    shown: dict[str, Any] = {
        "product": cut(view.machine.product, _LONG),
        "gpus": gpus,
        **_used_by(live, (gpu.holders if isinstance(gpu, LostView) else gpu.taken_by for _, gpu in in_order)),
        "set": 0 if view.nvlink_set is None else len(view.nvlink_set.gpus),
        "zone": _zone(live, name),
        "closed": closed,
        "unhealthy": view.unhealthy,
    }
    return encoder.encode(shown)


def _gone_piece(live: Live, name: str) -> bytes | None:
    """Return the piece for the tile of a node whose agent is gone; None for any other node.

    The tile has the node's allocated GPUs, and says that the node takes no pods.
    """
    gone = live.gone.get(name)
    if gone is None:
        return None
    shown: dict[str, Any] = {
        "product": AGENT_GONE,
        "gpus": "a" * len(gone.gpus),
        **_used_by(live, (holders for _, holders in gone.gpus)),
        "set": 0,
        "zone": _zone(live, name),
        "closed": AGENT_GONE,
        "unhealthy": 0,
    }
    return encoder.encode(shown)


def _count(gpus: str, letters: str) -> int:
    return sum(map(gpus.count, letters))


def _used_by(live: Live, holders: Iterable[Iterable[Holder]]) -> dict[str, Any]:
    """Return which pods use each GPU position of a tile, and the pods' tenants.

    ``holders`` has the users of each GPU. Only the first pods are listed, with the number of the others.
    """
    positions: dict[str, list[int]] = {}
    namespaces: set[str] = set()
    for position, each in enumerate(holders):
        taken_by = {holder.who: holder.namespace for holder in each}
        namespaces.update(taken_by.values())
        for who in taken_by:
            positions.setdefault(cut(who, _LONG), []).append(position)
    shown = sorted(positions.items(), key=lambda item: natural(item[0]))[:_MOST_WHO]
    tenants = sorted({cut(live.tenant(namespace), _LONG) for namespace in namespaces}, key=natural)[:_MOST_WHO]
    return {"who": shown, "more": max(0, len(positions) - _MOST_WHO), "tenants": tenants}


def _zone(live: Live, name: str) -> str:
    node = live.node(name)
    return "" if node is None else cut(plain(node.metadata.labels.get(ZONE, "")), _LONG)


def letters(live: Live, view: NodeView) -> dict[int, str]:
    """Return the letter of each GPU of a node, by its number; see ``node_piece``."""
    states = live.states(view.name)
    is_closed = bool(live.closed(view.name))

    def letter(gpu: GpuView) -> str:
        if gpu.is_unhealthy:
            return "x" if gpu.taken_by else "u"
        if gpu.is_never_placed:
            return "n"
        if gpu.state == "tentative":
            return "p"
        if gpu.state == "allocated":
            return "s" if any(holder.part or holder.share for holder in gpu.taken_by) else "a"
        if gpu.state == "blocked":
            return "b"
        if is_closed:
            return "c"
        return _UNALLOCATED.get(gpu.state if states is None else states.get(gpu.gpu.index, ""), "n")

    return {gpu.gpu.index: letter(gpu) for gpu in view.gpus}


def common(live: Live, history: History, *, server: str) -> Pieces:
    """Return all pieces (independent parts) of the page, except those of nodes.

    A sample is added to ``history`` if one is due. ``server`` is the API server's address.
    """
    scene = live.scene
    standing = line(queue_position.waiting(scene), scene.tenants)
    pieces = dict(_waiting(live, standing))
    idle = idle_claims(scene, now=_minute())
    figures = _summary(live)
    others = {"server": plain(server), "listed": len(pieces), "idle": len(idle)}
    pieces["summary"] = encoder.encode(figures | others)
    history.note(_sample(figures))
    pieces["history"] = encoder.encode({"step": STEP_S, "samples": list(history.samples)})
    pieces["unread"] = encoder.encode(list(map(plain, live.unread)))
    if scene.whole:
        pieces["shown/free"] = _shown(free_document(free_gpus(scene)))
    tenants = tenants_now(scene, standing)
    said = tenants_document(tenants, scene) if tenants else page_documents.namespaces(scene)
    pieces["shown/tenants"] = _shown(said)
    pieces["shown/idle"] = _shown(idle_document(idle))
    pieces["shown/health"] = _shown(page_documents.health(live))
    return pieces


def _sample(summary: Mapping[str, Any]) -> Sample:
    letters: Counter[str] = Counter()
    for _, counts in summary["products"]:
        letters.update(counts)
    allocated = sum(letters[letter] for letter in _ALLOCATED)
    return Sample(int(time.time()), letters["f"], allocated, summary["waiting"])


def _shown(document: Document) -> bytes:
    return encoder.encode(fragment(document))


def _minute() -> float:
    """Return the time in seconds since the epoch, rounded down to whole minutes.

    With seconds, a piece would change, and be sent, at every update.
    """
    return time.time() // 60 * 60


def _summary(live: Live) -> dict[str, Any]:
    products: dict[str, list[str]] = {}
    for tile in live.tiles.values():
        products.setdefault(tile.product, []).append(tile.gpus)
    if live.gone:  # their product is not known
        products[AGENT_GONE] = ["a" * len(node.gpus) for node in live.gone.values()]
    counts = {product: Counter("".join(gpus)) for product, gpus in sorted(products.items())}
    waiting = dict(_unbound(live))
    return {
        "nodes": len(live.tiles) + len(live.gone),
        "waiting": len(waiting),
        "oldest": min(filter(None, waiting.values()), default=None),
        "closed": sum(tile.is_closed for tile in live.tiles.values()) + len(live.gone),
        "gone": len(live.gone),
        "unhealthy": sum(of_product[letter] for of_product in counts.values() for letter in _UNHEALTHY),
        "products": [[product, dict(sorted(of_product.items()))] for product, of_product in counts.items()],
    }


def _unbound(live: Live) -> Iterator[tuple[Key, str]]:
    """Yield the pods that wait for a node, each with the time of its creation, as the API server writes times."""
    for key, pod in live.pods.items():
        if not (pod.finished or pod.spec.node_name or pod.metadata.deletion_timestamp):
            yield key, pod.metadata.creation_timestamp or ""


def _waiting(live: Live, standing: Sequence[Standing]) -> Iterator[tuple[str, bytes]]:
    """Yield the page's pieces on pods that are not bound: by their position in the queue, then by age.

    ``standing`` is the queue. Pods that are not in it come last: static pods, pods with a tentative placement, pods of
    gangs that gather, and pods that a cap never allows. Only the first ``MOST_WAITING`` pods have a piece.
    """
    placeable = (one for one in standing if not queue_position.is_refused(live.scene, one.workload))
    position_of = {one.workload.key: position for position, one in enumerate(placeable, 1)}
    gangs = live.scene.picture.gangs

    # A position is of a workload: all pods of a gang have the same.
    def order(key: tuple[str, str]) -> tuple[float, str, tuple[str, str]]:
        membership = gangs.of(key)
        return (
            position_of.get(key if membership is None else membership.gang, float("inf")),
            live.pods[key].metadata.creation_timestamp or "",
            key,
        )

    ordered = sorted((order(key), key) for key, _ in _unbound(live))
    for number, ((position, _, _), key) in enumerate(ordered[:MOST_WAITING]):
        pod = subject(live.pods[key])
        membership = gangs.of(key)
        shown = {
            "at": number,
            "position": None if position == float("inf") else position,
            "namespace": pod.namespace,
            "pod": pod.pod,
            "gang": "" if membership is None else cut(plain(membership.gang[1]), _LONG),
            "state": pod.state,
            "request": cut(pod.wish, _LONG),
            "since": pod.created,
            "why": cut(pod.said or pod.refused or _nothing_said(pod.state), 2 * _LONG),
        }
        yield f"pod/{pod.namespace}/{pod.pod}", encoder.encode(shown)


def _nothing_said(state: str) -> str:
    return {"static": "left to the scheduler", "tentative": "it has a tentative placement"}.get(state, "no reason yet")
