"""Functions that read the text of an annotation as a value. They accept any text; None means that it is not valid."""

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
    """The level of the network that must hold all pods of a gang.

    Attributes:
        level: Its name.
        preferred: Whether a wider level can be used if no part of the network at this level has room.
    """

    level: str
    preferred: bool = False


def strategy(text: str) -> Strategy | None:
    """Return the strategy that an annotation's text names; None if there is no such strategy.

    A strategy chooses among equally good sets of GPUs.
    """
    return STRATEGIES.get(text.strip())


def flag(text: str) -> bool | None:
    """Return True for ``true`` and False for ``false``; None for any other text."""
    return FLAGS.get(text)


def nccl(text: str) -> str | None:
    """Return the text of the annotation ``nccl`` if it is an allowed value; else None.

    Allowed are ``auto``, ``file``, ``env``, ``near-nics`` and ``off``.
    """
    return text if text in NCCL else None


def rate_gbps(text: str) -> float | None:
    """Return the bandwidth in an annotation's text, GB/s above 0; None if not valid.

    Examples are ``100`` and ``100GB/s``. Other units, such as bits, are refused, because people would misread them.
    """
    match = _RATE.fullmatch(text.strip())
    return float(match[1]) or None if match is not None else None


def memory_mib(text: str) -> int | None:
    """Return the amount of GPU memory in an annotation's text, MiB, rounded up; else None.

    None if the text is no quantity, is below ``1Mi``, or is more memory than any GPU has.
    """
    try:
        size = whole(text.strip())
    except WordError:
        return None
    return -(-size // _MIB) if _MIB <= size <= MOST_MEMORY_MIB * _MIB else None


def product(text: str) -> str | None:
    """Return an annotation's text if it can name a product; else None.

    A product's full name is valid, and so is a glob of such names.
    """
    return text if _PRODUCT.fullmatch(text) else None


def architecture(text: str) -> str | None:
    """Return the GPU architecture in an annotation's text: ``hopper``; None if not valid."""
    return text.strip() if _ARCHITECTURE.fullmatch(text.strip()) else None


def version(text: str) -> str | None:
    """Return a version of a GPU driver or of CUDA in a text; None if not valid.

    For example ``580``, ``580.95.05``, ``12.4``.
    """
    return text.strip() if numbers(text.strip()) is not None else None


def share(text: str) -> int | None:
    """Return a share of a GPU in percent: 50 for ``0.5``; None if not valid."""
    match = _SHARE.fullmatch(text.strip())
    return int(match[1].ljust(2, "0")) or None if match is not None else None


def percent(text: str) -> int | None:
    """Return the percentage in an annotation's text, from 1 to 100; None if not valid."""
    count = natural(text.strip())
    return count if count is not None and 1 <= count <= 100 else None


def mig_profile(text: str) -> str | None:
    """Return the MIG profile in an annotation's text: ``1g.10gb``; None if not valid.

    Profiles of compute instances, such as ``1c.3g.40gb``, are not accepted.
    """
    return text.strip() if is_mig_profile(text.strip()) else None


def duration_s(text: str) -> int | None:
    """Return the duration in an annotation's text, in seconds; None if not valid.

    For example, 1800 for ``30m``. The shortest duration is one second.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return 3600 * hours + 60 * minutes + seconds or None


def label(text: str) -> str | None:
    """Return an annotation's text if it is a DNS label (RFC 1123); else None."""
    return text if _LABEL.fullmatch(text) else None


def set_name(text: str) -> str | None:
    """Return the name of a shared claim in an annotation's text; None if not valid.

    Several pods share this claim. The name must be a DNS label that does not begin with ``names.CLAIM_PREFIX``: the
    driver generates such names itself.
    """
    return text if label(text) and not text.startswith(names.CLAIM_PREFIX) else None


def gpu_count(text: str) -> int | None:
    """Return a text's number of GPUs, from 1 to 32; None if not valid."""
    count = natural(text)
    return count if count is not None and 1 <= count <= MOST_GPUS else None


def many(text: str) -> int | None:
    """Return a text's number of pods or nodes, 1 to 9999; None if not valid."""
    count = natural(text)
    return count if count is not None and 1 <= count <= MOST_PODS else None


def pods(text: str) -> int | tuple[int, int] | None:
    """Return a gang's number of pods, (4, 8) for ``4-8``; None if not valid.

    A gang with ``4-8`` starts with the existing pods if there are at least 4.
    """
    match = _PODS.fullmatch(text.strip())
    if match is None:
        return None
    counts = int(match[1]) if match[2] in (None, match[1]) else (int(match[1]), int(match[2]))
    return counts if are_pods(counts) else None


def are_pods(value: int | tuple[int, int]) -> bool:
    """Return whether a value is one that ``pods`` can return."""
    least, most = (value, value) if isinstance(value, int) else value
    return 1 <= least <= most <= MOST_PODS and (isinstance(value, int) or least < most)


def near(text: str) -> Near | None:
    """Return the level of the network in an annotation's text; None if not valid.

    The level, such as ``leaf``, is required unless the text says ``preferred leaf``.
    """
    match = _NEAR.fullmatch(text.strip())
    return None if match is None else Near(level=match[2], preferred=match[1] == "preferred")


def few(text: str) -> int | None:
    """Return a text's whole number from 0 to 99; None if not valid."""
    count = natural(text)
    return count if count is not None and count <= 99 else None


def natural(text: str) -> int | None:
    """Return a text's whole number from 0 to 9999; None if not valid."""
    return int(text) if _WHOLE.fullmatch(text) else None
