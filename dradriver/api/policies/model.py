"""The policies file's sections and their defaults: typed, frozen, each field with what it may hold.

``docs/policies.md`` tells of each field; the chart's values.schema.json has the same structure.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from dradriver.allocator import request
from dradriver.api import nics, values

MOST_BYTES: Final = 1 << 16  # of a file: reading more would hold up a process
MOST_RULES: Final = 256
MOST_NAMES: Final = 256  # of policies, nodes of a rule, instance types
MOST_NUMBER: Final = 255  # of a GPU of a machine
MOST_TENANTS: Final = 1024
RESERVED_TENANT: Final = "other"  # the label under which ``kube.labels.Amounts`` adds up the smaller ones
MOST_CAPS: Final = 16  # products of one tenant
MOST_DAYS: Final = 35  # that GPU time is kept for
MOST_LEVELS: Final = 16  # of a network, as many as a Topology of Kueue has

_LABEL: Final = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_LABEL_KEY: Final = rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_LABEL}"

Node = Annotated[str, Meta(pattern=r"\A[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z", description="the name of a node")]
LabelKey = Annotated[str, Meta(pattern=rf"\A{_LABEL_KEY}\Z", examples=["nvidia.com/gpu.family"])]
LabelValue = Annotated[str, Meta(pattern=rf"\A({_LABEL})?\Z", description="the value of a label")]
Product = Annotated[
    str,
    Meta(
        pattern=r"\A[A-Za-z0-9 ._,()/+*?!\[\]-]{1,100}\Z",
        description="the full name as nvidia-smi -L gives it, or a glob, as NVIDIA A100*",
    ),
]
Number = Annotated[int, Meta(ge=0, le=MOST_NUMBER)]
Weight = Annotated[float, Meta(ge=0, le=1000)]
SignedWeight = Annotated[float, Meta(ge=-1000, le=1000)]
Gbps = Annotated[float, Meta(gt=0, le=100_000)]
Factor = Annotated[float, Meta(ge=1, le=16)]
EqualShares = Annotated[int, Meta(ge=2, le=48)]  # an MPS server of Volta and later has 48 clients
PolicyName = Annotated[str, Meta(pattern=rf"\A{values.LABEL}\Z", description="a name in lower case, as train-fast")]
SchedulerName = Annotated[str, Meta(pattern=r"\A[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z", examples=["gpu-scheduler"])]
InstanceType = Annotated[str, Meta(pattern=rf"\A{_LABEL}\Z", examples=["p5.48xlarge"])]
Namespace = Annotated[str, Meta(pattern=rf"\A{values.LABEL}\Z", description="the name of a namespace")]
TenantName = Annotated[str, Meta(pattern=rf"\A{values.LABEL}\Z", description="a name in lower case, as team-vision")]
Days = Annotated[int, Meta(ge=1, le=MOST_DAYS)]
Hours = Annotated[float, Meta(ge=0.1, le=10_000)]
PerHour = Annotated[float, Meta(ge=0, le=100_000)]
Currency = Annotated[str, Meta(pattern=r"\A([A-Z]{3})?\Z", description="a currency's three letters (ISO 4217), as EUR")]
Minutes = Annotated[float, Meta(ge=0, le=10_000)]
TenantWeight = Annotated[float, Meta(gt=0, le=1000)]
CapGpus = Annotated[float, Meta(ge=0, le=1_000_000)]
Seconds = Annotated[float, Meta(ge=0, le=3600)]
PerMinute = Annotated[int, Meta(ge=1, le=10_000)]
PriorityClassName = Annotated[
    str, Meta(pattern=r"\A[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z", description="the name of a PriorityClass")
]
Priority = Annotated[int, Meta(ge=-2_147_483_648, le=1_000_000_000)]  # what a PriorityClass of users may have
ClassName = Annotated[
    str, Meta(pattern=r"\A[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z", description="the name of a DeviceClass")
]
Version = Annotated[  # one that topology.nccl_version reads
    str,
    Meta(
        pattern=r"\A((2\.(19|[2-9][0-9])|[3-9]\.[0-9]{1,2})(\.[0-9]{1,3})?)?\Z",
        description="2.19 or a later one, as 2.23 or 2.23.4",
    ),
]

# A word as in an annotation, without the prefix; ``read`` checks each as a pod's would be.
Words: TypeAlias = Annotated[
    dict[str, Annotated[str, Meta(max_length=256, description="the value as in an annotation")]],
    Meta(max_length=32, description="words as in annotations, such as required: nvlink"),
]
NameOrWords: TypeAlias = Annotated[
    Annotated[str, Meta(max_length=256)] | Words,
    Meta(description="a policy's name, or words as in annotations, such as {required: nvlink}"),
]

MigWord: TypeAlias = Literal["off", "static", "dynamic", "placements"]
SharedWord: TypeAlias = Literal["none", "mps", "time-slicing"]
XidWord: TypeAlias = Literal["ignore", "warn", "taint"]
NicWord: TypeAlias = Literal["dranet", "sriov"]
XidNumber = Annotated[str, Meta(pattern=r"\A[1-9][0-9]{0,3}\Z", description="an XID's number, as 94")]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    pass


class Gpus(_Section, frozen=True, omit_defaults=True):
    """Some GPUs of the cluster: those that all of these fit.

    Attributes:
        nodes: Names of nodes; any where left out.
        node_selector: Labels that the node has, all of them.
        products: Full product names or globs, as the annotation ``product``; any where left out.
        numbers: The machine's own numbers of GPUs; any where left out.
    """

    nodes: Annotated[
        tuple[Node, ...], Meta(min_length=1, max_length=MOST_NAMES, description="a list with one node or more")
    ] = ()
    node_selector: Annotated[
        dict[LabelKey, LabelValue], Meta(min_length=1, max_length=32, description="labels, as in a pod's nodeSelector")
    ] = {}
    products: Annotated[
        tuple[Product, ...], Meta(min_length=1, max_length=64, description="a list with one product or more")
    ] = ()
    numbers: Annotated[
        tuple[Number, ...], Meta(min_length=1, max_length=64, description="a list with one number or more")
    ] = ()


class GpuRule(Gpus, frozen=True, omit_defaults=True):
    """What becomes of the GPUs that it is about.

    Attributes:
        mig: ``off``; ``static``: the instances that somebody made; ``dynamic``: instances are made for claims;
            ``placements``: the same, every placement published. Left out: ``static`` on a GPU that is in MIG mode.
        shared: Whether pods may have shares of the GPU, and what keeps them apart.
        memory_overcommit: How many times its memory may be promised to shares.
        equal_shares: In how many equal shares it is had; None: each has a size of its own.
        exclusive_to: ``namespace``: at any time only one namespace has parts of the GPU.
    """

    mig: MigWord | None = None
    shared: SharedWord = "none"
    memory_overcommit: Factor = 1.0
    equal_shares: EqualShares | None = None
    exclusive_to: Literal["", "namespace"] = ""


class Workloads(_Section, frozen=True, rename="kebab"):
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
        """Return what one of ``WORKLOADS`` stands for."""
        found: str | dict[str, str] = getattr(self, workload.replace("-", "_"))
        return found


WORKLOADS: Final = tuple(field.encode_name for field in msgspec.structs.fields(Workloads))


class Weights(_Section, frozen=True):
    """What counts how much among sets of equal bandwidth; see the allocator's."""

    nvlink: Weight = request.Weights().nvlink
    pcie: Weight = request.Weights().pcie
    numa: Weight = request.Weights().numa
    memory: Weight = request.Weights().memory
    power: Weight = request.Weights().power
    price: Weight = request.NodeWeights().price
    utilisation: SignedWeight = request.NodeWeights().utilisation


class Nccl(_Section, frozen=True):
    """What is known of NCCL in this cluster, and what it is told.

    Attributes:
        version: The version that most containers bring; empty where nobody says.
        servers: Profile of the server below virtual machines, by the nodes' label of the instance type.
        tuning: Variables below the author's own: a profile, ``auto`` for what fits the machine, empty for none.
    """

    version: Version = ""
    servers: Annotated[
        dict[InstanceType, str],
        Meta(max_length=MOST_NAMES, description="pairs of instance type and profile, as p5.48xlarge: hgx-h100"),
    ] = {}
    tuning: Literal["", "auto", "multinode", "nvlink", "nvswitch", "pcie"] = ""


class Network(_Section, frozen=True):
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


class Spot(_Section, frozen=True):
    """Which nodes their provider may take away at any time, beside those that say so (``node_life.SPOT_LABELS``).

    Attributes:
        labels: Any of these labels says it.
    """

    labels: Annotated[
        dict[LabelKey, LabelValue], Meta(max_length=32, description='labels, as {example.com/spot: "yes"}')
    ] = {}


class Nics(_Section, frozen=True):
    """What is known of NICs that other drivers hand out (``api.nics``).

    Attributes:
        classes: DeviceClasses of NICs, each with its driver's word, beside those that drivers' own manifests name.
    """

    classes: Annotated[
        dict[ClassName, NicWord],
        Meta(max_length=MOST_NAMES, description="pairs of a DeviceClass and dranet or sriov, as rail-nics: dranet"),
    ] = {}

    @property
    def every(self) -> Mapping[str, str]:
        """All classes of NICs by name, with their drivers' words."""
        return {**nics.CLASSES, **self.classes}


class Price(_Section, frozen=True):
    """What an hour of some GPUs costs.

    Attributes:
        per_hour: Of a whole GPU; a share or slice costs its part of that.
        products: Full product names or globs; all others where left out.
    """

    per_hour: PerHour
    products: Annotated[
        tuple[Product, ...], Meta(min_length=1, max_length=64, description="a list with one product or more")
    ] = ()

    def fits(self, product: str) -> bool:
        """Return whether it is the price of a product."""
        return not self.products or any(fnmatchcase(product, each) for each in self.products)


class Prices(_Section, frozen=True):
    """What GPUs cost.

    Attributes:
        currency: Three letters; only shown.
        gpus: The first that fits a GPU's product is its price.
    """

    currency: Currency = ""
    gpus: Annotated[
        tuple[Price, ...], Meta(max_length=MOST_RULES, description="a list of prices, as [{perHour: 2.5}]")
    ] = ()

    def per_hour(self, product: str) -> float | None:
        """Return what an hour of a GPU costs; None where nothing says it, or nobody knows its product."""
        if not product:
            return self.gpus[0].per_hour if self.gpus and not self.gpus[0].products else None
        return next((price.per_hour for price in self.gpus if price.fits(product)), None)


class Cap(_Section, frozen=True, omit_defaults=True):
    """How many GPUs a tenant may have at a time.

    Attributes:
        gpus: So many, parts as fractions.
        products: Of these full product names or globs together; of any where left out.
    """

    gpus: CapGpus
    products: Annotated[
        tuple[Product, ...], Meta(min_length=1, max_length=64, description="a list with one product or more")
    ] = ()


class Tenant(_Section, frozen=True):
    """Who shares the cluster with others: some namespaces.

    Attributes:
        namespaces: Their names.
        namespace_labels: Labels of further ones, which have all of these; a name says more than labels.
        weight: How much of what all want it is to have, beside others' weights.
        highest_priority: More than this no priority of its pods counts; None for any.
        cap: How many GPUs it may have at a time; each of these is a bound of its own.
        partition: The GPUs that its units are placed on, and on no others; None for any.
        exclusive: Whether nobody else's units are placed there.
        scheduler_placed: Whether pods of a tenant with a partition may have GPUs that kube-scheduler alone chooses; the
            chart's admission policy refuses them (``partitionspolicy.yaml``).
        admission: ``kueue``: who is next and how much it may have Kueue says, and this file only where; empty: this
            file says all of it.
    """

    namespaces: Annotated[
        tuple[Namespace, ...],
        Meta(min_length=1, max_length=MOST_NAMES, description="a list with one namespace or more"),
    ] = ()
    namespace_labels: Annotated[
        dict[LabelKey, LabelValue], Meta(min_length=1, max_length=32, description="labels that the namespaces have")
    ] = {}
    weight: TenantWeight = 1.0
    highest_priority: Priority | None = None
    cap: Annotated[
        tuple[Cap, ...],
        Meta(min_length=1, max_length=MOST_CAPS, description="a list of caps, as [{gpus: 16}]"),
    ] = ()
    partition: Gpus | None = None
    exclusive: bool = False
    scheduler_placed: Literal["refuse", "allow"] = "refuse"
    admission: Literal["", "kueue"] = ""


class Reservation(_Section, frozen=True):
    """When GPUs are reserved for one that waits, and what that may cost.

    Attributes:
        after_minutes: For how long it is blocked before; 0 for no reservations.
        idle_minutes: For how long its GPUs may stand idle for it, each of them on average.
        short_minutes: How soon those are gone that may run there while nobody knows when others will be.
        moves: How often it moves to other GPUs when it has cost as much as it may.
    """

    after_minutes: Minutes = 30.0
    idle_minutes: Annotated[float, Meta(ge=1, le=10_000)] = 60.0
    short_minutes: Minutes = 5.0
    moves: Annotated[int, Meta(ge=0, le=16)] = 1


class Preemption(_Section, frozen=True):
    """Whether those of lower priority have to end for those of higher priority, and within which bounds.

    A unit is a pod by itself, or all of a gang.

    Attributes:
        enabled: Whether at all.
        min_run_minutes: For how long a unit has run at least before it may have to end.
        units_per_minute: How many units may have to end within a minute, in all of the cluster.
        back_off_minutes: For how long what made the pods of a unit that had to end is spared after that.
        margin_seconds: How much longer than the longest grace of those that end their GPUs are kept for whom they end.
        unpreemptable_classes: PriorityClasses whose pods never have to end.
        unpreemptable_tenants: Tenants whose pods never have to.
    """

    enabled: bool = False
    min_run_minutes: Minutes = 10.0
    units_per_minute: PerMinute = 10
    back_off_minutes: Minutes = 30.0
    margin_seconds: Seconds = 30.0
    unpreemptable_classes: Annotated[
        tuple[PriorityClassName, ...], Meta(max_length=MOST_NAMES, description="a list of names of PriorityClasses")
    ] = ()
    unpreemptable_tenants: Annotated[
        tuple[TenantName, ...], Meta(max_length=MOST_TENANTS, description="a list of names of tenants")
    ] = ()


class Queue(_Section, frozen=True):
    """How those who wait for GPUs are put in order.

    Attributes:
        reservation: Of GPUs for those that the order passes by.
        half_life_hours: After how long GPU time that was used counts half.
        ahead_minutes: For how long what a tenant has now counts as if it were used already.
        keep_days: For how long GPU time is kept, hour by hour.
        preemption: Whether others end for them.
    """

    half_life_hours: Hours = 168.0
    ahead_minutes: Minutes = 10.0
    keep_days: Days = MOST_DAYS
    reservation: Reservation = Reservation()
    preemption: Preemption = Preemption()


class Sections(_Section, frozen=True):
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
        digest: Of the file's text; 0 without one. 48 bits, so that a metric can hold it.
    """

    known: bool = True
    digest: int = 0

    def __hash__(self) -> int:
        return self.digest

    @property
    def preference(self) -> request.Weights:
        """The weights as the allocator takes them."""
        own = msgspec.structs.asdict(self.weights)
        price, utilisation = own.pop("price"), own.pop("utilisation")
        if not (price and self.prices.gpus) and not utilisation:
            return request.Weights(**own)
        prices = tuple((glob, one.per_hour) for one in self.prices.gpus for glob in one.products or ("*",))
        return request.NodeWeights(**own, price=price, utilisation=utilisation, prices=prices)


DEFAULTS: Final = Policies()
UNKNOWN: Final = Policies(known=False)


def plain(policies: Policies) -> Mapping[str, Any]:
    """Return the sections as a file would have them, defaults included."""
    sections = msgspec.to_builtins(policies)
    return {field.encode_name: sections[field.encode_name] for field in msgspec.structs.fields(Sections)}
