"""The pieces of the page that change alone: JSON by a key, and of the same things always the same JSON."""

from __future__ import annotations

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
from dradriver.cluster.views.node_views import GpuView, NodeView
from dradriver.kube.store import Key
from dradriver.queue.queue_order import Standing, line
from dradriver.topology.natural import natural
from dradriver.topology.network_levels import ZONE
from dradriver.view.document import Document
from dradriver.view.html import fragment
from dradriver.view.terminal_text import cut, plain

MOST_WAITING: Final = 300  # pods that are listed; of the others there is the number
_MOST_WHO: Final = 16  # holders that a node's piece names
_LONG: Final = 200  # characters of a name or a reason in a piece; all of it is shown when it is opened
_STATES: Final = {"allocated": "a", "promised": "p", "blocked": "b"}
_HELD: Final = "asx"  # letters of GPUs that claims have
_UNHEALTHY: Final = "uxm"
_STATES_OF_UNHELD: Final = {"free": "f", "closed": "c", "reserved": "r", "parts": "b"}

Pieces = dict[str, bytes]

encoder: Final = msgspec.json.Encoder(order="deterministic")


def node_pieces(live: Live, names: Iterable[str]) -> dict[str, bytes | None]:
    """Return the pieces of the page for the tiles of nodes, by name; None for a node without GPUs of ours.

    A node that meets an error in this program is left out of ``live``, and has no tile. The others are shown.
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
    """Return the piece of the page for the tile of one node; None for a node without GPUs of ours.

    A GPU is one letter:

    * ``f`` free: a pod may have the whole of it, as ``gputopo free`` counts it,
    * ``a`` given to a claim, ``s`` given in parts, ``p`` promised, ``r`` reserved for somebody who waits,
    * ``b`` in no claim, and handed out in parts alone (MIG mode, shares), or about to change its mode,
    * ``c`` in no claim, on a node that takes no new pods, ``n`` in no claim, and never placed,
    * ``u`` unhealthy, ``x`` unhealthy and in a claim, ``m`` missing: the node lost it, and its place stays empty.
    """
    live.tiles.pop(name, None)
    view = live.views.get(name)
    if view is None:
        return _gone_piece(live, name)
    of_gpus = letters(live, view)
    # By the GPU's index; None for a GPU that the node lost.
    by_number: list[tuple[int, GpuView | None]] = [(gpu.gpu.index, gpu) for gpu in view.gpus]
    by_number += [(lost.index, None) for lost in view.lost]
    in_order = sorted(by_number, key=lambda entry: entry[0])
    gpus = "".join("m" if gpu is None else of_gpus[index] for index, gpu in in_order)
    closed = live.closed(name)
    live.tiles[name] = Tile(view.machine.product, gpus, bool(closed))
    shown: dict[str, Any] = {
        "product": cut(view.machine.product, _LONG),
        "gpus": gpus,
        **_held_by(live, (() if gpu is None else gpu.taken_by for _, gpu in in_order)),
        "set": 0 if view.nvlink_set is None else len(view.nvlink_set.gpus),
        "zone": _zone(live, name),
        "closed": closed,
        "ill": view.unhealthy,
    }
    return encoder.encode(shown)


def _gone_piece(live: Live, name: str) -> bytes | None:
    """Return what the tile of a node shows whose agent is gone: what claims hold there, and that it takes no pods."""
    gone = live.gone.get(name)
    if gone is None:
        return None
    shown: dict[str, Any] = {
        "product": AGENT_GONE,
        "gpus": "a" * len(gone.gpus),
        **_held_by(live, (holders for _, holders in gone.gpus)),
        "set": 0,
        "zone": _zone(live, name),
        "closed": AGENT_GONE,
        "ill": 0,
    }
    return encoder.encode(shown)


def _count(gpus: str, letters: str) -> int:
    return sum(map(gpus.count, letters))


def _held_by(live: Live, holders: Iterable[Iterable[Holder]]) -> dict[str, Any]:
    """Return who holds which positions of a tile, how many more hold any, and the holders' tenants."""
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
        if gpu.state != "free":
            parts = any(holder.part or holder.share for holder in gpu.taken_by)
            return "s" if parts and gpu.state == "allocated" else _STATES[gpu.state]
        if is_closed:
            return "c"
        return "f" if states is None else _STATES_OF_UNHELD.get(states.get(gpu.gpu.index, ""), "n")

    return {gpu.gpu.index: letter(gpu) for gpu in view.gpus}


def common(live: Live, history: History, *, server: str) -> Pieces:
    """Return all pieces of the page except those of nodes; the history gets a sample when one is due."""
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
    said = tenants_document(tenants) if tenants else page_documents.namespaces(scene)
    pieces["shown/tenants"] = _shown(said)
    pieces["shown/idle"] = _shown(idle_document(idle))
    pieces["shown/health"] = _shown(page_documents.health(live))
    return pieces


def _sample(summary: Mapping[str, Any]) -> Sample:
    letters: Counter[str] = Counter()
    for _, counts in summary["products"]:
        letters.update(counts)
    held = sum(letters[letter] for letter in _HELD)
    return Sample(int(time.time()), letters["f"], held, summary["waiting"])


def _shown(document: Document) -> bytes:
    return encoder.encode(fragment(document))


def _minute() -> float:
    """Return the time, in whole minutes: what changes with every second would be sent with every update."""
    return time.time() // 60 * 60


def _summary(live: Live) -> dict[str, Any]:
    products: dict[str, list[str]] = {}
    for tile in live.tiles.values():
        products.setdefault(tile.product, []).append(tile.gpus)
    if live.gone:  # which product they are nobody knows any more
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

    Pods that are not in the queue come last: static pods, and those with a tentative placement.
    """
    position_of = {one.workload.key: position for position, one in enumerate(standing, 1)}
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
            "turn": None if position == float("inf") else position,
            "namespace": pod.namespace,
            "pod": pod.pod,
            "gang": "" if membership is None else cut(plain(membership.gang[1]), _LONG),
            "state": pod.state,
            "wish": cut(pod.wish, _LONG),
            "since": pod.created,
            "why": cut(pod.said or pod.refused or _nothing_said(pod.state), 2 * _LONG),
        }
        yield f"pod/{pod.namespace}/{pod.pod}", encoder.encode(shown)


def _nothing_said(state: str) -> str:
    return {"static": "left to the scheduler", "promised": "its GPUs are promised to it"}.get(state, "not said yet")
