"""Records the state of each claim, its devices, and the node of its pods.

On that node the CPU and other resources of the pods are counted. There are three sources: the reflector, the API
server's answers to our own writes, and the *intended* claims, which the controller is about to create. An older state
never replaces a newer one.

A *placement* is the node and devices that were chosen for a pod. It is *tentative* until the scheduler allocates the
claim.
"""

from __future__ import annotations

import asyncio
import enum
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Device, Key, Usage, claim_key, is_set
from dradriver.api.vocabulary.nic_requests import Given
from dradriver.cluster.nics.nic_inventory import Place
from dradriver.cluster.records.object_versions import is_truth, outdated
from dradriver.cluster.records.placement import Placement
from dradriver.cluster.records.records import ClaimRecord
from dradriver.kube.reflector import Change

_ENDED: Final = 4096  # claims that go within the half minute that an answer may take


class State(enum.Enum):
    """What a claim has, such as a tentative placement or allocated devices."""

    NONE = enum.auto()
    CREATING = enum.auto()  # we are about to write it
    PROMISED = enum.auto()  # it is there, pinned, and the scheduler has not given it devices yet
    ALLOCATED = enum.auto()
    LEAVING = enum.auto()  # it is being deleted and has no devices; no scheduler gives it any
    KEPT = enum.auto()  # it has no devices any more, and what it held is kept for another pod
    OPEN = enum.auto()  # it is there and pinned to nothing: handed over, or somebody else's


class Account(msgspec.Struct, frozen=True):
    """The resources that one claim uses.

    Attributes:
        state: The claim's state.
        holds: The devices that it uses, with the fraction of each: the allocated devices, or else the tentative ones.
        node: The node on which the resources of its pods are counted until they are bound; empty for none.
    """

    state: State
    holds: Mapping[Device, Usage] = {}
    node: str = ""


NOTHING: Final = Account(State.NONE)


def account(claim: ClaimRecord | None, intended: Placement | None) -> Account:
    """Return the account of a claim, from its record and the placement that it will be created for.

    The tentative placement of a bound or finished pod counts, too, because another reflector may show the pod before
    the claim's allocation.

    Args:
        claim: The claim as it is known; None if there is none.
        intended: The placement for which the claim is about to be created; None if no claim is about to be created.
    """
    if claim is None:
        return NOTHING if intended is None else Account(State.CREATING, intended.taken, intended.node)
    node = "" if claim.pin is None else claim.pin.choice.node
    if claim.devices is not None:
        return Account(State.ALLOCATED, claim.devices, node)
    if claim.deleting:
        return Account(State.LEAVING)
    if claim.pin is None:
        return Account(State.OPEN)
    return Account(State.PROMISED, claim.pin.taken, node)


def nic_places(node: str, nics: Mapping[str, Collection[str]]) -> frozenset[Place]:
    """Return the places (node and PCI address) of the NICs in a placement or pin.

    Args:
        node: The node.
        nics: The PCI addresses for each request of the claim.
    """
    return frozenset((node, address) for addresses in nics.values() for address in addresses)


class Accounts:
    """All claims as they are now, by namespace and name.

    Attributes:
        claims: The claims that exist.
        assumed: Claims that we wrote and no reflector has shown yet. The value is the event loop's time of our write.
    """

    def __init__(self) -> None:
        """Make an object that knows no claims yet."""
        self.claims: dict[Key, ClaimRecord] = {}
        self.assumed: dict[Key, float] = {}
        self._answered: dict[Key, float] = {}  # claims of which an answer told us more than any reflector, and when
        self._ended: OrderedDict[str, None] = OrderedDict()  # uids of claims last seen to go, for late answers
        self._preempting: set[Key] = set()  # claims for which others have to end, or had to
        self._intended: dict[Key, tuple[Key, Placement]] = {}  # claims that are being created, with the pod
        self._kept: dict[Key, Mapping[Device, Usage]] = {}  # what claims held that is kept once they are gone
        self._joining: dict[Key, str] = {}  # nodes by pods that are being written into a claim that others share

    def of(self, claim: Key) -> Account:
        """Return a claim's state and the devices that it uses."""
        intended = self._intended.get(claim)
        found = account(self.claims.get(claim), None if intended is None else intended[1])
        return Account(State.KEPT, self._kept[claim]) if claim in self._kept and not found.holds else found

    def given(self, claim: Key) -> bool:
        """Return whether the scheduler has allocated a claim's devices."""
        return self.of(claim).state is State.ALLOCATED

    def has(self, claim: ClaimRecord) -> bool:
        """Return whether exactly this claim (same uid) exists and is not being deleted."""
        known = self.claims.get(claim.key)
        return known is not None and known.uid == claim.uid and not known.deleting

    def nics_of(self, claim: Key) -> Collection[Given | Place]:
        """Return the NICs of a claim: the allocated ones or, without an allocation, the chosen ones.

        The controller chooses NICs for a claim that it has created or is about to create.
        """
        known = self.claims.get(claim)
        if known is None:
            placement = self.intended_of(claim)
            return () if placement is None else nic_places(placement.node, placement.nics)
        if known.devices is not None or known.deleting or known.pin is None or not known.pin.nics:
            return known.nics
        return nic_places(known.pin.choice.node, known.pin.nics)

    def node_of(self, pod: Pod) -> str:
        """Return the node of a pod's tentative placement, or of the shared claim that it joins; empty for none."""
        claim = claim_key(pod)
        if claim is None:
            return ""
        key = pod.metadata.namespace, pod.metadata.name
        known = self.claims.get(claim)
        if known is not None:
            mine = self.of(claim).node if known.owned_by(pod.metadata.uid) else ""
            return mine or self._joining.get(key, "")
        intended = self._intended.get(claim)
        return intended[1].node if intended is not None and intended[0] == key else ""

    def intended(self) -> Collection[Key]:
        """Return the claims that the controller is about to create."""
        return tuple(self._intended)

    def intended_for(self, claim: Key, pod: Key) -> Placement | None:
        """Return the placement of a claim that is about to be created for this pod.

        A placement is a node and devices. None if no such claim is about to be created.
        """
        intended = self._intended.get(claim)
        return intended[1] if intended is not None and intended[0] == pod else None

    def intended_of(self, claim: Key) -> Placement | None:
        """Return the placement of a claim that is about to be created; None for any other claim."""
        intended = self._intended.get(claim)
        return None if intended is None else intended[1]

    def placements(self) -> Iterable[Placement]:
        """Return the placements (node and devices) of all claims that are about to be created."""
        return [placement for _, placement in self._intended.values()]

    def preempting(self) -> Iterable[ClaimRecord]:
        """Return the claims for which other pods must end (are preempted)."""
        return [self.claims[key] for key in self._preempting]

    def ahead(self, claim: Key) -> bool:
        """Return whether our own write of a claim is newer than the state that the reflector has shown."""
        return claim in self.assumed or claim in self._answered

    # What we write.

    def intend(self, claim: Key, pod: Key, placement: Placement) -> None:
        """Count a placement's devices for a claim that is about to be created for a pod.

        They count until ``answered`` or ``release``.
        """
        self._intended[claim] = pod, placement

    def release(self, claim: Key) -> bool:
        """Forget a claim that was not created after all.

        Returns:
            Whether the claim was about to be created.
        """
        return self._intended.pop(claim, None) is not None

    def keep(self, claim: Key, holds: Mapping[Device, Usage]) -> None:
        """Keep counting a deleted claim's devices as used, until ``let_go`` is called.

        A replacement of the claim's lost pod will get these devices (``holds``).
        """
        self._kept[claim] = holds

    def kept(self, claim: Key) -> bool:
        """Return whether a claim's devices stay counted after the claim is gone, as ``keep`` requested."""
        return claim in self._kept

    def let_go(self, claim: Key) -> None:
        """Stop counting the devices of a claim that is gone, which ``keep`` requested."""
        self._kept.pop(claim, None)

    def join(self, pod: Key, node: str) -> None:
        """Count a pod's resources on the node of the shared claim that it joins.

        The pod does not use the claim yet. The resources count there until ``joined`` is called.
        """
        self._joining[pod] = node

    def joined(self, pod: Key) -> None:
        """End what ``join`` began: the pod owns the shared claim now, or could not join it."""
        self._joining.pop(pod, None)

    def answered(self, claim: ClaimRecord) -> ClaimRecord | None:
        """Record a claim that the API server returned after our own write.

        The caller must then call ``put`` with the result: only ``put`` changes ``claims``.

        Returns:
            The newest known state of the claim, which can be newer than the argument; None if the claim is gone.
        """
        self._intended.pop(claim.key, None)
        if claim.uid in self._ended:
            return None
        known = self.claims.get(claim.key)
        if known is None or known.uid != claim.uid:
            self.assumed[claim.key] = asyncio.get_running_loop().time()
        elif outdated(claim, known):
            return known
        elif claim.metadata.resource_version != known.metadata.resource_version:
            self._answered[claim.key] = asyncio.get_running_loop().time()
        return claim

    def deleted(self, claim: ClaimRecord) -> ClaimRecord | None:
        """Record that the controller deleted a claim.

        Returns:
            The claim's newest state, marked as being deleted; None if another claim has its name by now.
        """
        known = self.claims.get(claim.key)
        if known is None or known.uid != claim.uid:
            return None
        self._answered[claim.key] = asyncio.get_running_loop().time()
        metadata = msgspec.structs.replace(known.metadata, deletion_timestamp="now")
        return msgspec.structs.replace(known, metadata=metadata)

    # What the reflector shows.

    def shows(self, change: Change[ClaimRecord]) -> bool:
        """Record that the reflector shows a changed claim; return whether to count this state.

        Returns:
            False if the state is older than our own writes. The caller then ignores it.
        """
        key, new = change.key, change.new
        # Somebody else's that has a set's name is kept only while it has devices: it may be there still.
        if new is None and change.old is not None and (change.old.ours or not is_set(key)):
            self._ended[change.old.uid] = None
            if len(self._ended) > _ENDED:
                self._ended.popitem(last=False)
        if key in self.assumed:
            seen = new if new is not None else change.old
            if (seen is None or seen.uid != self.claims[key].uid) and not is_truth(change, self.assumed[key]):
                return False  # the end of an earlier claim of that name
            del self.assumed[key]
        before = self.claims.get(key)
        late = new is not None and before is not None and outdated(new, before)
        if late and not is_truth(change, self._answered.get(key)):
            return False  # the server told us more already
        self._answered.pop(key, None)
        if new is not None:
            self._ended.pop(new.uid, None)  # or it would be there again, after the server's store was put back
        return True

    def put(self, claim: Key, new: ClaimRecord | None) -> ClaimRecord | None:
        """Replace a claim's newest state by ``new``; None removes the claim.

        Returns:
            The claim's state before; None if it was not known.
        """
        old = self.claims.pop(claim, None)
        self._preempting.discard(claim)
        if new is not None:
            self.claims[claim] = new
            if new.preempts is not None:
                self._preempting.add(claim)
        return old
