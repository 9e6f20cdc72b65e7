"""Types of fields that several sections of the policies file use: bounds, choices, and forms of names.

``docs/reference/policies.md`` describes each field. The chart's values.schema.json has the same structure.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from dradriver.api.vocabulary import values
from dradriver.topology.machine import Gpu

MOST_RULES: Final = 256
MOST_NAMES: Final = 256  # of policies, nodes of a rule, instance types
MOST_NUMBER: Final = 255  # of a GPU of a machine
MOST_TENANTS: Final = 1024
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
Uuid = Annotated[
    str,
    Meta(
        pattern=r"\A[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\Z",
        description="a GPU's UUID as nvidia-smi -L gives it: GPU- and a UUID",
    ),
]
PciAddress = Annotated[
    str,
    Meta(
        # nvidia-smi writes 00000000:06:00.0, which no GPU here has.
        pattern=r"\A([1-9a-f][0-9a-f]{0,3})?[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z",
        description="a PCI address as /sys writes it, as 0000:06:00.0",
    ),
]
Weight = Annotated[float, Meta(ge=0, le=1000)]
SignedWeight = Annotated[float, Meta(ge=-1000, le=1000)]
Gbps = Annotated[float, Meta(gt=0, le=100_000)]
Factor = Annotated[float, Meta(ge=1, le=16)]
EqualShares = Annotated[int, Meta(ge=2, le=48)]  # an MPS server of Volta and later has 48 clients
DevShmMib = Annotated[int, Meta(ge=64, le=500_000)]
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
GraceSeconds = Annotated[float, Meta(ge=0, le=86_400)]
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
XidNumber = Annotated[str, Meta(pattern=r"\A[1-9][0-9]{0,4}\Z", description="an XID's or SXid's number, as 94")]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base class of the sections of the policies file.

    Sections are immutable. Their fields are in camel case in the file, and unknown fields are refused.
    """


class Gpus(Section, frozen=True, omit_defaults=True):
    """A selector of GPUs of the cluster. A GPU must match all fields that are given.

    The last three fields (``numbers``, ``uuids``, ``pci_addresses``) count as one field: a match in one of them is
    enough.

    Attributes:
        nodes: Names of nodes; any node if left out.
        node_selector: Labels that the node must all have.
        products: Full product names or globs, as in the annotation ``product``; any product if left out.
        numbers: Numbers of GPUs on their machine. These are slot numbers, which stay when other GPUs are lost.
        uuids: UUIDs of GPUs, in upper or lower case.
        pci_addresses: PCI addresses of GPUs.
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
    uuids: Annotated[
        tuple[Uuid, ...], Meta(min_length=1, max_length=MOST_NAMES, description="a list with one UUID or more")
    ] = ()
    pci_addresses: Annotated[
        tuple[PciAddress, ...], Meta(min_length=1, max_length=64, description="a list with one PCI address or more")
    ] = ()

    @property
    def names_gpus(self) -> bool:
        """Return whether a selector of GPUs names single GPUs by number, UUID or PCI address."""
        return bool(self.numbers or self.uuids or self.pci_addresses)

    def names(self, gpu: Gpu) -> bool | None:
        """Return whether a selector names this GPU by number, UUID or PCI address.

        None if that is unknown: only the number could match, and it is not known in which slot of the machine the GPU
        is.
        """
        if gpu.uuid.lower() in map(str.lower, self.uuids) or gpu.pci in self.pci_addresses:
            return True
        if self.numbers and gpu.has_slot is False:
            return None
        return gpu.index in self.numbers
