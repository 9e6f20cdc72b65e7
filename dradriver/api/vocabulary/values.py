"""Values of annotations as the allocator takes them. A reader takes any text, and returns None for one that is none."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from dradriver.allocator.request import Constraint, Strategy
from dradriver.allocator.set_policies import LINKED
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.base.quantity import whole
from dradriver.topology.identifiers import is_mig_profile
from dradriver.topology.versions import numbers

MOST_GPUS: Final = 32  # AllocationResultsMaxSize of resource.k8s.io/v1
MOST_MEMORY_MIB: Final = 1 << 30  # a pebibyte: more than any GPU has, and safe in every integer that it becomes

CONSTRAINTS: Final = {word.value: word for word in Constraint} | {
    "nvlink-domain": Constraint.NVLINK,
    LINKED: Constraint.NVLINK,
}
STRATEGIES: Final = {word.value: word for word in Strategy}
NCCL_AUTO: Final = "auto"
NEAR_NICS: Final = "near-nics"
NCCL: Final = (NCCL_AUTO, "file", "env", NEAR_NICS, "off")
ANY_NODE, PREFER_SPOT, AVOID_SPOT = "any", "prefer", "avoid"
SPOT: Final = (ANY_NODE, PREFER_SPOT, AVOID_SPOT)
PLACED, STATIC = PLACEMENTS = ("placed", "static")  # who chooses: the controller, or the scheduler alone
WAIT, HAND_OVER = WHEN_FULL = ("wait", "hand-over")  # what a pod does that finds no place
REPLACE, RESTART = ON_MEMBER_LOSS = ("replace", "restart")  # what becomes of a gang that loses a pod
MOST_PODS: Final = 9999  # of a gang; or nodes
FLAGS: Final = {"true": True, "false": False}

_RATE: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)\s*(?:GB/s)?", re.ASCII)
_ARCHITECTURE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,39}", re.ASCII)
# What names of products are made of, and globs; no quotes, which would be somebody's way out of a string.
_PRODUCT: Final = re.compile(r"[A-Za-z0-9 ._,()/+*?!\[\]-]{1,100}", re.ASCII)
LABEL: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_LABEL: Final = re.compile(LABEL, re.ASCII)
_SHARE: Final = re.compile(r"0?\.([0-9]{1,2})0{0,9}", re.ASCII)
_WHOLE: Final = re.compile(r"[0-9]{1,4}", re.ASCII)
_DURATION: Final = re.compile(r"(?=[0-9])(?:([0-9]{1,4})h)?(?:([0-9]{1,4})m)?(?:([0-9]{1,4})s)?", re.ASCII)
_PODS: Final = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", re.ASCII)
_NEAR: Final = re.compile(rf"(?:(required|preferred) +)?(?!(?:required|preferred)$)({LABEL})", re.ASCII)
_MIB: Final = 1 << 20


class Near(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which level of the network is to hold all pods of a gang.

    Attributes:
        level: Its name.
        preferred: Whether a wider one will do where none of these has room.
    """

    level: str
    preferred: bool = False


def strategy(text: str) -> Strategy | None:
    """Return the value of the annotation ``strategy``: which of equally good sets is taken."""
    return STRATEGIES.get(text.strip())


def flag(text: str) -> bool | None:
    """Return the annotation value ``true`` or ``false``."""
    return FLAGS.get(text)


def nccl(text: str) -> str | None:
    """Return the annotation value about NCCL: ``auto``, ``file``, ``env``, ``near-nics`` or ``off``."""
    return text if text in NCCL else None


def rate_gbps(text: str) -> float | None:
    """Return the value of an annotation that is a bandwidth in GB/s above zero: ``100`` or ``100GB/s``.

    Bits and other powers would be misread.
    """
    match = _RATE.fullmatch(text.strip())
    return float(match[1]) or None if match is not None else None


def memory_mib(text: str) -> int | None:
    """Return the value of an annotation that is an amount of a GPU's memory, from ``1Mi`` on, in MiB, rounded up."""
    try:
        size = whole(text.strip())
    except WordError:
        return None
    return -(-size // _MIB) if _MIB <= size <= MOST_MEMORY_MIB * _MIB else None


def product(text: str) -> str | None:
    """Return the value of an annotation that is a product's full name, or a glob of such names."""
    return text if _PRODUCT.fullmatch(text) else None


def architecture(text: str) -> str | None:
    """Return the value of an annotation that is the name of a GPU architecture: ``hopper``."""
    return text.strip() if _ARCHITECTURE.fullmatch(text.strip()) else None


def version(text: str) -> str | None:
    """Return the value of an annotation that is a version of a driver or of CUDA: ``580``, ``580.95.05``, ``12.4``."""
    return text.strip() if numbers(text.strip()) is not None else None


def share(text: str) -> int | None:
    """Return the value of an annotation that is a share of a GPU, in percent: ``0.5`` is 50."""
    match = _SHARE.fullmatch(text.strip())
    return int(match[1].ljust(2, "0")) or None if match is not None else None


def percent(text: str) -> int | None:
    """Return the value of an annotation that is a whole percentage from 1 to 100."""
    count = natural(text.strip())
    return count if count is not None and 1 <= count <= 100 else None


def mig_profile(text: str) -> str | None:
    """Return the value of an annotation that is the name of a MIG profile: ``1g.10gb``.

    Profiles are those of GPU instances, with slices and memory both.
    """
    return text.strip() if is_mig_profile(text.strip()) else None


def duration_s(text: str) -> int | None:
    """Return the value of an annotation that is a duration of at least a second, in seconds: ``30m`` is 1800."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return 3600 * hours + 60 * minutes + seconds or None


def label(text: str) -> str | None:
    """Return the value of an annotation that is a DNS label (RFC 1123)."""
    return text if _LABEL.fullmatch(text) else None


def set_name(text: str) -> str | None:
    """Return the value of an annotation that is the name of a claim that several pods share.

    It is a DNS label, and none of those that the driver makes up.
    """
    return text if label(text) and not text.startswith(names.CLAIM_PREFIX) else None


def gpu_count(text: str) -> int | None:
    """Return the value of an annotation that is a number of GPUs from 1 to 32."""
    count = natural(text)
    return count if count is not None and 1 <= count <= MOST_GPUS else None


def many(text: str) -> int | None:
    """Return the value of an annotation that is a number of pods or nodes from 1 to 9999."""
    count = natural(text)
    return count if count is not None and 1 <= count <= MOST_PODS else None


def pods(text: str) -> int | tuple[int, int] | None:
    """Return the value of an annotation that says how many pods a gang has: ``8``; ``4-8`` is (4, 8).

    Such a gang starts with what there is from 4 pods on.
    """
    match = _PODS.fullmatch(text.strip())
    if match is None:
        return None
    counts = int(match[1]) if match[2] in (None, match[1]) else (int(match[1]), int(match[2]))
    return counts if are_pods(counts) else None


def are_pods(value: int | tuple[int, int]) -> bool:
    """Return whether a value is one that ``pods`` gives."""
    least, most = (value, value) if isinstance(value, int) else value
    return 1 <= least <= most <= MOST_PODS and (isinstance(value, int) or least < most)


def near(text: str) -> Near | None:
    """Return the value of an annotation that is a level of the network: ``leaf``, ``preferred leaf``.

    It is required by default.
    """
    match = _NEAR.fullmatch(text.strip())
    return None if match is None else Near(level=match[2], preferred=match[1] == "preferred")


def few(text: str) -> int | None:
    """Return the value of an annotation that is a whole number from 0 to 99."""
    count = natural(text)
    return count if count is not None and count <= 99 else None


def natural(text: str) -> int | None:
    """Return the value of an annotation that is a whole number from 0 to 9999."""
    return int(text) if _WHOLE.fullmatch(text) else None
