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
    "Read the error. 403 means that the driver's account lacks a right. Then install the chart of the driver's version "
    "again: `helm upgrade`."
)
_WRITE: Final = (
    "Read the error. 403 means that the driver's account lacks a right, or that an admission policy refused the write. "
    "Then install the chart of the driver's version again: `helm upgrade`."
)
_BUG: Final = "Report it with the traceback that follows in the log."
_DISK: Final = "Check whether the node's disk is full, read-only or damaged."
_FILES_CURE: Final = (
    "Read the error. If a file cannot be read or written, check whether the node's disk is full, read-only or damaged."
)
_NOTHING: Final = "Nothing."
_READ_FAILED: Final = "The API server refused the read, or did not answer."
_WRITE_FAILED: Final = "The API server refused the write, or did not answer."
_CHECKPOINT: Final = (
    "The node agent cannot read its checkpoint, its files about prepared claims. Or another node agent has locked "
    "these files, as in an upgrade."
)
_CHECKPOINT_CURE: Final = (
    "Read the error. If a file cannot be read, check whether the node's disk is full, read-only or damaged. The agent "
    "tries again."
)

LOG_LINES: Final[dict[str, About]] = {
    # The cluster cache of the controller.
    "internal error. No pod is placed on its GPUs": About(
        "The controller has a bug with the objects of this node. It still places pods on other nodes.",
        _BUG,
    ),
    "its slices do not belong to the node of that name": About(
        "A pool is all ResourceSlices of one node, and has the node's name. One of these ResourceSlices names "
        "another node in `spec.nodeName`.",
        "Find the ResourceSlices of this pool in `kubectl get resourceslices`, and delete them. The node agent "
        "publishes its own again.",
    ),
    ". No pod is placed on its GPUs.": About(
        "The controller cannot use the data in the ResourceSlices of the node (its pool). ERROR says why.",
        "If controller and node agents have different versions, finish the upgrade. If not, read the node agent's log.",
    ),
    "the tables of this kind of machine": About(
        "For each kind of machine, the controller computes tables of all GPU sets once. This computation failed.",
        "Read the error. If the computing process ended or took too long, raise the chart value "
        "`controller.resources`. A machine with more than 16 GPUs is not supported.",
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
    "the API server did not show its volume": About(
        "The API server is slow. If the volume was read before, the controller uses what it knows of it.", _WAIT
    ),
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
        "The controller regularly compares its cluster cache, a copy of the API server's objects, with the API "
        "server (the audit). By a bug, entries were wrong. Earlier log lines name the first 16 of them.",
        "Report it with the log. Places that were chosen since the last audit may be wrong, but kube-scheduler "
        "allocates no GPU twice.",
    ),
    "different from the API server": About(
        "RECORD is a part of the controller's cluster cache (its copy of the API server's objects), such as "
        "`claims`. Its entry of the object NAME was wrong, by a bug. The regular comparison, the audit, found "
        "this.",
        "Report it with the log.",
    ),
    "the audit failed with an internal error": About(
        "The controller has a bug. It could not correct an entry of its cluster cache (its copy of the API "
        "server's objects).",
        _BUG,
    ),
    "cannot start to lead": About(
        "This replica of the controller is the new leader. It first reads all ResourceClaims again. The API server "
        "refused this read, or did not answer.",
        _READ,
    ),
    "cannot check whether Pod Security": About(
        "The controller cannot read the Namespace object of its own namespace.",
        _READ,
    ),
    "Node agents cannot start": About(
        "The driver's namespace enforces a Pod Security Standard that forbids the node agents. The Event "
        "`PodSecurityForbidsAgent` says the same.",
        "Run the command in the line ([install.md](../start/install.md#pod-security)).",
    ),
    "it cannot be warned or ended": About(
        "The controller warns and ends pods whose GPUs are idle for longer than `gpu.topology/idle-timeout`. The API "
        "server refused this write, or did not answer.",
        _WRITE,
    ),
    "Idle workload NAMESPACE/NAME: internal error": About("The controller has a bug.", _BUG),
    "belong to several tenants": About(
        "The label selectors of several tenants select one namespace. The Event `SeveralTenants` says the same.",
        "Write the name of the namespace into one tenant. Or change the label selectors of the other tenants "
        "([tenants.md](../tasks/tenants.md)).",
    ),
    "the Event SeveralTenants cannot be written": About(
        "The API server refused the Event, or did not answer.",
        _WRITE,
    ),
    "saved reservations cannot be read yet": About(
        "Reservations are GPUs that the controller keeps for pods that have waited long. It stores them in the "
        "ConfigMap `gpu-topology-reservations`. A new leader could not read it in time.",
        _WAIT,
    ),
    "The ConfigMap of reservations cannot be read": About(
        "The API server refused the read of `gpu-topology-reservations`, or did not answer. The ConfigMap lists "
        "GPUs that the controller keeps for pods that have waited long.",
        _READ,
    ),
    "The ConfigMap of reservations cannot be written": About(
        "The API server refused the write of `gpu-topology-reservations`, or did not answer. The ConfigMap lists "
        "GPUs that the controller keeps for pods that have waited long.",
        _WRITE,
    ),
    "Internal error. The controller goes on": About("The controller has a bug.", _BUG),
    "Internal error: the metrics of": About("The controller has a bug. One metric keeps its old value.", _BUG),
    "internal error. The controller tries this pod again": About(
        "The controller has a bug that this pod triggers. Other pods are placed.", _BUG
    ),
    "kubectl describe does not show the Event": About(
        "The Event is about the ConfigMap of the policies file. This ConfigMap does not exist or cannot be read.",
        "Create the ConfigMap, as the chart does. Or correct the controller's option `--policies-configmap`.",
    ),
    "No pod is preempted for it": About(
        "The controller has a bug that this pod triggers. It failed while it looked for pods of lower priority "
        "to end for this pod.",
        _BUG,
    ),
    "of namespace NAMESPACE cannot be read": About(
        "The controller reads the size of a gang in the owner of its pods, such as a Job. The API server did "
        "not answer, or answered with an error other than 403 and 404.",
        "Read the error. To start the gang without this read, write `gpu.topology/gang-size` on the pods.",
    ),
    "cannot be restarted yet": About(
        "The gang lost a pod, or its pods must end for a pod of higher priority. To end and restart them, the "
        "controller suspends and resumes the owner of the pods, such as a Job. The API server refused to show or "
        "change the owner, or did not answer. NAME is the gang's, or the owner's once it is suspended.",
        "Wait: the controller tries again. If the error has 403, add the owner's kind to the chart value "
        "`controller.gangOwners`.",
    ),
    "suspended and did not resume": About(
        "To restart a gang, the controller suspends and resumes the owner of its pods, such as a Job. A new "
        "leader looks for owners that the last leader left suspended. The API server refused this read, or did "
        "not answer. (Kinds that the controller may not read are skipped without a line.)",
        "Wait: the controller tries again. If an owner stays suspended, set its `spec.suspend` to `false`.",
    ),
    "ResourceClaimTemplate NAMESPACE/NAME cannot be read": About(_READ_FAILED, _WAIT),
    "status.nominatedNodeName": About(
        "An admission policy or a webhook refused the write. The controller still places the pod.",
        "In the policy or webhook that the error names, allow the controller to change "
        "`status.nominatedNodeName`. Without this field another pod may take the CPU first.",
    ),
    "the result of a write is unknown": About(
        "The controller created a claim for the pod, and got no answer. It could also not read whether the claim "
        "exists. The line ends with the error of this read.",
        _WAIT,
    ),
    "a write failed": About(
        "The API server refused a write for this pod. The reason of the pod says the same.",
        _WRITE,
    ),
    "a write is not answered": About(
        "A webhook of another program does not answer, or the API server does not.",
        "Look for an admission webhook that does not answer. The controller continues with other pods.",
    ),
    "of the gang barrier cannot be written": About(
        "The gang barrier lets no pod of a gang be bound before all its pods have GPUs. It needs this "
        "ResourceSlice. The API server did not answer, or has too much load.",
        _WAIT,
    ),
    "was not written by this driver and is replaced": About(
        "The controller needs this ResourceSlice for gangs. Another program wrote a ResourceSlice under this name. "
        "The line ends with the API server's error: it refused to update that ResourceSlice.",
        "Find out which program writes the slice, and stop it.",
    ),
    "The gang barrier is not available": About(
        "The gang barrier lets no pod of a gang be bound before all its pods have GPUs. The line says why it "
        "does not work. The Event `GangBarrierUnavailable` says the same.",
        "Remove the cause that the line names. Until then gangs start without the "
        "[barrier](../tasks/gangs.md#the-barrier).",
    ),
    "Claims whose pods are gone cannot be deleted": About(
        "The API server did not answer, or refused the deletion. The GPUs of these claims stay allocated.", _WRITE
    ),
    "its pod is gone, and the claim cannot be deleted": About(
        "The API server refused to delete the claim. Its GPUs stay allocated.",
        _WRITE,
    ),
    "Claim NAMESPACE/NAME cannot be read": About(_READ_FAILED, _WAIT),
    "the annotation gpu.topology/reason cannot be written": About(
        "The API server refused the pod's update, or did not answer.",
        "Read the error. An admission webhook of another program may refuse changes of this pod.",
    ),
    "ERROR. The controller writes it again": About(
        "The ConfigMap `gpu-topology-reservations` is damaged, or another release wrote it. It lists GPUs that "
        "the controller keeps for pods that have waited long.",
        "Nothing. The earlier reservations are lost, and the controller makes new ones.",
    ),
    "is used unchanged, because it cannot be compared": About(
        "For a pod with `gpu.topology/placement: static` this ResourceClaimTemplate already exists. The "
        "controller compares it with the pod's request by a dry run. The API server refused the dry run, or did "
        "not answer.",
        _WAIT,
    ),
    "ResourceClaimTemplate NAMESPACE/NAME cannot be deleted": About(
        "The controller deletes a template that it created, after no pod has used it for long. The API server "
        "refused this, or did not answer.",
        _WRITE,
    ),
    "ResourceClaimTemplate NAMESPACE/NAME cannot be created": About(
        "The controller creates this template for a pod with `gpu.topology/placement: static`. The API server "
        "refused it.",
        "Read the error. The cause can be a quota on templates in the namespace, or an admission policy.",
    ),
    "requests something else than the pod": About(
        "For a pod with `gpu.topology/placement: static` the controller creates a template. A person or program "
        "created another template under its name.",
        "Delete the template. The controller creates it again.",
    ),
    "the Event about its ResourceClaimTemplate": About(
        "The API server refused the Event, or did not answer.",
        _WAIT,
    ),
    "the counted GPUs were not those": About(
        "The controller counts the GPUs that each namespace uses. By a bug, this count was wrong.",
        "Report it with the log.",
    ),
    "which has GPU time, was deleted": About(
        "The controller stores the GPU time, how long tenants have used GPUs, in ConfigMaps. A person or program "
        "deleted one of them.",
        "Find out which person or program deletes it. GPU time from before yesterday is lost.",
    ),
    "A ConfigMap of GPU time is not counted": About(
        "The ConfigMap, which says how long tenants have used GPUs, is damaged, or another release wrote it.",
        "Restore the ConfigMap from a backup, or delete it.",
    ),
    "The ConfigMaps of GPU time cannot be read or written": About(
        "These ConfigMaps say how long tenants have used GPUs. The API server refused the read or write, or did "
        "not answer.",
        _WRITE,
    ),
    # All processes.
    "Event REASON about": About(
        "The API server refused the Event or did not answer.",
        _WRITE,
    ),
    "the object cannot be decoded": About(
        "An object of the API has a field that the driver cannot decode. KEPT is `part` or `nothing`: how much "
        "of the object the driver uses. For claims the Event `ClaimNotUnderstood` says the same.",
        "Correct the field in the object, or delete the object.",
    ),
    "does not lead any more": About(
        "Of several replicas one leads, by a Lease. The replica lost its lease: the API server did not answer in "
        "time, or another replica took the lease.",
        "Nothing. The other replica leads. If it happens often, check the API server and the network.",
    ),
    "The work did not stop in time": About(
        "The process lost its lease and could not stop within the lease's duration.",
        "Nothing. Kubernetes restarts the process. If it happens often, report it.",
    ),
    "this process makes no progress": About(
        "LEASE is the Lease by which one replica leads. The process is blocked, mostly because it has too little CPU.",
        "Give the controller more CPU: raise its request in the chart value `controller.resources`, and remove a "
        "CPU limit. If the line comes without load, report it.",
    ),
    "LEASE cannot be renewed": About(
        "LEASE is the Lease by which one replica leads. The leading replica renews it, and the others read it. The API "
        "server refused this, or did not answer.",
        _WAIT,
    ),
    "cannot be released": About(
        "LEASE is the Lease by which one replica leads. The process stops, and the API server did not answer.",
        "Nothing. The lease expires by itself in seconds.",
    ),
    "cannot find out which versions": About(
        "PLURAL is a kind of objects, such as `resourceslices`. The API server did not answer.", _WAIT
    ),
    "an event of the unknown type": About(
        "PLURAL names the objects, such as `pods`. KIND is the type of the watch's event, such as `ADDED`. The API "
        "server is newer than this driver, and sends events of a type that this driver does not know.",
        "Nothing. If the line comes often, report it.",
    ),
    "Internal error: a handler of": About(
        "The driver has a bug: it could not process a change of the object KEY. In the controller, the audit (a "
        "regular comparison with the API server) corrects this.",
        _BUG,
    ),
    "internal error. It is tried again later": About("The driver has a bug with the object NAMESPACE/NAME.", _BUG),
    "The policies file is invalid": About(
        "The policies file has an error. The Event `PoliciesInvalid` says the same.",
        "Run `gputopo policies check FILE` with your file, and correct the key that the line names.",
    ),
    "SOURCE cannot be read because of an internal error": About(
        "The driver has a bug in reading the policies file. SOURCE is the file or its ConfigMap.", _BUG
    ),
    "The files of the": About(
        "WHAT is the policies file or the webhook's certificates. A mounted file is missing or "
        "unreadable. The process still uses the last valid content.",
        "Check the ConfigMap or Secret that the pod mounts.",
    ),
    "This process stops: ": About(
        "The process cannot do its work, mostly because of a wrong option or a missing right.",
        "Do what the error says. Kubernetes restarts the process.",
    ),
    "This process stops because of an internal error": About("The driver has a bug.", _BUG),
    "the API server has not answered yet": About(
        "The process reads the policies file from this ConfigMap. The API server is not reachable or slow. FILE "
        "is the copy that is mounted into the pod.",
        _WAIT,
    ),
    "may be older than those of the API server": About(
        "The process wanted to read the policies file again, and the API server did not answer within seconds. SOURCE "
        "is the ConfigMap or file from which it read the policies in force.",
        _WAIT,
    ),
    "cannot watch PLURAL": About(
        "PLURAL is a kind of objects, such as `pods`. The API server refused to send their changes, ended the "
        "watch or did not answer.",
        _WAIT,
    ),
    # The webhook.
    "certificates of the webhook cannot be renewed": About(
        "The webhook cannot write the Secret with its certificates, or the `caBundle` of its webhook configuration.",
        "Install the chart of this version again, which grants the rights. [alerts.md](../runbooks/alerts.md) "
        "says how to see until when the certificate is valid.",
    ),
    "refused a request with a body": About(
        "A program sent a request that is no AdmissionReview, or one of an unknown version. The API server "
        "does not send such a request.",
        "Find out which program calls the webhook.",
    ),
    "answered a request with status": About(
        "The request was too large (413), or the connection ended early (400). Or it was too slow, or there were "
        "too many requests at once (429). After 429 the API server asks again.",
        "For 413, make the object smaller. If 429 lasts, raise `webhook.replicas` in the chart.",
    ),
    # The node agent.
    "before this start cannot be restored": About(
        "The node agent cannot read or write its checkpoint (its files about prepared claims) or the CDI files. Or "
        "another node agent has locked these files.",
        _CHECKPOINT_CURE,
    ),
    "that the controller noted on a claim": About(
        "The annotation `gpu.topology/choice` of the claim is damaged.",
        "Find out who changed the annotation. The pod starts, but without the NCCL settings that come from "
        "the annotation.",
    ),
    "cannot be listed now": About(
        "The node agent cannot read its record of the MIG instances and GPU settings that it made. Or another node "
        "agent has locked the record.",
        _CHECKPOINT_CURE,
    ),
    "cannot be undone now": About(
        "The node agent cannot remove MIG instances or MPS settings of ended pods.",
        "Read the error. Mostly a process still uses the device: end this process.",
    ),
    "are undone later": About(
        "The node agent could not yet remove the MIG instances or settings that it made for this claim. The GPU "
        "driver refused or was busy.",
        "Nothing. The agent tries again.",
    ),
    "names other GPUs than the claim's allocation": About(
        "The controller writes the order in which CUDA lists the pod's GPUs. A person or program changed this "
        "part of the claim.",
        "If the pod needs the order of its GPUs, delete the pod. The new pod gets a new claim.",
    ),
    "cannot check whether processes use": About(
        "The GPU driver refused to list the processes. The node agent prepares the claim without this check.",
        "Run `nvidia-smi` on the node.",
    ),
    "no entry for the instance type": About(
        "The node is a virtual machine of an instance type that the policies file does not name.",
        "Add the type to `nccl.servers` in the policies file ([policies.md](policies.md#nccl)).",
    ),
    "Claim NAMESPACE/NAME: REASON": About(
        "REASON says why the node agent did not set `NCCL_IB_HCA` in the pod's containers. The Event "
        "`NoNearNICs` says the same.",
        "Follow [nics.md](../tasks/nics.md#have-nccl-use-the-near-ones).",
    ),
    "NCCL gets no topology file": About(
        "The topology file tells NCCL how GPUs and network cards are connected. The node agent does not know the "
        "PCI tree of the machine, or the server below a virtual machine.",
        "Add the server to `nccl.servers` in the policies file. Until then NCCL measures the machine itself.",
    ),
    "CDI files cannot be updated": About(
        "The node agent cannot read its checkpoint (its files about prepared claims), or cannot write to the CDI "
        "folder. Or another node agent has locked the checkpoint.",
        _FILES_CURE,
    ),
    "and the API server does not show the claim": About(
        "The checkpoint is the node agent's files about prepared claims. The entry of this claim is damaged, and "
        "the API server did not answer.",
        _WAIT,
    ),
    "This version cannot rebuild its checkpoint entry": About(
        "The node agent was rolled back, and the pod of the claim still runs. The checkpoint is the node agent's files "
        "about prepared claims.",
        "Nothing. The kubelet unprepares the claim when the pod ends.",
    ),
    "Its checkpoint entry was rebuilt": About(
        "The node agent was rolled back, and the pod of the claim still runs. The checkpoint is the node agent's files "
        "about prepared claims.",
        _NOTHING,
    ),
    "its checkpoint entry cannot be rebuilt": About(
        "The checkpoint is the node agent's files about prepared claims. A device of the claim is no longer on "
        "the node, or this version does not know it.",
        "If the pod of the claim runs, do nothing. If it does not start, delete the pod.",
    ),
    "cannot be compared with those of the API server": About(
        "The node agent cannot read one of its files, or another node agent has locked the prepared claims.",
        _DISK,
    ),
    "GPU UUID gets no new pods": About(
        "Processes without a claim use the GPU. Or no pod uses the claim of the GPU any more, but processes are still "
        "on the GPU. Or the node agent cannot undo changes for an earlier claim.",
        "Run `gputopo health`: it shows the fault `held` and the repair.",
    ),
    "The MIG mode of unused GPUs": About(
        "The GPU driver did not answer, a file cannot be read, or another node agent is changing GPUs.",
        "Read the error. If it names the GPU driver, run `nvidia-smi` on the node.",
    ),
    "UID cannot be unprepared": About(
        "No pod uses the claim any more, and the node agent cannot undo what it prepared. A process still uses a "
        "device of the claim, a file cannot be removed, or another node agent has locked the files.",
        "Read the error, and remove its cause. The agent tries again.",
    ),
    "without a call of the kubelet": About(
        "No pod uses the claim any more, but the kubelet did not ask the node agent to unprepare it. So "
        "the node agent did this itself.",
        _NOTHING,
    ),
    "were made again": About(
        "A program reset the GPU or destroyed its MIG instances while a pod used them. The node agent made the "
        "claim's devices again.",
        "If the pod fails, delete it. Its owner creates it again.",
    ),
    "are gone or cannot be checked": About(
        "A program reset the GPU or destroyed the MIG instances of the claim, and the node agent cannot make "
        "them again. Or the agent cannot check this now: the GPU driver does not answer, or the agent cannot read its "
        "own files.",
        "Read the error. If the pod cannot use its GPU, delete the pod.",
    ),
    "because it does not exist any more": About(
        "The checkpoint is the node agent's files about prepared claims. The entry of this claim was damaged or of a "
        "newer node agent, and the claim is gone.",
        _NOTHING,
    ),
    "which has an unreadable checkpoint entry, cannot be unprepared": About(
        "The checkpoint is the node agent's files about prepared claims. The entry of this claim is damaged or of a "
        "newer node agent, and the claim does not exist any more. The node agent cannot release the claim's devices: "
        "a file cannot be removed, a process uses a device, or an earlier call for the claim has not ended.",
        "Read the error, and remove its cause. The agent tries again.",
    ),
    "The status of claim": About(
        "The API server refused to write the claim's status, or did not answer.",
        _WRITE,
    ),
    "is gone together with its GPU": About(
        "DEVICE is a MIG instance or share that the node agent made for a claim. Its GPU was lost, so there was "
        "nothing left to undo.",
        "Run `gputopo health`: it names the repair.",
    ),
    "the record of its changed devices was unreadable": About(
        "The file in which the node agent records the MIG instances and settings that it made was damaged.", _DISK
    ),
    "is free again": About(
        "A slot is the number that a GPU keeps in its machine. An administrator declared that a lost GPU was removed.",
        _NOTHING,
    ),
    "The table of slots (": About(
        "The node agent cannot read a file of the table in which it keeps the number of each GPU.",
        _DISK,
    ),
    "The slots of these GPUs are unknown": About(
        "The table of slots keeps the number of each GPU in its machine. Its files were damaged or of a newer "
        "version, so the node agent renamed them.",
        "Do what the message says ([node.md](../internals/node.md#numbers-of-gpus)).",
    ),
    "The file of slot": About(
        "The node agent cannot change a file of the table in which it keeps the number of each GPU.",
        _DISK,
    ),
    "The list of network cards": About(
        "The node agent cannot read or write the file in which it lists the node's network cards.",
        _DISK,
    ),
    "CDI files with its old devices": About(
        "MIG instances and shares that ended with the old driver can still have CDI files. The node agent cannot "
        "remove these files, or cannot read its checkpoint (its files about prepared claims). Or another node agent "
        "has locked the checkpoint.",
        _FILES_CURE,
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
        "PROBLEM has three parts: a part of the machine (a GPU, a link, a NIC), a fact about it, and the error or what "
        "the agent does instead. The node agent could not read this fact, or it contradicts another fact.",
        "Nothing in most cases: the agent works without this fact. "
        "If a GPU is left out, the line says why. If the GPU was published "
        "before, `gputopo health` also names it.",
    ),
    "GPUs of another vendor are ignored": About(
        "LEFT_OUT names these GPUs. A node agent publishes GPUs of one vendor only.",
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
        _CHECKPOINT,
        _CHECKPOINT_CURE,
    ),
    "cannot measure whether GPUs are idle": About(
        "The GPU driver does not report the work of the GPUs. Or the node agent cannot read its checkpoint (its files "
        "about prepared claims).",
        "Read the error. If it names the GPU driver, run `nvidia-smi` on the node. Until then no pod counts as idle.",
    ),
    "was just written by a newer version": About("A newer agent runs at the same time, as in an upgrade.", _NOTHING),
    "The node agent renamed it": About(
        "A file of the node agent is damaged, or a newer version wrote it.",
        "If a newer version wrote the file, do nothing. If it is damaged, check the node's disk. The agent "
        "writes the file again from what the API server knows.",
    ),
    "The kubelet does not get the health": About(
        _CHECKPOINT,
        _CHECKPOINT_CURE,
    ),
    "The sockets of the plugin were removed": About(
        "A program removed the sockets from the kubelet's plugin folder.",
        "Find out which program removes them, and stop it.",
    ),
    "The kubelet refused to register": About(
        "The kubelet does not accept the node agent as a DRA plugin.",
        "Check that the kubelet has version 1.34 or later, and that the chart value `kubeletRoot` is the "
        "kubelet's folder.",
    ),
    "are not finished": About(
        "The node agent stops. A call of the kubelet still waits for the GPU driver or the API server, which is slow.",
        "Nothing. The kubelet calls again.",
    ),
    "the kubelet cancelled the call": About(
        "CALL is `prepare` or `unprepare`. The call lasted longer than the kubelet waits.",
        "Nothing. The kubelet calls again. If it happens again and again, read the log lines before this one.",
    ),
    "CALL of claim NAMESPACE/NAME failed: TEXT": About(
        "CALL is `prepare` or `unprepare`. The node agent cannot do this for the claim now. After `prepare` the pod's "
        "Event `FailedPrepareDynamicResources` has the same text.",
        "Find the text in [On the node](#on-the-node).",
    ),
    "failed with an internal error": About("CALL is `prepare` or `unprepare`. The node agent has a bug.", _BUG),
    "did not end and is killed": About("An MPS daemon or server did not end within seconds.", _NOTHING),
    "of its MPS shares cannot be resized": About(
        "All MPS shares of a GPU have one `/dev/shm`. Its files need more space than the new size in the "
        "policies file.",
        "End the pods that use shares of this GPU.",
    ),
    "internal error. The supervisor": About(
        "The MPS supervisor, which starts and checks the MPS daemon of each GPU, has a bug.", _BUG
    ),
    "died together with its clients": About(
        "The MPS daemon of a GPU ended. All pods that share the GPU lost it.",
        "Restart the pods that share the GPU. If it happens often, read the daemon's log on the node, by "
        "default in `/var/lib/kubelet/plugins/gpu.topology/mps/GPU/log`.",
    ),
    "a client of MPS changed a limit": About(
        "A pod changed the limits of its GPU's MPS daemon. Root of a container can do this, because the daemon also "
        "runs as root.",
        "Set `runAsNonRoot: true` or `hostUsers: false` in pods that share GPUs "
        "([mig-and-shares.md](../internals/mig-and-shares.md)).",
    ),
    "MPS of ": About(
        "NAME is a GPU, and the error follows. If the line names only the GPU, its MPS daemon cannot be started, "
        "ended or checked. `wanted.json` and `all GPUs`: the node agent's requests for daemons cannot be read, so "
        "the daemons stay unchanged. `/dev/shm of its shares`: files of ended clients cannot be removed, and the "
        "daemon still serves.",
        "Read the error, and remove its cause.",
    ),
    "The ports of the network cards": About("The node agent has a bug, or `/sys` has an unexpected form.", _BUG),
    "The network cards have not answered": About(
        "The driver of the network cards hangs.",
        "Run `dmesg` on the node, and look for errors of the network cards.",
    ),
    "cannot find out which gpu.topology devices": About(
        "The node agent reads this from the ResourceClaims. The API server did not answer.", _WAIT
    ),
    "refuses slices with the optional fields": About(
        "The optional fields of ResourceSlices are for taints, shares and MIG slices (counters). The API server "
        "refuses ResourceSlices with these fields.",
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
        "The policies file divides this GPU into MIG slices, and the GPU driver turns on MIG mode only at a "
        "reset of the GPU. The Event `MigModeOff` has the same text.",
        "End the pods on the GPU, then run the commands in the line.",
    ),
    "slices of them, which GPUs of": About(
        "WORD is a vendor. GPUs of AMD and Huawei (Ascend) cannot be divided. The Event "
        "`GPUFractionsUnsupported` has the same text.",
        "Find `GPUFractionsUnsupported` in [Events](#events).",
    ),
    "ResourceSlices of this node cannot be written": About(
        _WRITE_FAILED,
        _WRITE,
    ),
    "cannot read which claims are prepared": About(
        _CHECKPOINT,
        _CHECKPOINT_CURE,
    ),
    "does not keep these fields": About(
        "NAME is a ResourceSlice, and REFUSED names the fields. The API server is older than these fields, or a "
        "feature gate is off.",
        "Upgrade to Kubernetes 1.36 or later. The driver works without the fields ([ServerLacks](#events) says "
        "what it lacks).",
    ),
    "keeps changing this node's slices": About(
        "Two node agents run on the node, or another program changes the ResourceSlices of this driver.",
        "Run `kubectl get daemonsets -A`, and remove the second installation.",
    ),
    "modes of GPUs (whole, shared or MIG)": About(
        "The node agent cannot read or write this file on the node's disk.", _DISK
    ),
    "The mode of GPU": About("The file PATH of the node agent, which has the mode of this GPU, is damaged.", _DISK),
    "cannot be labelled for containers": About(
        "The file system of PATH does not support SELinux labels, or the node agent lacks the right to set them. "
        "PATH is then used without a label, and SELinux may keep containers from it.",
        "Mount the file system with an SELinux label: the mount option `context=`. For a folder of MPS this mount is "
        "what the kernel refused: load an SELinux policy that knows the label in the error, or do not share the GPU.",
    ),
    "was not made by this driver and stays": About(
        "A person or program created a MIG instance in the place of a claim's instance.",
        "Destroy this MIG instance with `nvidia-smi mig -dci` and `-dgi`.",
    ),
    "stays in MIG mode": About(
        "The last MIG slice of the GPU ended, so the node agent turns off MIG mode. This failed, mostly because a "
        "program uses the GPU.",
        "End programs that use the GPU, such as dcgm.",
    ),
    "so its MIG mode was turned off": About(
        "A person turned on MIG mode of a GPU on which the driver creates the instances.",
        "Nothing. To create instances by hand, write `mig: static` for the GPU in the policies file.",
    ),
    "that no claim of this node created": About(
        "A person or program created a MIG instance on a GPU on which the driver creates the instances.",
        "Destroy this instance with `nvidia-smi mig`, or write `mig: static` for the GPU in the policies file.",
    ),
    "had lost its compute mode": About(
        "GPUs with MPS shares need the compute mode `EXCLUSIVE_PROCESS`. A program or a reset changed it.", _NOTHING
    ),
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
