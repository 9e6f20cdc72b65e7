"""Updates the parts of the cluster cache that change with a pod or a claim.

The class ``Books`` has these parts; ``cluster_cache.Picture`` inherits from it. To *look again* at a pod means that the
controller decides its next step again. To *touch* a pod is to request this.

A *tentative placement* is the node and GPUs that are chosen for a pod whose claim the scheduler has not allocated yet.
A *place* is a node and GPUs for one pod.
"""

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
    """The accounts of pods, claims, nodes and GPUs. They agree with each other after each change.

    Attributes:
        pods: The pods with this driver's label, by namespace and name.
        claims: The claims of this driver, and others that use its GPUs, by namespace and name.
        nodes: All nodes, what they have left, and which pods they accept.
        channels: Which claims use the nodes' channels of multi-node NVLink.
        templates: All ResourceClaimTemplates. It has the specs only of templates that waiting pods name.
        volumes: The nodes that can reach the volumes of waiting pods.
        inventory: All GPUs, and the claims that use them.
        fleets: The GPUs as the allocator's arrays, for each namespace that places pods.
        offered: The ResourceSlices without the devices that taint rules exclude.
        claim_users: The pods of each claim.
        gangs: Which pods start together.
        kept_places: Places of lost pods, kept for the new pods of a gang that still runs.
        barrier: Whether gang barriers work here: devices that keep a pod unbound until its gang can start. None until a
            new leader knows.
        neighbours: Where pods are, for the pod (anti-)affinity and spread rules of other pods.
        other_claims: The nodes of other drivers' claims that waiting pods name.
        refusals: The nodes on which the scheduler found no room, by equivalence class of pods.
        node_usage: What this driver's pods use of their nodes.
        weights: The weights of the policies file that decide between sets of equal quality.
        accounts: The state of each claim, and what it uses.
        gpu_time: How much of which GPUs each claim uses and has used.
        nics: NICs that other drivers allocate, and the claims that use them.
        version: A counter that grows with every change that a decision may depend on.
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
        """Make accounts without pods, claims and nodes.

        Args:
            touch: Called with the key of each pod that the controller must look at again.
            wake: Called after changes that may make room for any pod.
            clock: Returns seconds since the epoch, for GPU time; the system's clock by default.
            tables: Computes the allocator's tables (bandwidths of GPU sets) for each kind of machine; None computes
                them at their first use.
            partition_of: Returns the tenant whose own GPUs (partition) a namespace must use, see ``Views``.
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
        """Return the claim of a pod's GPUs; None if the cache has no such claim.

        The webhook wrote the claim's name into the pod.
        """
        key = claim_key(pod)
        return None if key is None else self.claims.get(key)

    def lacking_of(self, pod: Pod) -> Reason | None:
        """Return why a waiting pod cannot start yet: a template or volume is missing.

        The reason names the missing object. None if the pod lacks nothing.
        """
        return self.templates.lacking_of(pod) or self.volumes.lacking_of(pod)

    def only_scheduler_knows(self, pod: Pod) -> Reason | None:
        """Return the first rule of a pod that only the scheduler can evaluate.

        The rule is returned as a reason, which the pod shows. None if the controller can evaluate all rules of the pod.
        """
        return what_only_the_scheduler_knows(
            pod,
            is_known_claim=self.other_claims.is_allocated,
            is_known_template=self.templates.is_of_domain,
            has_too_many=self.neighbours.has_too_many,
            class_of_existing=self.volumes.existing_of,
        )

    def held(self, key: Key) -> Mapping[Device, Usage]:
        """Return the devices that count as used by a claim, with the fraction of each.

        These are the allocated devices; without an allocation, the devices of a tentative placement. The result has
        this driver's device names, even if another driver allocated the devices. ``key`` names the claim.
        """
        given = self.offered.given(key, self.claims.get(key))
        return self.accounts.of(key).holds if given is None else given

    def agents_gone(self, devices: Iterable[Device]) -> dict[str, frozenset[str]]:
        """Return the nodes whose agent is gone, each with the names of its used devices.

        Args:
            devices: Devices that claims use. The result has only devices from this list.
        """
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
        """Update a pod's gang after the pod or its claim changed.

        If the pod was lost while its gang runs, the pod's place (node and GPUs) is kept for a replacement.

        Args:
            key: Namespace and name of the pod.
            old: The pod before the change; None if only its claim changed.
        """
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
        """Ask the controller to look again at the pods that name a changed template.

        Before that, the records of the NICs and other features that these pods use are updated. ``template`` is the
        template's namespace and name.
        """
        for pod in self.templates.pods(template):
            self._feature_books.recount_pod(pod)
            self._touch(pod)
        self.version += 1

    def _touch_pods_of(self, claim: Key) -> None:
        for pod in self.claim_users.of(claim):
            self._touch(pod)

    def _rehold(self, key: Key, pods: Collection[Key] | None = None) -> None:
        """Update the devices that a claim uses, and the resources that its pods use of their nodes.

        Args:
            key: The claim.
            pods: The pods to update; None for all pods of the claim.
        """
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
        """Request a new count of a node's free NICs, because the node's GPUs changed.

        NICs are counted by their distance from GPUs. ``Inventory.marked`` calls this with a second argument, which is
        ignored.
        """
        self.nics.counts.changed(node)

    def _freed(self, key: Key) -> None:
        """Update the accounts of a claim after its kept devices were perhaps released.

        The devices were kept for a pod that replaces a lost pod. If they are free now, waiting pods are tried again.
        ``key`` names the claim.
        """
        self._rehold(key)
        self._tell()

    def _tell(self) -> None:
        """Record a change: increase the version, and try waiting pods again if something became free.

        Most changes free nothing.
        """
        self.version += 1
        if self.nodes.clock != self._clock:
            self._clock = self.nodes.clock
            self._wake()


def _owned(claim: ClaimRecord, pod: Pod | None) -> bool:
    return pod is not None and claim.owned_by(pod.metadata.uid)
