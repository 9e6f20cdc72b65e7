"""Meanings and cures of messages, for docs/messages.py: reasons, causes, texts on the node, Events.

A key is what the code says: the part of a message that does not differ from pod to pod. Each stands here once. Tests in
tests/unit/test_troubleshooting.py hold the keys against the code.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Cure(NamedTuple):
    """What a message means, and what to do."""

    meaning: str
    cure: str


class EventAbout(NamedTuple):
    """What an Event with one reason is about, its type, its meaning, and what to do."""

    object: str
    type: str
    meaning: str
    cure: str


REASONS: Final[dict[str, Cure]] = {
    "no eligible node has such a free set": Cure(
        "Nodes that the pod can use have a set of GPUs as requested. In each of these sets, other pods use some "
        "GPUs, or some GPUs are unhealthy.",
        "Run `gputopo explain`: it names the pods that must end first. `gputopo health` lists the unhealthy GPUs.",
    ),
    "no node of this cluster has such a set, even if all its GPUs are free": Cure(
        "No machine of this cluster has a set of GPUs as requested, so waiting does not help.",
        "Request fewer GPUs, or remove an annotation that restricts the set, such as "
        "`gpu.topology/require-nvlink`. `gputopo free` shows the sets that exist.",
    ),
    "no node has GPUs of vendor …, only of": Cure(
        "The pod requests GPUs of a vendor that no node has. A pod that names no vendor requests NVIDIA GPUs.",
        "In the container's limits, write the resource of a vendor that the nodes have, such as `amd.com/gpu`. "
        "Or write the annotation `gpu.topology/vendor` ([vendors.md](../tasks/vendors.md)).",
    ),
    "no eligible node has room for it": Cure(
        "`it` is the share or MIG slice that the pod requests. On the nodes that the pod can use, other pods "
        "leave too little of each GPU.",
        "Wait until a pod on these GPUs ends, or request a smaller share or MIG slice.",
    ),
    "Another namespace uses fractions of GPUs with room for it": Cure(
        "Some GPUs have room for the requested share or MIG slice. The policies file lets only one namespace at "
        "a time use fractions of these GPUs (`exclusiveTo: namespace`). Another namespace uses them now.",
        "Wait until the pods of that namespace end. `gputopo explain` says how many GPUs are affected, and "
        "how much of them is free.",
    ),
    "no GPU that nodes offer as … has room for it, even if the GPU is empty": Cure(
        "The share or MIG slice is larger than any GPU that the policies file divides into shares or MIG slices.",
        "Request a smaller share or MIG slice.",
    ),
    "no node of this cluster has room for all of it, even if the node is empty": Cure(
        "The containers of the pod request several shares or MIG slices. All of them must be on one node, and no node "
        "has enough GPUs that the policies file divides.",
        "Request fewer or smaller shares or MIG slices in one pod.",
    ),
    "no node offers GPUs as shares": Cure(
        "The pod requests a share. The policies file divides no GPU of these nodes into shares, or the nodes do not "
        "offer the shares yet ([parts.md](../tasks/parts.md)).",
        "Add `shared` to a rule in the section `gpus` of the policies file ([policies.md](policies.md#gpus)). If a "
        "rule has it, read the Events of the nodes.",
    ),
    "no node offers GPUs as MIG slices": Cure(
        "The pod requests a MIG slice. The policies file divides no GPU of these nodes into MIG slices. Or "
        "Kubernetes is below 1.36, or MIG mode is off on an A100 or A30 ([parts.md](../tasks/parts.md#limits)).",
        "Add `mig` to a rule in the section `gpus` of the policies file ([policies.md](policies.md#gpus)). If a rule "
        "has it, read the Events of the nodes.",
    ),
    "No node offers GPUs of this driver": Cure(
        "No node agent has published a GPU.",
        "Run `kubectl -n gpu-topology get daemonset`. If no agent runs, give the nodes a label that the chart "
        "value `node.gpuLabels` lists. If agents run, read their logs.",
    ),
    "No node with GPUs can run this pod": Cure(
        "All nodes are left out. The reason names the causes.",
        "Find the causes in [Nodes that are left out](#nodes-that-are-left-out).",
    ),
    "Nodes left out:": Cure(
        "The reason names the nodes that are left out, with the causes.",
        "Find the causes in [Nodes that are left out](#nodes-that-are-left-out).",
    ),
    "The pod was placed before and can use only the nodes of that placement": Cure(
        "The pod had a tentative placement, which ended. For this placement the controller limited the pod's "
        "node affinity to some nodes. Kubernetes does not allow a wider node affinity later.",
        "Delete the pod. Its owner creates it again.",
    ),
    "GPUs on … are reserved for this workload": Cure(
        "The controller keeps these GPUs for the pod or gang. Later pods do not get them. Pods that already run "
        "on them are not ended.",
        "Wait. If the reason names a pod without `max-duration`, the controller does not know when that pod "
        "ends. Wait until it ends, or end it.",
    ),
    "GPUs that are reserved for a workload that has waited longer are left out": Cure(
        "The controller keeps these GPUs for another pod or gang until enough of them are free "
        "([tenants.md](../tasks/tenants.md#reservations)). Some may be free now, and pods can still run on others.",
        "Run `gputopo queue`: it names that pod or gang. Your pod can use the free ones if its "
        "`gpu.topology/max-duration` (its longest run time) is short enough: it must end before the last pod that "
        "now runs on reserved GPUs ends. If a pod there has no known end, your pod must end within "
        "`queue.reservation.shortMinutes` of the policies file (5 minutes by default).",
    ),
    "Waiting for the preemption of": Cure(
        "The controller ends pods or gangs of lower priority for this pod ([preemption.md](../tasks/preemption.md)).",
        "Wait. The named pods or gangs end by the time in the reason. If one of them has not ended by this time, "
        "the controller soon stops this preemption.",
    ),
    "The pods that must end for this one need longer than its tentative placement lasts": Cure(
        "The API server or a webhook answers slowly. So the other pods would end only after the time for which "
        "the controller keeps GPUs for this pod. The controller ended no pod.",
        "List the admission webhooks, and look for a slow one: `kubectl get "
        "validatingwebhookconfigurations,mutatingwebhookconfigurations`. If there is none, raise "
        "`queue.preemption.marginSeconds` in the policies file.",
    ),
    "The pod is not handed over to kube-scheduler": Cure(
        "The pod has the annotation `gpu.topology/when-full: hand-over`: if no place is free, kube-scheduler takes "
        "over the pod, and chooses GPUs when some become free. But the namespace's tenant may use only some GPUs, its "
        "[partition](../tasks/tenants.md#what-only-the-scheduler-decides), which kube-scheduler does not know.",
        "Create the pod without the annotation `gpu.topology/when-full: hand-over`. Or ask an "
        "administrator to write `schedulerPlaced: allow` under `tenants.NAME` in the policies file.",
    ),
    "Pod … did not end in time to release its GPUs": Cure(
        "The controller ended that pod to free its GPUs for this one. That pod still exists after its grace "
        "period and a margin.",
        "Look at the finalizers of that pod, and check whether its node is gone. The controller can choose "
        "other pods next.",
    ),
    "Maintenance of node … begins before this pod would end": Cure(
        "The controller chose this node for the pod, and waited there for other pods to end. The node's "
        "maintenance now begins too early for the pod.",
        "Nothing. The controller looks for another node.",
    ),
    "The scheduler finds no room for pod": Cure(
        "The scheduler refused the tentative placement. The reason contains the scheduler's message.",
        "Look for what only the scheduler checks: unbound volumes, devices of other drivers, anti-affinity of "
        "other pods. The controller tries the pod's nodes one after the other. If the scheduler refuses all "
        "of them several times, delete the pod.",
    ),
    "Handed over to the scheduler": Cure(
        "There are two cases. The pod has the annotation `gpu.topology/when-full: hand-over`, and no place was free. "
        "Or the pod, with or without the annotation, has a rule that [only the scheduler can "
        "evaluate](limits.md#placement), and the scheduler refused three nodes. The scheduler now chooses the GPUs.",
        "Nothing. `kubectl describe pod` shows what the scheduler says.",
    ),
    "has not bound pod …. If there is no such scheduler, delete the pod": Cure(
        "The controller has chosen GPUs for the pod. For some time (by default 30 s) the scheduler has "
        "neither bound the pod nor reported why it cannot.",
        "Check whether the scheduler of `spec.schedulerName` runs.",
    ),
    "The scheduler tries no pod of PodGroup": Cure(
        "kube-scheduler starts the pods of a PodGroup together. One of these pods still has a scheduling "
        "gate or no claim. Or the PodGroup has fewer pods than `minCount`. Pods that have ended do not "
        "count.",
        "Read the reasons of the other pods of the PodGroup. If pods of it have ended, lower its `minCount`. If "
        "the pods need not start together, create them without `spec.schedulingGroup` "
        "([gangs.md](../tasks/gangs.md#podgroups-of-kubernetes)).",
    ),
    "The scheduler finds no room for another pod of PodGroup": Cure(
        "kube-scheduler places the pods of a PodGroup together. It found no room for another one, so it placed none.",
        "Read the reasons of the PodGroup's other pods. One of them says `The scheduler finds no room for pod`, "
        "with the scheduler's message.",
    ),
    "The pod was bound to node": Cure(
        "A person or program bound the pod without allocating its claim. The pod never starts.",
        "Delete the pod. Then check whether the scheduler of `spec.schedulerName` allocates claims.",
    ),
    "Waiting until another controller removes scheduling gate": Cure(
        "Another controller set a scheduling gate on the pod. Until it removes the gate, this driver keeps no "
        "GPUs for the pod.",
        "Look at the controller that set the gate. For `kueue.x-k8s.io/admission`, run `kubectl describe "
        "workload`. [claims.md](../tasks/claims.md#in-a-queue-of-kueues) says what Kueue admits.",
    ),
    "Waiting until the GPUs of node … are assessed": Cure(
        "The controller has chosen GPUs of this node. For each kind of machine it once computes tables of all "
        "GPU sets. The tables for this node's kind are not ready.",
        "Wait a few seconds. If the reason stays, read `GPUs not assessed yet` in [Nodes that are left "
        "out](#nodes-that-are-left-out).",
    ),
    "The placement of this pod was revoked several times": Cure(
        "The controller revoked several tentative placements of the pod, each soon after it was made. The "
        "reason names the cause. The controller now tries the pod more rarely, at last every two minutes.",
        "Find the program that creates or changes claims of the pod: `kubectl get resourceclaims -A`. If "
        "there is no such program, report the problem with the controller's log.",
    ),
    "Waiting until the earlier claim": Cure(
        "The pod's last tentative placement ended, and the controller deleted its claim. This claim still exists.",
        "Wait. If the claim stays, look at its finalizers: `kubectl get resourceclaim NAME -o yaml`.",
    ),
    "Waiting for pod …, which gets a place for the shared claim … first": Cure(
        "Several pods share one claim (`gpu.topology/shared-claim`). The controller first chooses the GPUs for "
        "the pod that the reason names.",
        "Read the reason of that pod. When it has GPUs, this pod gets the same.",
    ),
    "The shared claim … was chosen for": Cure(
        "All pods of a shared claim must have the same request. This pod has another request than the first pod.",
        "Copy the GPU limits and annotations of the other pods, or write another name in `gpu.topology/shared-claim`.",
    ),
    "The shared claim … is on node …, which cannot run this pod": Cure(
        "The GPUs of the shared claim are on one node. This node cannot run the pod.",
        "Find the cause for that node in [Nodes that are left out](#nodes-that-are-left-out).",
    ),
    "The shared claim … is in use by … pods, the limit of Kubernetes": Cure(
        "256 pods use the shared claim. Kubernetes allows no more.",
        "Wait until one of these pods ends, or write another name in `gpu.topology/shared-claim`.",
    ),
    "Waiting until claim … is gone, all its pods have ended": Cure(
        "All pods that used this shared claim have ended, so the controller is deleting the claim.",
        "Wait half a minute. The pod then gets a new claim.",
    ),
    "Waiting until the deleted claim … and its pods are gone": Cure(
        "A person or program deleted the shared claim of this pod. Other pods still use this claim.",
        "End those pods. The controller then creates a new claim.",
    ),
    "Claim … exists, but the driver did not create it for sharing": Cure(
        "The pod names a shared claim in `gpu.topology/shared-claim`. Another claim already has this name.",
        "Write another name in the annotation, or delete that claim.",
    ),
    "gpu.topology/request has no shared claim": Cure(
        "A person or program changed the annotation `gpu.topology/request` that the webhook wrote, or the "
        "pod's entry in `spec.resourceClaims`.",
        "Delete the pod and create it again.",
    ),
    "Claim … does not belong to this pod": Cure(
        "The controller creates a claim for each pod. Another claim already has the name of this pod's claim, and "
        "belongs to another object.",
        "Delete the pod and create it again.",
    ),
    "Claim … of this pod is used by another pod": Cure(
        "Another pod names this pod's claim in `spec.resourceClaims`.",
        "Delete that other pod.",
    ),
    "Claim … was allocated while … had its scheduling gate": Cure(
        "The scheduler does not allocate a claim while its pod has the scheduling gate. A person or program "
        "changed the gate or the claim.",
        "Delete the pod. Its owner creates it again.",
    ),
    "The annotation gpu.topology/request was changed": Cure(
        "A person or program changed the annotation that the webhook wrote.",
        "Delete the pod and create it again.",
    ),
    "The annotation gpu.topology/request, which the webhook writes, is missing": Cure(
        "A person or program removed the annotation that the webhook wrote.",
        "Delete the pod and create it again.",
    ),
    "Unhealthy GPUs are left out": Cure(
        "Nodes that could run the pod have unhealthy GPUs. No new pod gets these GPUs.",
        "Run `gputopo health`: it lists these GPUs with the fault and the repair.",
    ),
    "GPUs tainted by DeviceTaintRule … are left out": Cure(
        "An administrator's DeviceTaintRule taints these GPUs, mostly for maintenance.",
        "Wait until the administrator deletes the rule. `kubectl get devicetaintrules` lists the rules.",
    ),
    "Only GPUs in the partition of tenant … can be used": Cure(
        "The namespace's tenant may use only the GPUs in its [partition](../tasks/tenants.md#partitions). None "
        "of them is free for this pod.",
        "End a pod in that partition, or add GPUs to `tenants.NAME.partition` in the policies file.",
    ),
    "GPUs in the exclusive partition of another tenant are left out": Cure(
        "Only the pods of another tenant may use the GPUs in its exclusive "
        "[partition](../tasks/tenants.md#partitions).",
        "End a pod that uses GPUs outside that partition, or make `tenants.NAME.partition` smaller in the policies "
        "file.",
    ),
    "The API server refuses …: exceeded quota": Cure(
        "A ResourceQuota of the namespace allows no more claims, or not so many GPUs. The reason names the "
        "ResourceQuota, what the claim requests, what is used, and the limit.",
        "End pods of the namespace, or raise the ResourceQuota: `kubectl get resourcequota -n NAMESPACE`.",
    ),
    "The API server refuses": Cure(
        "An admission policy, the webhook of another program, a missing right or the API server itself refuses the "
        "pod's claim, or another write for the pod. The reason has the API server's text.",
        "Change the pod, or the policy, webhook or right that the text names. The controller tries again by itself.",
    ),
    "quota: tenant … may use": Cure(
        "With this pod or its gang, the tenant would use more GPUs than its [cap](../tasks/tenants.md#caps) in "
        "the policies file. A cap can count all GPUs or only some GPU products.",
        "`Refused by quota`: the pod or gang alone exceeds the cap, so the end of other pods does not help. Request "
        "less, or ask for a higher cap. Other caps of the tenant, for example for one product, also apply. "
        "`Waiting for quota`: wait until pods of the tenant end. `gputopo explain` says how many GPUs they must "
        "release. "
        "`GPUs are left out by quota`: free GPUs may be enough, but this cap excludes them. Ask for a higher cap, or "
        "wait for GPUs that the cap does not count. Pods of the tenant that end help only if `In use` is "
        "not 0. `gputopo explain` says whether a higher cap helps at once, and how high it must be. `gputopo tenants` "
        "shows all caps.",
    ),
    "The tenant of the namespace is not known yet": Cure(
        "Some tenants select namespaces by labels, and the controller cannot read namespaces yet.",
        "Check the right of the controller: `kubectl auth can-i list namespaces "
        "--as=system:serviceaccount:NAMESPACE:ACCOUNT`. The chart grants this right if a tenant in its "
        "value `policies` has `namespaceLabels`.",
    ),
    "no eligible node has enough free NICs": Cure(
        "GPUs can be free, but no node has enough free [NICs](../tasks/nic-claims.md) that match the claim. "
        "With `near-nic: required` the NICs must also be near the GPUs. A tainted NIC is free only for a pod "
        "that tolerates the taint.",
        "Wait until pods with NICs end. `gputopo explain` names the three nodes with the most free NICs, and says how "
        "many of their NICs are free, how many of these are tainted, and how many match the claim.",
    ),
    "no node with free GPUs was found yet": Cure(
        "The text continues: `that has them`. The nodes tried so far have free GPUs, but not the "
        "[NICs](../tasks/nic-claims.md) that the claim requests. The controller limits the search, so it has not "
        "tried all nodes, or all plans for the gang.",
        "If the reason says `Other nodes are tried next`, wait a few seconds. If it says `Not all … were "
        "tried` for minutes, end pods whose GPUs are near free NICs.",
    ),
    "Not all combinations that the claim allows were tried": Cure(
        "The claim allows more combinations of [NICs](../tasks/nic-claims.md) than the controller tries at once. "
        "It found no free combination among those that it tried.",
        "Write requests that fewer NICs match. Or wait: the controller searches again when NICs or GPUs become free.",
    ),
    "no NIC of any node has the same … as a GPU. Remove this constraint from the template": Cure(
        "A constraint in the template requires that GPUs and NICs have the same value of an attribute. No node "
        "has a GPU and a NIC with the same value.",
        "Remove the constraint from the ResourceClaimTemplate, then create the pod again.",
    ),
    "Waiting until the slices of drivers": Cure(
        "The pod is the first one that requests NICs. The controller is reading the ResourceSlices of the named "
        "NIC drivers.",
        "Wait a second. If the reason stays, read the controller's log.",
    ),
    "Waiting for DeviceClass": Cure(
        "The template requests NICs by a DeviceClass that does not exist.",
        "Create the class, or write the name of one that exists: `kubectl get deviceclasses`.",
    ),
    "Waiting for PersistentVolumeClaim": Cure(
        "A PersistentVolumeClaim of the pod does not exist. Or it has no volume yet, although its "
        "StorageClass creates volumes at once.",
        "Run `kubectl describe pvc` in the namespace of the pod. It shows the cause.",
    ),
    "Waiting for ResourceClaimTemplate": Cure(
        "The pod names a template that does not exist in its namespace.",
        "Create the template, or correct the name.",
    ),
    "Waiting until the pod's scheduler has bound other pods of this namespace": Cure(
        "The pod's scheduler does not bind pods of this namespace, or binds them slowly, although the controller has "
        "chosen their GPUs. Until some are bound, the controller chooses GPUs for no more pods of this namespace with "
        "this scheduler.",
        "Check whether the scheduler of `spec.schedulerName` runs.",
    ),
    "no scheduler with the pod's schedulerName has bound a pod with a claim yet": Cure(
        "The controller does not know whether a scheduler with this name runs, because it has not seen this scheduler "
        "allocate a claim. The controller tries the tenant's workloads (pods or gangs) with such schedulers one "
        "at a time, with a pause after each. If a namespace has no tenant, the limit is for the namespace. "
        "Workloads with known schedulers do not wait for them.",
        "Check `spec.schedulerName`, and whether that scheduler runs.",
    ),
    "Waiting for answers to earlier writes in this namespace. A webhook may delay them": Cure(
        "The API server does not answer writes in this namespace. The webhook of another program may be the cause.",
        "List the admission webhooks: `kubectl get "
        "validatingwebhookconfigurations,mutatingwebhookconfigurations`. Check whether each one answers.",
    ),
    "Waiting to create the claim: other programs change the quota of this namespace too often": Cure(
        "Other programs change the ResourceQuota's usage all the time, so the API server could not count the "
        "claim. The controller tries again every second.",
        "Find out which program creates or deletes so many objects in the namespace.",
    ),
    "The controller failed because of a bug, see its log": Cure(
        "The controller has a bug that this pod triggers. The controller still places other pods.",
        "Report the bug with the controller's log.",
    ),
}
"""What ``gpu.topology/reason`` and the Event ``WaitsForGPUs`` say of a pod."""

GANG_REASONS: Final[dict[str, Cure]] = {
    "Waiting for more pods of the gang": Cure(
        "The gang needs more pods than exist. A succeeded pod counts and needs no GPUs. Failed pods and pods "
        "that are being deleted do not count.",
        "Look at the Events of the object that creates the pods, and at a quota on pods. If the gang is a PodGroup "
        "that has pods without GPUs, its size also counts these pods: write the number of pods with GPUs as "
        "`gpu.topology/gang-size`.",
    ),
    "gpu.topology/gang-size is missing. Write the number of pods of the gang": Cure(
        "`gpu.topology/gang` has a name, but nothing says how many pods the gang has.",
        "Write `gpu.topology/gang-size` with the same value on all pods of the gang.",
    ),
    "write the size of the gang as gpu.topology/gang-size": Cure(
        "The controller reads the gang's size in the object that created the pods, such as a Job. The reason "
        "names this object and says why its size is not known: the object does not exist or is too large, the "
        "controller may not read it, or the driver does not know its kind.",
        "Write `gpu.topology/gang-size` on the pods. If the controller may not read objects of this kind, you can "
        "instead allow it: the chart value `controller.gangOwners`.",
    ),
    "It is not known which pods belong to the gang": Cure(
        "The pod has `gpu.topology/gang: auto`, but the controller does not know the object that created the pod.",
        "Write the same name in `gpu.topology/gang` on all pods of the gang, and `gpu.topology/gang-size`.",
    ),
    "has no number of pods with GPUs": Cure(
        "The object that created the pods has no number of replicas, or the number is not between 1 and 9999.",
        "Write the number of replicas in that object, or `gpu.topology/gang-size` on the pods.",
    ),
    "cannot start as one gang": Cure(
        "The object that creates the pods creates some of them only after others run "
        "([gangs.md](../tasks/gangs.md#who-cannot-be-in-one)).",
        "Change that object as the reason says, or remove the gang annotations.",
    ),
    "The PodGroup has the policy basic, which starts pods one by one": Cure(
        "The pods have a gang annotation, so they must start together. The policy of their PodGroup does not "
        "start them together.",
        "Write the policy `gang` in the PodGroup, or remove the gang annotations.",
    ),
    "eligible nodes have no place for all of them at once": Cure(
        "The gang's nodes have free GPUs for each pod alone, but not for all its pods together.",
        "Wait. `gputopo explain` names the pods that must end first.",
    ),
    "no place was found for all of them at once": Cure(
        "The pods of the gang have different requests. The controller found free GPUs for some of them, but not for "
        "all of them together under the gang's limits, such as `near` or `max-nodes`. If the reason says `The search "
        "ended at its limit`, the controller has not tried all combinations.",
        "Wait. `gputopo explain` names the pods that must end first. After a search that ended at its limit, do what "
        "the reason says.",
    ),
    "No plan with the free GPUs meets the rules of the gang's pods about each other": Cure(
        "Enough GPUs are free. The pods of the gang have required (anti-)affinity or topology spread for each other. "
        "The controller found no choice of nodes that meets these rules. It tries a limited number of choices. The "
        "reason names each rule and a pod that has it.",
        "Wait, or relax a rule: `preferredDuringScheduling…`, `ScheduleAnyway`, a larger `maxSkew`. Check "
        "that the nodes have the label that the rule names.",
    ),
    "this cluster has no place for all of them, even if all its GPUs are free": Cure(
        "The cluster is too small for the gang, so waiting does not help.",
        "Use fewer or smaller pods, or remove requirements on nodes. `gputopo plan --gang 8x8` tries a size.",
    ),
    "has room for … of …, even if it is empty": Cure(
        "The annotation `gpu.topology/near` requires one part of the network for the whole gang. No part "
        "at this level is large enough.",
        "In `gpu.topology/near`, write a wider level, or `preferred` before the level, such as `preferred leaf`.",
    ),
    "This cluster has no network level": Cure(
        "The level in `gpu.topology/near` does not exist in this cluster.",
        "Write one of the levels that the reason lists. The [policies file](policies.md#network) can define "
        "other levels.",
    ),
    "there is no place now for … of the pods": Cure(
        "Some pods of the gang keep their places. Others were created later, for example to replace a lost pod. For "
        "them no free GPUs are as near to the gang's other pods as the gang requires.",
        "Wait. `gputopo explain` names the pods that must end first.",
    ),
    "Waiting until the GPUs of the lost pod are free": Cure(
        "A StatefulSet or a LeaderWorkerSet created a lost pod again at once. The new pod gets the lost pod's "
        "GPUs. The lost pod's claim still exists.",
        "Wait. This takes a second.",
    ),
    "Waiting until the gang has been restarted": Cure(
        "The gang lost a pod, or only some of its pods run. The controller is about to restart the whole gang "
        "([gangs.md](../tasks/gangs.md#a-lost-member)).",
        "Wait. If the reason stays, look at the object that created the pods, such as a Job. If it has `spec.suspend: "
        "true`, set this field to `false`.",
    ),
    "Only … of … pods of the gang had a place in time": Cure(
        "The scheduler did not bind all pods of the gang before the deadline, so the controller released the "
        "GPUs of all its pods. The reason contains the scheduler's message about one pod.",
        "Follow the row `The scheduler finds no room for pod` above. The controller tries the gang again on the "
        "same nodes.",
    ),
    "Some pods of the gang can use only the nodes of an earlier plan": Cure(
        "An earlier plan chose nodes for some pods of the gang. Kubernetes does not let these pods use other "
        "nodes. The reason says why these nodes do not suit.",
        "If the chart lets the controller suspend the object that creates the pods, wait: the controller "
        "restarts the gang. For a Job the value is `controller.gangOwners.Job.suspend: true`. If the chart does "
        "not, delete the pods of the gang.",
    ),
}
"""What the same two say of a pod in a gang."""

CAUSES: Final[dict[str, str]] = {
    "too little cpu": (
        "Other pods leave less CPU on the node than the pod requests. Lower the request, or end a pod there."
    ),
    "too little memory": (
        "Other pods leave less memory on the node than the pod requests. Lower the request, or end a pod there."
    ),
    "not selected by the pod": (
        "The pod's `nodeSelector` or node affinity excludes the node. Change it if the pod can run there."
    ),
    "tainted": (
        "The node has a taint that the pod does not tolerate. Write a toleration into the pod. The driver "
        "adds none, also not for the taint `nvidia.com/gpu`."
    ),
    "cordoned": ("The node is cordoned. Run `kubectl uncordon NODE` when it is ready for pods."),
    "goes for maintenance before the pod would end": (
        "The node has a [maintenance time](annotations.md#nodes-with-a-maintenance-time), and the pod can "
        "run longer. Write a `gpu.topology/max-duration` on the waiting pod, with which the pod ends before "
        "the maintenance begins."
    ),
    "not ready": ("The node is not ready. Run `kubectl describe node NODE` and look at its conditions."),
    "gone": (
        "The node does not exist, but its ResourceSlices do. If the node does not come back, delete the ResourceSlices."
    ),
    "GPUs not assessed yet": (
        "The controller has not seen this kind of machine before, and computes tables of its GPU sets. Wait a "
        "few seconds. If the node's GPUs change again and again, wait up to ten minutes. If the node is left out for "
        "longer, look for an error about the node in the controller's log."
    ),
    "GPUs that the controller cannot place pods on": (
        "The node publishes a machine with more than 16 GPUs, or one that the controller cannot use. Run "
        "`gputopo free`: it warns of each such node and says why."
    ),
    "excluded by the pod's anti-affinity or topology spread": (
        "The pod's required anti-affinity or topology spread excludes the node, because of pods on the node "
        "or in its zone. End those pods, or relax the rule."
    ),
    "without a pod that the pod's affinity selects": (
        "The pod has a required pod affinity. No pod on the node, or in its zone, matches all terms of "
        "this affinity. Create a matching pod first, or relax the affinity."
    ),
    "a host port of the pod is in use": (
        "Another pod on the node uses a host port that the pod requests. With `hostNetwork` all container ports "
        "are host ports. Choose another port, or wait."
    ),
    "out of reach of the pod's volumes": (
        "A volume of the pod is in another zone or on other nodes. Or `allowedTopologies` of its StorageClass "
        "excludes the node. Use another volume, if the pod must run there."
    ),
    "out of reach of another claim of the pod": (
        "Another driver's ResourceClaim is already allocated for the pod, and the node cannot use the devices of "
        "this claim. `kubectl get resourceclaim NAME -o yaml` shows which nodes can: "
        "`status.allocation.nodeSelector`. Wait until such a node has free GPUs, or use another claim."
    ),
    "without the label kubernetes.io/hostname": (
        "The pod has required node affinity terms. For such pods the controller needs this label on the node, "
        "and a person or program removed it. Restart the kubelet, which sets the label. Or run `kubectl label "
        "node NODE kubernetes.io/hostname=HOSTNAME`."
    ),
    "its channel is taken by": (
        "The pod requests a channel of a ComputeDomain, NVIDIA's object for NVLink between nodes. Each node has "
        "one channel. The claim or pod after `taken by` uses it "
        "([gangs.md](../tasks/gangs.md#multi-node-nvlink)). Wait until that pod, or the pod of that claim, ends."
    ),
    "without a channel of multi-node NVLink": (
        "The pod requests a channel of a ComputeDomain (NVLink between nodes), but the node has no device of the "
        "driver `compute-domain.nvidia.com`. Check whether NVIDIA's DRA driver runs on the node."
    ),
    "labelled for another ComputeDomain": (
        "The pod requests a channel of a ComputeDomain (NVLink between nodes), but the node belongs to another "
        "ComputeDomain. Wait until the pods of that ComputeDomain end. `kubectl get nodes -L "
        "resource.nvidia.com/computeDomain` shows the ComputeDomain of each node."
    ),
    "too many selectors and tolerations": (
        "The pod has more than 1,000 node selectors, node affinity expressions, values in these expressions, and "
        "tolerations together. Remove some of them."
    ),
}
"""Why a node is left out."""

ON_NODE: Final[dict[str, str]] = {
    "GPU … is still held by": (
        "Another claim used the GPU before. The pod of that claim is still ending, or the node agent is still removing "
        "the MIG instance or share of that claim. Wait. If the Event comes again and again, look at the pod of the "
        "claim that the Event names."
    ),
    "fractions of GPU … belong to one namespace at a time": (
        "Another namespace uses shares or MIG slices of the GPU. kube-scheduler allocated this GPU for the pod's "
        "claim, and does not know the rule `exclusiveTo: namespace` "
        "([parts.md](../tasks/parts.md#of-one-namespace-at-a-time)). Wait until the claim that the Event names "
        "ends. Or request the share or MIG slice by annotations, as the Event says."
    ),
    "processes still use it": (
        "Processes that belong to no claim use the GPU. End the processes that the Event names."
    ),
    "GPU … is not on node": ("The GPU is lost, or an administrator is replacing the GPU driver. Run `gputopo health`."),
    "the GPU driver does not answer": (
        "The vendor's driver on the node hangs. Follow [node.md](../internals/node.md#a-driver-that-hangs). If the "
        "Event also says that hardware is still changing for another claim, first wait a minute."
    ),
    "the node agent has not read the node's GPUs yet": (
        "The node agent has just started. If the Event comes again and again, read the log of the node agent."
    ),
}
"""What the Event ``FailedPrepareDynamicResources`` says."""

EVENTS: Final[dict[str, EventAbout]] = {
    "WaitsForGPUs": EventAbout(
        "pod",
        "Warning",
        "The pod waits for a node with free GPUs. The Event says why. If the pod waits on, the controller raises "
        "the Event's count instead of writing a new Event.",
        "Find the text in [Reasons of waiting pods](#reasons-of-waiting-pods).",
    ),
    "PlacedOnGPUs": EventAbout(
        "pod",
        "Normal",
        "The pod got its GPUs. The Event names the node, the GPUs, the links between the GPUs (`level`), and the "
        "predicted bandwidth. It also names preferences that were not met.",
        "Nothing.",
    ),
    "ClaimNotUnderstood": EventAbout(
        "claim",
        "Warning",
        "The controller cannot read a part of the claim. The Event names that part. The controller assumes that "
        "this part allocates no GPU.",
        "Correct the part that the Event names, or delete the claim. If another driver wrote the claim, "
        "report the claim to this project.",
    ),
    "PoliciesInvalid": EventAbout(
        "ConfigMap of the policies file",
        "Warning",
        "The policies file is invalid. The last valid file stays in force. After the repair the controller "
        "writes the Event `PoliciesValid`.",
        "Correct the key that the Event names, and run `gputopo policies check FILE` with your file. Then "
        "upgrade the chart's release ([wrong-policies.md](../runbooks/wrong-policies.md#repair)).",
    ),
    "PoliciesValid": EventAbout(
        "ConfigMap of the policies file",
        "Normal",
        "The policies file was invalid, and is valid again. It is in force. The Event has the file's digest.",
        "Nothing.",
    ),
    "PodSecurityForbidsAgent": EventAbout(
        "DaemonSet of the node agents",
        "Warning",
        "The driver's namespace enforces a Pod Security Standard that forbids the node agents. The Event "
        "contains the command that allows them ([install.md](../start/install.md#pod-security)).",
        "Run the command in the Event.",
    ),
    "ServerLacks": EventAbout(
        "node",
        "Warning",
        "The API server does not store some fields of the ResourceSlices. The Event says which features do "
        "not work without these fields.",
        "Upgrade to Kubernetes 1.36 or later, or enable the feature gates of the fields.",
    ),
    "IdleGPUs": EventAbout(
        "pod",
        "Normal, Warning",
        "The pod's GPUs are idle. The Event says since when. For a pod with `gpu.topology/idle-timeout`, Warnings "
        "also say when the controller will end the pod, that it has ended the pod, or why it cannot. A Normal Event "
        "says if the controller no longer ends the pod ([idle.md](../tasks/idle.md)).",
        "Use the GPUs or end the pod. `gputopo idle` lists such pods.",
    ),
    "PreemptedForGPUs": EventAbout(
        "pod",
        "Warning",
        "The controller ends the pod, because a pod or gang of higher priority needs its GPUs. The Event "
        "names that pod or gang.",
        "Nothing. The pod's owner creates it again, and the new pod waits for GPUs. To prevent this, give the "
        "pod a higher PriorityClass.",
    ),
    "SeveralTenants": EventAbout(
        "namespace",
        "Warning",
        "The label selectors of several tenants in the policies file select the namespace. The Event names "
        "these tenants, and the tenant that counts.",
        "Change `namespaceLabels` of the tenants, or write the namespace in `namespaces` of one tenant.",
    ),
    "GangBarrierUnavailable": EventAbout(
        "DeviceClass `seat.gpu.topology`",
        "Warning",
        "The [gang barrier](../tasks/gangs.md#the-barrier) lets no pod of a gang be bound before all its pods "
        "have GPUs. It does not work now, so these pods can be bound one by one. The Event says why: Kubernetes "
        "is older than 1.36, or the class is missing.",
        "Upgrade Kubernetes, or install the chart of this version.",
    ),
    "GPUsUnpublished": EventAbout(
        "node",
        "Warning",
        "The node agent publishes no GPU of the node. The Event says why: another program allocates the "
        "GPUs, AMD GPUs are partitioned, or the node has GPUs of two vendors.",
        "If another program allocates the GPUs, remove it from the node, or let it allocate them "
        "([addon.md](../tasks/addon.md), [migrating.md](../tasks/migrating.md)). If GPUs are partitioned, "
        "run `amd-smi set --compute-partition SPX` on the node. If there are two vendors, set `discovery: "
        "nvml` or `discovery: amd` in the chart.",
    ),
    "GPUFractionsUnsupported": EventAbout(
        "node",
        "Warning",
        "The policies file divides GPUs of this node into shares or MIG slices. GPUs of AMD and Huawei (Ascend) "
        "cannot be divided, so pods get them only whole.",
        "Exclude these GPUs from the section `gpus` of the policies file ([policies.md](policies.md#gpus)).",
    ),
    "MigModeOff": EventAbout(
        "node",
        "Warning",
        "The policies file divides a GPU of the node into MIG slices. The MIG mode of this GPU is off, and can "
        "start only at a reset. The Event names the GPU and the commands.",
        "End the pods on the GPU, then run the commands.",
    ),
    "GPUUnhealthy": EventAbout(
        "pod, node",
        "Warning",
        "A GPU is unhealthy. The Event names the GPU, the fault and the repair. The pod that uses the GPU "
        "gets this Event. The node gets the Event, too, if new pods cannot use the GPU.",
        "Do what the Event says. `gputopo health` lists all faults. "
        "[gpu-faults.md](../internals/gpu-faults.md) explains them.",
    ),
    "GPURecovered": EventAbout(
        "pod, node",
        "Normal",
        "The fault is over.",
        "Nothing.",
    ),
    "NoNearNICs": EventAbout(
        "pod",
        "Warning",
        "The pod has `gpu.topology/nccl: near-nics`, but the node agent did not set `NCCL_IB_HCA`. The Event "
        "says why ([nics.md](../tasks/nics.md#have-nccl-use-the-near-ones)).",
        "Check the network ports that the Event names.",
    ),
    "NICPortDown": EventAbout(
        "node",
        "Warning",
        "A port of a network card is down. Other ports of the same kind on the node are active. The Event "
        "says what to do ([nics.md](../tasks/nics.md)).",
        "Check the cable and the switch. If the port is not meant to be used, turn it off as the Event says.",
    ),
    "NICPortSlow": EventAbout(
        "node",
        "Warning",
        "A port of a network card is slower than other ports of the same kind on the node.",
        "Reseat the cable and the transceiver. Check the speed and width of the switch port.",
    ),
    "NICPortFlapping": EventAbout(
        "node",
        "Warning",
        "The link of a network card's port went down three times or more within an hour. The Event says how often.",
        "Check the cable, the transceiver and the switch port, as the Event says.",
    ),
    "NICPortErrors": EventAbout(
        "node",
        "Warning",
        "The error counters of a network card's port grow all the time, as with a bad cable. The Event names the "
        "counters and their growth.",
        "Replace the cable or the transceiver, as the Event says.",
    ),
    "NICPortRecovered": EventAbout(
        "node",
        "Normal",
        "A port of a network card had one of the four problems above, and has no problem any more.",
        "Nothing.",
    ),
}
"""The Events of this driver, by reason."""
