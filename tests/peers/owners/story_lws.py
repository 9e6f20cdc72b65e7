"""Gangs of a LeaderWorkerSet's groups: each starts whole for itself, and whole again when it is made anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from dradriver.api.base import names
from tests.cluster import Cluster
from tests.e2e import gangs
from tests.e2e.kubectl import Namespace
from tests.e2e.test_node_health import gpus_of
from tests.peers.owners import members, programs
from tests.peers.owners.members import fail, made, named, uids, whole

Object = dict[str, Any]

_KEY: Final = "leaderworkerset.sigs.k8s.io/"
RECREATE: Final = "RecreateGroupOnPodRestart"
INDEX: Final = _KEY + "worker-index"


@pytest.fixture(scope="module", autouse=True)
def _programs(driver: Cluster) -> Iterator[None]:
    with programs.installed(driver, programs.LWS):
        yield


def serve(
    *,
    words: Mapping[str, str] = gangs.AUTO,
    policy: str = RECREATE,
    leader: int = 2,
    groups: int = 2,
) -> Object:
    """Return groups of a leader and two workers of two GPUs."""
    group = {
        "size": 3,
        "restartPolicy": policy,
        "leaderTemplate": members.template(leader, restarts="Always"),
        "workerTemplate": members.template(2, restarts="Always"),
    }
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "serve", "annotations": dict(words)},
        "spec": {"replicas": groups, "leaderWorkerTemplate": group},
    }


def group(number: int) -> dict[str, str]:
    return {_KEY + "group-index": str(number)}


def test_each_group_is_a_gang_and_a_lost_worker_has_its_own_made_again(namespace: Namespace) -> None:
    namespace.apply(serve())
    both = [whole(namespace, made(namespace, 3, group(number)), gpus=2) for number in range(2)]
    for one in both:
        assert members.numbers(one, INDEX) == [(0,), (1,), (2,)]
    plans = [gangs.planned(gangs.claims_of(namespace, [named(one[0])])[named(one[0])])["plan"] for one in both]
    assert plans[0] != plans[1]
    members.holds(namespace, 12)

    fail(namespace, named(both[0][2]))
    again = whole(namespace, made(namespace, 3, group(0), instead_of=uids(both[0])), gpus=2)
    assert members.numbers(again, INDEX) == [(0,), (1,), (2,)]
    assert uids(made(namespace, 3, group(1))) == uids(both[1])
    members.holds(namespace, 12)


def test_workers_alone_where_their_leader_has_no_gpus(namespace: Namespace) -> None:
    namespace.apply(serve(leader=0, groups=1))
    workers = [one for one in made(namespace, 3, group(0)) if one["metadata"]["labels"][INDEX] != "0"]
    assert members.numbers(whole(namespace, workers, gpus=2), INDEX) == [(1,), (2,)]


def test_another_pod_takes_a_lost_ones_place(namespace: Namespace) -> None:
    namespace.apply(serve(policy="None", groups=1))
    before = whole(namespace, made(namespace, 3, group(0)), gpus=2)
    had = len(gpus_of(namespace, named(before[1])))
    namespace.delete(named(before[1]))
    after = made(namespace, 3, group(0), instead_of=uids(before[1:2]))
    namespace.wait_running(*map(named, after))
    # The old claim may still have its GPUs when the new pod is placed.
    assert len(gpus_of(namespace, named(before[1]))) == had
    assert uids(after) >= uids([before[0], before[2]])


def test_all_start_again_where_its_author_wants_it(namespace: Namespace) -> None:
    namespace.apply(serve(words=members.RESTART, policy="None", groups=1))
    before = whole(namespace, made(namespace, 3, group(0)), gpus=2)
    namespace.delete(named(before[2]))
    after = whole(namespace, made(namespace, 3, group(0), instead_of=uids(before)), gpus=2)
    assert members.numbers(after, INDEX) == [(0,), (1,), (2,)]
    members.holds(namespace, 6)


def test_what_makes_workers_wait_for_their_leader_is_refused(namespace: Namespace) -> None:
    exclusive = namespace.apply(serve(words=gangs.AUTO | {_KEY + "exclusive-topology": "rack"}), check=False)
    assert exclusive.returncode
    assert names.NEAR in exclusive.stderr
    late = serve()
    late["spec"]["startupPolicy"] = "LeaderReady"
    refused = namespace.apply(late, check=False)
    assert refused.returncode
    assert "Write LeaderCreated" in refused.stderr
    late["spec"]["leaderWorkerTemplate"]["leaderTemplate"] = members.template(0, restarts="Always")
    late["spec"]["replicas"] = 1
    namespace.apply(late)  # its workers alone are a gang
