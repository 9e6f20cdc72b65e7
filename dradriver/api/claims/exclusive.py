"""Whether the policies have GPUs whose fractions belong to one namespace at a time.

kube-scheduler does not know this rule. The controller keeps it for the GPUs that it chooses. The scheduler fills two
kinds of claims by itself: claims that users write, and claims of pods that only the scheduler places. Such a claim must
have a selector that excludes these GPUs. Otherwise admission refuses the claim.
"""

from __future__ import annotations

from typing import Final

from dradriver.api.base import names
from dradriver.api.policies.policy_sections import Policies

ELSEWHERE: Final = f'!has(device.attributes["{names.ATTRIBUTE_DOMAIN}"].exclusiveTo)'
"""A selector, as CEL, of a claim that keeps off such GPUs."""


def some(policies: Policies, *, sliced: bool) -> bool:
    """Return whether a policy rule makes fractions exclusive to one namespace at a time.

    Args:
        policies: The policies in force.
        sliced: True to look only at rules for MIG slices, False to look only at rules for shares.
    """
    return any(rule.exclusive_to for rule in policies.gpus if (rule.shared == "none") is sliced)


def every(policies: Policies) -> bool:
    """Return whether every policy rule that shares GPUs makes them exclusive to one namespace at a time.

    False if no rule shares GPUs.
    """
    own = [rule.exclusive_to for rule in policies.gpus if rule.shared != "none"]
    return bool(own) and all(own)
