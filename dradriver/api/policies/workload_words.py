"""Replaces a pod's annotations ``workload`` and ``policy`` by the annotations that they stand for.

The policies file defines what each value of the two annotations stands for. The pod's own annotations override those of
its policy, and the policy's override those of its workload. An exception is ``required``: the values from all of them
are added together. For example, a policy that requires NVLink still requires it if the pod's own ``required`` names
something else.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

from dradriver.allocator.set_policies import POLICIES
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.policies.policy_sections import WORKLOADS, Policies
from dradriver.api.vocabulary import annotation_words, messages, values
from dradriver.api.vocabulary.annotation_words import About, Word
from dradriver.api.vocabulary.messages import shown


def _later(word: Word) -> bool:
    """Return whether an annotation is about a gang, so that a policy cannot contain it."""
    return word.about is About.GANG


WORDS: Final = tuple(word.name for word in annotation_words.EVERY if word.of_policies and not _later(word))
"""What a policy or workload may say: what a pod may, but who it is itself, and which GPUs its containers have."""
LATER: Final = tuple(word.name for word in annotation_words.EVERY if word.of_policies and _later(word))
"""Words that a later release reads. A file may have them; a pod that names such a policy is refused until then, for
without them it would get something else than the policy promises."""


class SpelledOut:
    """A pod's annotations, with ``workload`` and ``policy`` replaced by what they stand for.

    Args:
        said: The pod's own annotations.
        policies: The policies in force.

    Attributes:
        own: The pod's own annotations without ``workload`` and ``policy``.
        by_policy: The annotations that its policy stands for; empty without one.

    Raises:
        WordError: There is no such workload or policy, or the policies file is not known. Or the policy needs an
            annotation that is not available yet, or its strategy contradicts the pod's own.
    """

    def __init__(self, said: Mapping[str, str], policies: Policies) -> None:
        self._policies = policies
        self.own = {key: text for key, text in said.items() if key not in (names.WORKLOAD, names.POLICY)}
        self._workload = _of_workload(said[names.WORKLOAD], policies) if names.WORKLOAD in said else {}
        self._has_policy = names.POLICY in said
        self.by_policy = _of_policy(said[names.POLICY], policies) if self._has_policy else {}
        mine = self.own.get(names.STRATEGY)
        if "," in said.get(names.POLICY, "") and mine is not None:
            strategy = values.strategy(self.by_policy[names.STRATEGY])
            if values.strategy(mine) not in (None, strategy):
                raise messages.contradicts(names.STRATEGY, mine, names.POLICY)

    @functools.cached_property
    def by_workload(self) -> dict[str, str]:
        """Return the annotations that the pod's workload stands for; empty without a workload.

        A workload can stand for a policy. Then the result has the annotations of that policy, and ``texts`` ignores
        them if the pod names a policy itself.

        Raises:
            WordError: The workload's policy needs an annotation that is not available yet.
        """
        meant = self._workload
        return _of_policy(meant, self._policies) if isinstance(meant, str) else meant

    def texts(self, *, policy: bool = True, workload: bool = True) -> dict[str, str]:
        """Return a pod's annotations, with ``workload`` and ``policy`` replaced by their annotations.

        Args:
            policy: Whether to include the pod's policy.
            workload: Whether to include its workload.

        Raises:
            WordError: The workload's policy needs an annotation that is not available yet.
        """
        # A pod's policy replaces that of its workload, and stands above the workload's other annotations.
        is_replaced = policy and self._has_policy and isinstance(self._workload, str)
        by_workload = self.by_workload if workload and not is_replaced else {}
        return _above(self.own, _above(self.by_policy if policy else {}, by_workload))


def _above(upper: Mapping[str, str], lower: Mapping[str, str]) -> dict[str, str]:
    if any(key in upper for key in annotation_words.OF_PARTS):  # together they say one thing
        lower = {key: text for key, text in lower.items() if key not in annotation_words.OF_PARTS}
    together = {**lower, **upper}
    if names.REQUIRED in upper and names.REQUIRED in lower:
        together[names.REQUIRED] = f"{lower[names.REQUIRED]},{upper[names.REQUIRED]}"
    return together


def _of_workload(text: str, policies: Policies) -> str | dict[str, str]:
    """Return the policy, or else the annotations, that a workload stands for."""
    if text not in WORKLOADS:
        raise messages.not_one_of(names.WORKLOAD, text, WORKLOADS)
    if not policies.known:
        raise _unknown(names.WORKLOAD, text)
    meant = policies.workloads.meaning(text)
    return meant if isinstance(meant, str) else _annotated(meant, f"{names.WORKLOAD}: {shown(text)}")


def _of_policy(text: str, policies: Policies) -> dict[str, str]:
    """Return the annotations that a policy stands for.

    The text can name a strategy after a comma, which is included: ``nvlink,pack``.
    """
    name, comma, rest = (part.strip() for part in text.partition(","))
    meant = _of_name(name, text, policies)
    if comma:
        strategy = values.strategy(rest)
        if strategy is None:
            raise messages.no_policy(names.POLICY, text, policies.policies)
        meant[names.STRATEGY] = strategy.value
    return meant


def _of_name(name: str, text: str, policies: Policies) -> dict[str, str]:
    if name in POLICIES and name not in policies.policies:
        constraints = ",".join(POLICIES[name])
        return {names.REQUIRED: constraints} if constraints else {}
    if not policies.known:
        raise _unknown(names.POLICY, text)
    if name not in policies.policies:
        raise messages.no_policy(names.POLICY, text, policies.policies)
    return _annotated(policies.policies[name], f"{names.POLICY}: {shown(name)}")


def _annotated(meant: Mapping[str, str], named_policy: str) -> dict[str, str]:
    not_available = [word for word in meant if word in LATER]
    if not_available:
        raise WordError(
            f"{named_policy} contains {', '.join(not_available)}, which is not available yet. Choose another policy, "
            f"or remove it."
        )
    return {names.PREFIX + word: value for word, value in meant.items()}


def _unknown(key: str, text: str) -> WordError:
    return WordError(
        f"{key}: the meaning of {shown(text)} is in the policies file, which is invalid or cannot be read now. Ask an "
        f"administrator to correct it (gputopo policies check), or write a built-in policy: {', '.join(POLICIES)}."
    )
