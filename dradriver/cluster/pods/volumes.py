"""The nodes that can reach the volumes of waiting pods.

The controller must know them before it narrows a pod to a few nodes for good. PersistentVolumeClaims are read when a
waiting pod of this driver names one. No others are kept.

A *condition* (term) says which labels a node must have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Set
from typing import Final, TypeAlias, TypeVar

import msgspec

from dradriver.api.base.pods import NodeSelector, Pod
from dradriver.api.base.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from dradriver.api.claims.pins import Key
from dradriver.api.vocabulary.messages import shown
from dradriver.cluster.nodes.pod_demands import Term, Terms, Where, size_of, terms_of
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES
from dradriver.kube.workqueue import WorkQueue
from dradriver.reason import Cause, Reason

logger = logging.getLogger(__name__)

T = TypeVar("T")

MOST_CLAIMS: Final = 16  # of one pod; the scheduler knows the others
MOST_TERMS: Final = 200  # and expressions and values, of one volume; whatever says more is left to the scheduler, too
ANSWER_S: Final = 2.0  # a server that needs longer holds up nobody
FIRST_PAUSE_S: Final = 0.25
LONGEST_PAUSE_S: Final = 60.0

_NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"  # of classes of which nothing makes volumes
_LONGEST: Final = 253  # characters of a name
_ZONE: Final = "topology.kubernetes.io/zone"
_REGION: Final = "topology.kubernetes.io/region"
# As older clusters write the same.
_GENERAL: Final = {"failure-domain.beta.kubernetes.io/zone": _ZONE, "failure-domain.beta.kubernetes.io/region": _REGION}
_PLACES: Final = (_ZONE, _REGION, *_GENERAL)


class Unbound(msgspec.Struct, frozen=True):
    """A PersistentVolumeClaim that is not bound. Its pods cannot start yet, and its volume may be made anywhere.

    Attributes:
        reason: The reason that waiting pods show.
    """

    reason: Reason


class Existing(msgspec.Struct, frozen=True):
    """A PersistentVolumeClaim that needs an existing volume, such as a local disk.

    Only the scheduler knows which volumes of the class are free.

    Attributes:
        storage_class: The class of the volumes.
        where: The nodes that can reach any volume of the class.
    """

    storage_class: str
    where: Where


Found: TypeAlias = Where | Unbound | Existing


class Volumes:
    """The PersistentVolumeClaims that waiting pods name, with the nodes that can reach their volumes."""

    def __init__(self) -> None:
        self._known: dict[Key, Found] = {}  # by volume claim: where its volume is, as far as that was read
        self._named_by: dict[Key, set[Key]] = {}  # by volume claim: the waiting pods that name it
        self._same: dict[Where, Where] = {}  # thousands of volumes are in a few places

    def pod_changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        """Update which PersistentVolumeClaims waiting pods name, from a pod's old and new state."""
        before, after = _named(old), _named(new)
        if before == after:
            return
        for claim in after:
            self._named_by.setdefault(claim, set()).add(key)
        for claim in before:
            if claim not in after:
                self._named_by[claim].discard(key)
                if not self._named_by[claim]:  # who comes next wants to know where it is by then
                    del self._named_by[claim]
                    self._known.pop(claim, None)
        if not self._known:
            self._same.clear()

    def read(self, claim: Key, found: Found | None) -> bool:
        """Record which nodes can reach the volume of a PersistentVolumeClaim.

        ``found`` has conditions on the nodes, or says that there is no volume yet. It is None if the API server did not
        answer.

        Returns:
            Whether the result differs from the last one, and a waiting pod names the claim.
        """
        known = self._known.get(claim)
        if found is None:  # holds up no pod: the scheduler knows it
            found = () if known is None else known
        if claim not in self._named_by or known == found:
            return False
        self._known[claim] = self._same.setdefault(found, found) if isinstance(found, tuple) else found
        return True

    def pods(self, claim: Key) -> Set[Key] | None:
        """Return the waiting pods that name a PersistentVolumeClaim; None if there are none."""
        return self._named_by.get(claim)

    def of(self, pod: Pod) -> Where:
        """Return the node terms (conditions on nodes) of a waiting pod's volumes, sorted, each once.

        A volume that has not been read yet has no terms.
        """
        return together(self._known.get(claim, ()) for claim in _named(pod))

    def unread_of(self, pod: Pod) -> list[Key]:
        """Return the PersistentVolumeClaims of a waiting pod that have not been read."""
        return [claim for claim in _named(pod) if claim not in self._known]

    def lacking_of(self, pod: Pod) -> Reason | None:
        """Return the reason why a volume claim keeps a waiting pod from starting; None if none does."""
        answers = (self._known.get(claim) for claim in _named(pod))
        return next((answer.reason for answer in answers if isinstance(answer, Unbound)), None)

    def existing_of(self, pod: Pod) -> str:
        """Return the StorageClass if a waiting pod needs an existing volume of the class; else an empty text.

        An example of an existing volume is a local disk.
        """
        answers = (self._known.get(claim) for claim in _named(pod))
        return next((answer.storage_class for answer in answers if isinstance(answer, Existing)), "")

    def named(self) -> list[Key]:
        """Return all PersistentVolumeClaims that waiting pods name."""
        return list(self._named_by)


class VolumeReader:
    """Reads PersistentVolumeClaims; reads them again after growing pauses while a pod waits for them.

    It reads a claim again because the claim may have been bound since. A repeated read never delays a first read.
    """

    def __init__(self, client: Client, volumes: Volumes, news: Callable[[Key, Found | None], None]) -> None:
        """Make an object that has read no claims yet.

        Args:
            client: The API server's client.
            volumes: The PersistentVolumeClaims that waiting pods name.
            news: Called with each claim that was read, and the result, as ``Volumes.read`` takes them.
        """
        self._client = client
        self._volumes = volumes
        self._news = news
        self._forbidden = False  # whether the log says that volume claims may not be read
        self._first = WorkQueue(self._work, pause_s=FIRST_PAUSE_S)
        self._again = WorkQueue(self._work, pause_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)

    def want(self, claim: Key) -> None:
        """Request that a PersistentVolumeClaim is read soon.

        ``news``, the function given to the constructor, is called with the result.
        """
        self._again.done(claim)
        self._first.put(claim)

    async def run(self) -> None:
        """Read the requested PersistentVolumeClaims until cancelled."""
        async with asyncio.TaskGroup() as group:
            for rounds in (self._first, self._again):
                group.create_task(rounds.run())

    async def read(self) -> None:
        """Read each PersistentVolumeClaim that waiting pods name, one time and without pauses."""
        for claim in self._volumes.named():
            self._news(claim, await self._find(claim))

    async def _work(self, claim: Key) -> None:
        asking = self._volumes.pods(claim)
        if asking is None:
            self._again.done(claim)
            return
        where = await self._find(claim)
        if self._volumes.pods(claim) is asking:  # who came since wants the next answer
            self._news(claim, where)
        self._again.fail(claim)  # is looked at again after a pause

    async def _find(self, claim: Key) -> Found | None:
        """Return the conditions on nodes for the volume of a PersistentVolumeClaim.

        The result can also say that there is no volume yet. None if the API server refuses or is too slow.
        """
        try:
            async with asyncio.timeout(ANSWER_S):
                return await locate(self._client, claim)
        except TimeoutError:
            logger.warning(
                "PersistentVolumeClaim %s/%s: the API server did not show its volume within %g s. The "
                "controller decides without the place of the volume.",
                *claim,
                ANSWER_S,
            )
        except (ApiError, Unreachable) as error:
            if not (isinstance(error, ApiError) and error.forbidden):
                logger.warning(
                    "PersistentVolumeClaim %s/%s: its volume cannot be read: %s. The controller decides "
                    "without the place of the volume.",
                    *claim,
                    error,
                )
            elif not self._forbidden:
                self._forbidden = True
                logger.warning(
                    "The controller is not allowed to read volumes: %s. Only kube-scheduler considers where "
                    "volumes are.",
                    error,
                )
        return None


def together(found: Iterable[Found]) -> Where:
    """Return the conditions on nodes of several volumes in one list.

    ``found`` has what was read of each PersistentVolumeClaim. The list is sorted and has each condition once. A claim
    that is not bound adds none.
    """
    places = [each.where if isinstance(each, Existing) else each for each in found if not isinstance(each, Unbound)]
    return tuple(sorted({terms for where in places for terms in where}))


async def locate(client: Client, claim: Key) -> Found:
    """Return the conditions on nodes that can reach the volume of a PersistentVolumeClaim.

    If the claim has no volume yet, the result says where the volume can be created for a pod. It is ``Unbound`` if the
    claim does not exist, or must be bound before its pods can start.

    Raises:
        ApiError: The server forbids the read, or the object cannot be read.
        Unreachable: The server does not answer.
    """
    namespace, name = claim
    told = f"Waiting for PersistentVolumeClaim {shown(name)}"
    stored = await _there(client.get(PERSISTENT_VOLUME_CLAIMS, name, namespace=namespace, type=PersistentVolumeClaim))
    if stored is None:
        return Unbound(Reason(Cause.STORAGE, f"{told}, which does not exist. Create it in the pod's namespace."))
    spec = stored.spec
    if stored.status.phase == "Bound" and spec.volume_name:
        volume = await _there(client.get(PERSISTENT_VOLUMES, spec.volume_name, type=PersistentVolume))
        return () if volume is None else where_of(volume)
    if stored.status.phase == "Lost":
        return ()
    if spec.storage_class_name and not spec.volume_name:
        kind = await _there(client.get(STORAGE_CLASSES, spec.storage_class_name, type=StorageClass))
        if kind is not None and kind.volume_binding_mode == "WaitForFirstConsumer":
            where = allowed_by(kind)
            return Existing(spec.storage_class_name, where) if kind.provisioner == _NO_PROVISIONER else where
    return Unbound(Reason(Cause.STORAGE, f"{told}, which is not bound to a volume yet."))


async def _there(answer: Awaitable[T]) -> T | None:
    """Return the object in the API server's answer; None if the object does not exist."""
    try:
        return await answer
    except ApiError as error:
        if error.not_found:
            return None
        raise


def allowed_by(kind: StorageClass) -> Where:
    """Return the conditions on nodes where a volume of a StorageClass can be created.

    ``kind`` is the StorageClass. A node must match one of these conditions (terms), and an empty term matches no node
    (``MatchTopologySelectorTerms``, Kubernetes 1.35).
    """
    terms = [
        Term(tuple((e.key, "In", tuple(e.values)) for e in term.match_label_expressions), ())
        for term in kind.allowed_topologies
    ]
    size = sum(1 + sum(1 + len(values) for _, _, values in term.labels) for term in terms)
    return (tuple(terms),) if terms and size <= MOST_TERMS else ()


def where_of(volume: PersistentVolume) -> Where:
    """Return the conditions on nodes for a volume, from its node affinity and its labels.

    Each entry of the result has several terms. A node can reach the volume if it matches one term of each entry. The
    labels count as for the scheduler's plugin VolumeZone (volume_zone.go, Kubernetes 1.36): a node must have one of
    their values, unless it has no label of any zone or region.
    """
    affinity = volume.spec.node_affinity
    required = None if affinity is None else affinity.required
    entries = [] if required is None else _affinity(required)
    nowhere = Term(tuple((place, "DoesNotExist", ()) for place in _PLACES), ())
    for place in _PLACES:
        values = tuple(value.strip() for value in volume.metadata.labels.get(place, "").split("__"))
        if not all(values):
            continue  # there is no such label, or it is one that the scheduler does not heed either
        terms = [Term(((place, "In", values),), ())]
        if place in _GENERAL:
            terms.append(Term(((place, "DoesNotExist", ()), (_GENERAL[place], "In", values)), ()))
        entries.append((*terms, nowhere))
    return tuple(entries)


def _affinity(required: NodeSelector) -> list[Terms]:
    """Return the terms of a volume's node affinity as a list; empty if they are not evaluated here.

    The scheduler compares the terms with a node's labels only (``volume.CheckNodeAffinity``). Terms of volumes that a
    CSI driver has taken over are not evaluated here: the scheduler rewrites the older zone and region labels in them
    (``tryTranslatePVToCSI``), for each driver in its own way.
    """
    terms = required.node_selector_terms
    by_field = any(term.match_fields and not term.match_expressions for term in terms)
    older = any(expression.key in _GENERAL for term in terms for expression in term.match_expressions)
    if not terms or by_field or older or size_of(required) > MOST_TERMS:
        return []
    return [tuple(Term(term.labels, ()) for term in terms_of(required))]


def claims_of(pod: Pod) -> tuple[Key, ...]:
    """Return the PersistentVolumeClaims that a pod names, each once, 16 at most."""
    return tuple((pod.metadata.namespace, name) for name in _claim_names(pod)[:MOST_CLAIMS])


def has_more_claims(pod: Pod) -> bool:
    """Return whether a pod names more PersistentVolumeClaims than the controller looks at."""
    return len(pod.spec.volumes) > MOST_CLAIMS and len(_claim_names(pod)) > MOST_CLAIMS


def _claim_names(pod: Pod) -> list[str]:
    named: dict[str, None] = {}
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            named[volume.persistent_volume_claim.claim_name] = None
        elif volume.ephemeral is not None:
            named[f"{pod.metadata.name}-{volume.name}"] = None
    return [name for name in named if 0 < len(name) <= _LONGEST and "/" not in name and name not in (".", "..")]


def _named(pod: Pod | None) -> tuple[Key, ...]:
    """Return the PersistentVolumeClaims that a waiting pod names; empty for any other pod."""
    if pod is None or not pod.placed or pod.spec.node_name or pod.finished:
        return ()
    return claims_of(pod)
