"""Where the volumes of waiting pods are: a pod is narrowed to a few nodes for good, so that is known before.

Claims of storage are read when a waiting pod of ours names one. Nothing is kept of all others.
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
    """A claim without which no pod can start yet; its volume may come to be anywhere.

    Attributes:
        reason: What a pod waits for.
    """

    reason: Reason


class Existing(msgspec.Struct, frozen=True):
    """A claim that gets a volume which exists already, such as a local disk. Only the scheduler knows the free ones.

    Attributes:
        storage_class: The class of the volumes.
        where: Where volumes of the class can be at all.
    """

    storage_class: str
    where: Where


Found: TypeAlias = Where | Unbound | Existing


class Volumes:
    """Claims of storage by the waiting pods of ours that name them, and where those are that were read."""

    def __init__(self) -> None:
        self._known: dict[Key, Found] = {}  # by volume claim: where its volume is, as far as that was read
        self._named_by: dict[Key, set[Key]] = {}  # by volume claim: the waiting pods that name it
        self._same: dict[Where, Where] = {}  # thousands of volumes are in a few places

    def pod_changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        """Update which volumes' claims waiting pods name, by a pod's old and new state."""
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
        """Note where a claim's volume is, None if that could not be read. Returns whether a pod has news."""
        known = self._known.get(claim)
        if found is None:  # holds up no pod: the scheduler knows it
            found = () if known is None else known
        if claim not in self._named_by or known == found:
            return False
        self._known[claim] = self._same.setdefault(found, found) if isinstance(found, tuple) else found
        return True

    def pods(self, claim: Key) -> Set[Key] | None:
        """Return the waiting pods that name a claim of a volume, None for none."""
        return self._named_by.get(claim)

    def of(self, pod: Pod) -> Where:
        """Return where all volumes of a waiting pod are, as far as known: sorted, each once."""
        return together(self._known.get(claim, ()) for claim in _named(pod))

    def unread_of(self, pod: Pod) -> list[Key]:
        """Return those claims of a waiting pod's volumes that have to be read."""
        return [claim for claim in _named(pod) if claim not in self._known]

    def lacking_of(self, pod: Pod) -> Reason | None:
        """Return without which volume's claim a waiting pod cannot start yet."""
        answers = (self._known.get(claim) for claim in _named(pod))
        return next((answer.reason for answer in answers if isinstance(answer, Unbound)), None)

    def existing_of(self, pod: Pod) -> str:
        """Return a StorageClass of whose existing volumes a waiting pod needs one; empty for none."""
        answers = (self._known.get(claim) for claim in _named(pod))
        return next((answer.storage_class for answer in answers if isinstance(answer, Existing)), "")

    def named(self) -> list[Key]:
        """Return all claims of volumes that waiting pods name."""
        return list(self._named_by)


class VolumeReader:
    """Reads claims of storage, and again at growing pauses for as long as a pod waits: they are bound meanwhile.

    What is read again never stands before what somebody waits for.
    """

    def __init__(self, client: Client, volumes: Volumes, news: Callable[[Key, Found | None], None]) -> None:
        """``news`` takes in where a claim's volume is, as ``Volumes.read`` does."""
        self._client = client
        self._volumes = volumes
        self._news = news
        self._forbidden = False  # whether the log says that volume claims may not be read
        self._first = WorkQueue(self._work, pause_s=FIRST_PAUSE_S)
        self._again = WorkQueue(self._work, pause_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)

    def want(self, claim: Key) -> None:
        """Have a claim of a volume read now; the pods that name it are looked at again then."""
        self._again.done(claim)
        self._first.put(claim)

    async def run(self) -> None:
        """Read the claims of volumes that are wanted until cancelled."""
        async with asyncio.TaskGroup() as group:
            for rounds in (self._first, self._again):
                group.create_task(rounds.run())

    async def read(self) -> None:
        """Read all claims that waiting pods name, pauses or not."""
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
        """Return where a claim's volume is; None where that cannot be read, or not soon."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await locate(self._client, claim)
        except TimeoutError:
            logger.warning("where the volume of %s/%s is: no answer in %g s; going on without", *claim, ANSWER_S)
        except (ApiError, Unreachable) as error:
            if not (isinstance(error, ApiError) and error.forbidden):
                logger.warning("where the volume of %s/%s is cannot be read: %s; going on without", *claim, error)
            elif not self._forbidden:
                self._forbidden = True
                logger.warning("volumes may not be read (%s): the scheduler alone knows where they are", error)
        return None


def together(found: Iterable[Found]) -> Where:
    """Return where several volumes are, those that have a place: sorted, each once."""
    places = [each.where if isinstance(each, Existing) else each for each in found if not isinstance(each, Unbound)]
    return tuple(sorted({terms for where in places for terms in where}))


async def locate(client: Client, claim: Key) -> Found:
    """Return where the volume of a claim is, or can be made while it waits for the node of a pod.

    Raises:
        ApiError: The server does not let us read it, or it cannot be read.
        Unreachable: The server does not answer.
    """
    namespace, name = claim
    told = f"waits for PersistentVolumeClaim {shown(name)}"
    stored = await _there(client.get(PERSISTENT_VOLUME_CLAIMS, name, namespace=namespace, type=PersistentVolumeClaim))
    if stored is None:
        return Unbound(Reason(Cause.STORAGE, f"{told}, which is not there; create it in its namespace"))
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
    return Unbound(Reason(Cause.STORAGE, f"{told}, which is not bound to a volume yet"))


async def _there(answer: Awaitable[T]) -> T | None:
    """Return an object, None where there is none."""
    try:
        return await answer
    except ApiError as error:
        if error.not_found:
            return None
        raise


def allowed_by(kind: StorageClass) -> Where:
    """Return what nodes must have so that a volume of a class can be made for a pod on them.

    One term must hold, and an empty term holds nowhere (``MatchTopologySelectorTerms``, Kubernetes 1.35).
    """
    terms = [
        Term(tuple((e.key, "In", tuple(e.values)) for e in term.match_label_expressions), ())
        for term in kind.allowed_topologies
    ]
    size = sum(1 + sum(1 + len(values) for _, _, values in term.labels) for term in terms)
    return (tuple(terms),) if terms and size <= MOST_TERMS else ()


def where_of(volume: PersistentVolume) -> Where:
    """Return what nodes must have to reach a volume, by its node affinity and its labels.

    One term must hold of each entry. The labels count as for the scheduler's plugin VolumeZone (volume_zone.go,
    Kubernetes 1.36): a node must have one of their values, unless it has no label of any zone or region.
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
    """Return the terms of a volume's node affinity, in a list; an empty one where they restrict nothing for sure.

    The scheduler asks them about a node's labels alone (``volume.CheckNodeAffinity``), and writes the older names of
    zones and regions anew for volumes that a CSI driver has taken over (``tryTranslatePVToCSI``), each in its own way.
    """
    terms = required.node_selector_terms
    by_field = any(term.match_fields and not term.match_expressions for term in terms)
    older = any(expression.key in _GENERAL for term in terms for expression in term.match_expressions)
    if not terms or by_field or older or size_of(required) > MOST_TERMS:
        return []
    return [tuple(Term(term.labels, ()) for term in terms_of(required))]


def claims_of(pod: Pod) -> tuple[Key, ...]:
    """Return the claims of volumes that a pod names, each once."""
    return tuple((pod.metadata.namespace, name) for name in _claim_names(pod)[:MOST_CLAIMS])


def has_more_claims(pod: Pod) -> bool:
    """Return whether a pod names more claims of volumes than the controller looks at."""
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
    """Return the claims of storage that a pod waits with."""
    if pod is None or not pod.placed or pod.spec.node_name or pod.finished:
        return ()
    return claims_of(pod)
