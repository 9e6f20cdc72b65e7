"""Templates of the claims of pods that the scheduler alone places: made from the pods' notes, and collected.

The webhook names a template by the hash of the pod's resolved request and writes nothing; Kubernetes makes the claim
once the template is there. Alike pods share one. Deleting one is safe at any time: claims that exist stay, and for a
pod that comes later it is made again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

import msgspec

from dradriver.api.base import names, same_spec
from dradriver.api.base.errors import WordError
from dradriver.api.base.objects import Metadata
from dradriver.api.base.pods import Pod
from dradriver.api.claims.claim_templates import Template
from dradriver.api.claims.pins import Key
from dradriver.api.pod import claim_alternatives, resolved
from dradriver.api.pod.resolved import Resolved
from dradriver.cluster.records.pod_records import Foreign, Static
from dradriver.controller.writing.reasons import Record
from dradriver.controller.writing.release_owner import ReleaseOwner
from dradriver.kube.backoff import EARLY_S
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.reflector import Change
from dradriver.kube.resources import RESOURCE_CLAIM_TEMPLATES
from dradriver.kube.workqueue import WorkQueue

logger = logging.getLogger(__name__)

GRACE_S: Final = 3600.0  # a template that no pod has named for so long goes
PAUSE_S: Final = 1.0  # after a refusal, and until a reflector shows what was made

_Judged = tuple[str, bool]  # a template's uid, and whether it has our label


class TemplateWriter:
    """Makes the templates that pods name, makes those anew that ask for something else, and deletes the unnamed.

    A template is looked at when it changes or a pod that names it does, so that thousands cost nothing while they
    stay as they are. What is known of them is followed by every replica: only the leader runs.
    """

    def __init__(
        self,
        client: Client,
        templates: Mapping[Key, Template],
        *,
        record: Record | None = None,
        owner: ReleaseOwner | None = None,
        grace_s: float = GRACE_S,
        pause_s: float = PAUSE_S,
    ) -> None:
        """Begin without pods.

        Args:
            client: The API server.
            templates: All templates there are, by namespace and name, kept up to date by somebody else.
            record: Writes an Event about a pod that has to wait for its template.
            owner: Finds the owner of new templates, with which they are deleted; None for no owner.
            grace_s: How long a template may be of no use.
            pause_s: How long one is left alone after a first refusal.
        """
        self._client = client
        self._templates = templates
        self._record = record
        self._owner = owner or ReleaseOwner(client)
        self._grace_s = grace_s
        self._pods: dict[Key, Static] = {}  # pods that name a template
        self._users: dict[Key, dict[Key, None]] = {}  # pods by the templates they name
        self._judged: dict[Key, _Judged] = {}  # templates in use that are as they should be, or that we cannot help
        self._unused: OrderedDict[Key, float] = OrderedDict()  # since when, by the loop's clock, the oldest first
        self._expired: set[Key] = set()  # unused for so long that they are to go
        self._rounds = WorkQueue(self._work, pause_s=pause_s)

    def pod_changed(self, change: Change[Pod | Foreign]) -> None:
        """Note by what the pods' reflector saw which templates have to be written."""
        before, new = self._pods.pop(change.key, None), change.new
        was = None if before is None else (before.namespace, before.template)
        now = None
        if isinstance(new, Static) and new.template:
            now = new.namespace, new.template
            self._pods[change.key] = new
            self._users.setdefault(now, {})[change.key] = None
        if was is not None and was != now:
            del self._users[was][change.key]
            if not self._users[was]:
                del self._users[was]
            self._look(was)
        if now is not None and was != now:
            self._look(now)

    def template_changed(self, change: Change[Template]) -> None:
        """Take in what the templates' reflector saw, once ``templates`` shows it."""
        self._look(change.key)

    async def run(self) -> None:
        """Make and collect templates until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._rounds.woken.clear()
                again_at = self.begin(group)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(None if again_at is None else again_at + EARLY_S):
                        await self._rounds.woken.wait()

    def begin(self, group: asyncio.TaskGroup) -> float | None:
        """Begin with the templates for which something is to be done and may be tried now.

        Returns when to look again, by the loop's clock, None for not before an event; sooner after one.
        """
        now = asyncio.get_running_loop().time()
        expires = None
        while self._unused and (expires := next(iter(self._unused.values())) + self._grace_s) <= now:
            key, _ = self._unused.popitem(last=False)
            self._expired.add(key)
            self._rounds.put(key)
            expires = None
        return min((at for at in (self._rounds.begin(group), expires) if at is not None), default=None)

    def _look(self, key: Key) -> None:
        """Queue a template to be made or judged if it is used, or to be deleted once it was unused for long."""
        made = self._templates.get(key)
        used = key in self._users
        # One that is being deleted may stay for long: anybody can give it a finalizer.
        unused = not used and made is not None and made.static and made.metadata.deletion_timestamp is None
        if not unused:
            self._unused.pop(key, None)
            self._expired.discard(key)
        elif key not in self._expired and key not in self._unused:
            self._unused[key] = asyncio.get_running_loop().time()
            self._rounds.woken.set()
        if used and (made is None or self._judged.get(key) != _judged(made)):
            self._rounds.put(key)
        elif key not in self._expired:
            self._rounds.drop(key)
        if not used:
            self._judged.pop(key, None)

    async def _work(self, key: Key) -> None:
        made = self._templates.get(key)
        if key in self._users:
            pod = self._pods[next(iter(self._users[key]))]
            try:
                await self._serve(key, pod, made)
            except ApiError as error:
                await self._tell(key, pod, f"cannot be made: {error.message or error}")
            except (Unreachable, WordError) as error:
                await self._tell(key, pod, f"cannot be made: {error}")
        elif key in self._expired and made is not None:
            await self._collect(key, made)
        else:
            self._rounds.done(key)

    async def _serve(self, key: Key, pod: Static, existing: Template | None) -> None:
        """Make sure that the template exists and requests what a pod's note says.

        ``self._rounds`` calls again after ``fail``, with a growing pause, and not before an event after ``done``.

        Args:
            key: The template.
            pod: One of the pods that name it. All of them have the same note: the name is its hash.
            existing: The template as the cluster cache has it; None if there is none.
        """
        # 1. It was judged in this state.
        if existing is not None and self._judged.get(key) == _judged(existing):
            self._rounds.done(key)
            return
        noted_request = resolved.read({names.REQUEST: pod.note})
        # 2. Judge the template that is there. Only one with the controller's label (``static``) may be replaced.
        if existing is not None:
            # None: the server could not compare it.
            is_right = await self._right(key, pod.note, noted_request, existing)
            if is_right is None or (not is_right and existing.metadata.deletion_timestamp is not None):
                self._rounds.fail(key)  # also until a wrong one that is being deleted is gone
                return
            if is_right or not existing.static:
                self._judged[key] = _judged(existing)
                if not is_right:
                    why = "is there, asks for something else than the pod's words, and is not the controller's"
                    await self._tell(key, pod, f"{why}; delete it, and the controller makes it anew")
                self._rounds.done(key)
                return
            if not await self._delete(key, existing, "asks for something else than its pods"):
                return
        # 3. Make it, as this release makes it from a note. A note of a newer release can ask for what this one lacks.
        if _ladder(noted_request) > claim_alternatives.VERSION:
            raise WordError(
                "the webhook that admitted the pod is of a newer release than the controller; let the controller be "
                "of that release, or create the pod anew once the webhook is of the controller's"
            )
        body = claim_alternatives.template(key[0], pod.note, noted_request)
        if owners := await self._owner.references():
            body["metadata"]["ownerReferences"] = owners
        try:
            created = await self._client.create(RESOURCE_CLAIM_TEMPLATES, body, namespace=key[0])
        except ApiError as error:
            if not error.already_exists:  # else the reflector is late
                raise
        else:
            self._judged[key] = created["metadata"]["uid"], True  # right, and with the controller's label
            logger.info("template %s/%s: made", *key)
        self._rounds.fail(key)  # until the reflector shows it

    async def _right(self, key: Key, note: str, noted: Resolved, made: Template) -> bool | None:
        """Return whether a template that is there asks for what is to be asked for; None where that cannot be told.

        One of another release's ladder is that one's to judge: two controllers never undo each other's.
        """
        if _ladder(noted) != claim_alternatives.VERSION:
            return True
        body = claim_alternatives.template(key[0], note, noted)
        if same_spec.digest(body["spec"]) == made.digest:
            return True
        # A server drops fields that it lacks, and fills in others: it alone knows what it would have made of this.
        body["metadata"] = {"generateName": names.CLAIM_PREFIX, "namespace": key[0]}
        try:
            probe = await self._client.create(RESOURCE_CLAIM_TEMPLATES, body, namespace=key[0], dry_run=True)
        except (ApiError, Unreachable) as error:
            logger.warning("template %s/%s: used as it is, for it cannot be compared: %s", *key, error)
            return None
        return same_spec.digest(probe["spec"]) == made.digest

    async def _collect(self, key: Key, made: Template) -> None:
        self._expired.discard(key)
        self._rounds.done(key)
        try:
            await self._delete(key, made, "no pod has named it for long")
        except (ApiError, Unreachable) as error:
            logger.warning("template %s/%s: it cannot be deleted: %s", *key, error)
            self._unused.pop(key, None)  # the oldest stand first
            if key in self._templates and key not in self._users:
                self._unused[key] = asyncio.get_running_loop().time()  # much later again

    async def _delete(self, key: Key, made: Template, why: str) -> bool:
        """Delete this very template; return whether it is gone, or on its way."""
        metadata = made.metadata
        try:
            await self._client.delete(
                RESOURCE_CLAIM_TEMPLATES, metadata.name, namespace=metadata.namespace, uid=metadata.uid
            )
        except ApiError as error:
            if not error.conflict:
                raise
            self._rounds.fail(key)  # another has its name by now: the reflector is late
            return False
        logger.info("template %s/%s: %s; deleted", *key, why)
        return True

    async def _tell(self, key: Key, pod: Static, why: str) -> None:
        """Say what is wrong with a pod's template: Kubernetes itself says nothing of a pod whose claim is not there."""
        first = self._rounds.fail(key)
        logger.warning("template %s/%s %s", *key, why)
        if self._record is not None and first:
            about = Pod(metadata=Metadata(namespace=pod.namespace, name=pod.name, uid=pod.uid))
            try:
                await self._record(about, f"ResourceClaimTemplate {key[1]} of its claim {why}")
            except (ApiError, Unreachable) as error:
                logger.warning("pod %s/%s: %s", pod.namespace, pod.name, error)


def _judged(made: Template) -> _Judged:
    return made.metadata.uid, made.static


def _ladder(noted: Resolved) -> int:
    """Return the ladder of a note; 0 of one from before there were any."""
    return 0 if noted.ladder is msgspec.UNSET else noted.ladder
