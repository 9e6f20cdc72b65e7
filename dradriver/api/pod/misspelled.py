"""Finds annotations and labels whose keys are similar to those of the driver, but have no effect.

The webhook and ``gputopo lint`` warn about them.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from dradriver.api.base import names
from dradriver.api.vocabulary import annotation_words
from dradriver.yamltext.value_hints import hint

MOST_KEYS: Final = 64  # of annotations and of labels are looked at

_KEY: Final = re.compile(r"(?:([A-Za-z0-9.-]{1,63})/)?([A-Za-z0-9._-]{1,63})")
_BETWEEN: Final = re.compile("[._-]")
_LETTERS: Final = tuple(_BETWEEN.sub("", prefix[:-1]) for prefix in (names.PREFIX, names.ALIAS_PREFIX))
_ALIKE: Final = 0.85  # of 1: two letters that are missing, more or swapped; topology.kubernetes.io has 0.6
_OTHERS: Final = re.compile("[a-fh-z]pu")  # CPUs and TPUs have topologies, too
_TOPOLOGY: Final = re.compile("^.*?topology[._-]?")
_WORDS: Final = annotation_words.KEYS


def warnings(annotations: Iterable[str], labels: Iterable[str] = ()) -> Iterator[str]:
    """Yield a warning for each misspelled key, and for each label that must be an annotation.

    Only the first ``MOST_KEYS`` annotations and labels are compared.

    Args:
        annotations: Keys of annotations.
        labels: Keys of labels.
    """
    for key in islice(annotations, MOST_KEYS):
        if (meant := _meant(key)) is not None:
            yield f"{key}: nothing reads this annotation. The driver's annotations begin with {names.PREFIX}{meant}."
    for key in islice(labels, MOST_KEYS):
        if key != names.LABEL and (key in _WORDS or ("/" in key and _meant(key) is not None)):
            yield (
                f"label {key}: nothing reads this label. The driver reads annotations, which begin with {names.PREFIX}."
            )


@functools.lru_cache(maxsize=1024)
def _meant(key: str) -> str | None:
    """Return a hint with the key that the author probably meant; None without a similar key.

    The result is also None if the key has a prefix of the driver.
    """
    match = _KEY.fullmatch(key)
    if match is None or names.is_ours(key):
        return None
    prefix, name = match[1] or key, match[2]
    letters = _BETWEEN.sub("", prefix.lower())
    if _OTHERS.match(letters):
        return None
    alike = any(difflib.SequenceMatcher(None, letters, ours).ratio() >= _ALIKE for ours in _LETTERS)
    # Others may call theirs gpu-topology.their.domain, so with a domain only a word of ours counts.
    told = letters.startswith(_LETTERS[0]) and (match[1] is None or names.PREFIX + name in _WORDS)
    if not (alike or told):
        return None
    return hint(names.PREFIX + (name if match[1] else _TOPOLOGY.sub("", key) or "policy"), _WORDS)
