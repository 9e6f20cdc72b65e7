"""The examples by what they are for, and as a cluster without their images and volumes can run them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Final

from tests.manifests import objects
from tests.paths import REPO

Object = dict[str, Any]

FOLDER: Final = REPO / "examples"
DEMO: Final = sorted(FOLDER.glob("*.yaml"))  # what make demo applies, all together
POLICIES: Final = sorted((FOLDER / "policies").glob("*.yaml"))
NODES: Final = sorted((FOLDER / "nodes").glob("*.yaml"))  # pods beside nodes that go: test_examples_of_nodes.py
TASKS: Final = sorted({*FOLDER.glob("*/*.yaml")} - {*POLICIES, *NODES})
# Kinds that other programs bring; tests/peers/owners run these.
OTHERS: Final = ("JobSet", "LeaderWorkerSet", "MPIJob", "ResourceFlavor", "ClusterQueue", "LocalQueue", "ComputeDomain")
# Examples of claims with devices of other drivers, about which the scheduler alone decides.
SCHEDULERS: Final = ("cpus-by-claim.yaml",)
_SMALL: Final = {"cpu": "10m", "memory": "16Mi"}


def own(path: Path) -> bool:
    """Return whether Kubernetes itself knows all kinds of an example."""
    return all(one["kind"] not in OTHERS for one in objects(path.read_text("utf-8")))


def runnable(path: Path) -> list[Object]:
    """Return an example's objects with busybox in the place of its images, small amounts, and no volume claims."""
    found = [copy.deepcopy(one) for one in objects(path.read_text("utf-8"))]
    return [_small(one) for one in found if one["kind"] != "PersistentVolumeClaim"]


def _small(value: Any) -> Any:
    if isinstance(value, list):
        return [_small(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "persistentVolumeClaim" in value:
        return {"name": value["name"], "emptyDir": {}}
    made = {key: _small(one) for key, one in value.items()}
    if "containers" in made:
        made["terminationGracePeriodSeconds"] = 0
        made["containers"] = [_busybox(one) for one in made["containers"]]
    return made


def _busybox(container: Object) -> Object:
    kept = {key: one for key, one in container.items() if key not in ("args", "readinessProbe")}
    resources = {
        kind: {name: _SMALL.get(name, amount) for name, amount in amounts.items()} if kind != "claims" else amounts
        for kind, amounts in container["resources"].items()
    }
    command = ["sh", "-c", "while true; do sleep 3600; done"]
    return kept | {"image": "busybox", "imagePullPolicy": "IfNotPresent", "command": command, "resources": resources}
