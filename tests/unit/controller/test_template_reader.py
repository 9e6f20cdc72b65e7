"""Pods whose claims are made by a template: what it asks for is placed, pinned, and what it says beside is kept."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from dradriver.allocator.request import Amount, Constraint, Mig, Share, Strategy, Whole
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.base.objects import Metadata
from dradriver.api.base.pods import Pod
from dradriver.api.claims import claim_templates
from dradriver.api.claims.claim_templates import Template
from dradriver.api.policies.gpu_modes import Mode
from dradriver.kube import codec
from dradriver.kube.client import ApiError
from dradriver.kube.resources import RESOURCE_CLAIM_TEMPLATES, Resource
from tests.fakes.control_plane.devices import pinned
from tests.fakes.gpucluster import GpuCluster, Killed, claim_of
from tests.fakes.troubles import working

Object = dict[str, Any]
QUADS = ([0, 1, 2, 3], [4, 5, 6, 7])
MIG_CONFIG = {"apiVersion": "gpu.topology/v1alpha1", "kind": "ClaimConfig", "mig": {"g": {"profile": "1g.10gb"}}}
SLICES = {"capacity": {"requests": {"memorySlices": "1", "computeSlices": "1"}}}


def opaque(parameters: Object, **more: Any) -> Object:
    return {"opaque": {"driver": "gpu.topology", "parameters": parameters}} | more


def request(name: str = "g", device_class: str = "gpu.topology", **exactly: Any) -> Object:
    return {"name": name, "exactly": {"deviceClassName": device_class} | exactly}


def spec(*requests: Object, metadata: Object | None = None, **devices: Any) -> Object:
    return {"spec": {"devices": {"requests": list(requests)} | devices}} | ({"metadata": metadata} if metadata else {})


def put(cluster: GpuCluster, content: Object, name: str = "t", namespace: str = "default") -> None:
    metadata = {"name": name, "namespace": namespace}
    cluster.put(RESOURCE_CLAIM_TEMPLATES, {"metadata": metadata, "spec": content})


def pod(cluster: GpuCluster, name: str = "p", **wishes: str) -> None:
    """A pod as the webhook admits it that uses a template."""
    claims = [{"name": "gpus", "resourceClaimName": claim_of(name)}]
    cluster.pod(name, 1, wishes={"template": "gpus/t"} | wishes, resourceClaims=claims)


def bound(cluster: GpuCluster, name: str = "p") -> bool:
    return "nodeName" in cluster.get_pod(name)["spec"]


async def test_a_count_is_placed_and_pinned() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    put(cluster, spec(request(count=4)))
    pod(cluster, policy="nvlink")
    await cluster.settle()
    node, gpus = cluster.gpus("p")
    assert (node, gpus in QUADS) == ("a", True)
    claim = cluster.claim("p")
    assert claim is not None
    (only,) = claim["spec"]["devices"]["requests"]
    assert (only["name"], only["exactly"]["count"], len(pinned(claim))) == ("g", 4, 4)
    cluster.schedule()
    await cluster.settle()
    assert bound(cluster)
    assert cluster.note("p", "level") == "nvlink"


async def test_requests_of_several_containers_are_one_set_split() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    put(cluster, spec(request("left", count=1), request("right", count=3)))
    pod(cluster, policy="nvlink")
    await cluster.settle()
    assert cluster.gpus("p")[1] in QUADS
    claim = cluster.claim("p")
    assert claim is not None
    counts = {one["name"]: one["exactly"]["count"] for one in claim["spec"]["devices"]["requests"]}
    assert counts == {"left": 1, "right": 3}


async def test_what_the_template_says_in_addition_is_in_the_claim() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    tolerations = [{"key": "gpu.topology/xid", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}]
    other = {"opaque": {"driver": "example.com", "parameters": {"a": 1}}}
    own = {"apiVersion": "gpu.topology/v1alpha1", "kind": "ClaimConfig", "keepEnv": ["NCCL_DEBUG"], "nccl": "off"}
    put(
        cluster,
        spec(
            request(tolerations=tolerations),
            config=[other, opaque(own)],
            metadata={
                "labels": {"team": "a", names.LABEL: "mine", "gpu.topology/new": "x"},
                "annotations": {"why": "so", names.CHOICE: "{}", names.SET: '{"containers": [1]}'},
            },
        ),
    )
    pod(cluster)
    await cluster.settle()
    claim = cluster.claim("p")
    assert claim is not None
    assert claim["metadata"]["labels"] == {"team": "a", names.LABEL: names.LABEL_PLACED}
    assert claim["metadata"]["annotations"].keys() == {"why", names.CHOICE}
    assert claim["metadata"]["annotations"][names.CHOICE] != "{}"
    devices = claim["spec"]["devices"]
    assert devices["requests"][0]["exactly"]["tolerations"] == tolerations
    assert devices["config"][0] == other
    (mine,) = devices["config"][1:]
    assert mine["opaque"]["parameters"]["keepEnv"] == ["NCCL_DEBUG"]
    assert mine["opaque"]["parameters"]["nccl"] == "off"
    assert list(mine["opaque"]["parameters"]["order"]) == ["g"]


async def test_a_share_is_placed() -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=Mode(shared="time-slicing"))
    put(cluster, spec(request("g", "share.gpu.topology", capacity={"requests": {"cores": "25", "memory": "20Gi"}})))
    pod(cluster)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    assert bound(cluster)
    assert cluster.note("p", "part") == "25%/20480Mi"


async def test_a_mig_slice_is_placed() -> None:
    cluster = GpuCluster()
    cluster.node("a", "hgx-h100", mode=Mode(mig="dynamic"))
    put(cluster, spec(request("g", "mig.gpu.topology", **SLICES), config=[opaque(MIG_CONFIG)]))
    pod(cluster)
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    assert bound(cluster)
    assert (cluster.note("p", "part") or "").startswith("1g.10gb@")


async def test_a_missing_template_is_waited_for_and_told() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    pod(cluster)
    await cluster.settle()
    assert "Waiting for ResourceClaimTemplate 't', which does not exist" in (cluster.note("p", "reason") or "")
    assert cluster.claim("p") is None
    put(cluster, spec(request(count=2)))
    await cluster.settle()
    assert len(cluster.gpus("p")[1]) == 2
    assert cluster.note("p", "reason") is None


async def test_a_template_made_again_is_read_again() -> None:
    cluster = GpuCluster()
    put(cluster, spec(request(count=2)))
    pod(cluster)
    await cluster.settle()
    cluster.remove(RESOURCE_CLAIM_TEMPLATES, "t", "default")
    await cluster.settle()
    put(cluster, spec(request(count=3)))
    cluster.node("a")
    await cluster.settle()
    assert len(cluster.gpus("p")[1]) == 3


async def test_a_spec_is_kept_as_long_as_the_template_is_the_same() -> None:
    cluster = GpuCluster()
    put(cluster, spec(request(count=2)))
    pod(cluster)
    await cluster.settle()
    picture, key = cluster.worker.picture, ("default", "t")
    waiting, known = picture.pods["default", "p"], picture.templates.known[key]
    picture.templates.changed(key, msgspec.structs.replace(known, metadata=known.metadata))
    assert picture.templates.of(waiting) is not None
    another = Metadata(name="t", namespace="default", uid="another")  # its deletion was in no event
    picture.templates.changed(key, msgspec.structs.replace(known, metadata=another))
    assert (picture.templates.of(waiting), picture.templates.unread_of(waiting)) == (None, key)


async def test_a_template_that_goes_is_missed_by_a_pod_that_waits_for_room() -> None:
    cluster = GpuCluster()
    put(cluster, spec(request(count=2)))
    pod(cluster)
    await cluster.settle()
    cluster.remove(RESOURCE_CLAIM_TEMPLATES, "t", "default")
    await cluster.settle()
    cluster.node("a")
    await cluster.settle()
    assert cluster.claim("p") is None
    assert "Waiting for ResourceClaimTemplate 't', which does not exist" in (cluster.note("p", "reason") or "")


async def test_a_template_that_goes_takes_nothing_from_a_pod_with_its_place() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    put(cluster, spec(request(count=2)))
    pod(cluster)
    await cluster.settle()
    given = cluster.gpus("p")
    cluster.remove(RESOURCE_CLAIM_TEMPLATES, "t", "default")
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    assert cluster.gpus("p") == given
    assert bound(cluster)


async def test_a_restarted_controller_keeps_the_claim_of_a_gated_pod() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    put(cluster, spec(request(count=4)))
    pod(cluster, policy="nvlink")
    cluster.client.kill_at = 2
    with pytest.raises(Killed):
        await cluster.settle()
    made = cluster.claim("p")
    assert made is not None
    cluster.restart()
    await cluster.settle()
    after = cluster.claim("p")
    assert after is not None
    assert after["metadata"]["uid"] == made["metadata"]["uid"]
    assert cluster.get_pod("p")["spec"]["schedulingGates"] == []


async def test_what_cannot_be_placed_is_told_on_the_pod() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    put(cluster, spec({"name": "g", "firstAvailable": [{"name": "x", "deviceClassName": "gpu.topology"}]}))
    pod(cluster)
    await cluster.settle()
    assert "only kube-scheduler can try the alternatives of firstAvailable" in (cluster.note("p", "reason") or "")
    assert cluster.get_pod("p")["spec"]["schedulingGates"] == [{"name": names.GATE}]


WORDS = Whole(containers=(1,))


def read(content: Object, words: Whole = WORDS) -> claim_templates.TemplateRequest:
    return claim_templates.read(Template(Metadata(name="t"), msgspec.json.encode(content)), words)


SHARES = {"capacity": {"requests": {"cores": "50", "memory": "1Gi"}}}
ATTRIBUTE = 'device.attributes["gpu.topology"].'


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (spec(request()), Whole(containers=(1,))),
        (spec(request("a", count=3), request("b", allocationMode="ExactCount")), Whole(containers=(3, 1))),
        (
            spec(request(count=4), constraints=[{"matchAttribute": "gpu.topology/nvlinkGroup4"}]),
            Whole(containers=(4,), required=(Constraint.NVLINK,)),
        ),
        (
            spec(
                request("a"),
                request("b"),
                constraints=[{"requests": ["b", "a"], "matchAttribute": "resource.kubernetes.io/numaNode"}],
            ),
            Whole(containers=(1, 1), required=(Constraint.SAME_NUMA,)),
        ),
        (
            spec(request(selectors=[{"cel": {"expression": ATTRIBUTE + 'productName == "NVIDIA H100 80GB HBM3"'}}])),
            Whole(containers=(1,), product="NVIDIA H100 80GB HBM3"),
        ),
        (
            spec(request(selectors=[{"cel": {"expression": ATTRIBUTE + 'architecture == "Hopper"'}}])),
            Whole(containers=(1,), architecture="Hopper"),
        ),
        (spec(request("g", "share.gpu.topology", **SHARES)), Share(amounts=(Amount(50, 1024),))),
        (spec(request("g", "mig.gpu.topology", **SLICES), config=[opaque(MIG_CONFIG)]), Mig(profiles=(("1g.10gb",),))),
    ],
)
def test_what_a_template_comes_to(content: Object, expected: object) -> None:
    assert read(content).request == expected


def test_words_and_template_add_up() -> None:
    words = Whole(containers=(1, 1), required=(Constraint.SAME_NUMA,), product="NVIDIA*", strategy=Strategy.PACK)
    content = spec(request(count=2), constraints=[{"matchAttribute": "gpu.topology/nvlinkDomain"}])
    assert read(content, words).request == Whole(
        containers=(2,),
        required=(Constraint.SAME_NUMA, Constraint.NVLINK),
        product="NVIDIA*",
        strategy=Strategy.PACK,
    )
    share = read(spec(request("g", "share.gpu.topology", **SHARES)), Whole(containers=(1,), product="NVIDIA*"))
    assert share.request == Share(amounts=(Amount(50, 1024),), product="NVIDIA*")


@pytest.mark.parametrize(
    ("content", "words", "told"),
    [
        ({"spec": {}}, WORDS, "requests no GPU"),
        ({"spec": 1}, WORDS, "the template cannot be read"),
        (spec({"name": "g"}), WORDS, "the field exactly is missing"),
        (spec(request("nic", "dranet")), WORDS, "class 'dranet' is neither a GPU class (gpu.topology,"),
        (spec(request(), request("nic", "dranet")), WORDS, "Write a template of its own for other devices"),
        (spec(request(allocationMode="All")), WORDS, "allocationMode All. Write count"),
        (spec(request(adminAccess=True)), WORDS, "adminAccess allocates no GPU"),
        (spec(request(derivedAttributes=[{}])), WORDS, "cannot place a request with the field 'derivedAttributes'"),
        (spec(request(count=33)), WORDS, "Write a whole number from 1 to 32"),
        (spec(request("a", count=20), request("b", count=20)), WORDS, "the claim requests 40 GPUs"),
        (spec(request(capacity={"requests": {"cores": "50"}})), WORDS, "Write the class share.gpu.topology"),
        (spec(request("g", "share.gpu.topology", count=2, **SHARES)), WORDS, "Write one request for each fraction"),
        (spec(request("g", "share.gpu.topology")), WORDS, "Write capacity.requests with cores"),
        (spec(request("g", "mig.gpu.topology", **SLICES)), WORDS, "mig: {g: {profile: 1g.10gb}}"),
        (spec(request(), request("s", "share.gpu.topology", **SHARES)), WORDS, "devices of one class"),
        (
            spec(request("g", "share.gpu.topology", **SHARES)),
            Whole(containers=(1,), required=(Constraint.NVLINK,)),
            "are about sets of whole GPUs",
        ),
        (spec(request(selectors=[{"cel": {"expression": "device.driver != ''"}}])), WORDS, "gpu.topology/product"),
        (
            spec(request(selectors=[{"cel": {"expression": ATTRIBUTE + 'productName == "A"'}}])),
            Whole(containers=(1,), product="B"),
            "Write only one of the two",
        ),
        (
            spec(request(), constraints=[{"distinctAttribute": "a/b"}]),
            WORDS,
            "the driver cannot place constraint 'a/b'",
        ),
        (
            spec(
                request("a"),
                request("b"),
                constraints=[{"requests": ["a"], "matchAttribute": "gpu.topology/nvlinkDomain"}],
            ),
            WORDS,
            "does not cover all requests",
        ),
        (spec(request(), config=[opaque({"kind": "x"})]), WORDS, "opaque parameters"),
        (spec(request("a"), request("b"), config=[opaque({}, requests=["a"])]), WORDS, "for all requests"),
    ],
)
def test_what_cannot_be_placed_is_refused_with_the_cure(content: Object, words: Whole, told: str) -> None:
    with pytest.raises(WordError, match=r"^ResourceClaimTemplate t: ") as raised:
        read(content, words)
    assert told in str(raised.value)


def test_a_template_beyond_all_bounds_is_not_read() -> None:
    with pytest.raises(WordError, match="Write a shorter one"):
        claim_templates.read(Template(Metadata(name="t"), b""), WORDS)


def kept(cluster: GpuCluster) -> list[str]:
    """Return the templates whose specs are kept, for whichever pod asks."""
    known, found = cluster.worker.picture.templates, []
    assert all(template.spec is None for template in known.known.values())
    for _, name in sorted(known.known):
        asking = cluster.admitted("asking", 1, wishes={"template": f"gpus/{name}"})
        if known.of(msgspec.convert(asking, Pod)) is not None:
            found.append(name)
    return found


async def test_a_spec_is_kept_only_while_a_pod_waits_that_names_it() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    for number in range(20):
        put(cluster, spec(request(count=1)), f"other-{number}")
    put(cluster, spec(request(count=9)))
    pod(cluster)
    await cluster.settle()
    assert kept(cluster) == ["t"]
    assert len(cluster.worker.picture.templates.known) == 21
    cluster.remove(RESOURCE_CLAIM_TEMPLATES, "t", "default")
    put(cluster, spec(request(count=4)))
    await cluster.settle()
    cluster.schedule()
    await cluster.settle()
    assert bound(cluster)
    assert kept(cluster) == []


async def test_a_template_that_cannot_be_read_is_read_later() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    put(cluster, spec(request(count=4)))
    pod(cluster)
    answer, cluster.client.get = cluster.client.get, _refused  # type: ignore[method-assign]
    cluster.deliver()
    await cluster.worker.rest()
    assert cluster.claim("p") is None
    assert names.REASON not in cluster.get_pod("p")["metadata"]["annotations"]  # nobody knows yet
    cluster.client.get = answer  # type: ignore[method-assign]
    await cluster.settle()
    assert cluster.claim("p") is not None


async def test_a_template_that_comes_is_read_at_once_and_one_that_cannot_be_soon_again() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    answer, refusals = cluster.client.get, [ApiError(503, "ServiceUnavailable", "not now")] * 3

    async def get(resource: Resource, name: str, **more: Any) -> Any:
        if name == "u" and refusals:
            raise refusals.pop()
        return await answer(resource, name, **more)

    cluster.client.get = get  # type: ignore[method-assign]
    async with working(cluster):
        await asyncio.sleep(5)
        for name in ("t", "u"):
            put(cluster, spec(request(count=4)), name)
            claims = [{"name": "gpus", "resourceClaimName": claim_of(name)}]
            cluster.pod(name, 1, wishes={"template": f"gpus/{name}"}, resourceClaims=claims)
        await asyncio.sleep(0.5)
        assert cluster.claim("t") is not None
        await asyncio.sleep(20)
    assert cluster.claim("u") is not None


async def test_fat_templates_of_a_namespace_hold_up_those_of_no_other() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    answer, at_once, most, reads = cluster.client.get, 0, 0, 0

    async def get(resource: Resource, name: str, **more: Any) -> Any:
        nonlocal at_once, most, reads
        if resource is RESOURCE_CLAIM_TEMPLATES and more["namespace"] == "fat":
            reads += 1
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.5)
            at_once -= 1
        return await answer(resource, name, **more)

    cluster.client.get = get  # type: ignore[method-assign]
    async with working(cluster):
        for number in range(40):
            name = f"f{number}"
            put(cluster, spec(request(count=8)), name, namespace="fat")
            claims = [{"name": "gpus", "resourceClaimName": claim_of(name)}]
            cluster.pod(name, 1, namespace="fat", wishes={"template": f"gpus/{name}"}, resourceClaims=claims)
        await asyncio.sleep(0.25)
        put(cluster, spec(request(count=1)))
        pod(cluster)
        await asyncio.sleep(0.1)
        assert cluster.claim("p") is not None
        await asyncio.sleep(30)
    assert most == 1, "one after another"
    assert reads == 40, "a pod that is told why it waits has no other template"
    requests = reads
    await cluster.settle()
    assert reads == requests, "none is wanted any more"


async def test_a_template_that_goes_before_it_is_read_is_not_there() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    put(cluster, spec(request(count=4)))
    pod(cluster)
    cluster.deliver()
    cluster.remove(RESOURCE_CLAIM_TEMPLATES, "t", "default")
    await cluster.worker.rest()
    await cluster.worker.rest()
    assert "which does not exist" in cluster.get_pod("p")["metadata"]["annotations"][names.REASON]
    put(cluster, spec(request(count=4)))
    await cluster.settle()
    assert cluster.claim("p") is not None


@pytest.mark.parametrize("when", ["asked before", "asked between"])
async def test_a_template_that_is_made_again_while_it_is_asked_for_is_the_new_one(when: str) -> None:
    """The answer to who asks may come after what the reflector shows."""
    cluster = GpuCluster()
    cluster.node("a")
    put(cluster, spec(request(count=4)))
    pod(cluster)
    answer = cluster.client.get

    async def late(resource: Resource, name: str, **more: Any) -> Any:
        if resource is not RESOURCE_CLAIM_TEMPLATES:
            return await answer(resource, name, **more)
        cluster.client.get = answer  # type: ignore[method-assign]
        found = await answer(resource, name, **more) if when == "asked before" else None
        cluster.remove(RESOURCE_CLAIM_TEMPLATES, "t", "default")
        put(cluster, spec(request(count=2)))
        cluster.deliver()
        if found is None:
            raise ApiError(404, "NotFound", "no such template")
        return found

    cluster.client.get = late  # type: ignore[method-assign]
    cluster.deliver()
    await cluster.worker.rest()
    await cluster.settle()
    claim = cluster.claim("p")
    assert claim is not None
    assert len(pinned(claim)) == 2


async def test_a_template_that_is_too_long_is_said_to_be() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    put(cluster, spec(request(count=4), config=[opaque({"x": "x" * claim_templates.LONGEST})]))
    pod(cluster)
    await cluster.settle()
    reason = cluster.get_pod("p")["metadata"]["annotations"][names.REASON]
    assert (
        reason
        == f"ResourceClaimTemplate t: the template has more than {claim_templates.LONGEST} bytes. Write a shorter one."
    )


async def test_a_template_that_nests_deeper_than_can_be_read_is_said_to_be() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    put(cluster, spec(request(count=4), config=[{"opaque": {"driver": "example.com", "parameters": "DEEP"}}]))
    pod(cluster)
    answer = cluster.client.get

    async def deep(resource: Resource, name: str, *, namespace: str, type: Any = dict) -> Any:  # noqa: A002
        text = msgspec.json.encode(await answer(resource, name, namespace=namespace))
        return codec.decode(text.replace(b'"DEEP"', b'{"a":' * 1500 + b"1" + b"}" * 1500), type)

    cluster.client.get = deep  # type: ignore[method-assign, assignment]
    cluster.deliver()
    await cluster.worker.rest()
    assert (cluster.note("p", "reason") or "").startswith("ResourceClaimTemplate t: the template cannot be read: ")


async def _refused(*_: Any, **__: Any) -> Any:
    raise ApiError(503, "ServiceUnavailable", "not now")
