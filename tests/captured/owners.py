"""Writes the pods of JobSet, LeaderWorkerSet, the MPI operator and trainer anew.

    python -m tests.captured.owners [jobset|lws|mpi-operator|trainer...]

The programs are built from their modules, as for the stories of tests/peers/owners, in whose cluster they run.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from tests.captured import FOLDER
from tests.captured.__main__ import bare
from tests.cluster import Cluster
from tests.cluster.waiting import wait_for
from tests.e2e.kubectl import Namespace
from tests.peers.owners import programs, story_jobset, story_lws, story_mpi, story_train
from tests.peers.owners.programs import Installation

Object = dict[str, Any]

_NAMESPACE: Final = "captured"
# What is installed, what is made, how many pods that has, and the kinds that tell their number.
_EACH: Final[tuple[tuple[tuple[Installation, ...], list[Object], int, str], ...]] = (
    ((programs.JOB_SET,), [story_jobset.job_set(words={})], 5, "jobsets"),
    ((programs.LWS,), [story_lws.serve(words={})], 6, "leaderworkersets"),
    ((programs.MPI,), [story_mpi.mpi_job(words={})], 5, "mpijobs"),
    ((programs.JOB_SET, programs.TRAIN), [story_train.runtime({}), story_train.train_job()], 5, "trainjobs,jobsets"),
)


def main() -> None:
    cluster = Cluster("e2e")
    kept = cluster.is_up()
    cluster.up()
    for installations, objects, count, kinds in _EACH:
        program = installations[-1].program
        if sys.argv[1:] and program.name not in sys.argv[1:]:
            continue
        with programs.installed(cluster, *installations):
            cluster.kubectl("create", "namespace", _NAMESPACE)
            namespace = Namespace(cluster, _NAMESPACE)
            namespace.apply(*objects)
            wait_for("their pods", lambda space=namespace, n=count: len(space.list("pods")) == n, seconds=90)  # type: ignore[misc]
            found = {"pods": namespace.list("pods"), "owners": namespace.list(kinds)}
            for one in reversed(objects):
                namespace.kubectl("delete", one["kind"], one["metadata"]["name"], "--timeout=60s")
            cluster.kubectl("delete", "namespace", _NAMESPACE, "--timeout=120s")
        text = json.dumps({key: [bare(one) for one in each] for key, each in found.items()}, indent=1, sort_keys=True)
        (FOLDER / f"{program.name}-{program.version}.json").write_text(text + "\n")
    if not kept:
        cluster.down()


if __name__ == "__main__":
    main()
