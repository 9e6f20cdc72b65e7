"""Texts for people about a request for shares or MIG slices. Refusals use them."""

from __future__ import annotations

from dradriver.allocator.choice.phrases import wanted_gpus
from dradriver.allocator.request import Amount, Mig, Share


def wanted(request: Share | Mig) -> str:
    """Return as text what a request for fractions requires: ``a share of a GPU: 50 % of architecture hopper``."""
    if isinstance(request, Share):
        each = [amount(part) for part in request.amounts]
        what = "a share of a GPU: " if len(each) == 1 else "shares of GPUs: "
    else:
        each = [profile for profiles in request.profiles for profile in profiles]
        what = "a MIG slice: " if len(each) == 1 else "MIG slices: "
    counts = {part: each.count(part) for part in each}
    what += ", ".join(part if count == 1 else f"{count} times {part}" for part, count in counts.items())
    kind = wanted_gpus(request)
    return f"{what} {kind}" if kind else what


def amount(wanted: Amount) -> str:
    """Return as text the compute and memory of a share: ``25 % and 10240 MiB``.

    The result is empty if both are 0.
    """
    return " and ".join(
        [f"{wanted.cores} %"] * bool(wanted.cores) + [f"{wanted.memory_mib} MiB"] * bool(wanted.memory_mib)
    )
