"""One pod of ours as the queue sees it: what it wishes, parsed once, and how it has fared."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from dradriver.allocator.request import NoPlaceError, Request, Whole
from dradriver.api import ladder, names, resolved, templates
from dradriver.api.errors import WordError
from dradriver.api.ledger import OURS, Ledger
from dradriver.api.messages import shown
from dradriver.api.objects import Pod
from dradriver.api.pins import Key, claim_key, is_set, kept_env
from dradriver.api.templates import Template
from dradriver.api.values import HAND_OVER, NCCL_AUTO
from dradriver.cluster.neighbours import Rules, rules_of
from dradriver.cluster.nodes.ask import Ask, Where, ask_of
from dradriver.kube.backoff import wait_s

LONGEST_BACKOFF_S: Final = 120.0
HAND_OVER_S: Final = 5.0  # a pod looks for a place before the scheduler gets it

Kind: TypeAlias = tuple[Request, Ask, str, bool, Rules | None]


class PlacementRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod asks for.

    Attributes:
        request: What the allocator is asked.
        requests: Names of the claim's requests, container after container.
        pod: The pod.
        claim: The claim that will hold them.
        keep_env: Variables of the author's that no edit may replace.
        nccl: What NCCL is told.
        ask: What it asks of a node.
        template: What its claim has of a template, if it is made by one.
        shared: Whether it shares them with all pods that name this claim.
        alone: The spec of the claim with which the scheduler gets it if there is no place; None where it waits then.
        rules: What it says of pods beside it; None for nothing.
    """

    request: Request
    requests: tuple[str, ...]
    pod: Key
    claim: Key
    keep_env: tuple[str, ...]
    nccl: str
    ask: Ask
    template: templates.TemplateRequest | None = None
    shared: bool = False
    alone: dict[str, Any] | None = None
    rules: Rules | None = None

    @property
    def kind(self) -> Kind:
        """What pods share that find a place together or not at all: a GPU's parts may be of one namespace only."""
        namespace = "" if isinstance(self.request, Whole) else self.claim[0]
        return self.request, self.ask, namespace, self.alone is not None, self.rules


def read_wish(
    pod: Pod, template: Template | None = None, ledger: Ledger = OURS, volumes: Where = ()
) -> PlacementRequest:
    """Return what a placed pod asks for.

    Args:
        pod: The pod.
        template: The template that it names, as far as there is one.
        ledger: Whose devices are handed out.
        volumes: Where its volumes are, as far as that is known.

    Raises:
        WordError: What the webhook admitted was changed since into something that cannot be placed, or its template is
            missing or asks for what cannot be.
    """
    found = resolved.read(pod.metadata.annotations)
    known = {c.name for c in (*pod.spec.init_containers, *pod.spec.containers)}
    if strangers := sorted(set(found.containers) - known):
        raise WordError(f"{names.REQUEST}: the pod has no container {strangers[0][:63]!r}; create the pod anew")
    key = claim_key(pod)
    if key is None:
        raise WordError(f"spec.resourceClaims has no entry {names.POD_CLAIM} with a claim's name; create the pod anew")
    shared = found.shared is not msgspec.UNSET
    if is_set(key) != shared or (shared and found.shared != key[1]):
        raise WordError(f"{names.REQUEST} says nothing of a shared claim {shown(key[1])}; create the pod anew")
    wish = PlacementRequest(
        request=found.request,
        requests=tuple(dict.fromkeys(name for own in found.requests.values() for name in own)),
        pod=(pod.metadata.namespace, pod.metadata.name),
        claim=key,
        shared=shared,
        keep_env=tuple(kept_env(pod, frozenset(found.containers))),
        nccl=NCCL_AUTO if found.nccl is msgspec.UNSET else found.nccl,
        ask=ask_of(pod, volumes),
        rules=None if shared else rules_of(pod),  # those who share a set are on one node, whatever they say
    )
    # What the scheduler would have to know stands in our own slices; admission refuses the word where others' count.
    hand_over = not _narrowed(pod) and found.when_full == HAND_OVER and ledger is OURS
    if pod.template is not None:
        asked = _by_template(wish, pod.template[1], template, ledger)
        return msgspec.structs.replace(asked, alone=_alone(asked, wish.request)) if hand_over else asked
    if hand_over:
        return msgspec.structs.replace(wish, alone=ladder.spec(found, keep_env=wish.keep_env))
    return wish


def _narrowed(pod: Pod) -> bool:
    """Return whether a pod was lifted for some nodes; one that was handed over may go to any."""
    return not pod.gated and names.AFFINITY in pod.metadata.annotations


def _by_template(wish: PlacementRequest, name: str, template: Template | None, ledger: Ledger) -> PlacementRequest:
    if template is None:
        raise WordError(
            f"waits for ResourceClaimTemplate {shown(name)}, which is not there; create it in its namespace"
        )
    if not isinstance(wish.request, Whole):
        raise WordError(f"annotation {names.REQUEST} was changed: a template says which part; create the pod anew")
    asked = templates.read(template, wish.request, ledger)
    return msgspec.structs.replace(
        wish,
        request=asked.request,
        requests=asked.requests,
        keep_env=tuple(sorted({*wish.keep_env, *asked.keep_env})),
        nccl=wish.nccl if asked.nccl is None or wish.nccl != NCCL_AUTO else asked.nccl,
        template=asked,
    )


def _alone(asked: PlacementRequest, words: Request) -> dict[str, Any] | None:
    """Return what the scheduler gets of a pod with a template: that, and what the words demand of a set of whole GPUs.

    None where no claim can say these, which admission refuses: such a pod waits rather than get less.
    """
    assert asked.template is not None, "read from one"
    if not isinstance(asked.request, Whole) or not isinstance(words, Whole):
        return asked.template.spec
    try:
        return ladder.demanding(
            asked.template.spec, msgspec.structs.replace(words, containers=asked.request.containers)
        )
    except WordError:
        return None


class Entry:
    """A pod that waits for a place, or has one promised and is not bound yet.

    Attributes:
        key: Namespace and name.
        pod: The pod as it was last looked at.
        template: The template of its claim, as it was then.
        ledger: Whose devices are handed out.
        volumes: Where its volumes are, as far as that was known then.
        order: Entries are served in this order: the oldest first.
        busy: Whether a writer is at work on it: nobody else may act on it.
        unsure: Whether the answer to a creation of its claim was lost: the server must be asked first.
        not_before: When it may be tried again, by the loop's clock.
        moved: How often in a row another writer was first.
        alone: How often in a row it met the server's trouble after another's write had gone well.
        failures: How often in a row it was refused, or its promise not kept.
        tried: Nodes on which its promise was not kept.
        no_place_since: When it was first found to have no place; None while that is not known.
        renewed: Whether the claim that it has, or had, was made anew because the scheduler had overlooked its room.
        joins: The uid of the claim of others that it wants to share; empty where it wants one of its own.
        claim_uid: The claim that the times below are of; empty where it was taken back.
        lost: How often its claim has vanished by somebody else's doing.
        promised_at: When that claim was first seen.
        unschedulable_at: When the scheduler was first seen to find no room for it; None while it does not say so.
        said: What it had said when the claim before was taken back, as long as it says nothing else.
        bound_at: When it was first seen to be bound, without what its claim should hold; None while it is not.
    """

    def __init__(
        self,
        key: Key,
        pod: Pod,
        template: Template | None = None,
        ledger: Ledger = OURS,
        volumes: Where = (),
    ) -> None:
        self.key = key
        self.pod = pod
        self.template = template
        self.ledger = ledger
        self.volumes = volumes
        self.order = (pod.metadata.creation_timestamp or "", pod.metadata.uid)
        self.busy = False
        self.unsure = False
        self.not_before = 0.0
        self.moved = self.alone = 0
        self._successes: int | None = None  # of all, when it met the server's trouble last
        self.failures = 0
        self.tried: list[str] = []
        self.no_place_since: float | None = None
        self.renewed = False
        self.joins = ""
        self.claim_uid = ""
        self.lost = 0
        self.promised_at = 0.0
        self.unschedulable_at: float | None = None
        self.said: str | None = None
        self.bound_at: float | None = None
        self._wish: PlacementRequest | WordError | None = None

    @property
    def uid(self) -> str:
        """The pod's identity."""
        return self.pod.metadata.uid

    @property
    def kind(self) -> Kind:
        """The kind of its wish; of those that want to share a claim, which finds a place or not, that claim's.

        Raises:
            WordError: What it wishes cannot be read.
        """
        request, ask, where, alone, rules = self.wish.kind
        return request, ask, self.joins or where, alone, rules

    @property
    def scheduler(self) -> str:
        """Who is to bind it, and whose pods wait for that: a namespace's own silent pods hold up no other's."""
        return f"{self.pod.spec.scheduler_name}/{self.key[0]}"

    @property
    def wish(self) -> PlacementRequest:
        """What the pod asks for, parsed once.

        Raises:
            WordError: That cannot be read.
        """
        if self._wish is None:
            try:
                self._wish = read_wish(self.pod, self.template, self.ledger, self.volumes)
            except WordError as error:
                self._wish = error
        if isinstance(self._wish, WordError):
            raise self._wish
        return self._wish

    def update(self, pod: Pod, template: Template | None = None, volumes: Where = ()) -> bool:
        """Take in a newer state of the same pod. Returns whether it may ask for something else now."""
        old, self.pod = self.pod, pod
        if template is not self.template or volumes != self.volumes:
            self.template, self.volumes, self._wish = template, volumes, None
            return True
        if pod.metadata.resource_version == old.metadata.resource_version:
            return False
        self._wish = None
        return pod.metadata.annotations.get(names.REQUEST) != old.metadata.annotations.get(names.REQUEST) or (
            (pod.spec.node_name, pod.spec.node_selector, pod.spec.affinity, pod.spec.tolerations)
            != (old.spec.node_name, old.spec.node_selector, old.spec.affinity, old.spec.tolerations)
            or pod.metadata.labels != old.metadata.labels
            or pod.spec.scheduling_gates != old.spec.scheduling_gates
        )

    def fail(self, now: float, *, first_s: float, behind: str | None) -> None:
        """Let it wait, twice as long as the last time, and then behind all who waited meanwhile.

        Else a few old pods that nothing can be done for would take turns, and keep what they hold from everybody. Where
        nothing was said against it, ``behind`` is None and it keeps its turn.
        """
        self.step_back(now, first_s=first_s, behind=behind)
        self.failures += 1

    def step_back(self, now: float, *, first_s: float, behind: str | None) -> None:
        """Let it wait behind all others, as long as the last time: there are nodes that it was not tried on yet."""
        if behind is not None:
            self.order = (max(self.order[0], behind), f"~{self.uid}")
        self.not_before = now + wait_s(self.failures, first_s=first_s, longest_s=LONGEST_BACKOFF_S)

    def meets_trouble(self, successes: int) -> int:
        """Take in that the server failed it, and how many writes of all have gone well so far. Returns ``alone``."""
        if self._successes is not None and successes > self._successes:
            self.alone += 1
        self._successes = successes
        return self.alone

    def begin_again(self) -> None:
        """Take in that it is tried on nodes again on which it was tried: all have had their turn."""
        if self.tried:
            self.tried.clear()
            self.failures += 1

    def lose(self, now: float) -> bool:
        """Take in that its claim is gone. Returns whether it must wait before it gets another.

        Whoever deletes it may go on doing so: the garbage collector does, of a pod that is gone and still shown to us.
        """
        if not self.claim_uid:
            return False
        self.claim_uid = ""
        self.lost += 1
        if self.lost > 1:
            self.not_before = now + wait_s(self.lost, first_s=0.25, longest_s=LONGEST_BACKOFF_S)
        return self.lost > 1

    def looks_since(self, now: float) -> float:
        """Take in that there is no place for it now. Returns since when it has looked for one."""
        if self.no_place_since is None:
            self.no_place_since = now
        return self.no_place_since

    def forgive(self) -> None:
        """Forget earlier failures: it asks for something else now."""
        self.not_before, self.failures, self.renewed, self.no_place_since = 0.0, 0, False, None
        self.tried.clear()


def why(entry: Entry, error: NoPlaceError) -> str:
    """Return why a pod has no place: one that was placed before can have one on a few nodes only."""
    if not _narrowed(entry.pod):
        return str(error)
    return (
        f"the nodes that this pod was placed for have no other GPUs for it: {error}; delete it to have it placed anew"
    )
