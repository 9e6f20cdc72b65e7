"""What the webhook makes of pods and workloads, and what the controller makes of its notes: templates and claims."""

from __future__ import annotations

import copy
import itertools
from typing import Any, Final

import msgspec

from dradriver.allocator.request import Choice, Level, MigPart, Part, PartChoice, Request, Share, SharePart, Whole
from dradriver.api.base import names
from dradriver.api.base.allocating_driver import NVIDIA, OURS, bound
from dradriver.api.base.objects import Metadata
from dradriver.api.base.pods import Pod
from dradriver.api.claims import claim_builder, claim_templates
from dradriver.api.claims.claim_templates import Template
from dradriver.api.pod import claim_alternatives, resolved
from dradriver.api.vocabulary.nic_requests import CLASSES, SRIOV
from dradriver.queue.placement_request import read_wish
from dradriver.topology.vendors import VENDORS
from tests.fakes import admission
from tests.fakes.admission import admit, defaulted, stored
from tests.fakes.reviews import Review, corpus, manifests

Object = dict[str, Any]
NAMESPACE: Final = "team"
UUIDS: Final = [f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in range(4)]

HARD: Final = {"policy": "nvlink", "min-bandwidth": "100", "required": "same-numa,same-pcie-root"}
KIND: Final = {"product": "NVIDIA H100*", "architecture": "Hopper", "min-memory": "40Gi"}
DRIVER: Final = {"min-driver": "580.95.05", "min-cuda": "12.4"}
LADDER: Final = {"preferred": "nvlink,same-numa,same-pcie-root"}
SHARE: Final = {"cores": "25", "memory": "10Gi"}
# Words that the scheduler alone can follow, with the limits of the containers of their pod.
ALONE: Final[tuple[tuple[dict[str, str], tuple[int, ...]], ...]] = (
    ({"policy": "best-effort"}, (4,)),
    ({"policy": "nvlink"}, (16,)),
    ({"policy": "single-numa"}, (1,)),
    (HARD | KIND | DRIVER, (2, 2)),
    (LADDER | {"prefer-same-numa": "true", "nccl": "off"}, (8,)),
    ({"policy": "nvlink", "product": "Tesla (V100)"} | LADDER, (3, 5)),
    (SHARE | KIND, (1, 1)),
    ({"min-bandwidth": "50"}, (3,)),
    ({"vendor": "amd", "min-bandwidth": "50"}, (3,)),
    ({"vendor": "ascend", "required": "linked"} | LADDER, (8,)),
)
LIMITS: Final[tuple[Object, ...]] = (
    {names.GPU_RESOURCE: "4"},
    {"nvidia.com/gpu.NVIDIA-A100-SXM4-40GB": "2"},
    {"nvidia.com/mig-1g.5gb": "2"},
    {"nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"},
    {"aliyun.com/gpu-mem": "4096", "aliyun.com/gpu-core": "25"},
    {"amd.com/gpu": "4"},
    {"huawei.com/Ascend910B3": "2"},
)
ENVIRONMENT: Final = [{"name": "NCCL_ALGO", "value": "Ring"}, {"name": "CUDA_DEVICE_ORDER", "value": "PCI_BUS_ID"}]


def _named(pod: Object, number: int, prefix: str = "p") -> Object:
    metadata = pod["metadata"] | {"name": f"{prefix}{number}", "namespace": NAMESPACE}
    for gone in ("uid", "resourceVersion", "creationTimestamp"):
        metadata.pop(gone, None)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]}


def pods(_: str) -> list[Object]:
    """What the webhook makes of the pods that it is tested with, where it admits them."""
    return _admitted_pods(corpus(), "p")


def manifests_of_the_field(_: str) -> list[Object]:
    """The same of the field's manifests, where they are at hand."""
    return _admitted_pods(manifests(), "m")


def _admitted_pods(reviews: list[Review], prefix: str) -> list[Object]:
    made: list[Object] = []
    for each in reviews:
        if each.kind == "Pod" and each.old is None:
            verdict = admit(each.new, path=each.path)
            if verdict.allowed and verdict.patch:
                made.append(_named(verdict.admitted, len(made), prefix))
    return made


def translated(_: str) -> list[Object]:
    """Pods without a word of ours, where limits alone are enough."""
    made = []
    for number, limits in enumerate(LIMITS):
        pod = admission.pod(None)
        pod["spec"]["containers"][0]["resources"] = {"limits": limits}
        made.append(_named(admit(defaulted(pod), path="/translate-pods").admitted, number, "t"))
    return made


def workloads(_: str) -> list[Object]:
    """Words on what makes pods, copied into its templates: of the kinds that every server has."""
    made = []
    for kind, more, restart in (
        ("Job", {}, "Never"),
        ("Deployment", {"selector": {"matchLabels": {"a": "b"}}}, "Always"),
        ("StatefulSet", {"selector": {"matchLabels": {"a": "b"}}, "serviceName": "w"}, "Always"),
        ("CronJob", {}, "OnFailure"),
    ):
        spec = admission.pod(4)["spec"] | {"restartPolicy": restart}
        own: Object = more | {"template": {"metadata": {"labels": {"a": "b"}}, "spec": spec}}
        cron = {"schedule": "0 3 * * *", "jobTemplate": {"spec": own}}
        words = {names.PREFIX + key: text for key, text in LADDER.items()}
        sent = {
            "apiVersion": "apps/v1" if more else "batch/v1",
            "kind": kind,
            "metadata": {"name": kind.lower(), "namespace": NAMESPACE, "annotations": words},
            "spec": cron if kind == "CronJob" else own,
        }
        verdict = admit(copy.deepcopy(sent), kind=kind, path="/mutate-workloads")
        assert verdict.patch, kind
        made.append(verdict.admitted)
    return made


def _admitted(words: dict[str, str], counts: tuple[int, ...], spec: Object | None = None) -> Pod:
    """Return a pod as the controller reads it once the webhook has admitted it."""
    said = {names.PREFIX + key: text for key, text in words.items() if key != "vendor"}
    resource = VENDORS[words.get("vendor", "nvidia")].resources[0]
    sent = admission.pod(*counts, annotations=said, spec=spec, resource=resource)
    for container in sent["spec"]["containers"]:
        container["env"] = copy.deepcopy(ENVIRONMENT)
    found = stored(admit(defaulted(sent, namespace=NAMESPACE)).admitted)
    return msgspec.convert(found, Pod)


def static_templates(_: str) -> list[Object]:
    """The templates of pods that the scheduler alone places."""
    made = []
    for words, counts in ALONE:
        note = _admitted(words | {"placement": "static"}, counts).metadata.annotations[names.REQUEST]
        made.append(claim_alternatives.template(NAMESPACE, note, resolved.read({names.REQUEST: note})))
    return made


def handed_over(_: str) -> list[Object]:
    """The claims of pods without a place: a ladder, or what their template says."""
    made = []
    for words, counts in ALONE:
        pod = _admitted(words | {"when-full": "hand-over"}, counts)
        wish = read_wish(pod)
        assert wish.alone is not None
        made.append(claim_builder.handed_over(pod, wish.alone))
    sets, *parts = _templates()
    more: tuple[tuple[Template, dict[str, str]], ...] = ((next_to_nics(), {}), (next_to_nics(), HARD | KIND))
    for template, words in ((sets, {}), (sets, HARD | KIND), *((one, {}) for one in parts), *more):
        pod = _by_template(words | {"when-full": "hand-over"})
        wish = read_wish(pod, template)
        assert wish.alone is not None
        made.append(claim_builder.handed_over(pod, wish.alone))
    return made


def by_templates(_: str) -> list[Object]:
    """The claims of pods that bring a template: its requests, pinned, and what it says beside."""
    made: list[Object] = []
    both = (next_to_nics(), OURS), (next_to_nics(NVIDIA.device_class), NVIDIA)
    for template, ledger in (*((one, OURS) for one in _templates()), (_nvidias(), NVIDIA), *both):
        pod = _by_template({"policy": "best-effort"})
        with bound(ledger):
            wish = read_wish(pod, template)
            asked = wish.template
            assert asked is not None
            choice = _chosen(asked.request)
            uuids = dict(zip(asked.requests, _uuids(choice), strict=True))
            claim = claim_builder.pinned(
                pod, choice, uuids=uuids, compute={"1g.10gb": 1}, keep_env=wish.keep_env, nccl=wish.nccl
            )
        made.append(claim_templates.completed(claim, asked, NICS if asked.nics is not None else {}))
    return made


NICS: Final = {"nic": ("0000:18:00.0", "0000:40:00.0"), "vf": ("0000:5e:00.1",)}


def next_to_nics(device_class: str = names.DEVICE_CLASS) -> Template:
    """What authors write that want NICs of other drivers beside their GPUs."""
    rdma = {"selectors": [{"cel": {"expression": 'device.attributes["dra.net"].rdma == true'}}]}
    tolerations = [{"key": "example.com/t", "operator": "Exists"}]
    devices = {
        "requests": [
            _request("gpu", device_class, count=2),
            _request("nic", "dranet.net", count=2, tolerations=tolerations, **rdma),
            _request("vf", SRIOV.name),
            _request("rest", "dranet", allocationMode="All"),
        ],
        "constraints": [{"requests": ["nic"], "matchAttribute": "dra.net/numaNode"}],
        "config": [
            _config("dra.net", {"interface": {"mtu": 9000}}, requests=["nic"]),
            _config(SRIOV.name, {"kind": "VfConfig", "ifName": "net1"}, requests=["vf"]),
        ],
    }
    return msgspec.structs.replace(_template(devices), nic_classes=CLASSES)


def _by_template(words: dict[str, str]) -> Pod:
    spec = {"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "t"}]}
    sent = admission.pod(None, annotations={names.PREFIX + key: text for key, text in words.items()}, spec=spec)
    sent["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpus"}]}
    return msgspec.convert(stored(admit(defaulted(sent, namespace=NAMESPACE)).admitted), Pod)


def _templates() -> list[Template]:
    """What authors write: sets of GPUs in one request or several, shares, slices, and what is theirs to say."""
    tolerations = [{"key": "example.com/t", "operator": "Exists"}]
    share = {"capacity": {"requests": {"cores": "25", "memory": "10Gi"}}}
    sliced = {"capacity": {"requests": {"memorySlices": "1", "computeSlices": "1"}}}
    told = {"apiVersion": names.CONFIG_API_VERSION, "kind": names.CONFIG_KIND}
    specs: tuple[Object, ...] = (
        {
            "requests": [
                _request("a", names.DEVICE_CLASS, count=3, tolerations=tolerations),
                _request("b", names.DEVICE_CLASS, count=1),
            ],
            "constraints": [{"requests": ["a", "b"], "matchAttribute": "gpu.topology/nvlinkGroup4"}],
            "config": [
                _config(names.DRIVER, told | {"keepEnv": ["NCCL_ALGO"], "nccl": "off"}),
                _config("nic.example.com", {"anything": [1, {"b": 2, "a": None}]}, requests=["a"]),
            ],
        },
        {"requests": [_request("a", names.SHARE_CLASS, **share), _request("b", names.SHARE_CLASS, **share)]},
        {
            "requests": [_request("a", names.MIG_CLASS, **sliced)],
            "config": [_config(names.DRIVER, told | {"mig": {"a": {"profile": "1g.10gb"}}})],
        },
    )
    return [_template(one) for one in specs]


def _nvidias() -> Template:
    """What they write for NVIDIA's driver, as in its own examples."""
    shared = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    told = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": shared}
    requests = [_request("ts", NVIDIA.device_class), _request("whole", NVIDIA.device_class, count=2)]
    return _template({"requests": requests, "config": [_config(NVIDIA.driver, told, requests=["ts"])]})


def _template(devices: Object) -> Template:
    metadata = {"labels": {"team": "a"}, "annotations": {"example.com/note": "x"}}
    body = msgspec.json.encode({"metadata": metadata, "spec": {"devices": devices}})
    return Template(metadata=Metadata(name="t"), spec=body)


def _request(name: str, device_class: str, **exactly: Any) -> Object:
    return {"name": name, "exactly": {"deviceClassName": device_class} | exactly}


def _config(driver: str, parameters: Object, **more: Any) -> Object:
    return {"opaque": {"driver": driver, "parameters": parameters}} | more


def _chosen(request: Request) -> Choice | PartChoice:
    """Return some choice for a request: its GPUs one after another, of each part the next."""
    if isinstance(request, Whole):
        gpus = tuple(range(request.gpus))
        ends = list(itertools.accumulate(request.containers))
        containers = tuple(gpus[end - count : end] for end, count in zip(ends, request.containers, strict=True))
        return Choice(
            gpus=gpus, containers=containers, ring=gpus, busbw_gbps=80, bandwidth_gbps=50, level=Level.NVLINK, score=100
        )
    parts: list[Part] = (
        [SharePart(gpu=gpu, amount=amount) for gpu, amount in enumerate(request.amounts)]
        if isinstance(request, Share)
        else [MigPart(gpu=gpu, profile=own, start=0, size=1) for gpu, (own,) in enumerate(request.profiles)]
    )
    return PartChoice(containers=tuple((part,) for part in parts), node="n")


def _uuids(choice: Choice | PartChoice) -> list[list[str]]:
    if isinstance(choice, Choice):
        return [[UUIDS[gpu] for gpu in gpus] for gpus in choice.containers]
    return [[UUIDS[part.gpu]] for parts in choice.containers for part in parts]
