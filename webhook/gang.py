"""Pods of a gang: whether all of them can be there before one has its place. What else they can have: ``resolved``."""

from __future__ import annotations

import msgspec

from dradriver.api import gang_waits, gangs, names
from dradriver.api.errors import WordError
from dradriver.api.messages import shown
from dradriver.api.policies.model import Policies
from dradriver.api.resolved import Resolved
from webhook import pod_view


def check(pod: pod_view.Pod, wish: Resolved, policies: Policies) -> list[str]:
    """Return a warning of a gang that nobody knows the size of.

    Raises:
        WordError: The others are made only once this pod has its place, or its scheduler has gangs of its own.
    """
    gang = wish.gang
    if gang is msgspec.UNSET or (gang.name is None and gang.size is None):
        return []  # limits on a gang make none: nobody waits for such a pod
    scheduler = pod.spec.scheduler_name or ""
    scheduler = "" if scheduler in policies.schedulers else scheduler
    if (why := gang_waits.why_never(pod.labels, pod.annotations, scheduler, gang)) is not None:
        raise WordError(f"{gangs.said(gang)[0]}: the pod can be in no gang: {why}")
    if gang.written is None or gang.size is not None:
        return []
    return [f"{names.GANG}: {shown(gang.written)}: nothing says how many pods it has; write {names.GANG_SIZE}"]
