"""Creates claim templates for pods that the scheduler alone places, and deletes unused ones.

The webhook writes the resolved request on the pod as a note, and the name of a template: a hash of the note. It does
not create the template. Kubernetes creates the claim once the template exists. Pods with the same request share a
template. Deleting a template is safe at any time: existing claims stay, and for a later pod the template is created
again.
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
    """Creates the templates that pods name, replaces wrong ones, and deletes unused ones.

    A template is checked only when it changes, or when a pod that names it changes. Every replica follows the templates
    and pods, and only the leader writes.
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
        """Make a writer that knows no pods.

        Args:
            client: The API server.
            templates: All existing templates by namespace and name. A reflector keeps them up to date.
            record: Writes an Event about a pod that has to wait for its template.
            owner: Finds the owner of new templates: they are deleted together with it. None for no owner.
            grace_s: How many seconds a template may be unused before it is deleted.
            pause_s: How many seconds the first pause after a refusal lasts.
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
        """Note which templates must be checked after a change of a pod."""
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
        """Note that a template must be checked because it has changed.

        ``templates`` must already show the change.
        """
        self._look(change.key)

    async def run(self) -> None:
        """Create, replace and delete templates until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._rounds.woken.clear()
                again_at = self.begin(group)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(None if again_at is None else again_at + EARLY_S):
                        await self._rounds.woken.wait()

    def begin(self, group: asyncio.TaskGroup) -> float | None:
        """Start work on all templates that are due now; return when to call again.

        The time is by the event loop's clock. It is None if only an event can cause more work. An event can also cause
        work before that time. The work runs as tasks of ``group``.
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
        """Request the check of a used template, or the deletion of a long unused one."""
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
                await self._tell(key, pod, f"cannot be created: {error.message or error}")
            except (Unreachable, WordError) as error:
                await self._tell(key, pod, f"cannot be created: {error}")
        elif key in self._expired and made is not None:
            await self._collect(key, made)
        else:
            self._rounds.done(key)

    async def _serve(self, key: Key, pod: Static, existing: Template | None) -> None:
        """Make sure that a template exists and requests what its pods' note says.

        The note is an annotation with the request. The result is reported to ``self._rounds``, the queue of templates.
        After ``fail``, this method is called again with a growing pause. After ``done``, it is called only after an
        event.

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
                    why = "exists, requests something else than the pod, and was not created by the controller"
                    await self._tell(key, pod, f"{why}. Delete it, and the controller creates it again.")
                self._rounds.done(key)
                return
            if not await self._delete(key, existing, "asks for something else than its pods"):
                return
        # 3. Make it, as this release makes it from a note. A note of a newer release can ask for what this one lacks.
        if _ladder(noted_request) > claim_alternatives.VERSION:
            raise WordError(
                "the webhook that admitted the pod is of a newer release than the controller. Upgrade the "
                "controller, or delete the pod and create it again when both have the same release"
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
        """Return whether an existing template matches the pod's note.

        The result is None if the API server does not say what it would store for the note. The note is an annotation
        with the pod's request. It can come from another release of the driver, which makes other templates from it. The
        template is left to that release, so the result is True. Thus two releases never undo each other's writes.
        ``noted`` is the decoded note; ``made`` is the existing template.
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
            logger.warning(
                "ResourceClaimTemplate %s/%s is used unchanged, because it cannot be compared with the "
                "pod's request: %s",
                *key,
                error,
            )
            return None
        return same_spec.digest(probe["spec"]) == made.digest

    async def _collect(self, key: Key, made: Template) -> None:
        self._expired.discard(key)
        self._rounds.done(key)
        try:
            await self._delete(key, made, "no pod has named it for long")
        except (ApiError, Unreachable) as error:
            logger.warning("ResourceClaimTemplate %s/%s cannot be deleted: %s", *key, error)
            self._unused.pop(key, None)  # the oldest stand first
            if key in self._templates and key not in self._users:
                self._unused[key] = asyncio.get_running_loop().time()  # much later again

    async def _delete(self, key: Key, made: Template, why: str) -> bool:
        """Delete the template ``made``; return False if another template has its name by now.

        That other template is not deleted. ``why`` is the reason, for the log.
        """
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
        logger.info("Template %s/%s: %s. It is deleted.", *key, why)
        return True

    async def _tell(self, key: Key, pod: Static, why: str) -> None:
        """Report ``why`` a pod's template is wrong, in the log and as an Event.

        Kubernetes itself reports nothing about a pod whose claim does not exist.
        """
        first = self._rounds.fail(key)
        logger.warning("ResourceClaimTemplate %s/%s %s", *key, why)
        if self._record is not None and first:
            about = Pod(metadata=Metadata(namespace=pod.namespace, name=pod.name, uid=pod.uid))
            try:
                await self._record(about, f"ResourceClaimTemplate {key[1]} of the pod's claim {why}")
            except (ApiError, Unreachable) as error:
                logger.warning(
                    "Pod %s/%s: the Event about its ResourceClaimTemplate cannot be written: %s",
                    pod.namespace,
                    pod.name,
                    error,
                )


def _judged(made: Template) -> _Judged:
    return made.metadata.uid, made.static


def _ladder(noted: Resolved) -> int:
    """Return which version of the driver's rules makes a template from the note ``noted``.

    The rules list the alternative requests in a template. The version is 0 for a note from before there were versions.
    """
    return 0 if noted.ladder is msgspec.UNSET else noted.ladder
