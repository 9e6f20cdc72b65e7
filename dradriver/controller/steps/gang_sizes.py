"""Finds how many pods a gang has: from its annotations, from its pods, or from the owner of the pods.

A *PodGroup* is Kubernetes' own object for a gang. An *index* is the number that a Job gives to each of its pods.
"""

from __future__ import annotations

from typing import Protocol

from dradriver.api.base.errors import WordError
from dradriver.api.claims.pins import Key
from dradriver.api.gangs import gang_of_pod, gang_size_of_owner
from dradriver.api.gangs.gang_annotations import Size
from dradriver.api.gangs.gang_owners import Alone, Owner
from dradriver.api.vocabulary import values
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.pods.gang_pods import Gangs, Membership
from dradriver.reason import Cause, Reason


class Sizes(Protocol):
    """Reads how many pods a gang has from the owner of its pods."""

    def size(self, workload: Key, owner: Owner) -> Size | Alone | WordError | None:
        """Return a gang's size by its owner; None while the owner is being read.

        It is ``Alone`` if the owner says that the pods are no gang, and an error if the size cannot be read. When the
        result changes, the gang is processed again.
        """

    def retries(self, workload: Key, owner: Owner) -> int | None:
        """Return how often a gang's owner retries each index; None if not known.

        The number is the ``backoffLimitPerIndex`` of a Job or JobSet. ``size`` must have been called first.
        """


def size_of(gang: Key, said: Membership, sizes: Sizes) -> Size | Alone | Reason | None:
    """Return the least and the full number of a gang's pods.

    Other results:

    * None: the owner is being read.
    * ``Reason``: the size is not known.
    * ``Alone``: the pods are no gang. Each gets its place by itself.

    Args:
        gang: The gang's key.
        said: The annotations and labels on the pods that make them a gang.
        sizes: Reads owners.
    """
    read = said.member.read
    size = gang_of_pod.size(said.member, said.wants, None if read is None else sizes.size(gang, read))
    if isinstance(size, str):
        return Reason(Cause.GANG, size) if size else None
    if isinstance(size, Alone) and gang_of_pod.must_wait(said.wants):
        return Reason(Cause.GANG, size.why)
    if isinstance(size, Alone) and read is not None and read.kind == "PodGroup" and not read.by_job:
        # The policy is ``basic``, and kube-scheduler tries none of its pods before all have lost their gates. The pods
        # of a PodGroup that the Job controller made have left it (``webhook/pod_groups.py``).
        return 1, values.MOST_PODS
    return size


def done_of(gangs: Gangs, said: Membership, sizes: Sizes) -> int:
    """Return how many pods of a gang's size need no place.

    These pods have succeeded, or have an index for which the Job makes no more tries. Or they belong to the gang's
    PodGroup and request no GPUs. ``gangs`` has the gangs of the cluster; ``said`` has the gang's annotations and labels
    on its pods. ``sizes`` reads owners.
    """
    wrote, read = said.wants is not None and said.wants.size is not None, said.member.read
    done = gangs.done(said.gang)
    if read is None:
        return done
    done += gangs.failed(said.gang, sizes.retries(said.gang, read))
    if wrote:
        return done
    others = gangs.others((said.gang[0], read.name)) if read.kind == "PodGroup" else 0
    return others + (0 if read.kind in gang_size_of_owner.COUNT_DOWN else done)


def is_of_group(said: Membership) -> bool:
    """Return whether a PodGroup says a gang's size, so that pods without GPUs count, too."""
    return said.member.read is not None and said.member.read.kind == "PodGroup"


def size_matters(picture: Picture, gang: Key) -> bool:
    """Return whether a gang's size is needed: it has not started, or has unbound pods."""
    if gang not in picture.gangs:
        return False
    pods = (picture.pods[pod] for pod in picture.gangs.pods(gang))
    return not picture.gangs.started(gang) or any(not pod.spec.node_name for pod in pods)
