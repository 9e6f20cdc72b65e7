"""Reads how many pods a gang has from the owner of its pods, for as long as the gang waits.

``GangObserver`` and ``RunningGangs`` call it.

A gang's *size* is the number of its pods. An *index* is the number that a Job gives to each of its pods.
"""

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
AT_ONCE: Final = 16  # owners that ``read_new`` reads at the same time
MOST_BYTES: Final = 2**20  # of an object; what is longer is decoded for nobody

Answer: TypeAlias = Size | Alone | WordError
"""What an object says; an error says why it says nothing, and what to write."""

_WRITE: Final = f"write the size of the gang as {names.GANG_SIZE}."
_OR_WRITE: Final = f"Or {_WRITE}"
_ONLY_WRITE: Final = f"W{_WRITE[1:]}"


class _Entry:
    """An owner that is read to find the size of its gangs.

    Attributes:
        owner: The owner.
        workloads: The gangs whose size is read from the owner.
        answer: The size that was read last, or why it is unknown; None before the first reading.
        retries: How often the owner starts a failed pod of an index again (``backoffLimitPerIndex``); None if not
            known.
    """

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.workloads: dict[Key, None] = {}
        self.answer: Answer | None = None
        self.retries: int | None = None


class OwnerReader:
    """Reads owners of gangs, one at a time in each namespace.

    So many or large owners delay only the gangs of their own namespace.
    """

    def __init__(
        self,
        client: Client,
        kinds: OwnerKinds,
        *,
        waits: Callable[[Key], bool],
        touch: Callable[[Key], None],
        may_not: Callable[[str, str], str] | None = None,
    ) -> None:
        """Make a reader that has read no owner.

        Args:
            client: The API server.
            kinds: The versions in which the server has kinds of owners.
            waits: Returns whether a gang still needs its size: it has not started, or has unbound pods.
            touch: Called with a gang when its owner's size has changed.
            may_not: Returns the message for an owner that may not be read, given its kind and its name for messages.
                None for a message about the controller's permissions.
        """
        self._client, self._kinds = client, kinds
        self._may_not = may_not or _controller_may_not
        self._waits, self._touch = waits, touch
        self._entries: dict[Key, _Entry] = {}
        self._rounds = WorkQueue(self._work, pause_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)

    def size(self, workload: Key, owner: Owner) -> Answer | None:
        """Return a gang's size by its owner; None until the owner was read once.

        Instead of a size, the answer can be ``Alone`` (the pods are no gang), or an error that says why the size is
        unknown.

        While the gang waits, the owner is read again at intervals, because its author may change the number.
        """
        key = _key(workload, owner)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(owner)
            self._rounds.put(key)
        entry.workloads[workload] = None
        return entry.answer

    def retries(self, workload: Key, owner: Owner) -> int | None:
        """Return how often a gang's owner retries each index; None if not known.

        The number is the ``backoffLimitPerIndex`` of a Job or JobSet. ``size`` must have been called first.
        """
        entry = self._entries.get(_key(workload, owner))
        return None if entry is None else entry.retries

    async def run(self) -> None:
        """Read the requested owners until cancelled; after an error try again with a pause."""
        for key in self._entries:  # what was under way when this was cancelled before
            self._rounds.done(key)
            self._rounds.put(key)
        await self._rounds.run()

    async def read(self) -> bool:
        """Read all requested owners now, without pauses; return whether any answer has changed."""
        return any([await self._read(key) for key in list(self._entries)])

    async def read_new(self, most: int) -> None:
        """Read requested owners that were not read before, at most ``most``, first requested first."""
        unread = [key for key, entry in self._entries.items() if entry.answer is None][:most]
        for start in range(0, len(unread), AT_ONCE):
            await asyncio.gather(*map(self._read, unread[start : start + AT_ONCE]))

    def __len__(self) -> int:
        """Return the number of owners that are read for waiting gangs."""
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
        """Read an owner if a gang waits for it; return whether the size has changed."""
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
        """Read an owner; return the size of its gang, or why the size is unknown.

        A returned error is written on the pods. After a ``_TroubleError`` the caller reads the owner again soon, with
        growing pauses. After any other result it does so every ``AGAIN_S`` seconds, or less often if many owners are
        read. This method also sets ``entry.retries``.
        """
        owner = entry.owner
        owner_text = shown(owner.kind, owner.name)  # for messages
        if owner.kind not in gang_size_of_owner.OBJECTS:
            return WordError(
                f"{owner_text}: the driver does not know the number of pods of this kind of object. {_ONLY_WRITE}"
            )
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
                return WordError(
                    f"{owner_text} is larger than {MOST_BYTES} bytes, which the controller does not read. {_ONLY_WRITE}"
                )
            document = codec.decode(raw, dict)
            size = gang_size_of_owner.size_from(owner, document)
            entry.retries = gang_size_of_owner.retries_from(owner, document)
            return size
        except WordError as error:  # the object has no number of pods in the expected form or range
            return error
        except (codec.BadJson, ValueError) as error:  # ValueError: the name cannot be part of a URL
            return WordError(f"{owner_text} cannot be read: {messages.shown(str(error))}. {_ONLY_WRITE}")
        except (ApiError, Unreachable, TimeoutError) as error:
            if isinstance(error, ApiError) and error.not_found:
                return _unread(owner, _absent(owner.kind, owner_text))
            if isinstance(error, ApiError) and error.forbidden:
                return _unread(owner, self._may_not(owner.kind, owner_text))
            error_text = str(error) if isinstance(error, DriverError) else f"no answer in {ANSWER_S:g} s"
            logger.warning(
                "%s of namespace %s cannot be read: %s. The controller tries again.", owner_text, namespace, error_text
            )
            return _TroubleError(f"{owner_text} cannot be read now. The controller tries again. {_OR_WRITE}")


class _TroubleError(WordError):
    """The server gave no usable answer, so nothing is known about the owner."""


def _unread(owner: Owner, why: str) -> Answer:
    """Return the answer for a gang whose owner cannot be read.

    The answer is an error with the text ``why``, with one exception. The Job controller makes a PodGroup for every Job,
    and few of these Jobs request a gang. So if the owner is a PodGroup of this kind, the answer is ``Alone``: the pods
    are single workloads.
    """
    return Alone(why=why) if owner.by_job else WordError(why)


def _key(workload: Key, owner: Owner) -> Key:
    # A name may be any text, so a plain separator would let two objects be taken for one.
    return workload[0], msgspec.json.encode(owner).decode()


def _same(one: Answer, other: Answer | None) -> bool:
    """Return whether ``one`` and ``other``, results of reading an owner, are equal.

    Errors are compared by message.
    """
    if isinstance(one, WordError) and isinstance(other, WordError):
        return type(one) is type(other) and str(one) == str(other)
    return one == other


def _controller_may_not(kind: str, one: str) -> str:
    return f"The controller has no right to read {one}. {_ONLY_WRITE} Or {grant(kind, 'read')}."


def _not_served(kind: str, one: str) -> str:
    if kind == "PodGroup":
        return (
            f"The cluster has no PodGroups, so {one} does not exist. Enable the feature gate GenericWorkload of "
            f"Kubernetes and its API, or remove schedulingGroup and {_WRITE}"
        )
    return f"The cluster has no objects of the kind of {one}. {_ONLY_WRITE}"


def _absent(kind: str, one: str) -> str:
    return f"{one} does not exist. Create it{'.' if kind == 'PodGroup' else f', or {_WRITE}'}"
