"""Finds pods that cannot form a gang because of their owner.

One kind of owner creates some pods only after its other pods run. If one of its pods waited for all others, it would
wait for ever. Another kind splits its pods into groups that must stay apart, and the plan of a gang cannot keep groups
apart.
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

_NEAR: Final = f"Remove this annotation. To keep pods near each other, write {names.NEAR}."
_NAMED: Final = f"Write a name as {names.GANG} and the number of pods as {names.GANG_SIZE}."
LEADER_READY: Final = (
    "with startupPolicy: LeaderReady the workers are created only after the leader is ready, so they "
    "cannot start as one gang. Write LeaderCreated."
)
ORDERED_READY: Final = (
    "with podManagementPolicy: OrderedReady each pod is created only after the previous one is ready, so they "
    "cannot start as one gang. Write Parallel."
)
DEPLOYMENT: Final = f"nothing tells which pods of a Deployment form one gang. {_NAMED}"
IN_ORDER: Final = (
    f"its replicatedJobs start one after another, so the first would wait for the last. Write {names.GANG}: auto, "
    f"which makes each replicatedJob a gang of its own, or remove dependsOn and startupPolicyOrder: InOrder."
)


def why_never(
    labels: Mapping[str, str], annotations: Mapping[str, str], scheduler: str, gang: Gang | None
) -> str | None:
    """Return why a pod can be in no gang, and what to write instead; None if it can be in one.

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
        return f"with {_JOBSET_EXCLUSIVE} the pods of a job are created only after its first pod has a node. {_NEAR}"
    if _LWS_EXCLUSIVE in annotations:
        return f"with {_LWS_EXCLUSIVE} the workers are created only after the leader has a node. {_NEAR}"
    if _LWS_SUBGROUP in annotations:
        return (
            f"with {_LWS_SUBGROUP} each subgroup needs its own part of the network, and the driver places a gang as a "
            f"whole. {_NEAR}"
        )
    role = labels.get(_SPARK_ROLE)
    if role == "driver":
        return (
            f"a Spark driver ({_SPARK_ROLE}: driver) creates its executors only after it runs. Write the gang "
            f"annotations on the executors only."
        )
    if role == "executor" and not has_written_gang:
        return f"only the Spark driver knows how many executors there are ({_SPARK_ROLE}: executor). {_NAMED}"
    if labels.get(_RAY) and not has_written_gang:
        return f"the number of pods of a Ray cluster ({_RAY}) changes while it runs. {_NAMED}"
    return None
