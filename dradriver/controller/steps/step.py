"""Decides the next step of a workload: a single pod, or a gang that has not started. Pure.

``StepRunner`` calls it after ``observe``.
"""

from __future__ import annotations

from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.controller.steps.actions import Step
from dradriver.controller.steps.deadlines import Deadlines
from dradriver.controller.steps.gang_step import gang_step
from dradriver.controller.steps.observe import GangState, PodState
from dradriver.controller.steps.pod_step import pod_step

_DEFAULT = Deadlines()


def step(state: PodState | GangState, picture: Picture, now: float, deadlines: Deadlines = _DEFAULT) -> Step:
    """Return the next step of a workload.

    Args:
        state: The state of the workload, as ``observe`` or ``observe_gang`` returned it at the same time.
        picture: The cluster cache.
        now: The time by the event loop's clock.
        deadlines: Says how long to wait for the scheduler.
    """
    if isinstance(state, GangState):
        return gang_step(state, picture, now, deadlines)
    return pod_step(state, picture, now, deadlines)
