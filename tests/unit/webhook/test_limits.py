"""How much a pod may say, and what it is warned of."""

from __future__ import annotations

from typing import Any

import pytest

from dradriver.api.base import names
from tests.fakes.admission import NVLINK, admit, affine, create, pod, refusal, sidecar

GPU = names.GPU_RESOURCE


def environment(**variables: str) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in variables.items()]


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("NCCL_ALGO", "NVLink,IB", "NCCL does not know 'NVLink', 'IB'"),
        ("NCCL_ALGO", "allreduce:rings;broadcast:tree", "NCCL does not know 'rings'"),
        ("NCCL_PROTO", "Fast", "NCCL does not know 'Fast'"),
        ("NCCL_TOPO_FILE", "/etc/topo.xml", "NCCL_TOPO_FILE"),
        ("NVIDIA_VISIBLE_DEVICES", "all", "belong to other pods"),
        ("CUDA_VISIBLE_DEVICES", "0", "hide GPUs"),
        ("NCCL_P2P_DISABLE", "1", "does not use NVLink"),
        ("NCCL_P2P_LEVEL", "LOC", "does not use NVLink"),
    ],
)
def test_harmful_variables_are_warned_about(name: str, value: str, part: str) -> None:
    sent = pod(2, annotations=NVLINK)
    sent["spec"]["containers"][0]["env"] = environment(**{name: value})
    (warning,) = admit(sent).warnings
    assert warning.startswith(f"container 'c0': {name}: ")
    assert part in warning


def test_good_variables_are_not_warned_about() -> None:
    sent = pod(2, annotations=NVLINK)
    sent["spec"]["containers"][0]["env"] = [
        *environment(NCCL_ALGO="allreduce:^tree;ring,NVLSTree", NCCL_PROTO="Simple,LL", NVIDIA_VISIBLE_DEVICES="void"),
        *environment(NCCL_P2P_DISABLE="0", NCCL_P2P_LEVEL="NVL"),
        {"name": "NCCL_DEBUG", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    assert admit(sent).warnings == []


def test_a_privileged_container_is_warned_about() -> None:
    sent = pod(2, annotations=NVLINK)
    sent["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    assert "sees all GPUs" in admit(sent).warnings[0]


def test_a_result_that_was_meant_as_a_wish_is_warned_about() -> None:
    sent = pod(4, annotations={names.BANDWIDTH: "100", names.NODE: "n1", names.SCORE: "100"})
    verdict = admit(sent)
    assert [warning.partition(",")[0] for warning in verdict.warnings] == [
        f"{key}: only the driver writes this annotation" for key in (names.BANDWIDTH, names.NODE)
    ]
    assert names.MIN_BANDWIDTH in verdict.warnings[0]
    assert names.BANDWIDTH not in verdict.admitted["metadata"]["annotations"]


def test_warnings_are_short_and_on_one_line() -> None:
    sent = pod(2, annotations=NVLINK)
    sent["spec"]["containers"][0]["env"] = environment(NCCL_ALGO="x\ny" * 500)
    (warning,) = admit(sent).warnings
    assert len(warning) <= 256
    assert warning.isprintable()


def test_at_most_eight_warnings_the_last_says_how_many_more() -> None:
    sent = pod(2, annotations=NVLINK)
    sent["spec"]["containers"][0]["env"] = environment(CUDA_VISIBLE_DEVICES="0") * 30
    warnings = admit(sent).warnings
    assert len(warnings) == 8
    assert "There are 23 more" in warnings[-1]


def test_an_environment_beyond_what_is_looked_at_is_no_error() -> None:
    sent = pod(2, None, annotations=NVLINK)
    first, second = sent["spec"]["containers"]
    first["env"] = environment(CUDA_VISIBLE_DEVICES="0") * 30_000
    second["env"] = environment(NCCL_PROTO="Fast")
    (warning,) = admit(sent).warnings
    assert "NCCL_PROTO" in warning


def expression(values: int) -> dict[str, Any]:
    return {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a" * 60] * values}]}


MANY: dict[str, tuple[dict[str, Any], str]] = {
    "containers": ({"initContainers": [{"name": f"i{i}"} for i in range(256)]}, "257 entries"),
    "name": ({"initContainers": [{"name": "i" * 64}]}, "name: 64 characters"),
    "claims": ({"resourceClaims": [{"name": f"r{i}"} for i in range(257)]}, "spec.resourceClaims: 257 entries"),
    "gates": ({"schedulingGates": [{"name": f"a/{i}"} for i in range(65)]}, "spec.schedulingGates: 65 entries"),
    "tolerations": ({"tolerations": [{"operator": "Exists"}] * 257}, "spec.tolerations: 257 entries"),
    "long tolerations": ({"tolerations": [{"key": "x" * 200_000}]}, "spec.tolerations: 2000"),
    "terms": (affine([expression(1)] * 257), "terms: 257 entries"),
    "long affinity": (affine([expression(3000)]), "spec.affinity: 1"),
}


@pytest.mark.parametrize("part", MANY)
def test_a_list_that_is_too_long_is_refused(part: str) -> None:
    spec, message = MANY[part]
    assert message in refusal(1, spec=spec)
    assert admit(pod(1, spec=spec)).patch == [], "what is not ours is nobody's business"


def test_lists_of_a_container_are_bounded_too() -> None:
    sent = pod(2, annotations=NVLINK)
    resources = sent["spec"]["containers"][0]["resources"]
    resources["claims"] = [{"name": f"r{i}"} for i in range(257)]
    assert "container 'c0': resources.claims: 257 entries" in admit(sent).message
    resources["claims"] = []
    resources["limits"] |= {f"example.com/{i:0100}": "1" for i in range(2000)}
    assert "container 'c0': resources: 2" in admit(sent).message


def test_lists_of_a_large_but_real_pod_are_fine() -> None:
    init = [sidecar(0, restart=None) | {"name": f"i{i}"} for i in range(50)]
    spec = affine([expression(20)] * 20) | {
        "initContainers": init,
        "tolerations": [{"key": f"example.com/{i}", "operator": "Exists"} for i in range(100)],
        "resourceClaims": [{"name": f"r{i}", "resourceClaimName": "x"} for i in range(30)],
    }
    assert create(1, *[None] * 100, spec=spec)


def test_annotations_longer_than_kubernetes_keeps_are_refused() -> None:
    message = refusal(1, annotations=NVLINK | {f"example.com/{i}": "x" * 200 for i in range(12_000)})
    assert "Kubernetes stores at most 256 KiB" in message
