"""GPUs whose parts are of one namespace at a time, which kube-scheduler does not know of.

The controller keeps it where it chooses. What the scheduler fills by itself, a claim of anybody's own or one of a pod
that it places alone, says that it keeps off such GPUs, or is refused.
"""

from __future__ import annotations

from typing import Final

from dradriver.api.base import names
from dradriver.api.policies.policy_sections import Policies

ELSEWHERE: Final = f'!has(device.attributes["{names.ATTRIBUTE_DOMAIN}"].exclusiveTo)'
"""A selector, as CEL, of a claim that keeps off such GPUs."""


def some(policies: Policies, *, sliced: bool) -> bool:
    """Return whether policies have GPUs whose shares, or if ``sliced`` MIG slices, are exclusive to one namespace."""
    return any(rule.exclusive_to for rule in policies.gpus if (rule.shared == "none") is sliced)


def every(policies: Policies) -> bool:
    """Return whether the policies share GPUs, and all of these are exclusive to one namespace at a time."""
    own = [rule.exclusive_to for rule in policies.gpus if rule.shared != "none"]
    return bool(own) and all(own)
