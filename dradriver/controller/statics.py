"""Templates of the claims of pods that the scheduler alone places: made from the pods' notes, and collected.

The webhook names a template by the hash of the pod's resolved request and writes nothing; Kubernetes makes the claim
once the template is there. Alike pods share one. Deleting one is safe at any time: claims that exist stay, and for a
pod that comes later it is made again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Final

from dradriver.api import ladder, names, resolved
from dradriver.api.errors import WordError
from dradriver.api.objects import Metadata, Pod
from dradriver.api.pins import Key
from dradriver.api.templates import Template
from dradriver.controller.background import always
from dradriver.controller.pods import Foreign, Static
from dradriver.controller.reasons import Record
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.reflector import Change
from dradriver.kube.resources import RESOURCE_CLAIM_TEMPLATES

logger = logging.getLogger(__name__)

GRACE_S: Final = 3600.0  # a template that no pod has used for so long goes
SWEEP_S: Final = 10.0
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 120.0
MOST: Final = 16  # namespaces that are written in at once


class Statics:
    """Makes the templates that pods name, one namespace at a time, and deletes those that none has named for long.

    What goes wrong in one namespace (its quota, somebody's webhook) holds up no other.
    """

    def __init__(
        self,
        client: Client,
        templates: Mapping[Key, Template],
        *,
        record: Record | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        """Make a keeper that knows of no pod yet.

        Args:
            client: The API server.
            templates: All templates there are, by namespace and name, kept up to date by somebody else.
            record: Writes an Event about a pod that has to wait for its template.
            grace_s: How long a template may be of no use.
        """
        self._client = client
        self._templates = templates
        self._record = record
        self._grace_s = grace_s
        self._users: dict[Key, set[Key]] = {}  # pods by the templates they name
        self._pods: dict[Key, Static] = {}
        self._unused: dict[Key, float] = {}  # since when, by the loop's clock
        self._failures: dict[Key, tuple[int, float]] = {}  # how often in a row, and until when to leave it
        self._busy: set[str] = set()  # namespaces that are written in
        self._woken = asyncio.Event()

    def pod_changed(self, change: Change[Pod | Foreign]) -> None:
        """Take in what the pods' reflector saw."""
        before, new = self._pods.pop(change.key, None), change.new
        if before is not None and before.template:
            key = before.namespace, before.template
            self._users[key].discard(change.key)
            if not self._users[key]:
                del self._users[key]
        if isinstance(new, Static):
            self._pods[change.key] = new
            if new.template:
                key = new.namespace, new.template
                self._users.setdefault(key, set()).add(change.key)
                self._unused.pop(key, None)
                self._woken.set()

    async def run(self) -> None:
        """Make and collect templates until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(always(self._sweep))
            while True:
                self._woken.clear()
                again_at = self.make(group)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(again_at):
                        await self._woken.wait()

    def make(self, group: asyncio.TaskGroup) -> float:
        """Begin to make the templates that are missing and may be tried now.

        Returns when to look again, by the loop's clock; sooner after an event.
        """
        now = asyncio.get_running_loop().time()
        missing = self._users.keys() - self._templates.keys()
        self._failures = {key: failed for key, failed in self._failures.items() if key in missing}
        due: dict[str, list[Key]] = {}
        for key in sorted(missing):
            if self._failures.get(key, (0, now))[1] <= now:
                due.setdefault(key[0], []).append(key)
        for namespace, keys in due.items():
            if namespace not in self._busy and len(self._busy) < MOST:
                self._busy.add(namespace)
                group.create_task(self._make_all(namespace, keys))
        later = (at for _, at in self._failures.values() if at > now)
        return min((*later, now + SWEEP_S))

    async def _sweep(self) -> None:
        while True:
            await self.collect()
            await asyncio.sleep(SWEEP_S)

    async def collect(self) -> None:
        """Delete the templates that no living pod has named for the grace period."""
        now = asyncio.get_running_loop().time()
        unused = [
            key
            for key, made in self._templates.items()
            # One that is being deleted may stay for long: anybody can give it a finalizer.
            if made.static and key not in self._users and made.metadata.deletion_timestamp is None
        ]
        self._unused = {key: self._unused.get(key, now) for key in unused}
        for key, since in list(self._unused.items()):
            if now - since < self._grace_s or key in self._users or key not in self._templates:
                continue
            made = self._templates[key].metadata
            try:
                await self._client.delete(RESOURCE_CLAIM_TEMPLATES, made.name, namespace=made.namespace, uid=made.uid)
            except (ApiError, Unreachable) as error:
                logger.warning("template %s/%s: it cannot be deleted: %s", *key, error)
                self._unused[key] = now  # much later again
                continue
            logger.info("template %s/%s: no pod has used it for long; deleted", *key)

    async def _make_all(self, namespace: str, keys: list[Key]) -> None:
        try:
            for key in keys:
                await self._make(key)
        except Exception:  # a bug in what one of them meets must not stop the others
            logger.exception("templates of namespace %s: an error in this program; trying again later", namespace)
            for key in keys:
                self._fail(key)
        finally:
            self._busy.discard(namespace)
            self._woken.set()

    async def _make(self, key: Key) -> None:
        if key not in self._users:
            return
        pod = self._pods[min(self._users[key])]
        try:
            body = ladder.template(key[0], pod.note, resolved.read({names.REQUEST: pod.note}))
            await self._client.create(RESOURCE_CLAIM_TEMPLATES, body, namespace=key[0])
        except ApiError as error:
            if error.already_exists:
                self._fail(key)  # the reflector is late
            else:
                await self._tell(key, pod, error.message or str(error))
        except (Unreachable, WordError) as error:
            await self._tell(key, pod, str(error))
        else:
            self._fail(key)  # until the reflector shows it
            logger.info("template %s/%s: made", *key)

    def _fail(self, key: Key) -> None:
        times = self._failures.get(key, (0, 0.0))[0]
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(times, 16), LONGEST_PAUSE_S)
        self._failures[key] = times + 1, asyncio.get_running_loop().time() + pause_s

    async def _tell(self, key: Key, pod: Static, why: str) -> None:
        """Say why a pod waits: Kubernetes itself says nothing of a pod whose claim is not there."""
        self._fail(key)
        logger.warning("template %s/%s: %s; trying again", *key, why)
        if self._record is not None and self._failures[key][0] == 1:
            about = Pod(metadata=Metadata(namespace=pod.namespace, name=pod.name, uid=pod.uid))
            try:
                await self._record(about, f"ResourceClaimTemplate {key[1]} of its claim cannot be made: {why}")
            except (ApiError, Unreachable) as error:
                logger.warning("pod %s/%s: %s", pod.namespace, pod.name, error)
