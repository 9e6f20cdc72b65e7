"""Which pods leave their PodGroup at CREATE, so that kube-scheduler places each of them by itself.

With the feature gate WorkloadWithJob each Job has a PodGroup, of the policy ``basic`` unless the Job asks for a gang.
kube-scheduler tries no pod of a PodGroup while another of them has a scheduling gate, or names a claim that is missing,
whatever the policy is (1.37.2, runPreEnqueuePlugins of pkg/scheduler/backend/queue/scheduling_queue.go, PreEnqueue of
plugins/dynamicresources). So of an array of pods that do not all find GPUs none would start. ``create`` and ``update``
call this. Later the field cannot change.

A PodGroup that somebody else made is left alone: its other pods may have no GPUs and count for its ``minCount``, and
nothing in the pod says which policy it has.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dradriver.api.base import names
from dradriver.api.base.objects import OwnerReference
from dradriver.api.base.pods import SchedulingGroup
from dradriver.api.gangs.gang_owners import is_of_job
from webhook import pod_view

_OWNERS: Final = msgspec.json.Decoder(list[OwnerReference] | None)
_GROUP: Final = msgspec.json.Decoder(SchedulingGroup | None)


def left(pod: pod_view.Pod) -> str:
    """Return the PodGroup of its Job that a new pod with our scheduling gate leaves, or has left; empty for none.

    A note keeps the name, by which the controller finds the pod's gang (``gang_owners.of_group``).

    Raises:
        WordError: The PodGroup or the owners of the pod cannot be read.
    """
    group = pod_view.decode(_GROUP, pod.spec.scheduling_group, "spec.schedulingGroup: ")
    name = pod.written.get(names.POD_GROUP, "") if group is None else group.pod_group_name
    if not name:
        return ""
    owners = pod_view.decode(_OWNERS, pod.owners, "metadata.ownerReferences: ") or []
    return name if is_of_job(name, owners) else ""


def leaves_at_update(pod: pod_view.Pod, live: pod_view.Pod) -> bool:
    """Return whether an update names a PodGroup that the live pod is not in, as a manifest that is applied again does.

    Kubernetes would refuse it, as the field cannot change.
    """
    return pod.is_in_group and not live.is_in_group
