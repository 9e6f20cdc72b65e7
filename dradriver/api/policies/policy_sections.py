"""The sections of the policies file and their defaults, as typed and immutable structs.

``docs/reference/policies.md`` describes each field. The chart's values.schema.json has the same structure.
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
    """A rule of the section ``gpus``: how the selected GPUs are handed out.

    Attributes:
        mig: ``off``; ``static``: the existing instances; ``dynamic``: instances are created for claims; ``placements``:
            as ``dynamic``, and every placement is published. If left out: ``static`` on a GPU that is in MIG mode.
        shared: Whether pods may have shares of the GPU, and what isolates the shares.
        memory_overcommit: The sum of the shares' memory, at most, as a multiple of the GPU's memory.
        equal_shares: The number of equal shares of the GPU; None if each share has its own size.
        exclusive_to: ``namespace``: at any time only one namespace has fractions of the GPU.
        dev_shm_mib: The size of the ``/dev/shm`` of all MPS shares of one GPU, MiB; None for the node agent's default.
        fractions_only: Whether no pod gets the GPU whole. If false, pods get it whole if no other GPUs are left.
    """

    mig: MigWord | None = None
    shared: SharedWord = "none"
    memory_overcommit: Factor = 1.0
    equal_shares: EqualShares | None = None
    exclusive_to: Literal["", "namespace"] = ""
    dev_shm_mib: DevShmMib | None = None
    fractions_only: bool = False


class Workloads(Section, frozen=True, rename="kebab"):
    """The meaning of each value of the annotation ``workload``: a policy's name, or annotations.

    The defaults require NVLink only for jobs that are useless without it: tensor parallelism sends activations between
    all GPUs in every layer. Data parallelism sends gradients once a step, and gets the best free set, as without the
    annotation. Stages of a pipeline communicate with their neighbours. Jobs that need no links between GPUs are packed,
    so that well-linked sets stay whole for other pods. No default requests a share: only the administrator knows
    whether GPUs are shared.
    """

    tensor_parallel: NameOrWords = "nvlink"
    pipeline_parallel: NameOrWords = msgspec.field(default_factory=lambda: {"preferred": "nvlink,same-numa"})
    data_parallel: NameOrWords = "best-effort"
    asynchronous: NameOrWords = "best-effort,pack"
    inference: NameOrWords = msgspec.field(default_factory=lambda: {"preferred": "nvlink,same-numa"})
    inference_small: NameOrWords = "best-effort,pack"

    def meaning(self, workload: str) -> str | dict[str, str]:
        """Return the policy's name, or the annotations, that a value of ``workload`` stands for.

        The section ``workloads`` of the policies file defines them.
        """
        found: str | dict[str, str] = getattr(self, workload.replace("-", "_"))
        return found


WORKLOADS: Final = tuple(field.encode_name for field in msgspec.structs.fields(Workloads))


class Weights(Section, frozen=True):
    """The weights by which the allocator chooses among sets of equal bandwidth; see the allocator's ``Weights``."""

    nvlink: Weight = request.Weights().nvlink
    pcie: Weight = request.Weights().pcie
    numa: Weight = request.Weights().numa
    memory: Weight = request.Weights().memory
    power: Weight = request.Weights().power
    price: Weight = request.NodeWeights().price
    utilisation: SignedWeight = request.NodeWeights().utilisation


class Nccl(Section, frozen=True):
    """Settings about NCCL in this cluster.

    Attributes:
        version: The NCCL version that most containers have; empty if it is not known.
        servers: For nodes that are virtual machines, the profile of the physical server, by the node's label of the
            instance type.
        tuning: Where the driver takes NCCL's tuning variables from: a profile's name, ``auto`` for the profile that
            fits the machine, or empty for none. Variables that the pod's author sets override them.
    """

    version: Version = ""
    servers: Annotated[
        dict[InstanceType, str],
        Meta(max_length=MOST_NAMES, description="pairs of instance type and profile, as p5.48xlarge: hgx-h100"),
    ] = {}
    tuning: Literal["", "auto", "multinode", "nvlink", "nvswitch", "pcie"] = ""


class Network(Section, frozen=True):
    """Settings about the network between nodes.

    Attributes:
        levels: Label keys of nodes that name the switch, block or zone above each node, nearest first. If empty, the
            driver looks for well-known labels (``topology.network_levels``).
        gbps: The bandwidth of each level for one node, in one direction, GB/s, by the level's label key. The key
            ``cluster`` is for the network above all levels.
    """

    levels: Annotated[
        tuple[LabelKey, ...], Meta(max_length=MOST_LEVELS, description="a list of label keys, nearest first")
    ] = ()
    gbps: Annotated[
        dict[LabelKey, Gbps],
        Meta(max_length=MOST_LEVELS + 1, description="pairs of label key and GB/s, as example.com/spine: 200"),
    ] = {}


class Spot(Section, frozen=True):
    """Labels of spot nodes, which their provider can take away at any time.

    These labels are used in addition to the well-known labels in ``node_maintenance.SPOT_LABELS``.

    Attributes:
        labels: A node with any of these labels is a spot node.
    """

    labels: Annotated[
        dict[LabelKey, LabelValue], Meta(max_length=32, description='labels, as {example.com/spot: "yes"}')
    ] = {}


class Nics(Section, frozen=True):
    """Settings about NICs that other drivers allocate (``api.vocabulary.nic_requests``).

    Attributes:
        classes: The short name of the NIC driver for each DeviceClass. The classes in the drivers' own manifests are
            built in and need no entry.
    """

    classes: Annotated[
        dict[ClassName, NicWord],
        Meta(max_length=MOST_NAMES, description="pairs of a DeviceClass and dranet or sriov, as rail-nics: dranet"),
    ] = {}

    @property
    def every(self) -> Mapping[str, str]:
        """Return the short name of the NIC driver for each DeviceClass, including the built-in classes."""
        return {**nic_requests.CLASSES, **self.classes}


class Sections(Section, frozen=True):
    """A whole policies file.

    ``schedulers`` are names that manifests contain as ``schedulerName`` although no such scheduler exists. The two
    defaults come from articles about GPU scheduling. ``xids`` overrides the node agent's own table of how a GPU is
    treated after an XID, an error of NVIDIA's kernel driver.
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
        known: False if there is a policies file and no valid version of it was ever read. Then the settings of GPUs and
            the policies and workloads that administrators define are unknown. The defaults do not replace them.
        digest: A hash of the file's text; 0 without a file. 48 bits, so that a metric can hold it.
    """

    known: bool = True
    digest: int = 0

    def __hash__(self) -> int:
        return self.digest

    @property
    def fingerprint(self) -> str:
        """Return the digest, a hash of the policies file, in the form that logs and ``gputopo verify`` show."""
        return f"{self.digest:012x}"

    @property
    def preference(self) -> request.Weights:
        """Return the weights of the policies in the form that the allocator uses."""
        own = msgspec.structs.asdict(self.weights)
        price, utilisation = own.pop("price"), own.pop("utilisation")
        if not (price and self.prices.gpus) and not utilisation:
            return request.Weights(**own)
        prices = tuple((glob, one.per_hour) for one in self.prices.gpus for glob in one.products or ("*",))
        return request.NodeWeights(**own, price=price, utilisation=utilisation, prices=prices)


DEFAULTS: Final = Policies()
UNKNOWN: Final = Policies(known=False)


def plain(policies: Policies) -> Mapping[str, Any]:
    """Return the policies in force as JSON with the structure of a policies file, including all defaults."""
    sections = msgspec.to_builtins(policies)
    return {field.encode_name: sections[field.encode_name] for field in msgspec.structs.fields(Sections)}
