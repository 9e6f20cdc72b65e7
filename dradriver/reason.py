"""Why a pod waits, as a value: a cause for programs, and the text that people read.

The code that knows the figures creates the reason and sets its cause. No code derives a cause from a text.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Cause(StrEnum):
    """Why a pod waits, for programs: one of a few fixed words.

    The words are also label values of the metric that counts waiting pods.
    """

    GPUS = "gpus"  # no set that it may use is free
    NEVER = "never"  # the cluster has no such set, even if it is empty
    NODES = "nodes"  # no node with GPUs can run it
    RESERVED = "reserved"  # what is free is kept for others, by a reservation, a partition or exclusiveTo
    CAP = "cap"  # the cap of its tenant, or the quota of its namespace
    GANG = "gang"  # other pods of its gang are missing, or have no place
    ENDING = "ending"  # other pods end for it
    SCHEDULER = "scheduler"  # the scheduler has not bound it
    GATE = "gate"  # another controller holds it
    STORAGE = "storage"  # a volume
    SERVER = "server"  # the API server, or a webhook of others
    POD = "pod"  # its own annotations, or a change of its claim by others


def sentences(*texts: str) -> str:
    """Return texts joined as sentences: each ends with a full stop. Empty texts are left out."""
    return " ".join(text if text.endswith((".", "!", "?")) else f"{text}." for text in texts if text)


def capitalized(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


class Reason(msgspec.Struct, frozen=True):
    """Why a pod waits, for the pod's owner, for example as the pod's annotation.

    Attributes:
        cause: The cause, for programs.
        text: The text, in sentences for people.
        stable: The same text without figures that change all the time, such as the number of free GPUs. Empty if
            ``text`` has no such figures.
    """

    cause: Cause
    text: str
    stable: str = ""

    def __str__(self) -> str:
        return self.text

    def __bool__(self) -> bool:
        return bool(self.text)

    def add(self, text: str, cause: Cause | None = None) -> Reason:
        """Return this reason with one more sentence, ``text``; an empty text adds nothing.

        If ``cause`` is given, the result has this cause. Otherwise the result has the cause of this reason.
        """
        if not text:
            return Reason(cause or self.cause, self.text, self.stable)
        stable = sentences(self.stable, text) if self.stable else ""
        return Reason(cause or self.cause, sentences(self.text, text), stable)

    @property
    def without_figures(self) -> Reason:
        """Return a copy of the reason whose ``text`` is the attribute ``stable``.

        The stable text has no figures that often change. It is for the annotation that tells the pod's owner why the
        pod waits. So the annotation is not written again for each change of a figure. If ``stable`` is empty, the
        result is this reason itself.
        """
        return Reason(self.cause, self.stable) if self.stable else self
