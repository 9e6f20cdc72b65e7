"""The policies file's sections and their defaults: typed, frozen, each field with what it may hold.

``docs/policies.md`` tells of each field; the chart's values.schema.json has the same structure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from dradriver.allocator import request
from dradriver.api.policies.fields import (
    MOST_LEVELS,
    MOST_NAMES,
    MOST_RULES,
    MOST_TENANTS,
    ClassName,
    DevShmMib,
    EqualShares,
    Factor,
    Gbps,
    Gpus,
    InstanceType,
    LabelKey,
    LabelValue,
    MigWord,
    NameOrWords,
    NicWord,
    PolicyName,
    SchedulerName,
    Section,
    SharedWord,
    SignedWeight,
    TenantName,
    Version,
    Weight,
    Words,
    XidNumber,
    XidWord,
)
from dradriver.api.policies.gpu_prices import Prices
from dradriver.api.policies.tenant_policies import Queue, Tenant
from dradriver.api.vocabulary import nic_requests

MOST_BYTES: Final = 1 << 16  # of a file: reading more would hold up a process


class GpuRule(Gpus, frozen=True, omit_defaults=True):
    """What becomes of the GPUs that it is about.

    Attributes:
        mig: ``off``; ``static``: the instances that somebody made; ``dynamic``: instances are made for claims;
            ``placements``: the same, every placement published. Left out: ``static`` on a GPU that is in MIG mode.
        shared: Whether pods may have shares of the GPU, and what keeps them apart.
        memory_overcommit: How many times its memory may be promised to shares.
        equal_shares: The number of equal shares of the GPU; None if each share has its own size.
        exclusive_to: ``namespace``: at any time only one namespace has parts of the GPU.
        dev_shm_mib: What the ``/dev/shm`` of all shares by MPS of one GPU holds; None for the node agent's default.
        fractions_only: Whether no pod gets the GPU whole; without it pods get it whole if no other GPUs are left.
    """

    mig: MigWord | None = None
    shared: SharedWord = "none"
    memory_overcommit: Factor = 1.0
    equal_shares: EqualShares | None = None
    exclusive_to: Literal["", "namespace"] = ""
    dev_shm_mib: DevShmMib | None = None
    fractions_only: bool = False


class Workloads(Section, frozen=True, rename="kebab"):
    """What each value of the annotation ``workload`` stands for: a policy's name, or words.

    The defaults ask for hard NVLink only where a job without it is of no use: tensor parallelism sends activations
    between all GPUs in every layer. Data parallelism sends gradients once a step, and gets the best set that is free,
    as without a word. Stages of a pipeline talk to their neighbours. What runs by itself is packed, so that well-linked
    sets stay whole for others; a share is for an administrator to say, who knows whether any GPU is shared.
    """

    tensor_parallel: NameOrWords = "nvlink"
    pipeline_parallel: NameOrWords = msgspec.field(default_factory=lambda: {"preferred": "nvlink,same-numa"})
    data_parallel: NameOrWords = "best-effort"
    asynchronous: NameOrWords = "best-effort,pack"
    inference: NameOrWords = msgspec.field(default_factory=lambda: {"preferred": "nvlink,same-numa"})
    inference_small: NameOrWords = "best-effort,pack"

    def meaning(self, workload: str) -> str | dict[str, str]:
        """Return what a value of the annotation ``workload`` stands for by the policies' section ``workloads``."""
        found: str | dict[str, str] = getattr(self, workload.replace("-", "_"))
        return found


WORKLOADS: Final = tuple(field.encode_name for field in msgspec.structs.fields(Workloads))


class Weights(Section, frozen=True):
    """What counts how much among sets of equal bandwidth; see the allocator's."""

    nvlink: Weight = request.Weights().nvlink
    pcie: Weight = request.Weights().pcie
    numa: Weight = request.Weights().numa
    memory: Weight = request.Weights().memory
    power: Weight = request.Weights().power
    price: Weight = request.NodeWeights().price
    utilisation: SignedWeight = request.NodeWeights().utilisation


class Nccl(Section, frozen=True):
    """What is known of NCCL in this cluster, and what it is told.

    Attributes:
        version: The NCCL version that most containers bring; empty if it is not known.
        servers: Profile of the server below virtual machines, by the nodes' label of the instance type.
        tuning: Variables below the author's own: a profile, ``auto`` for what fits the machine, empty for none.
    """

    version: Version = ""
    servers: Annotated[
        dict[InstanceType, str],
        Meta(max_length=MOST_NAMES, description="pairs of instance type and profile, as p5.48xlarge: hgx-h100"),
    ] = {}
    tuning: Literal["", "auto", "multinode", "nvlink", "nvswitch", "pcie"] = ""


class Network(Section, frozen=True):
    """What is known of the network between nodes.

    Attributes:
        levels: Label keys of nodes that say below which switch, block or zone each stands, nearest first; those that
            are known (``topology.network_levels``) are looked for where none are given.
        gbps: What levels carry for each node, one direction, GB/s, by their label keys; ``cluster`` for all beyond.
    """

    levels: Annotated[
        tuple[LabelKey, ...], Meta(max_length=MOST_LEVELS, description="a list of label keys, nearest first")
    ] = ()
    gbps: Annotated[
        dict[LabelKey, Gbps],
        Meta(max_length=MOST_LEVELS + 1, description="pairs of label key and GB/s, as example.com/spine: 200"),
    ] = {}


class Spot(Section, frozen=True):
    """Which nodes their provider may take away at any time, in addition to ``node_maintenance.SPOT_LABELS``.

    Attributes:
        labels: Any of these labels says it.
    """

    labels: Annotated[
        dict[LabelKey, LabelValue], Meta(max_length=32, description='labels, as {example.com/spot: "yes"}')
    ] = {}


class Nics(Section, frozen=True):
    """What is known of NICs that other drivers hand out (``api.vocabulary.nic_requests``).

    Attributes:
        classes: DeviceClasses of NICs, each with its driver's word, in addition to those of the drivers' own manifests.
    """

    classes: Annotated[
        dict[ClassName, NicWord],
        Meta(max_length=MOST_NAMES, description="pairs of a DeviceClass and dranet or sriov, as rail-nics: dranet"),
    ] = {}

    @property
    def every(self) -> Mapping[str, str]:
        """Return all classes of NICs in the policies file by name, with their drivers' words."""
        return {**nic_requests.CLASSES, **self.classes}


class Sections(Section, frozen=True):
    """A whole file.

    ``schedulers`` are names that manifests say and no scheduler has; by default two that articles of the field invent.
    ``xids`` says what becomes of a GPU with an XID, where that is not what the node agent's own table says.
    """

    gpus: Annotated[tuple[GpuRule, ...], Meta(max_length=MOST_RULES, description="a list of rules")] = ()
    policies: Annotated[
        dict[PolicyName, Words], Meta(max_length=MOST_NAMES, description="names, each with its words")
    ] = {}
    workloads: Workloads = Workloads()
    weights: Weights = Weights()
    nccl: Nccl = Nccl()
    network: Network = Network()
    spot: Spot = Spot()
    nics: Nics = Nics()
    prices: Prices = Prices()
    tenants: Annotated[
        dict[TenantName, Tenant], Meta(max_length=MOST_TENANTS, description="names, each with its namespaces")
    ] = {}
    queue: Queue = Queue()
    schedulers: Annotated[tuple[SchedulerName, ...], Meta(max_length=64, description="a list of names")] = (
        "gpu-topology-scheduler",
        "gpu-scheduler",
    )
    xids: Annotated[
        dict[XidNumber, XidWord],
        Meta(max_length=MOST_NAMES, description="pairs of an XID and a word, as 94: taint"),
    ] = {}


class Policies(Sections, frozen=True):
    """The policies in force.

    Attributes:
        known: False where there is a file and no good one has ever been read: what it says of a GPU, or of a name
            that is not built in, nobody knows, and the defaults are no answer.
        digest: A hash of the file's text; 0 without a file. 48 bits, so that a metric can hold it.
    """

    known: bool = True
    digest: int = 0

    def __hash__(self) -> int:
        return self.digest

    @property
    def fingerprint(self) -> str:
        """Return the digest of the policies as logs, the controller's Lease and ``gputopo verify`` write it."""
        return f"{self.digest:012x}"

    @property
    def preference(self) -> request.Weights:
        """Return the policies' weights as the allocator takes them."""
        own = msgspec.structs.asdict(self.weights)
        price, utilisation = own.pop("price"), own.pop("utilisation")
        if not (price and self.prices.gpus) and not utilisation:
            return request.Weights(**own)
        prices = tuple((glob, one.per_hour) for one in self.prices.gpus for glob in one.products or ("*",))
        return request.NodeWeights(**own, price=price, utilisation=utilisation, prices=prices)


DEFAULTS: Final = Policies()
UNKNOWN: Final = Policies(known=False)


def plain(policies: Policies) -> Mapping[str, Any]:
    """Return the policies in force as sections of a policies file, defaults included."""
    sections = msgspec.to_builtins(policies)
    return {field.encode_name: sections[field.encode_name] for field in msgspec.structs.fields(Sections)}
