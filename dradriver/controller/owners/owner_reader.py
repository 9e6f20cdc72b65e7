"""How many pods a gang has, read from the object that makes them, for as long as the gang waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.claims.pins import Key
from dradriver.api.gangs import gang_size_of_owner
from dradriver.api.gangs.gang_annotations import Size
from dradriver.api.gangs.gang_owners import Alone, Owner
from dradriver.api.gangs.suspendable_owners import grant, shown
from dradriver.api.vocabulary import messages
from dradriver.controller.owners.owner_kinds import OwnerKinds
from dradriver.errors import DriverError
from dradriver.kube import codec
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.resources import Resource
from dradriver.kube.workqueue import WorkQueue

logger = logging.getLogger(__name__)

AGAIN_S: Final = 10.0  # between two readings of an object
MOST_A_SECOND: Final = 20  # objects that are read again; where more are waited for, each is read less often
ANSWER_S: Final = 5.0  # a server that needs longer, for somebody's conversion webhook, is asked later
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
MOST_BYTES: Final = 2**20  # of an object; what is longer is decoded for nobody

Answer: TypeAlias = Size | Alone | WordError
"""What an object says; an error says why it says nothing, and what to write."""

_WRITE: Final = f"write how many pods the gang has as {names.GANG_SIZE}"


class _Entry:
    """An owner that is read.

    Attributes:
        owner: The owner.
        workloads: The gangs that wait for its answer.
        answer: Its last answer; None before the first one.
        retries: How often it tries each index again; None if not known.
    """

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.workloads: dict[Key, None] = {}
        self.answer: Answer | None = None
        self.retries: int | None = None


class OwnerReader:
    """Reads objects: those of a namespace one after another, so that its many or fat ones are its own."""

    def __init__(
        self,
        client: Client,
        kinds: OwnerKinds,
        *,
        waits: Callable[[Key], bool],
        touch: Callable[[Key], None],
        may_not: Callable[[str, str], str] | None = None,
    ) -> None:
        """Begin with nothing read.

        Args:
            client: The API server.
            kinds: The versions in which the server has kinds of owners.
            waits: Returns whether a gang has not started or is not complete. Only then its size is needed.
            touch: Called with a gang when the answer of its owner has changed.
            may_not: Returns the message for an owner that may not be read, from its kind and its name for messages.
                None for a message about the controller's permissions.
        """
        self._client, self._kinds = client, kinds
        self._may_not = may_not or _controller_may_not
        self._waits, self._touch = waits, touch
        self._entries: dict[Key, _Entry] = {}
        self._rounds = WorkQueue(self._work, pause_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)

    def size(self, workload: Key, owner: Owner) -> Answer | None:
        """Return a gang's size by its owner; None while that is being read.

        As long as the gang waits the object is read again now and then, for its author may change the number.
        """
        key = _key(workload, owner)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(owner)
            self._rounds.put(key)
        entry.workloads[workload] = None
        return entry.answer

    def retries(self, workload: Key, owner: Owner) -> int | None:
        """Return how often a gang's owner tries each index again, as read for ``size``; None if it is not known."""
        entry = self._entries.get(_key(workload, owner))
        return None if entry is None else entry.retries

    async def run(self) -> None:
        """Read the owners that are wanted until cancelled; what cannot be read is tried again after a pause."""
        for key in self._entries:  # what was under way when this was cancelled before
            self._rounds.done(key)
            self._rounds.put(key)
        await self._rounds.run()

    async def read(self) -> bool:
        """Read all owners that are wanted now, pauses or not. Returns whether any has news."""
        return any([await self._read(key) for key in list(self._entries)])

    def __len__(self) -> int:
        """Return how many objects are kept."""
        return len(self._entries)

    async def _work(self, key: Key) -> None:
        await self._read(key)
        entry = self._entries.get(key)
        if entry is None:
            self._rounds.done(key)
            return
        if isinstance(entry.answer, _TroubleError):
            self._rounds.fail(key)
            return
        self._rounds.done(key)
        pause_s = max(AGAIN_S, len(self._entries) / MOST_A_SECOND)
        self._rounds.put_at(key, asyncio.get_running_loop().time() + pause_s)

    async def _read(self, key: Key) -> bool:
        """Read an owner if a gang still waits for it. Return whether its answer has changed."""
        entry = self._entries[key]
        entry.workloads = {workload: None for workload in entry.workloads if self._waits(workload)}
        if not entry.workloads:
            del self._entries[key]
            return False
        answer = await self._answer(key[0], entry)
        has_answer = entry.answer is not None and not isinstance(entry.answer, _TroubleError)
        # If the server is in trouble, the last answer is most likely still true.
        if isinstance(answer, _TroubleError) and has_answer:
            return False
        if _same(answer, entry.answer):
            return False
        entry.answer = answer
        for workload in entry.workloads:
            self._touch(workload)
        return True

    async def _answer(self, namespace: str, entry: _Entry) -> Answer:
        """Read an owner; return the size of its gang, or why it is unknown.

        This also sets ``entry.retries``. An error that is returned is written on the pods. After a ``_TroubleError``
        the owner is read again soon, with a growing pause; after any other answer every ``AGAIN_S``.
        """
        owner = entry.owner
        owner_text = shown(owner.kind, owner.name)  # for messages
        if owner.kind not in gang_size_of_owner.OBJECTS:
            return WordError(f"{owner_text}: how many pods such an object has is not known: {_WRITE}")
        resource: Resource | None = None
        try:
            async with asyncio.timeout(ANSWER_S):
                # The API resource in the version that the server has; None if it has no such kind.
                resource = await self._kinds.resource(owner.kind, owner.api_version)
                if resource is None:
                    return _unread(owner, _not_served(owner.kind, owner_text))
                raw = await self._client.get(resource, owner.name, namespace=namespace, type=msgspec.Raw)
            # Any user can make a large object, and decoding it would block the event loop.
            if len(memoryview(raw)) > MOST_BYTES:
                return WordError(f"{owner_text} is longer than {MOST_BYTES} bytes, which nobody reads: {_WRITE}")
            document = codec.decode(raw, dict)
            size = gang_size_of_owner.size_from(owner, document)
            entry.retries = gang_size_of_owner.retries_from(owner, document)
            return size
        except WordError as error:  # the object has no number of pods in the expected form or range
            return error
        except (codec.BadJson, ValueError) as error:  # ValueError: the name cannot be part of a URL
            return WordError(f"{owner_text} cannot be read: {messages.shown(str(error))}: {_WRITE}")
        except (ApiError, Unreachable, TimeoutError) as error:
            if isinstance(error, ApiError) and error.not_found:
                return _unread(owner, _absent(owner.kind, owner_text))
            if isinstance(error, ApiError) and error.forbidden:
                return _unread(owner, self._may_not(owner.kind, owner_text))
            error_text = str(error) if isinstance(error, DriverError) else f"no answer in {ANSWER_S:g} s"
            logger.warning("%s of namespace %s cannot be read: %s; trying again", owner_text, namespace, error_text)
            return _TroubleError(f"{owner_text} cannot be read just now: trying again; or {_WRITE}")


class _TroubleError(WordError):
    """The server gave no answer: that says nothing of the object."""


def _unread(owner: Owner, why: str) -> Answer:
    """Return the answer for an owner that is not there, or may not be read.

    The PodGroup that the Job controller made is then none: every Job has one, and hardly any of them asks for a gang.
    """
    return Alone(why=why) if owner.by_job else WordError(why)


def _key(workload: Key, owner: Owner) -> Key:
    # A name may be any text, so a plain separator would let two objects be taken for one.
    return workload[0], msgspec.json.encode(owner).decode()


def _same(one: Answer, other: Answer | None) -> bool:
    """Return whether two answers are alike: errors are by what they say."""
    if isinstance(one, WordError) and isinstance(other, WordError):
        return type(one) is type(other) and str(one) == str(other)
    return one == other


def _controller_may_not(kind: str, one: str) -> str:
    return f"the controller may not read {one}: {_WRITE}, or {grant(kind, 'read')}"


def _not_served(kind: str, one: str) -> str:
    if kind == "PodGroup":
        return (
            f"the cluster has no PodGroups, so {one} is none: turn on Kubernetes' feature gate GenericWorkload and its "
            f"API, or remove schedulingGroup and {_WRITE}"
        )
    return f"the cluster has no objects of the kind of {one}: {_WRITE}"


def _absent(kind: str, one: str) -> str:
    return f"{one} is not there: create it" if kind == "PodGroup" else f"{one} is not there: create it, or {_WRITE}"
