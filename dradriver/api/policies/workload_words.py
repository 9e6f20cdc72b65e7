"""A pod's annotations with ``workload`` and ``policy`` replaced by what the policies file says they stand for.

What a pod says itself stands above its policy, and that above its workload: each is asked only for words that those
before it do not say. But ``required`` adds up, as it always did beside a built-in policy: a policy's name must never
promise NVLink and a second word quietly take it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dradriver.allocator.set_policies import POLICIES
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.policies.model import WORKLOADS, Policies
from dradriver.api.vocabulary import annotation_words, messages, values
from dradriver.api.vocabulary.annotation_words import About, Word
from dradriver.api.vocabulary.messages import shown


def _later(word: Word) -> bool:
    """Whether a policy cannot have the word yet: it says something of several pods."""
    return word.about is About.GANG


WORDS: Final = tuple(word.name for word in annotation_words.EVERY if word.of_policies and not _later(word))
"""What a policy or workload may say: what a pod may, but who it is itself, and which GPUs its containers have."""
LATER: Final = tuple(word.name for word in annotation_words.EVERY if word.of_policies and _later(word))
"""Words that a later release reads. A file may have them; a pod that names such a policy is refused until then, for
without them it would get something else than the policy promises."""


def spelled_out(said: Mapping[str, str], policies: Policies) -> dict[str, str]:
    """Return a pod's annotations with ``workload`` and ``policy`` replaced by what they stand for.

    Args:
        said: The pod's own words.
        policies: The policies in force.

    Raises:
        WordError: There is no such workload or policy, it needs what is not there yet, the file is not known, or the
            strategy behind the policy's comma contradicts the pod's own.
    """
    own = dict(said)
    workload = own.pop(names.WORKLOAD, None)
    below = {} if workload is None else _of_workload(workload, policies)
    by_workload = below.pop(names.POLICY, None)
    text = own.pop(names.POLICY, by_workload)
    if text is None:
        return _above(own, below)
    name, comma, rest = (part.strip() for part in text.partition(","))
    meant = _of_policy(name, text, policies)
    if comma:
        strategy = values.strategy(rest)
        if strategy is None:
            raise messages.no_policy(names.POLICY, text, policies.policies)
        mine = own.get(names.STRATEGY)
        if names.POLICY in said and mine is not None and values.strategy(mine) not in (None, strategy):
            raise messages.contradicts(names.STRATEGY, mine, names.POLICY)
        meant[names.STRATEGY] = strategy.value
    return _above(own, _above(meant, below))


def _above(upper: Mapping[str, str], lower: Mapping[str, str]) -> dict[str, str]:
    if any(key in upper for key in annotation_words.OF_PARTS):  # together they say one thing
        lower = {key: text for key, text in lower.items() if key not in annotation_words.OF_PARTS}
    together = {**lower, **upper}
    if names.REQUIRED in upper and names.REQUIRED in lower:
        together[names.REQUIRED] = f"{lower[names.REQUIRED]},{upper[names.REQUIRED]}"
    return together


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
    if name in POLICIES and name not in policies.policies:
        constraints = ",".join(POLICIES[name])
        return {names.REQUIRED: constraints} if constraints else {}
    if not policies.known:
        raise _unknown(names.POLICY, text)
    if name not in policies.policies:
        raise messages.no_policy(names.POLICY, text, policies.policies)
    return _annotated(policies.policies[name], f"{names.POLICY}: {shown(name)}")


def _annotated(meant: Mapping[str, str], who: str) -> dict[str, str]:
    later = [word for word in meant if word in LATER]
    if later:
        raise WordError(f"{who} says {', '.join(later)}, which is not available yet; write another, or none")
    return {names.PREFIX + word: value for word, value in meant.items()}


def _unknown(key: str, text: str) -> WordError:
    return WordError(
        f"{key}: what {shown(text)} means is for the policies file to say, which cannot be read now: have an "
        f"administrator correct it (gputopo policies check), or write a built-in policy: {', '.join(POLICIES)}"
    )
