"""The ways to make a place for a whole gang. A way is a group of claims that would have to end.

Each way is tried with the controller's own plan for the gang.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import msgspec

from dradriver.allocator import Role, Whole, largest_gang
from dradriver.api.base.errors import WordError
from dradriver.api.claims.pins import Key, claim_key
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cli.explainer import gpu_holders
from dradriver.cli.explainer.model import GangRoom, Help
from dradriver.cli.explainer.workload import Workload
from dradriver.controller.placing import gang_plan
from dradriver.topology.natural import natural
from dradriver.view.terminal_text import plain

_TRIED: Final = 64  # groups of claims that are taken away to see
_WAYS: Final = 3


def ways(workload: Workload) -> tuple[tuple[Help, ...], ...]:
    """Return the ways to make a place for a whole waiting gang.

    A way lists, node by node, the pods that would have to end. First come the ways in which one pod or one other gang
    ends. If none of these is enough, the result is one way in which several end. Only the ``_TRIED`` pods or gangs with
    the fewest GPUs are tried. The CPU and memory of the pods that would end still count as used, so each returned way
    does help.
    """
    scene, pending = workload.scene, workload.pending
    members = gang_plan.members_to_plan(scene.picture, pending.members, pending.wanting)
    own = {key for member in members if (key := claim_key(member.pod)) is not None}

    # The controller's own plan of the gang, as if these claims had ended. The caps of the tenant count.
    wanting = workload.allowance.members

    def would_do(claims: Collection[Key]) -> bool:
        try:
            closed = scene.caps.closed_without(pending, wanting, claims)
        except WordError:
            return False
        return workload.has_place(wanting, closed, claims)

    # Claims that end together: those of a pod, or of a gang; the fewest GPUs first.
    groups = _groups(scene, own)
    alone = [group for group in groups[:_TRIED] if would_do(group)][:_WAYS]
    return tuple(_shown(scene, claims) for claims in alone or _together(groups, would_do))


def _groups(scene: Scene, own: Collection[Key]) -> list[tuple[Key, ...]]:
    """Return the claims that have GPUs, grouped by gang, the group with the fewest GPUs first.

    The claims of the explained gang (``own``) are left out.
    """
    found: dict[object, list[Key]] = {}
    held = scene.picture.inventory.holds
    for key in sorted(held.claims()):
        record = scene.picture.claims.get(key)
        if key not in own and held.of(key):
            planned = None if record is None else record.planned
            found.setdefault(key if planned is None else (key[0], planned.gang, ""), []).append(key)
    return sorted(map(tuple, found.values()), key=lambda keys: sum(len(held.of(key)) for key in keys))


def _together(groups: list[tuple[Key, ...]], would_do: Callable[[Collection[Key]], bool]) -> list[tuple[Key, ...]]:
    """Return one way in which several pods or gangs end, all of them needed.

    The result is empty if the gang has no place even after the first ``_TRIED`` of ``groups`` end. ``would_do`` returns
    whether the end of some claims is enough.
    """
    ending = groups[:_TRIED]
    if not would_do([key for group in ending for key in group]):
        return []
    for group in reversed(groups[:_TRIED]):
        fewer = [each for each in ending if each is not group]
        if would_do([key for each in fewer for key in each]):
            ending = fewer
    return [tuple(key for group in ending for key in group)]


def _shown(scene: Scene, claims: tuple[Key, ...]) -> tuple[Help, ...]:
    nodes = {node for key in claims for node, _ in scene.picture.inventory.holds.of(key)}
    found = []
    for node in sorted(nodes, key=natural):
        held = {
            number: tuple(key for key in keys if key in claims)
            for number, keys in gpu_holders.holders(scene, node).items()
        }
        gpus = tuple(number for number, keys in held.items() if keys)
        found.append(Help(node=plain(node), gpus=gpus, owners=gpu_holders.owners(scene, held, gpus)))
    return tuple(found)


def room(workload: Workload) -> tuple[GangRoom, ...]:
    """Return the number of a gang's pods that each network level has room for now.

    GPUs that a cap leaves out do not count. The result is empty if the gang requests fractions of GPUs. ``workload`` is
    the gang. Each pod counts as if it had the request of the first pod that needs a place, because other requests may
    be unreadable.
    """
    scene, pending = workload.scene, workload.pending
    wish = pending.asking[0].wish
    if not isinstance(wish.request, Whole):
        return ()
    snapshot = scene.limits.view(pending, workload.allowance.closed)
    fleet = snapshot.fleet
    resources = sorted(resource for resource, _ in wish.ask.amounts)
    own = dict(wish.ask.amounts)
    role = Role(pod=wish.request, pods=1, needs=tuple(own[resource] for resource in resources))
    ask = msgspec.structs.replace(wish.ask, lasts_s=pending.lasts_s)
    open_, amounts = snapshot.narrowed(snapshot.open(ask)), snapshot.left(resources)
    levels = (*(level for level in fleet.levels if (fleet.sites.domains(level) >= 0).any()), "cluster")
    found = ((level, largest_gang(fleet, role, level, eligible=open_, amounts=amounts)) for level in levels)
    return tuple(GangRoom(level=plain(level), pods=one.pods, domain=plain(one.domain)) for level, one in found)
