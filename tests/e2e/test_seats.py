"""A seat on a real Kubernetes: its pod has GPUs and is not bound, is told to go, and runs with nothing but its GPUs."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from dradriver.api.base import gang_barrier_device, names
from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.cli.main import main
from tests import deploy
from tests.cluster import Cluster
from tests.cluster.settings import minor_of
from tests.e2e.kubectl import Namespace, eventually, no_gpu_is_owned_twice, owners, pod
from tests.e2e.parts import agent, entries, kill, restarts
from tests.e2e.test_placement import QUADS

Object = dict[str, Any]
MANAGER = "gang"
BINDING = ("validatingadmissionpolicybinding", "gpu-topology-parts")  # it keeps seats for the controller


@pytest.fixture(scope="module")
def seat(driver: Cluster) -> Iterator[None]:
    """The seat, which the controller publishes, and for which these tests may ask like the controller."""
    if minor_of(driver.version) < "1.36":
        pytest.skip("the API server keeps binding conditions from Kubernetes 1.36 on")
    driver.kubectl("wait", "--for=create", f"resourceslice/{gang_barrier_device.SLICE}", "--timeout=60s")
    binding = json.loads(driver.kubectl("get", *BINDING, "-o", "json").stdout)
    for field in ("uid", "resourceVersion", "creationTimestamp", "generation"):
        binding["metadata"].pop(field, None)
    driver.kubectl("delete", *BINDING)
    tried = ("-n", "default", "create", "--dry-run=server", "-f", "-")
    asked = json.dumps(claim("seat", 4))
    eventually("a claim may ask for a seat", lambda: not driver.kubectl(*tried, input=asked, check=False).returncode)
    yield
    driver.kubectl("create", "-f", "-", input=json.dumps(binding))


def published(cluster: Cluster) -> Object | None:
    """Return the slice with the seat; None while there is none."""
    found = cluster.kubectl(
        "get", "resourceslice", gang_barrier_device.SLICE, "--ignore-not-found", "-o", "json"
    ).stdout
    return json.loads(found) if found.strip() else None


def claim(name: str, gpus: int) -> Object:
    """A claim for GPUs that are linked, none if need be, and for a seat."""
    devices: Object = {"requests": [gang_barrier_device.request()]}
    if gpus:
        exactly = {"deviceClassName": names.DEVICE_CLASS, "allocationMode": "ExactCount", "count": gpus}
        devices["requests"].insert(0, {"name": "main", "exactly": exactly})
        devices["constraints"] = [{"requests": ["main"], "matchAttribute": f"{names.DRIVER}/nvlinkGroup4"}]
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    return kind | {"metadata": {"name": name}, "spec": {"devices": devices}}


def member(name: str, *, whole: bool = False) -> Object:
    """A pod of a claim of its own name; its container has the claim's GPUs, or whatever the claim has."""
    made = pod(name, node="node-a")
    made["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimName": name}]
    made["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpus"} | ({} if whole else {"request": "main"})]
    return made


def read(namespace: Namespace, name: str) -> ResourceClaim:
    shown = namespace.kubectl("get", "resourceclaim", name, "-o", "json").stdout
    return msgspec.json.decode(shown, type=ResourceClaim)


def seated(namespace: Namespace, name: str) -> bool:
    """Whether a claim is the pod's, and the pod waits: nominated, not bound."""
    one = namespace.get("pod", name)
    reserved = [user.uid for user in read(namespace, name).status.reserved_for]
    nominated = one["status"].get("nominatedNodeName") == "node-a"
    return reserved == [one["metadata"]["uid"]] and nominated and "nodeName" not in one["spec"]


def tell(namespace: Namespace, name: str, condition: str) -> None:
    known = read(namespace, name)
    taken = gang_barrier_device.of(known)
    assert taken is not None
    applied = gang_barrier_device.status(known.metadata, taken, condition, now=datetime.datetime.now(datetime.UTC))
    how = ("--server-side", f"--field-manager={MANAGER}", "--subresource=status")
    namespace.kubectl("apply", *how, "-f", "-", stdin=json.dumps(applied))


def told(namespace: Namespace, name: str) -> dict[str, tuple[str, ...]]:
    """What a claim's status says of its devices: the conditions by device."""
    devices = namespace.get("resourceclaim", name)["status"].get("devices", [])
    return {one["device"]: tuple(condition["type"] for condition in one["conditions"]) for one in devices}


def shown(cluster: Cluster, *words: str) -> Any:
    done = CliRunner().invoke(main, [*words, "--kubeconfig", str(cluster.kubeconfig), "-o", "json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.usefixtures("seat")
def test_a_member_waits_in_its_seat_and_runs_with_its_gpus_once_it_is_told(namespace: Namespace) -> None:
    cluster, node = namespace.cluster, namespace.cluster.nodes["node-a"]
    namespace.apply(claim("member", 4), member("member"))
    eventually("the member is seated", lambda: seated(namespace, "member"))
    assert len(owners(cluster)) == 4
    assert not entries(node)
    namespace.apply(pod("beside", gpus=4, words={names.POLICY: "nvlink"}, node="node-a"))
    namespace.wait_running("beside")
    namespace.apply(pod("more", gpus=1, words={names.POLICY: "nvlink"}, node="node-a"))
    eventually("the books count the member's", lambda: namespace.annotation("more", names.REASON))
    namespace.delete("more", "beside")
    assert seated(namespace, "member")

    tell(namespace, "member", gang_barrier_device.GO)
    namespace.wait_running("member")
    given = namespace.devices("member")
    assert {int(path.removeprefix("/dev/nvidia")) for path in given} in QUADS
    gpus = {result.device for result in read(namespace, "member").results}
    (entry,) = entries(node).values()
    assert {one["device"] for one in entry["devices"]} == gpus
    ready = dict.fromkeys(gpus, ("Ready",)) | {gang_barrier_device.DEVICE: (gang_barrier_device.GO,)}
    eventually("both field managers have their say", lambda: told(namespace, "member") == ready)

    ours, own = Namespace(cluster, deploy.NAMESPACE), agent(cluster, "node-a")["name"]
    before = restarts(ours, own)
    kill(cluster, own)
    eventually("the agent starts again", lambda: restarts(ours, own) > before)
    ours.wait_running(own)
    namespace.apply(claim("later", 4), member("later"))
    eventually("another is seated", lambda: seated(namespace, "later"))
    tell(namespace, "later", gang_barrier_device.GO)
    namespace.wait_running("later")
    assert restarts(namespace, "member") == 0
    assert no_gpu_is_owned_twice(cluster)
    assert namespace.devices("member") == given
    assert namespace.devices("later").isdisjoint(given)
    (view,) = shown(cluster, "topo", "--cluster", "--node", "node-a")
    holders = [holder["claim"] for gpu in view["gpus"] for holder in gpu["used_by"]]
    assert sorted(holders) == ["later"] * 4 + ["member"] * 4


@pytest.mark.usefixtures("seat")
def test_a_seat_alone_is_prepared_and_gives_nothing(namespace: Namespace) -> None:
    namespace.apply(claim("watcher", 0), member("watcher", whole=True))
    eventually("it is seated", lambda: seated(namespace, "watcher"))
    tell(namespace, "watcher", gang_barrier_device.GO)
    namespace.wait_running("watcher")
    assert namespace.devices("watcher") == set()
    assert not entries(namespace.cluster.nodes["node-a"])


@pytest.mark.usefixtures("seat")
def test_a_place_that_is_given_back_is_anothers(namespace: Namespace) -> None:
    """The claim goes first, or the scheduler would allocate the same place again."""
    namespace.apply(claim("member", 4), member("member"), claim("other", 4), member("other"))
    for name in ("member", "other"):
        eventually(f"{name} is seated", lambda name=name: seated(namespace, name))  # type: ignore[misc]
    uid = read(namespace, "member").metadata.uid
    namespace.kubectl("delete", "resourceclaim", "member", "--wait=false")
    tell(namespace, "member", gang_barrier_device.OFF)
    eventually("the claim is gone", lambda: len(namespace.list("resourceclaims")) == 1)
    assert seated(namespace, "other")
    namespace.apply(claim("member", 4))
    eventually("the pod that stayed is seated anew", lambda: seated(namespace, "member"))
    assert read(namespace, "member").metadata.uid != uid
    namespace.delete("member")
    eventually("a pod that goes while it waits leaves nothing", lambda: len(owners(namespace.cluster)) == 4)
    tell(namespace, "other", gang_barrier_device.GO)
    namespace.wait_running("other")


@pytest.mark.usefixtures("seat")
def test_the_slice_belongs_to_the_charts_class_and_is_made_again(driver: Cluster) -> None:
    before = published(driver)
    assert before is not None
    assert before["spec"] == gang_barrier_device.resource_slice()["spec"]
    (owner,) = before["metadata"]["ownerReferences"]
    shown = json.loads(driver.kubectl("get", "deviceclass", gang_barrier_device.CLASS, "-o", "json").stdout)
    assert (owner["kind"], owner["uid"]) == ("DeviceClass", shown["metadata"]["uid"])
    driver.kubectl("delete", "resourceslice", gang_barrier_device.SLICE)
    driver.kubectl(
        "annotate", "deviceclass", gang_barrier_device.CLASS, "example.com/touched=1", "--overwrite"
    )  # not in a minute
    eventually("another is there", lambda: published(driver))


def test_every_device_says_that_its_agent_knows_seats(driver: Cluster) -> None:
    ours = ("get", "resourceslices", f"--field-selector=spec.driver={names.DRIVER}", "-o", "json")
    items = json.loads(driver.kubectl(*ours).stdout)["items"]
    devices = [device for item in items if "nodeName" in item["spec"] for device in item["spec"]["devices"]]
    assert len(devices) == 16
    assert all(device["attributes"]["seats"] == {"bool": True} for device in devices)
