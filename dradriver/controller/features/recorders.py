"""The Events that the controller writes. ``controller/main.py`` makes the writers, the parts of the loop call them.

The *gang barrier* keeps the pods of a gang unbound until all of them have places.
"""

from __future__ import annotations

import msgspec

from dradriver.controller.features import agent_admission, idle_pods, namespaces
from dradriver.controller.reading import unread_claims
from dradriver.controller.writing import gang_barrier_slice, reasons
from dradriver.controller.writing.reasons import PodRecorders
from dradriver.kube.client import Client


class Recorders(msgspec.Struct, frozen=True, kw_only=True):
    """The functions that write Events, by subject; None for a subject without Events.

    Attributes:
        pods: Write about pods that wait, are placed, or are evicted for another pod.
        unread_claim: Writes about a claim that cannot be read completely.
        barrier: Writes about the gang barrier, if it does not keep the pods of gangs from being bound.
        namespace: Writes about a namespace that several tenants claim.
        idle: Writes about a pod with idle GPUs.
        agents: Writes about the node agents' DaemonSet, if its namespace forbids them.
    """

    pods: PodRecorders = PodRecorders()
    unread_claim: unread_claims.Record | None = None
    barrier: gang_barrier_slice.Record | None = None
    namespace: namespaces.Record | None = None
    idle: idle_pods.Say | None = None
    agents: agent_admission.Record | None = None


def recorders(client: Client, *, instance: str) -> Recorders:
    """Return the recorders of all Events that the controller writes.

    Args:
        client: An entered client.
        instance: The name of this replica, which each Event shows.
    """
    return Recorders(
        pods=PodRecorders(
            waiting=reasons.recorder(client, instance=instance),
            preempted=reasons.recorder(client, instance=instance, reason="PreemptedForGPUs", action="Evicting"),
            placed=reasons.recorder(client, instance=instance, reason="PlacedOnGPUs", action="Placing", kind="Normal"),
        ),
        unread_claim=unread_claims.recorder(client, instance=instance),
        barrier=gang_barrier_slice.recorder(client, instance=instance),
        namespace=namespaces.recorder(client, instance=instance),
        idle=idle_pods.recorder(client, instance=instance),
        agents=agent_admission.recorder(client, instance=instance),
    )
