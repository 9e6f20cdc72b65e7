"""The nodes of other drivers' ResourceClaims that waiting pods name in addition to their GPUs.

Once such a claim is allocated, only nodes that its allocation selects can run its pods. ``placing/claim_limit.py`` asks
for these nodes, and the cluster cache reports changes of pods and claims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.cluster.nodes.columns import Bools
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.cluster.records.records import ClaimRecord


class OtherClaims:
    """Waiting pods, and the claims of other drivers that they name.

    Attributes:
        of_pod: The claims that a waiting pod names, for pods that name any.
        named_by: The waiting pods that name a claim.
    """

    def __init__(
        self,
        nodes: NodeTable,
        pods: Mapping[Key, Pod],
        claims: Mapping[Key, ClaimRecord],
        touch: Callable[[Key], None],
    ) -> None:
        """Make an object that has recorded no claims yet.

        Args:
            nodes: The table of nodes.
            pods: The living pods. The caller must call ``recount`` for each new or changed pod: only this records the
                claims of the pod.
            claims: The claims. ``claim_changed`` must be called for each change of a claim that a pod names.
            touch: Called with each pod that the controller must look at again.
        """
        self.of_pod: dict[Key, tuple[Key, ...]] = {}
        self.named_by: dict[Key, set[Key]] = {}
        self._nodes, self._pods, self._claims, self._touch = nodes, pods, claims, touch

    def recount(self, key: Key) -> None:
        """Update which claims of other drivers a waiting pod names.

        ``key`` is the pod's namespace and name.
        """
        for claim in self.of_pod.pop(key, ()):
            self.named_by[claim].discard(key)
            if not self.named_by[claim]:
                del self.named_by[claim]
        pod = self._pods.get(key)
        if pod is None or pod.spec.node_name or pod.finished or not (claims := claims_of(pod)):
            return
        self.of_pod[key] = claims
        for claim in claims:
            self.named_by.setdefault(claim, set()).add(key)

    def claim_changed(self, claim: Key) -> None:
        """Ask the controller to look again at the pods that name a changed claim.

        It is called after the claim was allocated or released. Afterwards, all waiting pods are tried again.
        """
        self._nodes.helped_on(~self._nodes.named(()))
        for pod in sorted(self.named_by.get(claim, ())):
            self._touch(pod)

    def is_allocated(self, claim: Key) -> bool:
        """Return whether a claim of another driver is allocated. Then the nodes that can use it are known."""
        known = self._claims.get(claim)
        return known is not None and known.where is not None

    def allowed(self, pod: Key) -> Bools:
        """Return the nodes that can use all allocated claims of other drivers of a pod.

        The pod names these claims in addition to its GPUs. The result has one bool for each row (a node's index).
        """
        mask = ~self._nodes.named(())
        for claim in self.of_pod.get(pod, ()):
            known = self._claims.get(claim)
            if known is not None and known.where:
                mask &= self._nodes.reaching(known.where)
        return mask


def claims_of(pod: Pod) -> tuple[Key, ...]:
    """Return the claims that a pod names in addition to its GPUs' claim, each once.

    Only claims that may be allocated are returned. Claims from templates are left out while the pod is gated: they
    belong to the pod alone, and no scheduler has allocated them yet.
    """
    gpus = pod.gpu_entry
    made = {} if pod.gated else {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    claims = (each.resource_claim_name or made.get(each.name) for each in pod.spec.resource_claims if each.name != gpus)
    return tuple(dict.fromkeys((pod.metadata.namespace, claim) for claim in claims if claim))
