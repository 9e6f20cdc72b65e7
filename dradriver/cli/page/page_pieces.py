"""The pieces of the page that change alone: JSON by a key, and of the same things always the same JSON."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from dradriver.api.base.names import PREFIX
from dradriver.cli.cluster.free_gpus import free_gpus
from dradriver.cli.explainer import queue_position
from dradriver.cli.explainer.subject import subject
from dradriver.cli.free import document as free_document
from dradriver.cli.idle import document as idle_document
from dradriver.cli.idle import idle_claims
from dradriver.cli.page import page_documents
from dradriver.cli.page.live_cluster import Live
from dradriver.cli.queue import Waits, waits
from dradriver.cli.tenants import document as tenants_document
from dradriver.cli.tenants import tenants_now
from dradriver.cluster.views.gone_node_views import AGENT_GONE
from dradriver.cluster.views.holder_names import Holder
from dradriver.cluster.views.node_views import GpuView
from dradriver.queue.queue_order import line
from dradriver.topology.natural import natural
from dradriver.topology.network_levels import ZONE
from dradriver.view.document import Document
from dradriver.view.html import fragment
from dradriver.view.terminal_text import cut, plain

MOST_WAITING: Final = 300  # pods that are listed; of the others there is the number
_MOST_WHO: Final = 16  # holders that a node's piece names
_LONG: Final = 200  # characters of a name or a reason in a piece; all of it is shown when it is opened
_CHANGES: Final = f"tainted {PREFIX}mode-changes:NoSchedule"  # and no other taint
_STATES: Final = {"free": "f", "allocated": "a", "promised": "p", "blocked": "b"}

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

    A GPU is one letter: ``f`` free, ``a`` given to a claim, ``s`` given in parts, ``p`` promised, ``b`` in MIG mode, or
    about to change its mode, and in no claim, ``u`` unhealthy, ``x`` unhealthy and in a claim, ``m`` missing: the node
    lost it, and its place stays empty.
    """
    view = live.views.get(name)
    if view is None:
        return _gone_piece(live, name)
    # By the GPU's index; None for a GPU that the node lost.
    by_number: list[tuple[int, GpuView | None]] = [(gpu.gpu.index, gpu) for gpu in view.gpus]
    by_number += [(lost.index, None) for lost in view.lost]
    gpus_in_order = [gpu for _, gpu in sorted(by_number, key=lambda entry: entry[0])]
    shown: dict[str, Any] = {
        "product": cut(view.machine.product, _LONG),
        "gpus": "".join("m" if gpu is None else _letter(gpu) for gpu in gpus_in_order),
        **_held_by(() if gpu is None else gpu.taken_by for gpu in gpus_in_order),
        "set": 0 if view.nvlink_set is None else len(view.nvlink_set.gpus),
        "zone": _zone(live, name),
        "closed": live.closed(name),
        "ill": sum(_is_unhealthy(gpu) for gpu in view.gpus) + len(view.lost),
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
        **_held_by(holders for _, holders in gone.gpus),
        "set": 0,
        "zone": _zone(live, name),
        "closed": AGENT_GONE,
        "ill": 0,
    }
    return encoder.encode(shown)


def _held_by(holders: Iterable[Iterable[Holder]]) -> dict[str, Any]:
    """Return who holds which positions of a tile, the first of them by name, and how many more hold any."""
    positions: dict[str, list[int]] = {}
    for position, each in enumerate(holders):
        for who in dict.fromkeys(holder.who for holder in each):
            positions.setdefault(cut(who, _LONG), []).append(position)
    shown = sorted(positions.items(), key=lambda item: natural(item[0]))[:_MOST_WHO]
    return {"who": shown, "more": max(0, len(positions) - _MOST_WHO)}


def _zone(live: Live, name: str) -> str:
    node = live.node(name)
    return "" if node is None else cut(plain(node.metadata.labels.get(ZONE, "")), _LONG)


def _letter(view: GpuView) -> str:
    if _is_unhealthy(view):
        return "u" if view.state == "blocked" else "x"
    parts = any(holder.part or holder.share for holder in view.taken_by)
    return "s" if parts and view.state == "allocated" else _STATES[view.state]


def _is_unhealthy(view: GpuView) -> bool:
    """Return whether a GPU is out of use for its health: neither in MIG mode nor about to change its mode."""
    is_well = view.is_in_mig_mode or view.blocked == _CHANGES or view.is_never_placed
    return bool(view.blocked) and not is_well


def common(live: Live, *, server: str) -> Pieces:
    """Return all pieces of the page except those of nodes: summary, queue, free GPUs, tenants, idle GPUs, health."""
    scene = live.scene
    standing = line(queue_position.waiting(scene), scene.tenants)
    pieces = dict(_waiting(live, waits(scene, standing)))
    pieces["summary"] = encoder.encode(
        _summary(live) | {"server": plain(server), "waiting": _count_waiting(live), "listed": len(pieces)}
    )
    pieces["unread"] = encoder.encode(list(map(plain, live.unread)))
    if scene.whole:
        pieces["shown/free"] = _shown(free_document(free_gpus(scene)))
    tenants = tenants_now(scene, standing)
    said = tenants_document(tenants) if tenants else page_documents.namespaces(scene)
    pieces["shown/tenants"] = _shown(said)
    pieces["shown/idle"] = _shown(idle_document(idle_claims(scene, now=_minute())))
    pieces["shown/health"] = _shown(page_documents.health(live))
    return pieces


def _shown(document: Document) -> bytes:
    return encoder.encode(fragment(document))


def _minute() -> float:
    """Return the time, in whole minutes: what changes with every second would be sent with every update."""
    return time.time() // 60 * 60


def _summary(live: Live) -> dict[str, Any]:
    products: dict[str, Counter[str]] = {}
    shut = unhealthy = 0
    for name, view in live.views.items():
        states = products.setdefault(view.machine.product, Counter())
        is_closed = bool(live.closed(name))
        shut += is_closed
        states.update(_state(gpu, is_closed=is_closed) for gpu in view.gpus)
        states.update("m" * len(view.lost))
        unhealthy += sum(map(_is_unhealthy, view.gpus)) + len(view.lost)
    if live.gone:  # which product they are nobody knows any more
        products[AGENT_GONE] = Counter({"a": sum(len(node.gpus) for node in live.gone.values())})
    return {
        "nodes": len(live.views) + len(live.gone),
        "closed": shut + len(live.gone),
        "gone": len(live.gone),
        "unhealthy": unhealthy,
        "products": [[product, dict(sorted(states.items()))] for product, states in sorted(products.items())],
    }


def _state(gpu: GpuView, *, is_closed: bool) -> str:
    letter = _letter(gpu)
    return "c" if letter == "f" and is_closed else letter


def _count_waiting(live: Live) -> int:
    return sum(1 for _ in _unbound(live))


def _unbound(live: Live) -> Iterator[tuple[str, str]]:
    for key, pod in live.pods.items():
        if not (pod.finished or pod.spec.node_name or pod.metadata.deletion_timestamp):
            yield key


def _waiting(live: Live, queue: list[Waits]) -> Iterator[tuple[str, bytes]]:
    """Yield the page's pieces on pods that are not bound: by their position in the queue, then by age.

    Pods that are not in the queue come last: static pods, and those with a tentative placement.
    """
    position_of = {waits.name: waits.position for waits in queue}
    gangs = live.scene.picture.gangs

    # A position is of a workload: all pods of a gang have the same.
    def order(key: tuple[str, str]) -> tuple[float, str, tuple[str, str]]:
        membership = gangs.of(key)
        workload = plain("/".join(key if membership is None else membership.gang))
        return position_of.get(workload, float("inf")), live.pods[key].metadata.creation_timestamp or "", key

    ordered = sorted((order(key), key) for key in _unbound(live))
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
