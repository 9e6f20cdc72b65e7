"""Gangs of a TrainJob's trainers, with their words where docs/tasks/manifests.md says to write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from tests.cluster import Cluster
from tests.e2e import gangs
from tests.e2e.kubectl import Namespace
from tests.peers.owners import members, programs
from tests.peers.owners.members import made, named, uids, whole

Object = dict[str, Any]

_API: Final = "trainer.kubeflow.org/v1alpha1"
_STEP: Final = "trainer.kubeflow.org/trainjob-ancestor-step"
TRAINERS: Final = {"jobset.sigs.k8s.io/replicatedjob-name": "node"}


@pytest.fixture(scope="module", autouse=True)
def _programs(driver: Cluster) -> Iterator[None]:
    with programs.installed(driver, programs.JOB_SET, programs.TRAIN):
        yield


def runtime(words: Mapping[str, str]) -> Object:
    """Return a runtime for PyTorch that prepares a data set first; what it makes has these words."""

    def job(name: str, step: str, template: Object, **more: Any) -> Object:
        return more | {
            "name": name,
            "template": {"metadata": {"labels": {_STEP: step}}, "spec": {"template": template}},
        }

    prepares = members.template(0, container="dataset-initializer")
    prepares["spec"]["containers"][0]["command"] = ["true"]
    first = [{"name": "dataset-initializer", "status": "Complete"}]
    jobs = [
        job("dataset-initializer", "dataset-initializer", prepares),
        job("node", "trainer", members.template(3, container="node"), dependsOn=first),
    ]
    return {
        "apiVersion": _API,
        "kind": "TrainingRuntime",
        "metadata": {"name": "torch", "labels": {"trainer.kubeflow.org/framework": "torch"}},
        "spec": {
            "mlPolicy": {"numNodes": 1, "torch": {}},
            "template": {"metadata": {"annotations": dict(words)}, "spec": {"replicatedJobs": jobs}},
        },
    }


def train_job(words: Mapping[str, str] | None = None) -> Object:
    """Return a TrainJob of four nodes; with words of its own beside the runtime's."""
    spec: Object = {
        "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": "torch"},
        "trainer": {"numNodes": 4},
    }
    if words:
        patch = {"template": {"metadata": {"annotations": dict(words)}}}
        spec["runtimePatches"] = [{"manager": "example.com/author", "trainingRuntimeSpec": patch}]
    return {"apiVersion": _API, "kind": "TrainJob", "metadata": {"name": "train"}, "spec": spec}


def test_its_trainers_start_as_one_once_the_data_is_there(namespace: Namespace) -> None:
    namespace.apply(runtime(gangs.AUTO), train_job())
    trainers = whole(namespace, made(namespace, 4, TRAINERS), gpus=3, container="node")
    assert members.numbers(trainers, gangs.INDEX) == [(0,), (1,), (2,), (3,)]
    members.holds(namespace, 12)


def test_all_start_again_where_its_author_wants_it(namespace: Namespace) -> None:
    """The TrainJob is suspended, not its JobSet, which is the TrainJob's to set."""
    namespace.apply(runtime({}), train_job(members.RESTART))
    before = whole(namespace, made(namespace, 4, TRAINERS), gpus=3, container="node")
    namespace.delete(named(before[1]))
    after = whole(namespace, made(namespace, 4, TRAINERS, instead_of=uids(before)), gpus=3, container="node")
    assert members.numbers(after, gangs.INDEX) == [(0,), (1,), (2,), (3,)]
    assert not namespace.get("trainjob", "train")["spec"].get("suspend")
    members.holds(namespace, 12)
