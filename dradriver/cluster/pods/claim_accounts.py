"""The accounts of claims: the state of each, the GPUs that it holds, and the node on which its pods count.

It is kept from three sources: what the reflector shows, what the API server answered to our own writes, and what we are
about to write. Between these an older state never replaces a newer one.
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
    """Where a claim stands."""

    NONE = enum.auto()
    CREATING = enum.auto()  # we are about to write it
    PROMISED = enum.auto()  # it is there, pinned, and the scheduler has not given it devices yet
    ALLOCATED = enum.auto()
    LEAVING = enum.auto()  # it is being deleted and has no devices; no scheduler gives it any
    KEPT = enum.auto()  # it has no devices any more, and what it held is kept for another pod
    OPEN = enum.auto()  # it is there and pinned to nothing: handed over, or somebody else's


class Account(msgspec.Struct, frozen=True):
    """What one claim takes from the cluster.

    Attributes:
        state: Where it stands.
        holds: What of which devices: given, else promised.
        node: Where its pods count until they are bound; empty for nowhere.
    """

    state: State
    holds: Mapping[Device, Usage] = {}
    node: str = ""


NOTHING: Final = Account(State.NONE)


def account(claim: ClaimRecord | None, intended: Placement | None) -> Account:
    """Return a claim's account by its own record: what it takes.

    A bound or finished pod's promise holds too: that may be seen before the allocation, by two reflectors.

    Args:
        claim: The claim as it is known; None where there is none.
        intended: What it is about to be created for; None for nothing.
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
    """Return where NICs of a node are, that a claim's requests are to get by their PCI addresses."""
    return frozenset((node, address) for addresses in nics.values() for address in addresses)


class Accounts:
    """All claims as they are now, by namespace and name.

    Attributes:
        claims: Those that are there.
        assumed: Keys of those that no reflector has shown yet, with the time since when.
    """

    def __init__(self) -> None:
        """Begin with no claim."""
        self.claims: dict[Key, ClaimRecord] = {}
        self.assumed: dict[Key, float] = {}
        self._answered: dict[Key, float] = {}  # claims of which an answer told us more than any reflector, and when
        self._ended: OrderedDict[str, None] = OrderedDict()  # uids of claims last seen to go, for late answers
        self._preempting: set[Key] = set()  # claims for which others have to end, or had to
        self._intended: dict[Key, tuple[Key, Placement]] = {}  # claims that are being created, with the pod
        self._kept: dict[Key, Mapping[Device, Usage]] = {}  # what claims held that is kept once they are gone
        self._joining: dict[Key, str] = {}  # nodes by pods that are being written into a claim that others share

    def of(self, claim: Key) -> Account:
        """Return a claim's account: what it takes."""
        intended = self._intended.get(claim)
        found = account(self.claims.get(claim), None if intended is None else intended[1])
        return Account(State.KEPT, self._kept[claim]) if claim in self._kept and not found.holds else found

    def given(self, claim: Key) -> bool:
        """Return whether the scheduler allocated to a claim what its account says."""
        return self.of(claim).state is State.ALLOCATED

    def has(self, claim: ClaimRecord) -> bool:
        """Return whether a claim with an account exists and is not being deleted."""
        known = self.claims.get(claim.key)
        return known is not None and known.uid == claim.uid and not known.deleting

    def nics_of(self, claim: Key) -> Collection[Given | Place]:
        """Return the NICs in a claim's account: allocated, else those that it is or will be pinned to."""
        known = self.claims.get(claim)
        if known is None:
            placement = self.intended_of(claim)
            return () if placement is None else nic_places(placement.node, placement.nics)
        if known.devices is not None or known.deleting or known.pin is None or not known.pin.nics:
            return known.nics
        return nic_places(known.pin.choice.node, known.pin.nics)

    def node_of(self, pod: Pod) -> str:
        """Return the node that a pod's claim is promised to, or that it is coming to; empty for none."""
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
        """Return the claims that are about to be created, by their accounts."""
        return tuple(self._intended)

    def intended_for(self, claim: Key, pod: Key) -> Placement | None:
        """Return what a claim is about to be created for; None where it is not, or for another pod."""
        intended = self._intended.get(claim)
        return intended[1] if intended is not None and intended[0] == pod else None

    def intended_of(self, claim: Key) -> Placement | None:
        """Return what a claim is about to be created for; None where it is not."""
        intended = self._intended.get(claim)
        return None if intended is None else intended[1]

    def placements(self) -> Iterable[Placement]:
        """Return what claims are about to be created for."""
        return [placement for _, placement in self._intended.values()]

    def preempting(self) -> Iterable[ClaimRecord]:
        """Return the claims for which other pods are preempted, by their accounts."""
        return [self.claims[key] for key in self._preempting]

    def ahead(self, claim: Key) -> bool:
        """Return whether an answer to our own write is newer than what the reflector has shown of a claim."""
        return claim in self.assumed or claim in self._answered

    # What we write.

    def intend(self, claim: Key, pod: Key, placement: Placement) -> None:
        """Count a claim that is about to be created for a pod; it ends with ``answered`` or ``release``."""
        self._intended[claim] = pod, placement

    def release(self, claim: Key) -> bool:
        """Forget a claim that was to be created and was not. Returns whether it was to be."""
        return self._intended.pop(claim, None) is not None

    def keep(self, claim: Key, holds: Mapping[Device, Usage]) -> None:
        """Keep the account of a claim after the claim is gone, until ``let_go``."""
        self._kept[claim] = holds

    def kept(self, claim: Key) -> bool:
        """Return whether the account of a claim is kept after the claim is gone."""
        return claim in self._kept

    def let_go(self, claim: Key) -> None:
        """Stop keeping the account of a claim that is gone."""
        self._kept.pop(claim, None)

    def join(self, pod: Key, node: str) -> None:
        """Count a pod on the node of the shared claim that it is coming to, until ``joined``."""
        self._joining[pod] = node

    def joined(self, pod: Key) -> None:
        """Count a pod as an owner of a shared claim, or not."""
        self._joining.pop(pod, None)

    def answered(self, claim: ClaimRecord) -> ClaimRecord | None:
        """Note a claim as the API server returned it to us. Returns its newest state; None if it is gone.

        It is not put into the table yet: see ``put``.
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
        """Note that we deleted a claim. Returns its newest state; None if there is another by now."""
        known = self.claims.get(claim.key)
        if known is None or known.uid != claim.uid:
            return None
        self._answered[claim.key] = asyncio.get_running_loop().time()
        metadata = msgspec.structs.replace(known.metadata, deletion_timestamp="now")
        return msgspec.structs.replace(known, metadata=metadata)

    # What the reflector shows.

    def shows(self, change: Change[ClaimRecord]) -> bool:
        """Note a claim's state that the reflector saw. Returns whether it is newer than our own writes."""
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
        """Replace a claim's account, by none if the claim is gone. Returns the former one."""
        old = self.claims.pop(claim, None)
        self._preempting.discard(claim)
        if new is not None:
            self.claims[claim] = new
            if new.preempts is not None:
                self._preempting.add(claim)
        return old
