"""Decides which pods leave their PodGroup at CREATE, so that kube-scheduler places each of them by itself.

With the feature gate WorkloadWithJob each Job has a PodGroup. Its policy is ``basic`` unless the Job asks for a gang.
kube-scheduler tries no pod of a PodGroup while another pod of it has a scheduling gate, or names a claim that is
missing. This holds for every policy (1.37.2, runPreEnqueuePlugins of pkg/scheduler/backend/queue/scheduling_queue.go,
PreEnqueue of plugins/dynamicresources). So if some pods of a Job found no GPUs, no pod of the Job would start.
``create`` and ``update`` call this module. A pod must leave when it is created, because the field cannot change later.

A pod does not leave a PodGroup that another program created. The PodGroup's other pods may have no GPUs and count for
its ``minCount``, and the pod does not tell the group's policy.
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
    """Return the Job's PodGroup that a new gated pod must leave; empty if there is none.

    If an earlier call has already removed the pod from the PodGroup, its name is returned, too. The pod keeps this name
    in a note (an annotation), by which the controller finds the pod's gang (``gang_owners.of_group``).

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
    """Return whether an update adds a PodGroup that the stored pod (``live``) is not in.

    This happens if a manifest is applied again. The webhook then removes the field, because Kubernetes would refuse the
    update: the field cannot change.
    """
    return pod.is_in_group and not live.is_in_group
