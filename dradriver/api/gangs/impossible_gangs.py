"""Pods that cannot form a gang, as their owner makes the others only after the first has its place, or splits them.

Holding such a pod until all are there would hold it for ever. No plan of a gang keeps the parts of one apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dradriver.api.base import names, other_schedulers
from dradriver.api.gangs.gang_annotations import Gang

_JOBSET_EXCLUSIVE: Final = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_JOBSET_SELECTOR: Final = "alpha.jobset.sigs.k8s.io/node-selector"  # with it the others do not wait
_LWS_EXCLUSIVE: Final = "leaderworkerset.sigs.k8s.io/exclusive-topology"
# With it no pod waits for another one (pkg/controllers/pod_controller.go), but each has a required affinity.
_LWS_SUBGROUP: Final = "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology"
_SPARK_ROLE: Final = "spark-role"
_RAY: Final = "ray.io/cluster"

_NEAR: Final = f"remove it, and write {names.NEAR} for pods that are to be near each other"
_NAMED: Final = f"write a name as {names.GANG} and how many they are as {names.GANG_SIZE}"
LEADER_READY: Final = (
    "startupPolicy: LeaderReady: the workers are made once the leader is ready, so they cannot start as one gang: "
    "write LeaderCreated"
)
ORDERED_READY: Final = (
    "podManagementPolicy: OrderedReady: each pod is made once the one before is ready, so they cannot start as one "
    "gang: write Parallel"
)
DEPLOYMENT: Final = f"nothing says which of a Deployment's pods belong together: {_NAMED}"
IN_ORDER: Final = (
    f"its replicatedJobs start one after another, and the first would wait for the last: write {names.GANG}: auto, by "
    "which each of them is a gang, or write neither dependsOn nor startupPolicyOrder: InOrder"
)


def why_never(
    labels: Mapping[str, str], annotations: Mapping[str, str], scheduler: str, gang: Gang | None
) -> str | None:
    """Return why a pod can be in no gang, and what to write; None if it can.

    The owners listed here make some pods only after others run, so the pods can never all wait together.

    Args:
        labels: The pod's labels.
        annotations: The pod's annotations.
        scheduler: ``spec.schedulerName``.
        gang: The gang annotations of the pod; None if it has none.
    """
    # A name and a size that the author writes say which pods belong together, whatever made them.
    has_written_gang = gang is not None and gang.written is not None
    if why := other_schedulers.why_no_gang(scheduler):
        return why
    if _JOBSET_EXCLUSIVE in annotations and _JOBSET_SELECTOR not in annotations:
        return f"{_JOBSET_EXCLUSIVE}: all but a job's first pod are made once that has its node; {_NEAR}"
    if _LWS_EXCLUSIVE in annotations:
        return f"{_LWS_EXCLUSIVE}: the workers are made once the leader has its node; {_NEAR}"
    if _LWS_SUBGROUP in annotations:
        return (
            f"{_LWS_SUBGROUP}: each subgroup must be in a part of the network of its own, and the driver plans a gang "
            f"as a whole; {_NEAR}"
        )
    role = labels.get(_SPARK_ROLE)
    if role == "driver":
        return f"{_SPARK_ROLE}: driver: it makes its executors once it runs; write words about gangs for these alone"
    if role == "executor" and not has_written_gang:
        return f"{_SPARK_ROLE}: executor: only the driver knows how many there are; {_NAMED}"
    if labels.get(_RAY) and not has_written_gang:
        return f"{_RAY}: how many pods the cluster has changes as it runs; {_NAMED}"
    return None
