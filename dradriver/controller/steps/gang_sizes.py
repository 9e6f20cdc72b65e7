"""How many pods a gang has: what its author wrote, what its pods say, or what the object that made them says."""

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
    """Says how many pods a gang has, from the object that made them."""

    def size(self, workload: Key, owner: Owner) -> Size | Alone | WordError | None:
        """Return the size of a gang that an object says; None while it is not known: then look again later."""

    def retries(self, workload: Key, owner: Owner) -> int | None:
        """Return how often an object tries each index again, as it was read for ``size``; None if nobody knows."""


def size_of(gang: Key, said: Membership, sizes: Sizes) -> Size | Alone | Reason | None:
    """Return how many pods a gang has, or why that is not known; None while it is read.

    It is ``Alone`` if the pods are no gang, and each of them gets its place by itself.

    Args:
        gang: The gang's key.
        said: What its pods say.
        sizes: Reads objects.
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
    """Return how many pods a gang's size counts that need no place.

    They ended well, are of an index that has failed for good, or in a PodGroup have no GPUs.
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


def size_matters(picture: Picture, gang: Key) -> bool:
    """Return whether a gang has not started, or is not whole."""
    if gang not in picture.gangs:
        return False
    pods = (picture.pods[pod] for pod in picture.gangs.pods(gang))
    return not picture.gangs.started(gang) or any(not pod.spec.node_name for pod in pods)
