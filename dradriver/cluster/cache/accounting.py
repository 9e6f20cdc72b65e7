"""The accounting of the cluster cache: what is written where when a pod or a claim changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping

from dradriver.allocator.request import Weights
from dradriver.api.base.gang_barrier_device import GO
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Device, Key, Usage, claim_key, is_set
from dradriver.cluster.cache.feature_books import feature_books
from dradriver.cluster.gpus import gone_agents
from dradriver.cluster.gpus.fleets import Fleets
from dradriver.cluster.gpus.inventory import Inventory
from dradriver.cluster.gpus.offered_slices import Offered
from dradriver.cluster.gpus.tabulating import AtOnce
from dradriver.cluster.nics.nic_inventory import Nics
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.cluster.pods.claim_accounts import Accounts
from dradriver.cluster.pods.claim_users import MOST, ClaimUsers
from dradriver.cluster.pods.gang_pods import Gangs
from dradriver.cluster.pods.gpu_time import GpuTime, Who, whose
from dradriver.cluster.pods.kept_places import KeptPlaces, is_lost
from dradriver.cluster.pods.neighbours import Neighbours
from dradriver.cluster.pods.node_usage import NodeUsage
from dradriver.cluster.pods.nvlink_channels import Channels
from dradriver.cluster.pods.other_claims import OtherClaims
from dradriver.cluster.pods.scheduler_refusals import Refusals
from dradriver.cluster.pods.unknown_rules import what_only_the_scheduler_knows
from dradriver.cluster.pods.volumes import Volumes
from dradriver.cluster.records.records import ClaimRecord
from dradriver.cluster.records.templates import Templates
from dradriver.reason import Reason
from dradriver.topology.machine import Machine


class Books:
    """The books of pods, claims, nodes and GPUs, which agree with each other after each change.

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
        neighbours: Where pods are, for the rules of others about them.
        other_claims: Where claims of other drivers are that waiting pods name.
        refusals: On which nodes the scheduler found no room for pods of each kind.
        node_usage: What pods of ours take from their nodes.
        weights: What counts among sets that are equal otherwise, as the policies file in force says.
        accounts: Where each claim stands, and what it takes.
        gpu_time: How much of which GPUs each claim has, and had.
        nics: NICs that other drivers hand out, and who has them.
        version: Grows with every change that a decision may depend on.
    """

    def __init__(
        self,
        touch: Callable[[Key], None],
        wake: Callable[[], None],
        *,
        clock: Callable[[], float] | None = None,
        tables: AtOnce | None = None,
        partition_of: Callable[[str], str] | None = None,
    ) -> None:
        """Begin without pods, claims and nodes.

        Args:
            touch: Called with the key of each pod that the controller must look at again.
            wake: Called after changes that may make room for any pod.
            clock: Returns seconds since the epoch, for GPU time; the system's clock by default.
            tables: Makes the tables of machines; None to make them when they are needed.
            partition_of: Returns the partition of a namespace, see ``Views``.
        """
        self._touch = touch
        self._wake = wake

        # The order matters: each book reads those that are passed to it. Books that must not know this class get
        # callbacks instead: ``_rehold`` counts again what a claim holds, ``_touch_pods_of`` has the controller look at
        # the claim's pods again.

        # 1. Pods, claims, nodes and their GPUs.
        self.pods: dict[Key, Pod] = {}
        self.accounts = Accounts()
        self.claims = self.accounts.claims
        self.templates = Templates()
        self.volumes = Volumes()
        self.nodes = NodeTable()
        self.inventory = Inventory(self.nodes, tables)
        self.fleets = Fleets(self.inventory, self.nodes, partition_of)
        self.gpu_time = GpuTime(self.inventory.pool, self._whose, self._results_of, clock=clock or time.time)
        self.offered = Offered(
            self.inventory, self.nodes,
            rehold=self._rehold, touch=self._touch_pods_of, known=self.gpu_time.pool_known,
        )  # fmt: skip

        # 2. NICs.
        self.nics = Nics(self.nodes, self._machine_of, self.offered.taint_rules)
        # From the first pod on that requests NICs, the NICs of a node are counted again when its GPUs change.
        self.nics.first_requested.add(lambda: self.inventory.marked.add(self._gpus_marked))

        # 3. The pods of each claim and of each gang.
        self.weights = Weights()
        self.claim_users = ClaimUsers(self.pods)
        self.gangs = Gangs()
        self.kept_places = KeptPlaces(self.accounts, self._freed)
        self.barrier: bool | None = False

        # 4. What pods take of their nodes in addition to GPUs and NICs, and what else ties pods to nodes.
        self.node_usage = NodeUsage(self.nodes, self.pods, self.accounts.node_of)
        self.channels = Channels(self.nodes, self.pods, self.claims, self.templates, self.node_usage.node_of)
        self.other_claims = OtherClaims(self.nodes, self.pods, self.claims, touch)
        # ``_recount`` and ``_rehold`` tell these books of pods and claims that use the feature.
        self._feature_books = feature_books(
            pods=self.pods, accounts=self.accounts, gangs=self.gangs,
            nics=self.nics, channels=self.channels, other_claims=self.other_claims, kept_places=self.kept_places,
            touch=touch, touch_pods_of=self._touch_pods_of,
        )  # fmt: skip
        self.neighbours = Neighbours(self.nodes, self.pods, self.node_usage.node_of)
        self.refusals = Refusals()
        self.version = 0
        self._clock = 0  # ``nodes.clock`` at the last call of ``wake``

    # What is asked.

    def claim_of(self, pod: Pod) -> ClaimRecord | None:
        """Return the claim that the cluster cache accounts under the name that the webhook gave a pod."""
        key = claim_key(pod)
        return None if key is None else self.claims.get(key)

    def lacking_of(self, pod: Pod) -> Reason | None:
        """Return the template or volume without which a waiting pod cannot start; None for nothing."""
        return self.templates.lacking_of(pod) or self.volumes.lacking_of(pod)

    def only_scheduler_knows(self, pod: Pod) -> Reason | None:
        """Return the first rule of a pod that only the scheduler can evaluate; None if the controller knows all."""
        return what_only_the_scheduler_knows(
            pod,
            is_known_claim=self.other_claims.is_allocated,
            is_known_template=self.templates.is_of_domain,
            has_too_many=self.neighbours.has_too_many,
            class_of_existing=self.volumes.existing_of,
        )

    def held(self, key: Key) -> Mapping[Device, Usage]:
        """Return what a claim counts as holding in the accounting, of the devices as they are handed out here."""
        given = self.offered.given(key, self.claims.get(key))
        return self.accounts.of(key).holds if given is None else given

    def agents_gone(self, devices: Iterable[Device]) -> dict[str, frozenset[str]]:
        """Return the nodes that by the accounting have devices in use and no agent, each with these devices."""
        return gone_agents.gone(devices, has_slices=self.offered.has_slices, is_node=self.nodes.is_there)

    # How they are kept.

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
        if new is not None and new.pin is not None and old is not None and len(new.users) < MOST <= len(old.users):
            self.nodes.helped(new.pin.choice.node)  # another may use the set that is there
        pods = self.claim_users.of(key) if old is None or new is None else self.claim_users.concerned(old, new)
        self._rehold(key, pods)
        if new is not None and new.devices:
            for device in self.inventory.holds.of(key):
                for other in self.inventory.holders(device):
                    if other != key:
                        self._touch_pods_of(other)
        for pod in pods:
            self._touch(pod)
            if any(claim is not None and claim.seat is not None for claim in (old, new)):
                self._set_member(pod)

    def _touch_made_by(self, template: Key) -> None:
        """Tell the books of features of the pods that name a template, and have the controller look at these again."""
        for pod in self.templates.pods(template):
            self._feature_books.recount_pod(pod)
            self._touch(pod)
        self.version += 1

    def _touch_pods_of(self, claim: Key) -> None:
        for pod in self.claim_users.of(claim):
            self._touch(pod)

    def _rehold(self, key: Key, pods: Collection[Key] | None = None) -> None:
        """Count what a claim holds, and what its pods take, all of them unless it is said which."""
        held = self.held(key)
        self.inventory.hold(key, held)
        self.gpu_time.holds(key, held, given=self.accounts.given(key))
        self._feature_books.recount_claim(key)
        for pod in self.claim_users.of(key) if pods is None else pods:
            self._recount(pod)

    def _recount(self, pod: Key) -> None:
        if self.node_usage.recount(pod):
            self.neighbours.moved(pod)
        self._feature_books.recount_pod(pod)

    def _whose(self, claim: Key) -> Who:
        return whose(self.claims.get(claim), {pod: self.pods.get(pod) for pod in self.claim_users.of(claim)})

    def _results_of(self, claim: Key) -> Mapping[Device, Usage] | None:
        return self.offered.results(self.claims.get(claim))

    def _machine_of(self, node: str) -> Machine | None:
        pool = self.inventory.pool(node)
        return None if pool is None else pool.machine

    def _gpus_marked(self, node: str, _: bool) -> None:
        """Take in that something of a node's GPUs is not what it was."""
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


def _owned(claim: ClaimRecord, pod: Pod | None) -> bool:
    return pod is not None and claim.owned_by(pod.metadata.uid)
