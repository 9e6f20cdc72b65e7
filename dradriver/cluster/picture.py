"""The live picture of the cluster that decisions are made from: what reflectors show and, at once, our own writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from dradriver.allocator.request import Weights
from dradriver.api.nics import Given
from dradriver.api.objects import Node
from dradriver.api.pins import Device, Key, Usage, claim_key, is_set
from dradriver.api.pods import Pod
from dradriver.api.preempts import Preempts
from dradriver.api.seats import GO
from dradriver.api.templates import Template
from dradriver.cluster.channels import Channels
from dradriver.cluster.claim_users import MOST, ClaimUsers
from dradriver.cluster.claims import Accounts, State
from dradriver.cluster.fleets import Fleets
from dradriver.cluster.gangs import Gangs
from dradriver.cluster.gpu_time import GpuTime, Who, name_kept, owner_of
from dradriver.cluster.inventory import Inventory
from dradriver.cluster.kept_places import KeptPlaces, is_lost
from dradriver.cluster.kueue_topologies import KueueTopology
from dradriver.cluster.neighbours import Neighbours
from dradriver.cluster.nic_devices import NicSlice
from dradriver.cluster.nics import Nics, Place
from dradriver.cluster.node_usage import NodeUsage
from dradriver.cluster.nodes.ask import Where
from dradriver.cluster.nodes.requests import Amounts
from dradriver.cluster.nodes.table import NodeTable
from dradriver.cluster.offered import Offered
from dradriver.cluster.placement import Placement
from dradriver.cluster.pods import Foreign, Grouped
from dradriver.cluster.records import ChannelSlice, ClaimRecord, DeviceClass, SliceRecord
from dradriver.cluster.refusals import Refusals
from dradriver.cluster.tabulating import Tabulator
from dradriver.cluster.taint_rules import TaintRule
from dradriver.cluster.templates import Templates
from dradriver.cluster.versions import is_truth, older
from dradriver.cluster.volumes import Unbound, Volumes
from dradriver.kube.reflector import Change
from dradriver.topology.machine import Machine


class Picture:
    """Pods, claims, nodes and GPUs as they are now.

    What this controller wrote counts at once (``assume_claim``, ``assume_pod``), until a reflector shows it, and what
    it is about to write, too (``promise``): between the two, the next pod must not be promised the same GPUs or CPU.

    Attributes:
        pods: The pods with our label, by namespace and name.
        claims: The claims that are ours or hold GPUs of ours, by namespace and name.
        nodes: All nodes, what they have left, and whom they take.
        channels: Who has the nodes' channels of multi-node NVLink.
        templates: All ResourceClaimTemplates, and the specs of those that waiting pods name.
        volumes: Where the volumes of waiting pods are.
        inventory: All GPUs and who holds them.
        fleets: The same as the allocator is asked of it, for whoever wants to be placed.
        offered: The slices, and what taint rules leave of them.
        claim_users: The pods of each claim.
        gangs: Which pods start together.
        kept_places: Places of lost pods of gangs that run on.
        barrier: Whether a seat keeps its pod from being bound here; None while a leader that begins has to find out.
        neighbours: Which pods of ours are not to be beside each other, and where they are.
        refusals: On which nodes the scheduler found no room for pods of each kind.
        taking: What pods of ours take from their nodes.
        weights: What counts among sets that are equal otherwise, as the policies file in force says.
        accounts: Where each claim stands, and what it takes.
        gpu_time: How much of which GPUs each claim has, and had.
        nics: NICs that other drivers hand out, and who has them.
        version: Grows with every change that a decision may depend on.
    """

    def __init__(self, touch: Callable[[Key], None], wake: Callable[[], None]) -> None:
        """Make an empty picture.

        Args:
            touch: Called with the key of each pod that has to be looked at again.
            wake: Called after changes that may make a place for any pod.
        """
        self._touch = touch
        self._wake = wake
        self.pods: dict[Key, Pod] = {}
        self.accounts = Accounts()
        self.claims = self.accounts.claims
        self.templates = Templates()
        self.volumes = Volumes()
        self.nodes = NodeTable()
        self.channels = Channels(self.nodes)
        self.inventory = Inventory(self.nodes)
        self.nics = Nics(self.nodes, self._machine_of)
        self.fleets = Fleets(self.inventory, self.nodes)
        self.inventory.marked = self._marked
        self.gpu_time = GpuTime(self.inventory.pool, self._who, self._results_of)
        self.offered = Offered(
            self.inventory, self.nodes,
            rehold=self._rehold, touch=self._touch_pods_of, known=self.gpu_time.pool_known,
        )  # fmt: skip
        self.weights = Weights()
        self._assumed_pods: dict[Key, float] = {}
        self.claim_users = ClaimUsers(self.pods)
        self.gangs = Gangs()
        self.kept_places = KeptPlaces(self.accounts, self._freed)
        self.barrier: bool | None = False
        self.node_usage = NodeUsage(self.nodes, self.pods, self.accounts.node_of)
        self.neighbours = Neighbours(self.nodes, self.pods, self.node_usage.node_of)
        self.refusals = Refusals()
        self._classes: dict[str, frozenset[str]] = {}
        self.version = 0
        self._clock = 0  # of the nodes, when the last change that could help was told

    # What reflectors see.

    def pod_changed(self, change: Change[Pod | Foreign]) -> None:
        """Take in what the pods' reflector saw."""
        key, old, new = change.key, change.old, change.new
        if isinstance(old, Foreign) and old.node:
            self.nodes.give(old.node, old.takes)
        if isinstance(new, Foreign) and new.node:
            self.nodes.take(new.node, new.takes)
        for gang in self.gangs.other_changed(key, new.group if isinstance(new, Grouped) else ""):
            self._touch(gang)
        ours = new if isinstance(new, Pod) else None
        if key in self._assumed_pods:
            known = self.pods[key]
            before = ours is not None and ours.metadata.uid == known.metadata.uid and older(ours, known)
            if before and not is_truth(change, self._assumed_pods[key]):
                return  # from before our own write
            del self._assumed_pods[key]
        if ours is not None or key in self.pods:
            self._set_pod(key, ours)
        self._tell()

    def claim_changed(self, change: Change[ClaimRecord]) -> None:
        """Take in what the claims' reflector saw."""
        if self.accounts.shows(change):
            self._set_claim(change.key, change.new)
            self._tell()

    def node_changed(self, change: Change[Node]) -> None:
        """Take in what the nodes' reflector saw."""
        name = change.key[1]
        self.nodes.set_node(name, change.new)
        if change.old is None or change.new is None:
            self.inventory.set_node(name)
        else:
            self.fleets.relabelled(name)
        self._tell()

    def slice_changed(self, change: Change[SliceRecord]) -> None:
        """Take in what the slices' reflector saw."""
        self.offered.slice_changed(change)
        self._tell()

    def channels_changed(self, change: Change[ChannelSlice]) -> None:
        """Take in what the reflector of slices with channels of multi-node NVLink saw."""
        self.channels.slice_changed(change)
        self._tell()

    def taint_rule_changed(self, change: Change[TaintRule]) -> None:
        """Take in what the reflector of DeviceTaintRules saw."""
        self.offered.rule_changed(change)
        self._tell()

    def tables_made(self, node: str) -> None:
        """Take in that the tables of a node's machine are there: it can be placed on."""
        self.offered.tables_made(node)
        self._tell()

    def class_changed(self, change: Change[DeviceClass]) -> None:
        """Take in what the device classes' reflector saw: which extended resources no node need have."""
        name = change.key[1]
        if change.new is None:
            self._classes.pop(name, None)
        else:
            self._classes[name] = change.new.resources
        self.nodes.claimable = frozenset().union(*self._classes.values())
        self.nics.class_changed(name, None if change.new is None else change.new.selectors)
        self._tell()

    def template_changed(self, change: Change[Template]) -> None:
        """Take in what the templates' reflector saw."""
        self.templates.changed(change.key, change.new)
        for pod in self.templates.pods(change.key):
            self.count_channel(pod)
        self._touch_made_by(change.key)

    def template_read(self, key: Key, template: Template | None) -> None:
        """Take in a whole template, None where it is not there, as the API server gave it to somebody who asked."""
        self.templates.read(key, template)
        self._touch_made_by(key)

    def nics_changed(self, change: Change[NicSlice]) -> None:
        """Take in what the reflector of a NIC driver's slices saw."""
        self.nics.slice_changed(change)
        self._tell()

    def nics_read(self, driver: str) -> None:
        """Take in that all slices of a NIC driver are known: who waited for that may have a place."""
        self.nics.read(driver)
        for name in self.inventory.pools():
            self.nodes.helped(name)
        for claim in self.nics.claims():
            self._touch_pods_of(claim)
        self._tell()

    def volume_read(self, claim: Key, found: Where | Unbound | None) -> None:
        """Take in where the volume of a claim of storage is, None where that cannot be read."""
        if self.volumes.read(claim, found):
            for pod in sorted(self.volumes.pods(claim) or ()):
                self._touch(pod)
            self.version += 1

    def find_out_no_more(self) -> None:
        """Take in that a leader that begins knows of a barrier by now, or goes without: gangs waited for that."""
        if self.barrier is None:
            self.barrier = False
        for gang in self.gangs:
            self._touch(gang)

    # What is configured.

    def make_tables(self, tabulator: Tabulator) -> None:
        """Have the tables of machines made beside the loop; said before anything is seen."""
        self.inventory.tables, tabulator.made = tabulator, self.tables_made

    def nccl_changed(self, version: str) -> None:
        """Take in which NCCL jobs run (``Machine.nccl_version``), whoever says it.

        Args:
            version: As ``topology.nccl_version.release`` reads it; empty for the newest.
        """
        self.inventory.set_nccl_version(version)
        self._tell()

    def nic_classes_changed(self, classes: Mapping[str, str]) -> None:
        """Take in which DeviceClasses are of NICs, each with its driver's word: templates mean something else then."""
        for template in self.templates.set_nic_classes(classes):
            self._touch_made_by(template)

    def levels_changed(self, keys: Sequence[str], gbps_of: Mapping[str, float]) -> None:
        """Take in the label keys of the network's levels that are configured, nearest first, and what they carry."""
        self.fleets.set_levels(keys, gbps_of)
        self._tell()

    def topology_changed(self, change: Change[KueueTopology]) -> None:
        """Take in what the reflector of Kueue's Topologies saw."""
        self.fleets.topology_changed(change)
        self._tell()

    # What we write.

    def promise(self, claim: Key, pod: Key, placement: Placement) -> None:
        """Count a claim that is about to be created, from now on; it ends with ``assume_claim`` or ``release``."""
        self.accounts.intend(claim, pod, placement)
        self._rehold(claim)

    def release(self, claim: Key) -> None:
        """Forget a claim that was to be created and was not."""
        if self.accounts.release(claim):
            self._rehold(claim)
            self._tell()

    def joins(self, pod: Key, node: str) -> None:
        """Count a pod on the node of the set that it is coming to, from now on; it ends with ``joined``."""
        self.accounts.join(pod, node)
        self._recount(pod)

    def joined(self, pod: Key) -> None:
        """Count a pod that came to a set, or did not."""
        self.accounts.joined(pod)
        self._recount(pod)
        self._tell()

    def assume_claim(self, claim: ClaimRecord) -> None:
        """Count a claim, as the API server returned it, before the reflector shows it."""
        now = self.accounts.answered(claim)
        if now is None:
            self._rehold(claim.key)
            return
        self._set_claim(claim.key, now)
        if claim.key in self.accounts.assumed:
            self._tell()

    def assume_deleted(self, claim: ClaimRecord) -> None:
        """Count a claim as on its way out before the reflector shows it: it holds nothing any more."""
        if (leaving := self.accounts.deleted(claim)) is not None:
            self._set_claim(claim.key, leaving)
            self._tell()

    def correct_claim(self, key: Key, claim: ClaimRecord | None) -> None:
        """Replace an assumed claim that turned out not to exist any more by what there is in its place."""
        if self.accounts.assumed.pop(key, None) is not None:
            self._set_claim(key, claim)
            self._tell()

    def assume_pod(self, pod: Pod, *, was: Pod) -> None:
        """Count a lifted pod, as the API server returned it, before the reflector shows it.

        If the picture is not what it ``was`` when the write began, the reflector was faster and may be ahead already.
        """
        key = pod.metadata.namespace, pod.metadata.name
        if self.pods.get(key) is was:
            self._assumed_pods[key] = asyncio.get_running_loop().time()
            self._set_pod(key, pod)

    # What decisions ask.

    def claim_of(self, pod: Pod) -> ClaimRecord | None:
        """Return the claim under the name that the webhook gave a pod; whose it is, the caller must see."""
        key = claim_key(pod)
        return None if key is None else self.claims.get(key)

    def template_of(self, pod: Pod) -> Template | None:
        """Return the template that a waiting pod's claim is made by; None for none, or one that is not read."""
        return self.templates.of(pod)

    def lacking_of(self, pod: Pod) -> str | None:
        """Return what a waiting pod cannot start without yet, a template or a volume, in words; None for nothing."""
        return self.templates.lacking_of(pod) or self.volumes.lacking_of(pod)

    def domain_of(self, pod: Key) -> str | None:
        """Return the ComputeDomain whose channel a pod asks for, by its uid; None for a pod that asks for none."""
        known = self.pods.get(pod)
        return None if known is None else self.templates.domain_of(known)

    def rivals(self, claim: ClaimRecord) -> bool:
        """Return whether what a claim is pinned to was given to others, so that it does not fit beside them."""
        assert claim.pin is not None, "asked of our own claims"
        if any(self.claims[other].nics for other in self.nics.others(claim.key) if other in self.claims):
            return True
        return self._crowded(
            claim.key, claim.pin.taken, lambda other: bool(other.devices) and not _gives_way(other, claim.preempts)
        )

    def fits(self, claim: ClaimRecord) -> bool:
        """Return whether what a claim is pinned to fits beside all that others hold, given or promised."""
        assert claim.pin is not None, "asked of our own claims"
        if self.nics.others(claim.key):
            return False
        return not self._crowded(claim.key, claim.pin.taken, lambda other: not _gives_way(other, claim.preempts))

    def has(self, claim: ClaimRecord) -> bool:
        """Return whether a claim is there still, and is not on its way out."""
        known = self.claims.get(claim.key)
        return known is not None and known.uid == claim.uid and not known.deleting

    def overtaken(self, claim: Key, placement: Placement) -> bool:
        """Return whether other claims have come by what a placement needs since it was decided."""
        if placement.nics and self.nics.others(claim, _places(placement.node, placement.nics)):
            return True
        return self._crowded(claim, placement.taken, lambda other: not _gives_way(other, placement.preempts))

    def in_the_way(self, claim: ClaimRecord) -> tuple[Pod, ...]:
        """Return the pods that have to end for a claim and have not."""
        return () if claim.preempts is None else self.living(claim.preempts)

    def living(self, preempts: Preempts) -> tuple[Pod, ...]:
        """Return those of some pods that have to end which have not: they are there still, and run or will."""
        found = ((self.pods.get((one.namespace, one.name)), one.uid) for one in preempts.victims)
        return tuple(pod for pod, uid in found if pod is not None and pod.metadata.uid == uid and not pod.finished)

    def _crowded(self, claim: Key, taken: Mapping[Device, Usage], counts: Callable[[ClaimRecord], bool]) -> bool:
        """Return whether a claim cannot have this beside what those others hold that are there and count."""
        for device, part in taken.items():
            others = [key for key in self.inventory.holders(device) if key in self.claims]
            others = [key for key in others if key != claim and counts(self.claims[key])]
            if not self.inventory.fits(claim, device, part, others):
                return True
        return False

    # What the audit asks.

    def pod_is_ahead(self, key: Key) -> bool:
        """Return whether an answer to us told more of a pod than its reflector has shown."""
        return key in self._assumed_pods

    def taken_by(self, pod: Key) -> tuple[str, Amounts] | None:
        """Return the node that a pod takes something from, and what; None for nothing."""
        return self.node_usage.by(pod)

    # How it is kept.

    def _set_pod(self, key: Key, new: Pod | None) -> None:
        old = self.pods.get(key)
        if new is None:
            self.pods.pop(key, None)
        else:
            self.pods[key] = new
        self.neighbours.pod_changed(key, new)
        self.templates.pod_changed(key, old, new)
        self.volumes.pod_changed(key, old, new)
        claims = {claim_key(pod) for pod in (old, new) if pod is not None} - {None}
        for claim in claims:
            assert claim is not None
            leads, known = self.claim_users.put(claim, key), self.claims.get(claim)
            self._rehold(claim, ())
            if is_set(claim) and (leads if known is None else known.devices is None and _owned(known, old)):
                self._touch_pods_of(claim)  # others may be waiting for this one
        self._recount(key)
        self._touch(key)
        self._set_member(key, old)

    def _set_member(self, key: Key, old: Pod | None = None) -> None:
        """Count a pod as one of its gang, if it is of any; ``old`` is what it was before, where it changed itself."""
        was, new = self.gangs.of(key), self.pods.get(key)
        for gang in self.gangs.pod_changed(key, new, self._told_to_go):
            self._touch(gang)
        if was is not None and not self.gangs.started(was.gang):
            self.kept_places.end(was.gang)
        elif was is not None and old is not None and is_lost(old, new):
            self.kept_places.lost(old, was, self.claim_of(old), running=self.gangs.running(was.gang))

    def _told_to_go(self, pod: Pod) -> bool:
        claim = self.claim_of(pod)
        return claim is not None and claim.seat is not None and GO in claim.seat.told

    def _set_claim(self, key: Key, new: ClaimRecord | None) -> None:
        old = self.accounts.put(key, new)
        self.offered.claim_changed(key, old, new)
        self.channels.claim_changed(key, old, new)
        if new is not None and new.pin is not None and old is not None and len(new.users) < MOST <= len(old.users):
            self.nodes.helped(new.pin.choice.node)  # another may use the set that is there
        if old is not None and old.devices and not (new and new.devices) and self.accounts.kept(key):
            for pod in self.gangs.pods(self.kept_places.gang_of(key)):  # whom the place is kept for can have it now
                self._touch(pod)
        pods = self.claim_users.of(key) if old is None or new is None else self.claim_users.concerned(old, new)
        self._rehold(key, pods)
        if new is not None and new.devices:
            for device in self.inventory.holds.of(key):
                for other in self.inventory.holders(device):
                    if other != key:
                        self._touch_pods_of(other)
        if new is not None and new.nics:
            for other in self.nics.others(key):
                self._touch_pods_of(other)
        for pod in pods:
            self._touch(pod)
            if any(claim is not None and claim.seat is not None for claim in (old, new)):
                self._set_member(pod)

    def _touch_made_by(self, template: Key) -> None:
        for pod in self.templates.pods(template):
            self._touch(pod)
        self.version += 1

    def _touch_pods_of(self, claim: Key) -> None:
        for pod in self.claim_users.of(claim):
            self._touch(pod)

    def _rehold(self, key: Key, pods: Collection[Key] | None = None) -> None:
        """Count what a claim holds, and what its pods take, all of them unless it is said which."""
        held = self.held(key)
        self.inventory.hold(key, held)
        self.nics.hold(key, self.nics_of(key))
        self.gpu_time.holds(key, held, given=self.given(key))
        for pod in self.claim_users.of(key) if pods is None else pods:
            self._recount(pod)

    def _recount(self, pod: Key) -> None:
        self.node_usage.recount(pod)
        self.count_channel(pod)

    def count_channel(self, pod: Key) -> bool:
        """Count which node's channel of multi-node NVLink a pod takes. Returns whether it is news."""
        wanted = self.domain_of(pod) is not None
        return self.channels.pod_at(pod, self.node_usage.node_of(pod) if wanted else None)

    def nics_of(self, key: Key) -> Collection[Given | Place]:
        """Return the NICs that a claim has: given, else those that it is pinned to or is about to be."""
        known = self.claims.get(key)
        if known is None:
            placement = self.accounts.intended_of(key)
            return () if placement is None or not placement.nics else _places(placement.node, placement.nics)
        if known.devices is not None or known.deleting or known.pin is None or not known.pin.nics:
            return known.nics
        return _places(known.pin.choice.node, known.pin.nics)

    def given(self, key: Key) -> bool:
        """Return whether the scheduler gave a claim what it holds."""
        return self.accounts.of(key).state is State.ALLOCATED

    def _who(self, claim: Key) -> Who:
        pods, record = self.claim_users.of(claim), self.claims.get(claim)
        owner = next((owner for pod in pods if (owner := owner_of(self.pods.get(pod)))), "")
        named = [name for _, name in pods] or ([] if record is None else [name for name, _ in record.owners])
        idle = None if record is None or record.idle is None else record.idle.since
        return Who(owner, name_kept(min(named, default="")), idle)

    def _results_of(self, claim: Key) -> Mapping[Device, Usage] | None:
        return self.offered.results(self.claims.get(claim))

    def held(self, key: Key) -> Mapping[Device, Usage]:
        """Return what a claim holds, of the devices as they are handed out here."""
        given = self.offered.given(key, self.claims.get(key))
        return self.accounts.of(key).holds if given is None else given

    def _machine_of(self, node: str) -> Machine | None:
        pool = self.inventory.pool(node)
        return None if pool is None else pool.machine

    def _marked(self, node: str, anew: bool) -> None:
        """Take in that something of a node's GPUs is not what it was."""
        self.fleets.views.mark(node, anew)
        self.nics.counts.changed(node)

    def _freed(self, key: Key) -> None:
        """Count what a claim holds, of which less may be kept now."""
        self._rehold(key)
        self._tell()

    def _tell(self) -> None:
        """Wake whoever waits for a place, if one may have become free: most changes make none."""
        self.version += 1
        if self.nodes.clock != self._clock:
            self._clock = self.nodes.clock
            self._wake()


def _places(node: str, nics: Mapping[str, Collection[str]]) -> frozenset[Place]:
    return frozenset((node, address) for addresses in nics.values() for address in addresses)


def _gives_way(claim: ClaimRecord, preempts: Preempts | None) -> bool:
    """Return whether the pod of a claim has to end first."""
    return preempts is not None and any(uid in preempts.uids for _, uid in claim.owners)


def _owned(claim: ClaimRecord, pod: Pod | None) -> bool:
    return pod is not None and claim.owned_by(pod.metadata.uid)
