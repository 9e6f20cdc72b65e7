"""Values of annotations that are figures or names of GPU kinds, as the allocator takes them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dradriver.allocator.policies import POLICIES
from dradriver.allocator.request import Strategy
from dradriver.api import names
from dradriver.api.errors import WordError
from dradriver.api.quantity import whole

_RATE: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)\s*(?:GB/s)?", re.ASCII)
_ARCHITECTURE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,39}", re.ASCII)
# What names of products are made of, and globs; no quotes, which would be somebody's way out of a string.
_PRODUCT: Final = re.compile(r"[A-Za-z0-9 ._,()/+*?!\[\]-]{1,100}", re.ASCII)
_MIB: Final = 1 << 20


def read(wishes: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a Request that these annotations give; no field for an annotation that is not there.

    Raises:
        WordError: A value that is none.
    """
    readers = {
        names.MIN_BANDWIDTH: ("min_bandwidth_gbps", rate_gbps),
        names.MIN_BUSBW: ("min_busbw_gbps", rate_gbps),
        names.PRODUCT: ("product", _product),
        names.ARCHITECTURE: ("architecture", _architecture),
        names.MIN_MEMORY: ("min_memory_mib", _memory_mib),
        names.MAX_CROSS_NVSWITCH: ("max_cross_nvswitch_gpus", _few),
        names.PREFER_SAME_NUMA: ("prefer_same_numa", flag),
    }
    return {field: reader(key, wishes[key]) for key, (field, reader) in readers.items() if key in wishes}


def policy(text: str) -> tuple[str, Strategy | None]:
    """Return the two halves of ``nvlink,pack``: what the set must be, and which of equally good ones.

    Raises:
        WordError: A word that is neither.
    """
    words = [word.strip() for word in text.split(",")]
    if words[0] not in POLICIES or len(words) > 2 or (len(words) == 2 and words[1] not in list(Strategy)):
        raise WordError(
            f"{names.POLICY}: {shown(text)} is not allowed; write one of {', '.join(POLICIES)}, and after a comma "
            f"one of {', '.join(Strategy)} if you like{hint(words[0], POLICIES)}"
        )
    return words[0], Strategy(words[1]) if len(words) == 2 else None


def strategy(key: str, text: str) -> Strategy:
    """Return a strategy.

    Raises:
        WordError: Not one of the four.
    """
    if text.strip() not in list(Strategy):
        raise WordError(
            f"{key}: {shown(text)} is not allowed; write one of {', '.join(Strategy)}{hint(text, Strategy)}"
        )
    return Strategy(text.strip())


def rate_gbps(key: str, text: str) -> float:
    """Return a bandwidth in GB/s: ``100`` or ``100GB/s``.

    Raises:
        WordError: Anything else; bits and other powers would be misread.
    """
    found = _RATE.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise WordError(f"{key}: {shown(text)} is no bandwidth; write a number of GB/s above zero, as 100 or 100GB/s")
    return float(found[1])


def flag(key: str, text: str) -> bool:
    """Return ``true`` or ``false``.

    Raises:
        WordError: Anything else.
    """
    if text not in ("true", "false"):
        raise WordError(f"{key}: {shown(text)} is not allowed; write one of true, false")
    return text == "true"


def hint(word: str, allowed: Iterable[str]) -> str:
    """Return `` (did you mean nvlink?)`` where an allowed word is near, else nothing."""
    near = difflib.get_close_matches(word[:64], list(allowed), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def shown(text: str) -> str:
    """Return text from a pod in quotes: bounded, and without control characters that would forge lines of a log."""
    return repr(text if len(text) <= 64 else text[:61] + "...")


def _product(key: str, text: str) -> str:
    if _PRODUCT.fullmatch(text) is None:
        raise WordError(
            f"{key}: {shown(text)} is no product; write the full name as nvidia-smi -L gives it, or a glob, as "
            f"NVIDIA A100*"
        )
    return text


def _architecture(key: str, text: str) -> str:
    if _ARCHITECTURE.fullmatch(text.strip()) is None:
        raise WordError(f"{key}: {shown(text)} is no architecture; write one word, as hopper")
    return text.strip()


def _memory_mib(key: str, text: str) -> int:
    try:
        size = whole(text.strip())
    except WordError as error:
        raise WordError(f"{key}: {error}") from None
    if size < _MIB:
        raise WordError(f"{key}: {shown(text)} is less than 1Mi; write the memory of one GPU, as 40Gi")
    return -(-size // _MIB)


def _few(key: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 2):
        raise WordError(f"{key}: {shown(text)} is no count of GPUs; write a whole number from 0 to 99")
    return int(text)
