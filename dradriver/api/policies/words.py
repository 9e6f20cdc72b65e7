"""A pod's words with what ``workload`` and ``policy`` stand for in their place.

What a pod says itself stands above its policy, and that above its workload: each is asked only for words that those
before it do not say. But ``required`` adds up, as it always did beside a built-in policy: a policy's name must never
promise NVLink and a second word quietly take it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dradriver.allocator.policies import POLICIES
from dradriver.api import messages, names, values
from dradriver.api.errors import WordError
from dradriver.api.messages import shown
from dradriver.api.policies.model import WORKLOADS, Policies

# What a policy or workload may say: what a pod may, but who it is itself, and which GPUs its containers have.
WORDS: Final = tuple(
    key.removeprefix(names.PREFIX)
    for key in names.WISHES
    if key not in (names.POLICY, names.WORKLOAD, names.GPUS, names.CLAIM, names.SHARED_CLAIM)
)  # fmt: skip
# Words that a later release reads. A file may have them; a pod that names such a policy is refused until then, for
# without them it would get something else than the policy promises.
LATER: Final = tuple(
    word
    for word in (
        "share", "memory", "cores", "mig-profile", "min-driver", "min-cuda", "placement", "when-full", "idle-timeout",
        "gang", "gang-size", "max-nodes", "min-gpus-per-node", "min-network-bandwidth", "multi-node-policy",
    )
    if names.PREFIX + word not in names.WISHES
)  # fmt: skip

_PART: Final = (names.SHARE, names.SHARE_MEMORY, names.SHARE_CORES, names.MIG_PROFILE)


def spelled_out(words: Mapping[str, str], policies: Policies) -> dict[str, str]:
    """Return a pod's words, by their annotations, without ``workload`` and ``policy``.

    Args:
        words: The pod's own words.
        policies: The policies in force.

    Raises:
        WordError: There is no such workload or policy, it needs what is not there yet, the file is not known, or the
            strategy behind the policy's comma contradicts the pod's own.
    """
    own = dict(words)
    workload = own.pop(names.WORKLOAD, None)
    below = {} if workload is None else _of_workload(workload, policies)
    by_workload = below.pop(names.POLICY, None)
    text = own.pop(names.POLICY, by_workload)
    if text is None:
        return _above(own, below)
    name, comma, rest = (part.strip() for part in text.partition(","))
    said = _of_policy(name, text, policies)
    if comma:
        strategy = values.strategy(rest)
        if strategy is None:
            raise messages.no_policy(names.POLICY, text, policies.policies)
        mine = own.get(names.STRATEGY)
        if names.POLICY in words and mine is not None and values.strategy(mine) not in (None, strategy):
            raise messages.contradicts(names.STRATEGY, mine, names.POLICY)
        said[names.STRATEGY] = strategy.value
    return _above(own, _above(said, below))


def _above(upper: Mapping[str, str], lower: Mapping[str, str]) -> dict[str, str]:
    if any(key in upper for key in _PART):  # together they say one thing
        lower = {key: text for key, text in lower.items() if key not in _PART}
    found = {**lower, **upper}
    if names.REQUIRED in upper and names.REQUIRED in lower:
        found[names.REQUIRED] = f"{lower[names.REQUIRED]},{upper[names.REQUIRED]}"
    return found


def _of_workload(text: str, policies: Policies) -> dict[str, str]:
    if text not in WORKLOADS:
        raise messages.not_one_of(names.WORKLOAD, text, WORKLOADS)
    if not policies.known:
        raise _unknown(names.WORKLOAD, text)
    meant = policies.workloads.meaning(text)
    if isinstance(meant, str):
        return {names.POLICY: meant}
    return _annotated(meant, f"{names.WORKLOAD}: {shown(text)}")


def _of_policy(name: str, text: str, policies: Policies) -> dict[str, str]:
    if name in POLICIES:
        constraints = ",".join(POLICIES[name])
        return {names.REQUIRED: constraints} if constraints else {}
    if not policies.known:
        raise _unknown(names.POLICY, text)
    if name not in policies.policies:
        raise messages.no_policy(names.POLICY, text, policies.policies)
    return _annotated(policies.policies[name], f"{names.POLICY}: {shown(name)}")


def _annotated(words: Mapping[str, str], who: str) -> dict[str, str]:
    later = [word for word in words if word in LATER]
    if later:
        raise WordError(f"{who} says {', '.join(later)}, which is not available yet; write another, or none")
    return {names.PREFIX + word: value for word, value in words.items()}


def _unknown(key: str, text: str) -> WordError:
    return WordError(
        f"{key}: what {shown(text)} means is for the policies file to say, which cannot be read now: have an "
        f"administrator correct it (gputopo policies check), or write a built-in policy: {', '.join(POLICIES)}"
    )
