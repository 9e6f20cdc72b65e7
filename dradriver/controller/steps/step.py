"""What has to be done for a workload now, one pod or a gang that has not started. Pure: ``observe`` has looked."""

from __future__ import annotations

from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.controller.steps.actions import Step
from dradriver.controller.steps.deadlines import Deadlines
from dradriver.controller.steps.gang_step import gang_step
from dradriver.controller.steps.observe import GangState, PodState
from dradriver.controller.steps.pod_step import pod_step

_DEFAULT = Deadlines()


def step(state: PodState | GangState, picture: Picture, now: float, deadlines: Deadlines = _DEFAULT) -> Step:
    """Return the next step of a workload: what has to be done.

    Args:
        state: How far it is, as ``observe`` or ``observe_gang`` returned it at the same time.
        picture: The cluster cache.
        now: The loop's clock.
        deadlines: How long to wait.
    """
    if isinstance(state, GangState):
        return gang_step(state, picture, now, deadlines)
    return pod_step(state, picture, now, deadlines)
