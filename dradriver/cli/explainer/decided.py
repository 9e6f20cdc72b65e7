"""The controller's own decision about the places of a pod or a gang, for ``verdict`` and ``together``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dradriver.allocator.request import NoPlaceError
from dradriver.api.base.errors import WordError
from dradriver.cli.cluster.scene import Scene
from dradriver.cli.explainer.gangs import Read
from dradriver.cluster.records.placement import Placement
from dradriver.controller.placing import gang_plan
from dradriver.controller.placing.decide import MOST_NODES
from dradriver.controller.placing.plan import GangTerms, plan
from dradriver.queue.units import Member, Unit

_ROUNDS: Final = 8


async def decided(scene: Scene, unit: Unit, gang: Read | None) -> dict[Member, Placement] | NoPlaceError | WordError:
    """Return the places that the controller would give those pods now that want one; or why there are none.

    Others' pods count on all nodes that a place names, as in the controller's cluster cache. The search may cost what
    the controller's last try may, which avoids no node.

    Args:
        scene: The cluster.
        unit: A single pod, a gang that has not started, or one pod that joins a gang that runs.
        gang: The gang; None for a single pod.
    """
    most, why = MOST_NODES, ""
    try:
        for _ in range(_ROUNDS):
            left = scene.caps.left(unit, scene.whose(unit))
            why, terms = left.why, None
            if gang is not None:
                least = None if unit.key == unit.lead.key else unit.least
                terms = GangTerms(gang.of.wants, gang.of.member.identity, least=least)
            places = plan(left.snapshot, _members(scene, unit, gang, left.members), terms, most=most)
            if not await scene.fill(dict.fromkeys(node for place in places.values() for node in place.hostnames)):
                break
            most *= 2
    except (NoPlaceError, WordError) as error:
        return error.more(why) if why and isinstance(error, NoPlaceError) else error
    return places


def _members(scene: Scene, unit: Unit, gang: Read | None, wanting: Sequence[Member]) -> Sequence[Member]:
    """Return the pods that want places, and those of their gang that have some."""
    if gang is None:
        return wanting
    picture, chosen = scene.picture, frozenset(wanting)
    members = [member for member in gang.unit.members if member in chosen or gang_plan.has_claim(picture, member)]
    if unit.key != unit.lead.key:
        return members
    # The claims of running pods say what these have of a template, which can have changed since.
    near = (member if member in chosen else gang_plan.placed(picture, member.pod) for member in members)
    return [member for member in near if member is not None]
