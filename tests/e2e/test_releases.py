"""From the last release to this checkout, back and away while pods come and go: no pod loses a GPU, nothing stays."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dradriver.api.base import names
from tests import deploy
from tests.cluster import Cluster
from tests.e2e import parts
from tests.e2e.installation import Installation
from tests.e2e.kubectl import Namespace, eventually, no_gpu_is_owned_twice, owners, pod
from tests.e2e.load import NVLINK, SHARE, SLICE, Load, driver_events, failures
from tests.e2e.parts import is_prepared, restarts

RELEASE = (deploy.RELEASE, "--namespace", deploy.NAMESPACE)
STEADY = ("whole", "share", "slice")
LAST = "0.1.0"
NEWER = "0.99.0"
EVERYTHING_OF_OURS = (
    *("configmap", "secret", "lease", "resourceslice", "deviceclass", "resourceclaim", "resourceclaimtemplate"),
    *("validatingadmissionpolicy", "mutatingwebhookconfiguration", "clusterrole", "pod", "resourcequota"),
)


@contextlib.contextmanager
def installed_afterwards(installation: Installation) -> Iterator[None]:
    """Leave the driver behind as it was: the chart of this checkout."""
    installation.forget()
    try:
        yield
    finally:
        installation.install()


def newer_chart(folder: Path) -> Path:
    """The chart of this checkout, with a version that no release has."""
    made = folder / deploy.CHART.name
    shutil.copytree(deploy.CHART, made)
    said = yaml.safe_load((made / "Chart.yaml").read_text())
    (made / "Chart.yaml").write_text(yaml.safe_dump(said | {"version": NEWER, "appVersion": NEWER}))
    return made


def held(namespace: Namespace) -> dict[str, Any]:
    """What the steady pods have: their claims, what these were given, and what the containers see."""
    claims = {claim["metadata"]["name"]: claim for claim in namespace.list("resourceclaim")}
    found = {}
    for name in STEADY:
        claim = claims[namespace.get("pod", name)["spec"]["resourceClaims"][0]["resourceClaimName"]]
        devices = claim["status"]["allocation"]["devices"]["results"]
        seen = [(one["pool"], one["device"], one.get("shareID")) for one in devices]
        found[name] = (claim["metadata"]["uid"], seen, namespace.annotation(name, names.ALLOCATED),
                       sorted(namespace.devices(name)), restarts(namespace, name))  # fmt: skip
    return found


def versions(cluster: Cluster) -> set[tuple[str, str]]:
    """The components of the driver's pods with the version that each says; those that go aside."""
    pods = cluster.api.objects("pods", namespace=deploy.NAMESPACE)
    alive = [one["metadata"]["labels"] for one in pods if "deletionTimestamp" not in one["metadata"]]
    return {(one["app.kubernetes.io/component"], one["app.kubernetes.io/version"]) for one in alive}


def left(cluster: Cluster) -> list[str]:
    """What is still there of the chart, of any kind, or of what its parts make themselves."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "-o", "name").stdout.split()
    of_the_chart = ("-A", "-l", f"app.kubernetes.io/instance={deploy.RELEASE}", "-o", "name")
    found = cluster.kubectl("get", ",".join(one for one in kinds if "events" not in one), *of_the_chart).stdout.split()
    everything = cluster.kubectl("get", ",".join(EVERYTHING_OF_OURS), "-A", "-o", "json").stdout
    for one in json.loads(everything)["items"]:
        name, namespace = one["metadata"]["name"], one["metadata"].get("namespace", "")
        mine = namespace == deploy.NAMESPACE and name != "kube-root-ca.crt"
        if mine or "gpu.topology" in (name, one.get("spec", {}).get("driver")) or name.startswith(deploy.RELEASE):
            found.append(f"{one['kind']}/{name}")
    return sorted(set(found))


def test_upgrade_rollback_and_uninstallation_under_load(
    namespace: Namespace, installation: Installation, tmp_path: Path
) -> None:
    cluster = namespace.cluster
    node = cluster.nodes["node-b"]
    chart = newer_chart(tmp_path)
    upgrade = ("upgrade", *RELEASE[:1], str(chart), *RELEASE[1:], "--reset-then-reuse-values",
               "--set", f"image.tag={deploy.TAG}", "--set", "logFormat=json",
               "--set", "controller.tentativePlacement.timeoutSeconds=20",
               "--force-conflicts", "--wait", "--timeout", "120s")  # fmt: skip
    load = Load(namespace)
    with installed_afterwards(installation):
        deploy.install(cluster, release=LAST)
        eventually("every part is of the last release", lambda: {version for _, version in versions(cluster)} == {LAST})
        before = versions(cluster)
        namespace.apply(
            pod("whole", gpus=2, words=NVLINK, node="node-b"),
            pod("share", gpus=1, words=SHARE, node="node-b"),
            pod("slice", gpus=1, words=SLICE, node="node-b"),
        )
        namespace.wait_running(*STEADY)
        had = held(namespace)
        with load.going_on():
            cluster.helm(*upgrade)
            eventually("every part is of this checkout", lambda: versions(cluster) == after(before, NEWER))
            arrived = len(load.done)
            eventually("pods still come and go", lambda: len(load.done) >= arrived + 4)
            cluster.helm("rollback", *RELEASE, "--force-conflicts", "--wait", "--timeout", "120s")
            eventually("every part is of the last release again", lambda: versions(cluster) == before)

        assert held(namespace) == had
        assert no_gpu_is_owned_twice(cluster)
        assert not failures(namespace), driver_events(namespace)
        eventually("only what lasts is prepared", lambda: is_prepared(namespace, node, *STEADY))
        assert len(load.done) >= 8
        assert len(namespace.list("resourceclaim")) == len(STEADY), "a claim stayed behind its pod"
        cluster.helm(*upgrade)
        assert held(namespace) == had
        tested = cluster.helm("test", *RELEASE, "--logs", "--timeout", "90s", check=False)
        assert tested.returncode == 0, tested.stdout + tested.stderr

        namespace.delete(*STEADY)
        eventually("every GPU is free", lambda: not owners(cluster))
        eventually("nothing that was made is left", lambda: not parts.instances(node) and not parts.made(node))
        cluster.helm("uninstall", *RELEASE, "--wait", "--timeout", "120s")
        try:
            eventually("nothing is left", lambda: left(cluster) == [], timeout_s=90)
        except AssertionError as error:
            pytest.fail(f"{error}: {left(cluster)}")


def after(before: set[tuple[str, str]], version: str) -> set[tuple[str, str]]:
    """The same parts, each of another version."""
    return {(component, version) for component, _ in before}
