"""Templates of NVIDIA's classes beside words of ours: placed where NVIDIA's driver hands out whole GPUs by them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dradriver.allocator.request import Constraint, Whole
from dradriver.api.base import names
from dradriver.api.base.allocating_driver import NVIDIA
from dradriver.api.base.errors import WordError
from dradriver.api.base.objects import Metadata
from dradriver.api.claims import claim_templates
from dradriver.api.claims.claim_templates import Template
from dradriver.kube.resources import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from tests.fakes.addoncluster import AddOnCluster
from tests.fakes.admission import admit, defaulted, stored
from tests.fakes.control_plane.devices import pinned

pytestmark = pytest.mark.usefixtures("addon")

Object = dict[str, Any]
QUADS = ([0, 1, 2, 3], [4, 5, 6, 7])
ATTRIBUTE = "device.attributes['gpu.nvidia.com']."


def request(name: str = "gpu", device_class: str = "gpu.nvidia.com", **exactly: Any) -> Object:
    return {"name": name, "exactly": {"deviceClassName": device_class} | exactly}


def selected(text: str) -> Object:
    return request(selectors=[{"cel": {"expression": text}}])


def configured(kind: str, *requests: str, **more: Any) -> Object:
    """An entry for NVIDIA's driver, as its own examples have it (demo/specs/quickstart)."""
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind} | more
    return {"requests": list(requests), "opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}


def spec(*requests: Object, **devices: Any) -> Object:
    return {"spec": {"devices": {"requests": list(requests)} | devices}}


MPS = configured("GpuConfig", "mps", sharing={"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}})
SLICED = configured("GpuConfig", "ts", sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}})


def create(cluster: AddOnCluster, content: Object, *requests: str, **words: str) -> None:
    """Create a template and a pod of it, by the webhook."""
    cluster.put(RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": "t", "namespace": "default"}, "spec": content})
    container = {"resources": {"claims": [{"name": "own", "request": one} for one in requests] or [{"name": "own"}]}}
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "annotations": {names.PREFIX + key: text for key, text in words.items()}},
        "spec": {
            "containers": [{"name": "main", "image": "x"} | container],
            "resourceClaims": [{"name": "own", "resourceClaimTemplateName": "t"}],
        },
    }
    verdict = admit(defaulted(manifest, namespace="default"), ledger=NVIDIA)
    cluster.put(PODS, stored(verdict.admitted))


def claim_of(cluster: AddOnCluster) -> Object | None:
    (entry,) = cluster.get_pod("p")["spec"]["resourceClaims"]
    return cluster.find(RESOURCE_CLAIMS, entry["resourceClaimName"], "default")


async def test_a_template_of_their_class_is_placed_and_bound_by_words_of_ours() -> None:
    cluster = AddOnCluster()
    cluster.node("a")
    create(cluster, spec(request(count=4)), policy="nvlink")
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    claim = claim_of(cluster)
    assert claim is not None
    uuids = set(pinned(claim))
    chosen = [gpu.index for gpu in cluster.machines["a"].gpus if gpu.uuid in uuids]
    assert chosen in QUADS
    (only,) = claim["spec"]["devices"]["requests"]
    assert (only["name"], only["exactly"]["deviceClassName"], only["exactly"]["count"]) == ("gpu", NVIDIA.driver, 4)
    assert cluster.get_pod("p")["spec"]["nodeName"] == "a"
    assert cluster.note("p", "level") == "nvlink"


async def test_their_configuration_stays_in_the_claim_for_the_requests_that_it_names() -> None:
    cluster = AddOnCluster()
    cluster.node("a")
    create(cluster, spec(request("ts"), request("mps"), config=[SLICED, MPS]), "ts", "mps", policy="nvlink")
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    claim = claim_of(cluster)
    assert claim is not None
    assert claim["spec"]["devices"]["config"][:-1] == [SLICED, MPS]
    assert claim["spec"]["devices"]["config"][-1]["opaque"]["driver"] == names.DRIVER
    assert [one["name"] for one in claim["spec"]["devices"]["requests"]] == ["ts", "mps"]
    assert cluster.get_pod("p")["spec"]["nodeName"] == "a"


async def test_what_of_theirs_cannot_be_placed_waits_with_the_reason_until_the_template_is_another() -> None:
    cluster = AddOnCluster()
    cluster.node("a")
    create(cluster, spec(request("gpu", "mig.nvidia.com")), policy="best-effort")
    await cluster.settle()
    assert claim_of(cluster) is None
    reason = cluster.note("p", "reason") or ""
    assert (
        "ResourceClaimTemplate t: request 'gpu': class 'mig.nvidia.com' is neither a GPU class (gpu.nvidia.com"
        in reason
    )
    content = {"metadata": {"name": "t", "namespace": "default"}, "spec": spec(request())}
    cluster.remove(RESOURCE_CLAIM_TEMPLATES, "t", "default")  # a template's spec never changes
    cluster.put(RESOURCE_CLAIM_TEMPLATES, content)
    await cluster.settle()
    assert claim_of(cluster) is not None


def read(content: Object) -> claim_templates.TemplateRequest:
    return claim_templates.read(Template(Metadata(name="t"), msgspec.json.encode(content)), Whole(containers=(1,)))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (spec(request(count=2)), Whole(containers=(2,))),
        (
            spec(selected(f"{ATTRIBUTE}productName == 'NVIDIA H100 80GB HBM3'\n")),
            Whole(containers=(1,), product="NVIDIA H100 80GB HBM3"),
        ),
        (
            spec(selected('device.attributes["gpu.nvidia.com"].architecture == "Hopper"')),
            Whole(containers=(1,), architecture="Hopper"),
        ),
        (
            spec(request(count=2), constraints=[{"matchAttribute": "resource.kubernetes.io/pcieRoot"}]),
            Whole(containers=(2,), required=(Constraint.SAME_PCIE_ROOT,)),
        ),
    ],
)
def test_what_a_template_of_their_class_comes_to(content: Object, expected: Whole) -> None:
    assert read(content).request == expected


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (spec(), "Write a request with the class gpu.nvidia.com"),
        (spec(request("gpu", "gpu.topology")), "class 'gpu.topology' is neither a GPU class (gpu.nvidia.com"),
        (
            spec(request("gpu", "share.gpu.topology")),
            "class 'share.gpu.topology' is neither a GPU class (gpu.nvidia.com",
        ),
        (spec(request("gpu", "vfio.gpu.nvidia.com")), "Write a template of its own for other devices"),
        (
            spec(request(), request("imex", "compute-domain-default-channel.nvidia.com")),
            "is not a GPU. Give the containers",
        ),
        (spec(request(capacity={"requests": {"memory": "10Gi"}})), "Write gpu.topology/min-memory"),
        (spec(selected(f"{ATTRIBUTE}index == 0")), "only kube-scheduler can evaluate the selector"),
        (spec(selected(f"{ATTRIBUTE}productName == 'A\"")), "only kube-scheduler can evaluate the selector"),
        (
            spec(selected("device.attributes['gpu.topology'].productName == 'A'")),
            "only kube-scheduler can evaluate the selector",
        ),
        (
            spec(request(), config=[configured("MigDeviceConfig")]),
            "'MigDeviceConfig' for driver gpu.nvidia.com is not for",
        ),
        (spec(request(), config=[configured("VfioDeviceConfig", "gpu")]), "is not for whole GPUs. Write GpuConfig"),
        (spec(request(), constraints=[{"matchAttribute": "gpu.nvidia.com/parentUUID"}]), "the driver cannot place"),
    ],
)
def test_what_cannot_be_placed_is_refused_with_the_cure(content: Object, told: str) -> None:
    with pytest.raises(WordError, match=r"^ResourceClaimTemplate t: ") as raised:
        read(content)
    assert told in str(raised.value)
