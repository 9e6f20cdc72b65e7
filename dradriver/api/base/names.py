"""Every name that the driver writes into Kubernetes objects or reads from them: the project's public vocabulary."""

from __future__ import annotations

from typing import Final

DRIVER: Final = "gpu.topology"
DEVICE_CLASS: Final = "gpu.topology"
SHARE_CLASS: Final = "share.gpu.topology"
MIG_CLASS: Final = "mig.gpu.topology"
PREFIX: Final = "gpu.topology/"
ALIAS_PREFIX: Final = "gpu-topology.example.com/"  # the prefix that articles of the field use
GPU_RESOURCE: Final = "nvidia.com/gpu"

# What the webhook gives a pod whose GPUs the controller chooses.
GATE: Final = "gpu.topology/placement"
LABEL: Final = "gpu.topology/placement"
LABEL_PLACED: Final = "placed"
LABEL_STATIC: Final = "static"  # on a pod that the scheduler alone places, and on the template of its claim
LABEL_HANDED_OVER: Final = "handed-over"  # on a claim without a pin, of a pod that found no place
POD_CLAIM: Final = "gpu-topology"  # the entry in spec.resourceClaims; the claim itself has a fresh random name
CLAIM_PREFIX: Final = "gpus-"  # of all names that the driver makes up; no set that pods share is called so
SEAT_POOL: Final = "gang/seats"  # of the gang barrier device; a node's name has no slash, so no node has this pool
SET_REQUEST: Final = "gpus"  # the one request of a claim that several pods share

# Annotations of a pod's author; ``vocabulary/annotation_words.py`` says what each is.
POLICY: Final = PREFIX + "policy"
REQUIRED: Final = PREFIX + "required"
PREFERRED: Final = PREFIX + "preferred"
REQUIRE_NVLINK: Final = PREFIX + "require-nvlink"
GPUS: Final = PREFIX + "gpus"
STRATEGY: Final = PREFIX + "strategy"
MIN_BANDWIDTH: Final = PREFIX + "min-bandwidth"
MIN_BUSBW: Final = PREFIX + "min-busbw"
PRODUCT: Final = PREFIX + "product"
ARCHITECTURE: Final = PREFIX + "architecture"
MIN_MEMORY: Final = PREFIX + "min-memory"
MIN_DRIVER: Final = PREFIX + "min-driver"
MIN_CUDA: Final = PREFIX + "min-cuda"
VENDOR: Final = PREFIX + "vendor"
MAX_CROSS_NVSWITCH: Final = PREFIX + "max-cross-nvswitch-gpus"
PREFER_SAME_NUMA: Final = PREFIX + "prefer-same-numa"
NEAR_NIC: Final = PREFIX + "near-nic"
SHARE: Final = PREFIX + "share"
SHARE_MEMORY: Final = PREFIX + "memory"
SHARE_CORES: Final = PREFIX + "cores"
MIG_PROFILE: Final = PREFIX + "mig-profile"
NCCL: Final = PREFIX + "nccl"
WORKLOAD: Final = PREFIX + "workload"
CLAIM: Final = PREFIX + "claim"
PLACEMENT: Final = PREFIX + "placement"
WHEN_FULL: Final = PREFIX + "when-full"
SHARED_CLAIM: Final = PREFIX + "shared-claim"
MAX_DURATION: Final = PREFIX + "max-duration"
SPOT: Final = PREFIX + "spot"

# The same about the gang that the pod belongs to.
GANG: Final = PREFIX + "gang"
GANG_SIZE: Final = PREFIX + "gang-size"
MULTI_NODE_POLICY: Final = PREFIX + "multi-node-policy"
MAX_NODES: Final = PREFIX + "max-nodes"
MIN_GPUS_PER_NODE: Final = PREFIX + "min-gpus-per-node"
MIN_NETWORK_BANDWIDTH: Final = PREFIX + "min-network-bandwidth"
NEAR: Final = PREFIX + "near"
ON_MEMBER_LOSS: Final = PREFIX + "on-member-loss"
IDLE_TIMEOUT: Final = PREFIX + "idle-timeout"

# Annotations that the webhook and the controller keep their notes in.
REQUEST: Final = PREFIX + "request"  # JSON, versioned: the resolved request (api/pod/resolved.py)
AFFINITY: Final = PREFIX + "affinity"  # JSON: the author's required node affinity before it was narrowed
TEMPLATE: Final = PREFIX + "template"  # entry/name: the claim of this entry is made by this ResourceClaimTemplate
POD_GROUP: Final = PREFIX + "pod-group"  # the PodGroup of its Job that the pod has left (webhook/pod_groups.py)
NOTES: Final = (REQUEST, AFFINITY, TEMPLATE, POD_GROUP)

# Annotations that say what was chosen.
ALLOCATED: Final = PREFIX + "allocated"
RING_ORDER: Final = PREFIX + "ring-order"
BANDWIDTH: Final = PREFIX + "bandwidth"
BUSBW: Final = PREFIX + "busbw"
LEVEL: Final = PREFIX + "level"
FALLBACK: Final = PREFIX + "fallback"
PART: Final = PREFIX + "part"  # of each GPU in ``ALLOCATED``, in its order: 25%/20480Mi, or 1g.10gb@6
RANK_HINT: Final = PREFIX + "rank-hint"  # which one in its gang a pod had better be; the driver sets no ranks
GANG_NODES: Final = PREFIX + "gang-nodes"  # its gang's nodes in the order of the ranks
GANG_REACH: Final = PREFIX + "gang-reach"  # the narrowest level of the network that holds all of them
GANG_BUSBW: Final = PREFIX + "gang-busbw"  # predicted for the whole gang
REASON: Final = PREFIX + "reason"  # why the pod waits
IDLE_END: Final = PREFIX + "idle-end"  # when it is ended unless its GPUs work until then; on its claim, too
RESULTS: Final = (
    ALLOCATED, RING_ORDER, BANDWIDTH, BUSBW, LEVEL, FALLBACK, PART, RANK_HINT, GANG_NODES, GANG_REACH,
    GANG_BUSBW, REASON, IDLE_END,
)  # fmt: skip

# Results that earlier builds wrote. The pod's `spec.nodeName` and the claim's `CHOICE` say the same.
NODE: Final = PREFIX + "node"
SCORE: Final = PREFIX + "score"
FORMER_RESULTS: Final = (NODE, SCORE)

NVSENTINEL_DEVICES: Final = "dgxc.nvidia.com/devices"  # the pod's GPUs as NVSentinel reads them, if the chart says so

# Of the chart's objects.
POLICIES_KEY: Final = "policies.yaml"  # in the ConfigMap with the policies: the policies file
VERSION_LABEL: Final = "app.kubernetes.io/version"  # the release of the driver that the object is for

# Annotations of other objects.
MACHINE: Final = PREFIX + "machine"  # on a node's first slice: the whole Machine as JSON
SERVER_LACKS: Final = PREFIX + "server-lacks"  # there too: names of the features that the API server lacks
POLICIES: Final = PREFIX + "policies"  # on the controller's Lease: LEADER=DIGEST, of the policies that it uses
LOST_GPUS: Final = PREFIX + "lost-gpus"  # there too: the GPUs that the node lost, as JSON (``lost_gpus``)
FINALIZER: Final = "resource.kubernetes.io/delete-protection"  # Kubernetes' own, on every allocated claim
HANDED_OVER: Final = PREFIX + "handed-over"  # on a claim without a pin: a digest of what it was made from
CHOICE: Final = PREFIX + "choice"  # on a claim: the choice it was made from, as JSON
PLAN: Final = PREFIX + "plan"  # on a claim of a gang's member: which plan of the gang it belongs to, as JSON
PREEMPTS: Final = PREFIX + "preempts"  # on a claim: which pods have to end for it, and until when it waits, as JSON
RESTART: Final = PREFIX + "restart"  # on what makes a gang's pods: when and why it was suspended last, as JSON
IDLE: Final = PREFIX + "idle"  # there too: when and why it was suspended for good, as JSON
RESTARTING: Final = PREFIX + "restarting"  # a label there, while it is suspended and has to be resumed
SET: Final = PREFIX + "set"  # on a claim that several pods share: the request that its set was chosen for, as JSON

MAINTENANCE: Final = (
    PREFIX + "maintenance"
)  # of a node, an annotation or a taint's key: when it goes, see node_maintenance.py

REMOVED_GPUS: Final = PREFIX + "removed-gpus"  # of a node, an annotation: UUIDs of GPUs that will not come back

# A node's label that an administrator sets, to any value, before the driver is replaced or a GPU is reset by hand.
DRIVER_LABEL: Final = PREFIX + "release-driver"

# Attributes. Those without a prefix belong to the driver's own domain (KEP-4381).
ATTRIBUTE_DOMAIN: Final = DRIVER
OF_LINKS: Final = ("nvlink", "link")  # what the names begin with of those that say how GPUs are linked
PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
NUMA_NODE: Final = "resource.kubernetes.io/numaNode"

# Capacities, by the short names that requests must use as well: they are compared literally.
CAPACITY_CORES: Final = "cores"  # percent of a GPU's threads
CAPACITY_MEMORY: Final = "memory"
CAPACITY_MEMORY_SLICES: Final = "memorySlices"  # of a GPU whose MIG instances are made on demand
CAPACITY_COMPUTE_SLICES: Final = "computeSlices"

CONFIG_API_VERSION: Final = "gpu.topology/v1alpha1"
CONFIG_KIND: Final = "ClaimConfig"


def is_ours(key: str) -> bool:
    """Return whether an annotation's name begins with a prefix of this driver.

    An unknown name with a prefix of the driver, such as a misspelled one, also counts.
    """
    return key.startswith((PREFIX, ALIAS_PREFIX))


def is_seat(driver: str, pool: str) -> bool:
    """Return whether a device's driver and pool are those of the gang barrier device.

    This device has no hardware: it only keeps the pods of a gang unbound until all can start. Callers that count GPUs
    must skip it.
    """
    return (driver, pool) == (DRIVER, SEAT_POOL)
