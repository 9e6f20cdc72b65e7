"""Causes and cures of the log lines of level warning and above, for docs/messages.py.

Each key is a part of one or more log lines, as docs/message_source.py collects them. A test fails if a log line has no
key here, or if a key is in no log line.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class About(NamedTuple):
    """Why a log line is written, and what to do."""

    cause: str
    cure: str


_WAIT: Final = "Nothing. If the line comes again and again, check whether the API server answers."
_READ: Final = (
    "Read the error. 403 means that the driver's account lacks a right. Install the chart of the driver's version "
    "again: `helm upgrade`."
)
_WRITE: Final = (
    "Read the error. 403 means that a right is missing, or that an admission policy refused the write. Install the "
    "chart of the driver's version again: `helm upgrade`."
)
_BUG: Final = "Report it with the traceback that follows in the log."
_DISK: Final = "Check whether the node's disk is full, read-only or damaged."
_NOTHING: Final = "Nothing."

LOG_LINES: Final[dict[str, About]] = {
    # The cluster cache of the controller.
    "internal error. No pod is placed on its GPUs": About(
        "The controller has a bug with the objects of this node. Other nodes work.",
        _BUG,
    ),
    "its slices do not belong to the node of that name": About(
        "A pool has the name of its node. A ResourceSlice of this pool has another node in `spec.nodeName`.",
        "Find the slices of this pool in `kubectl get resourceslices`, and delete them. The node agent "
        "publishes its own again.",
    ),
    ". No pod is placed on its GPUs.": About(
        "The controller cannot use the data in the ResourceSlices of the node. The line names the error.",
        "If controller and node agents have different versions, finish the upgrade. If not, read the node agent's log.",
    ),
    "the tables of this kind of machine": About(
        "For each kind of machine, the controller computes tables of all GPU sets once. This computation failed.",
        "Read the error. If the process ended or took too long, raise `controller.resources` in the "
        "chart. A machine with more than 16 GPUs is not supported.",
    ),
    "selects devices by a class or by CEL": About(
        "An administrator's DeviceTaintRule uses fields that the controller does not evaluate.",
        "Change the rule: select devices by `driver`, `pool` and `device`.",
    ),
    "the exclusive partitions of tenants": About(
        "Two tenants of the policies file have exclusive partitions with the same GPUs.",
        "Change one of the two partitions in the policies file ([tenants.md](../tasks/tenants.md#partitions)).",
    ),
    "counts as 0, because its quantity cannot be read": About(
        "A node or pod has a resource with an invalid quantity.",
        "Search for the quantity in `kubectl get nodes,pods -A -o yaml`, and correct it in the node or pod.",
    ),
    "the API server did not show its volume": About("The API server is slow.", _WAIT),
    "its volume cannot be read": About(
        "The API server refused the read, or failed.",
        _READ,
    ),
    "not allowed to read volumes": About(
        "The controller's account lacks the right to read PersistentVolumes or PersistentVolumeClaims.",
        "Install the chart of this version, which grants the right. Without it the scheduler still checks volumes.",
    ),
    # The controller.
    "differences between the cluster cache": About(
        "The controller's cluster cache was wrong. Log lines before this one name the entries.",
        "Report it with the log. Placements since the last audit may be wrong, but kube-scheduler allocates "
        "no GPU twice.",
    ),
    "different from the API server": About(
        "One entry of the controller's cluster cache was wrong.", "Report it with the log."
    ),
    "the audit failed with an internal error": About("The controller has a bug.", _BUG),
    "cannot start to lead": About(
        "The new leader cannot read the cluster, or cannot write its first objects.",
        _WRITE,
    ),
    "cannot check whether Pod Security": About(
        "The controller cannot read its own namespace.",
        _READ,
    ),
    "Node agents cannot start": About(
        "The driver's namespace enforces a Pod Security Standard that forbids the node agents. The Event "
        "`PodSecurityForbidsAgent` says the same.",
        "Run the command in the line ([install.md](../start/install.md#pod-security)).",
    ),
    "it cannot be warned or ended": About(
        "The API server refused the write, or did not answer.",
        _WRITE,
    ),
    "Idle workload NAMESPACE/NAME: internal error": About("The controller has a bug.", _BUG),
    "belong to several tenants": About(
        "The label selectors of several tenants select one namespace. The Event `SeveralTenants` says the same.",
        "Change the tenants as the message says ([tenants.md](../tasks/tenants.md)).",
    ),
    "the Event SeveralTenants cannot be written": About(
        "The API server refused the Event, or did not answer.",
        _WRITE,
    ),
    "saved reservations cannot be read yet": About(
        "The controller waited for the ConfigMap `gpu-topology-reservations`, and could not read it in time.",
        _WAIT,
    ),
    "The ConfigMap of reservations cannot be read": About(
        "The API server refused the read, or did not answer.",
        _READ,
    ),
    "The ConfigMap of reservations cannot be written": About(
        "The API server refused the write, or did not answer.",
        _WRITE,
    ),
    "Internal error. The controller goes on": About("The controller has a bug.", _BUG),
    "Internal error: the metrics of": About("The controller has a bug. One metric keeps its old value.", _BUG),
    "internal error. The controller tries this pod again": About(
        "The controller has a bug that this pod triggers. Other pods are placed.", _BUG
    ),
    "kubectl describe does not show the Event": About(
        "The ConfigMap of the policies file does not exist or cannot be read.",
        "Create the ConfigMap, as the chart does, or correct `--policies-configmap`.",
    ),
    "No pod is preempted for it": About("The controller has a bug that this pod triggers.", _BUG),
    "of namespace NAMESPACE cannot be read": About(
        "The controller reads the size of a gang from the owner of its pods. The API server refused the read, "
        "or did not answer.",
        "If the error has 403, add the kind to `controller.gangOwners` of the chart, or write "
        "`gpu.topology/gang-size` on the pods.",
    ),
    "cannot be restarted yet": About(
        "The controller suspends and resumes the owner of a gang that lost a pod. The API server refused or did "
        "not answer.",
        "If the error has 403, add the kind to `controller.gangOwners` of the chart.",
    ),
    "suspended and did not resume": About(
        "A new leader looks for owners that the last leader left suspended. The API server refused or did not answer.",
        "If the error has 403, add the kind to `controller.gangOwners` of the chart. If an owner stays "
        "suspended, set its `spec.suspend: false`.",
    ),
    "ResourceClaimTemplate NAMESPACE/NAME cannot be read": About("The API server refused or did not answer.", _WAIT),
    "status.nominatedNodeName": About(
        "An admission policy or a webhook refused the write. The controller still places the pod.",
        "In the policy or webhook that the error names, allow the controller to change "
        "`status.nominatedNodeName`. Without this field another pod may take the CPU first.",
    ),
    "the result of a write is unknown": About("The connection broke before the API server answered.", _WAIT),
    "a write failed": About(
        "The API server refused a write for this pod. The reason of the pod says the same.",
        _WRITE,
    ),
    "a write is not answered": About(
        "A webhook of another program does not answer, or the API server does not.",
        "Look for an admission webhook that does not answer. The controller continues with other pods.",
    ),
    "of the gang barrier cannot be written": About(
        "The API server did not answer, or it has too much load.",
        _WAIT,
    ),
    "was not written by this driver and is replaced": About(
        "Another program wrote a ResourceSlice under this name.",
        "Find out which program writes the slice, and stop it.",
    ),
    "The gang barrier is not available": About(
        "The line names the cause. The Event `GangBarrierUnavailable` says the same.",
        "Remove the cause that the line names. Until then gangs start without the "
        "[barrier](../tasks/gangs.md#the-barrier).",
    ),
    "Claims whose pods are gone cannot be deleted": About("The API server did not answer.", _WAIT),
    "its pod is gone, and the claim cannot be deleted": About(
        "The API server refused to delete the claim. Its GPUs stay allocated.",
        _WRITE,
    ),
    "Claim NAMESPACE/NAME cannot be read": About("The API server refused or did not answer.", _WAIT),
    "the annotation gpu.topology/reason cannot be written": About(
        "The API server refused the pod's update, or did not answer.",
        "Read the error. An admission webhook of another program may refuse changes of this pod.",
    ),
    "ERROR. The controller writes it again": About(
        "The ConfigMap `gpu-topology-reservations` is damaged, or another release wrote it.",
        "Nothing. The earlier reservations are lost, and the controller makes new ones.",
    ),
    "is used unchanged, because it cannot be compared": About(
        "The controller compares a template with the pod's request by a dry run. The API server refused the "
        "dry run, or did not answer.",
        _WAIT,
    ),
    "ResourceClaimTemplate NAMESPACE/NAME cannot be deleted": About(
        "The API server refused or did not answer.",
        _WRITE,
    ),
    "ResourceClaimTemplate NAMESPACE/NAME cannot be created": About(
        "The API server refused the template of a `static` pod.",
        "Read the error. The cause can be a quota on templates in the namespace, or an admission policy.",
    ),
    "requests something else than the pod": About(
        "A person or program created a template under the name that the controller uses.",
        "Delete the template. The controller creates it again.",
    ),
    "the Event about its template": About(
        "The API server refused the Event, or did not answer.",
        _WAIT,
    ),
    "the counted GPUs were not those": About(
        "The controller's count of a namespace's GPUs was wrong.", "Report it with the log."
    ),
    "which has GPU time, was deleted": About(
        "A person or program deleted a ConfigMap of GPU time.",
        "Find out who deletes it. GPU time from before yesterday is lost.",
    ),
    "A ConfigMap of GPU time is not counted": About(
        "The ConfigMap is damaged, or another release wrote it.",
        "Restore the ConfigMap from a backup, or delete it.",
    ),
    "The ConfigMaps of GPU time cannot be read or written": About(
        "The API server refused or did not answer.",
        _WRITE,
    ),
    # All processes.
    "Event REASON about": About(
        "The API server refused the Event or did not answer.",
        _WRITE,
    ),
    "the object cannot be decoded": About(
        "An object of the API has a field that the driver cannot decode. For claims the Event "
        "`ClaimNotUnderstood` says "
        "the same.",
        "Correct the field in the object, or delete the object.",
    ),
    "does not lead any more": About(
        "The replica lost its lease. The API server did not answer in time, or another replica took the lease.",
        "Nothing. The other replica leads. If it happens often, check the API server and the network.",
    ),
    "The work did not stop in time": About(
        "The process lost its lease and could not stop within the lease's duration.",
        "Nothing. Kubernetes restarts the process. If it happens often, report it.",
    ),
    "this process makes no progress": About(
        "The event loop of the process is blocked, mostly because the process has too little CPU.",
        "Raise the CPU limit of the controller. If the line comes without load, report it.",
    ),
    "LEASE cannot be renewed": About("The API server refused the Lease or did not answer.", _WAIT),
    "cannot be released": About(
        "The API server did not answer while the process stopped.", "Nothing. The lease expires by itself in seconds."
    ),
    "cannot find out which versions": About("The API server did not answer.", _WAIT),
    "an event of the unknown type": About(
        "The API server is newer than this driver.",
        "Nothing. If the line comes often, report it.",
    ),
    "Internal error: a handler of": About(
        "The driver has a bug. The audit of the controller corrects its effects.", _BUG
    ),
    "internal error. It is tried again later": About("The driver has a bug.", _BUG),
    "The policies file is invalid": About(
        "The policies file has an error. The Event `PoliciesInvalid` says the same.",
        "Run `gputopo policies check FILE` with your file, and correct the key that the message names.",
    ),
    "SOURCE cannot be read because of an internal error": About("The driver has a bug in reading policies.", _BUG),
    "The files of the": About(
        "A mounted file of policies or certificates is missing or unreadable. The process still uses the last "
        "valid content.",
        "Check the ConfigMap or Secret that the pod mounts.",
    ),
    "This process stops: ": About(
        "The process cannot do its work, mostly because of a wrong option or a missing right.",
        "Do what the error says. Kubernetes restarts the process.",
    ),
    "This process stops because of an internal error": About("The driver has a bug.", _BUG),
    "the API server has not answered yet": About("The API server is away or slow.", _WAIT),
    "may be older than those of the API server": About("The API server did not answer within seconds.", _WAIT),
    "cannot watch PLURAL": About("The API server refused the watch, ended it or did not answer.", _WAIT),
    # The webhook.
    "certificates of the webhook cannot be renewed": About(
        "The webhook cannot write its Secret, or the `caBundle` of its configuration.",
        "Install the chart of this version again, which grants the rights. [alerts.md](../runbooks/alerts.md) "
        "says how to see until when the certificate is valid.",
    ),
    "refused a request with a body": About(
        "A program sent a request that is no AdmissionReview, or one of an unknown version. The API server "
        "does not send such a request.",
        "Find out which program calls the webhook.",
    ),
    "answered a request with status": About(
        "The request was too large (413). Or it was too slow, or there were too many requests at once (429). "
        "After 429 the API server asks again.",
        "For 413, make the object smaller. If 429 lasts, raise `webhook.replicas` in the chart.",
    ),
    # The node agent.
    "before this start cannot be restored": About(
        "The node agent cannot read or write its checkpoint.",
        _DISK,
    ),
    "that the controller noted on a claim": About(
        "The annotation `gpu.topology/choice` of the claim is damaged.",
        "Find out who changed the annotation. The pod starts, but without the NCCL settings that come from "
        "the annotation.",
    ),
    "cannot be listed now": About(
        "The node agent cannot read its record of changed devices.",
        _DISK,
    ),
    "cannot be undone now": About(
        "The node agent cannot remove MIG instances or MPS settings of ended pods.",
        "Read the error. Mostly a process still uses the device: end this process.",
    ),
    "are undone later": About("The GPU driver refused or was busy.", "Nothing. The agent tries again."),
    "names other GPUs than the claim's allocation": About(
        "A person or program changed the claim's configuration after the controller wrote it.",
        "If the pod needs the order of its GPUs, delete the pod. The new pod gets a new claim.",
    ),
    "cannot check whether processes use": About("The GPU driver did not answer.", "Run `nvidia-smi` on the node."),
    "no entry for the instance type": About(
        "The node is a virtual machine of an instance type that the policies file does not name.",
        "Add the type to `nccl.servers` in the policies file ([policies.md](policies.md#nccl)).",
    ),
    "Claim NAMESPACE/NAME: REASON": About(
        "`NCCL_IB_HCA` is not set in the pod's containers. The Event `NoNearNICs` says the same.",
        "Follow [nics.md](../tasks/nics.md#have-nccl-use-the-near-ones).",
    ),
    "NCCL gets no topology file": About(
        "The node agent does not know the PCI tree of the machine, or the server below a virtual machine.",
        "Add the server to `nccl.servers` in the policies file. Until then NCCL measures the machine itself.",
    ),
    "CDI files cannot be updated": About(
        "The node agent cannot write to the CDI folder.",
        _DISK,
    ),
    "and the API server does not show the claim": About(
        "A checkpoint entry on the node is damaged, and the API server did not answer.", _WAIT
    ),
    "This version cannot rebuild its checkpoint entry": About(
        "The node agent was rolled back while pods of the newer version run.",
        "Nothing. The kubelet unprepares the claim when the pod ends.",
    ),
    "Its checkpoint entry was rebuilt": About("The node agent was rolled back while pods run.", _NOTHING),
    "its checkpoint entry cannot be rebuilt": About(
        "A device of the claim is no longer on the node, or this version does not know it.",
        "If the pod runs, do nothing. If it does not start, delete it.",
    ),
    "cannot be compared with those of the API server": About(
        "The node agent cannot read a file, or another agent has the lock.",
        _DISK,
    ),
    "GPU UUID gets no new pods": About(
        "Processes without a claim use the GPU. Or the node agent cannot undo changes for an earlier claim.",
        "Run `gputopo health`: it shows the fault `held` and the repair.",
    ),
    "The MIG mode of unused GPUs": About(
        "The GPU driver did not answer, or a file cannot be read.", "Run `nvidia-smi` on the node."
    ),
    "UID cannot be unprepared": About(
        "The GPU driver refused, or the node agent cannot write to the disk.",
        "Read the error, and remove its cause. The agent tries again.",
    ),
    "without a call of the kubelet": About(
        "No pod uses the claim any more, but the kubelet did not ask the node agent to unprepare it. So "
        "the node agent did this itself.",
        _NOTHING,
    ),
    "were made again": About(
        "A program reset the GPU or destroyed its instances while a pod used them.",
        "If the pod fails, delete it. Its owner creates it again.",
    ),
    "are gone or cannot be checked": About(
        "A program reset the GPU or destroyed its instances, and they cannot be created again.",
        "Read the error. If the pod cannot use its GPU, delete the pod.",
    ),
    "because it does not exist any more": About("A checkpoint entry was damaged, and its claim is gone.", _NOTHING),
    "which has an unreadable checkpoint entry, cannot be unprepared": About(
        "The checkpoint entry of the claim is damaged. The node agent cannot remove what it prepared.",
        _DISK,
    ),
    "The status of claim": About(
        "The API server refused the status of the claim, or did not answer.",
        _WRITE,
    ),
    "is gone together with its GPU": About(
        "The GPU was lost while a pod used it.",
        "Run `gputopo health`: it names the repair.",
    ),
    "the record of its changed devices was unreadable": About("A file of the agent was damaged.", _DISK),
    "is free again": About(
        "An administrator declared that a lost GPU was removed.",
        _NOTHING,
    ),
    "The table of slots (": About(
        "The node agent cannot read a file of the table in which it keeps the number of each GPU.",
        _DISK,
    ),
    "The slots of these GPUs are unknown": About(
        "Files of the table were damaged or of a newer version, so the node agent renamed them.",
        "Do what the message says ([node.md](../internals/node.md#numbers-of-gpus)).",
    ),
    "The file of slot": About(
        "The node agent cannot change a file of the table of slots.",
        _DISK,
    ),
    "The list of network cards": About(
        "The node agent cannot read or write its list.",
        _DISK,
    ),
    "CDI files with its old devices": About(
        "MIG instances and shares that ended with the old driver still have CDI files, and the node agent cannot "
        "remove these files.",
        _DISK,
    ),
    "The GPU driver has not answered": About(
        "The GPU driver hangs.",
        "Follow [node.md](../internals/node.md#a-driver-that-hangs).",
    ),
    "its last known state stays in force: ERROR": About(
        "The node agent cannot read the GPU driver or `/sys`.",
        "Run `nvidia-smi` or `amd-smi` on the node.",
    ),
    "The machine changed": About(
        "GPUs were lost or found.",
        "If GPUs were lost, run `gputopo health`: it names the repair.",
    ),
    "PROBLEM": About(
        "The node agent could not read a fact about the machine. The line names the part of the machine, "
        "the fact and the answer.",
        "Nothing in most cases: the agent works without this fact. If a GPU is left out, run `gputopo health`.",
    ),
    "GPUs of another vendor are ignored": About(
        "A node agent publishes GPUs of one vendor only.",
        "To choose the vendor, set `discovery` in the chart.",
    ),
    "GPU UUID: FAULT_TEXT. ADVICE": About(
        "A GPU is unhealthy. The Event `GPUUnhealthy` says the same.", "Do what the message says."
    ),
    "faults that GPU drivers report": About(
        "The node agent cannot open the kernel's log.",
        "Compare the DaemonSet of the node agents with the chart. Its container must be privileged, and "
        "mount `/` of the host at `/host`.",
    ),
    "Events about unhealthy GPUs": About(
        "The node agent cannot read its checkpoint.",
        _DISK,
    ),
    "cannot measure whether GPUs are idle": About(
        "The GPU driver does not answer.", "Run `nvidia-smi` on the node. Until then no pod counts as idle."
    ),
    "was just written by a newer version": About("A newer agent runs at the same time, as in an upgrade.", _NOTHING),
    "The node agent renamed it": About(
        "A file of the agent is damaged, or of a newer version.",
        "If the file is newer, do nothing. If it is damaged, check the node's disk. The agent rebuilds the "
        "entry from the API.",
    ),
    "The kubelet does not get the health": About(
        "The node agent cannot read its checkpoint.",
        _DISK,
    ),
    "The sockets of the plugin were removed": About(
        "A program removed the sockets from the kubelet's plugin folder.",
        "Find out which program removes them, and stop it.",
    ),
    "The kubelet refused to register": About(
        "The kubelet does not accept the plugin.",
        "Check that the kubelet has version 1.34 or later, and that `kubeletRoot` of the chart is its folder.",
    ),
    "are not finished": About("The GPU driver or the API server is slow.", "Nothing. The kubelet calls again."),
    "the kubelet cancelled the call": About(
        "The call lasted longer than the kubelet waits.",
        "Nothing. The kubelet calls again. If it happens again and again, read the log lines before this one.",
    ),
    "CALL of claim NAMESPACE/NAME failed: TEXT": About(
        "The node agent cannot prepare or unprepare the claim now. The Event `FailedPrepareDynamicResources` "
        "of the pod has the same text.",
        "Find the text in [On the node](#on-the-node).",
    ),
    "failed with an internal error": About("The node agent has a bug.", _BUG),
    "did not end and is killed": About("An MPS daemon or server did not end within seconds.", _NOTHING),
    "of its MPS shares cannot be resized": About(
        "The files in `/dev/shm` of the shares need more space than the new size.",
        "End the pods that use shares of this GPU.",
    ),
    "internal error. The supervisor": About("The MPS supervisor has a bug.", _BUG),
    "died together with its clients": About(
        "The MPS daemon of a GPU ended. All pods that share the GPU lost it.",
        "Restart the pods that share the GPU. If it happens often, read the daemon's log on the node, by "
        "default in `/var/lib/kubelet/plugins/gpu.topology/mps/GPU/log`.",
    ),
    "a client of MPS changed a limit": About(
        "A pod changed the limits of its GPU's MPS daemon. Containers that run as the daemon's user can do this.",
        "Set `runAsNonRoot: true` or `hostUsers: false` in pods that share GPUs "
        "([mig-and-shares.md](../internals/mig-and-shares.md)).",
    ),
    "MPS of ": About(
        "The MPS daemon of a GPU cannot be started, ended or checked.",
        "Read the error, and remove its cause.",
    ),
    "The ports of the network cards": About("The node agent has a bug, or `/sys` has an unexpected form.", _BUG),
    "The network cards have not answered": About(
        "The driver of the network cards hangs.",
        "Run `dmesg` on the node, and look for errors of the network cards.",
    ),
    "cannot find out which gpu.topology devices": About("The API server did not answer.", _WAIT),
    "refuses slices with the optional fields": About(
        "The API server refuses ResourceSlices with taints, shares or counters.",
        "Read the error. If the API server does not know the fields, upgrade Kubernetes.",
    ),
    "and MPS is off": About(
        "The policies file uses MPS, and the chart does not run it.",
        "Set `mps.enabled: true` in the chart.",
    ),
    "publishes no GPU of node": About(
        "Another program allocates the GPUs, AMD GPUs are partitioned, or the node has GPUs of two vendors. WHY "
        "names the cause.",
        "Find `GPUsUnpublished` in [Events](#events).",
    ),
    "The API server drops the": About(
        "The API server does not store the fields for NAME: `taints`, `shares` or `counters`. WITHOUT says what does "
        "not work without them. The Event `ServerLacks` has the same text.",
        "Upgrade to Kubernetes 1.36 or later. Or enable the feature gate: `DRADeviceTaints` for `taints`, "
        "`DRAConsumableCapacity` for `shares`, `DRAPartitionableDevices` for `counters`.",
    ),
    "its MIG mode is off": About(
        "MIG mode starts only at a reset of the GPU. The Event `MigModeOff` has the same text.",
        "End the pods on the GPU, then run the commands in the line.",
    ),
    "slices of them, which GPUs of": About(
        "GPUs of AMD and Ascend cannot be divided. The Event `GPUFractionsUnsupported` has the same text.",
        "Find `GPUFractionsUnsupported` in [Events](#events).",
    ),
    "ResourceSlices of this node cannot be written": About(
        "The API server refused or did not answer.",
        _WRITE,
    ),
    "cannot read which claims are prepared": About(
        "The node agent cannot read its checkpoint.",
        _DISK,
    ),
    "does not keep these fields": About(
        "The API server is older than the fields, or a feature gate is off.",
        "Upgrade to Kubernetes 1.36 or later. The driver works without the fields ([ServerLacks](#events)).",
    ),
    "keeps changing this node's slices": About(
        "Two node agents run on the node, or a program changes ResourceSlices of this driver.",
        "Run `kubectl get daemonsets -A`, and remove the second installation.",
    ),
    "modes of GPUs (whole, shared or MIG)": About("A file of the agent cannot be read or written.", _DISK),
    "The mode of GPU": About("A file of the agent is damaged.", _DISK),
    "cannot be labelled for containers": About(
        "The file system does not support SELinux labels.",
        "Mount the file system with an SELinux label: the mount option `context=`.",
    ),
    "was not made by this driver and stays": About(
        "A person or program created a MIG instance in the place of a claim's instance.",
        "Destroy this MIG instance with `nvidia-smi mig -dci` and `-dgi`.",
    ),
    "stays in MIG mode": About(
        "The node agent cannot turn off MIG mode, mostly because a program uses the GPU.",
        "End programs that use the GPU, such as dcgm.",
    ),
    "so its MIG mode was turned off": About(
        "A person turned on MIG mode of a GPU on which the driver creates the instances.",
        "Nothing. To create instances by hand, write `mig: static` for the GPU in the policies file.",
    ),
    "that no claim of this node created": About(
        "A person or program created a MIG instance.",
        "Destroy this instance with `nvidia-smi mig`, or write `mig: static` for the GPU in the policies file.",
    ),
    "had lost its compute mode": About("A program or a reset changed the compute mode.", _NOTHING),
    "enters MIG mode at its next reset": About(
        "The GPU driver refused to cancel the request for MIG mode.",
        "Run `nvidia-smi -i GPU -mig 0` on the node.",
    ),
    "Shares and MIG slices cannot be prepared": About(
        "The agent's CDI file `gpu.topology-gpu.json` lacks the CDI device named `driver`, which has the libraries of "
        "NVIDIA's driver. REASON says why.",
        "Remove the cause that REASON names ([node.md](../internals/node.md#what-gives-a-container-its-gpu)).",
    ),
    "stays unchanged for up to": About(
        "The host's NVIDIA container toolkit is being replaced. The agent waits for the new toolkit "
        "before it changes its CDI file.",
        _NOTHING,
    ),
    "The CDI specification cannot be generated": About(
        "`nvidia-ctk` failed. The line contains its output.",
        "On the node, run the command that the line names.",
    ),
    "toolkit of the agent's image cannot be used": About(
        "The node agent cannot write to the folder for the toolkit's programs, or programs cannot run there (noexec).",
        "Install the NVIDIA container toolkit on the host, or set another `node.hooksDir` in the chart.",
    ),
    "is not offered": About(
        "The GPU reports MIG profiles in a form that this version does not know.",
        "Report it with the output of `nvidia-smi mig -lgip`.",
    ),
    "was loaded again": About(
        "The node agent cannot remove a file in the CDI folder.",
        "Remove the file that the error names, then restart the agent.",
    ),
    "which contains the programs of the CDI hooks": About(
        "The programs of the NVIDIA container toolkit are below the kubelet's folder, which other users cannot read.",
        "Install the NVIDIA container toolkit on the host. Or do not use user namespaces on this node.",
    ),
}
