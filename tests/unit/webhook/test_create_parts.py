"""CREATE of pods that ask for parts of GPUs, by our words or by the limits of other drivers."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from dradriver.allocator.request import Amount, Mig, Share, Whole
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.pod import resolved
from dradriver.api.pod.resolved import Resolved
from tests import schema
from tests.fakes.admission import (
    admit,
    defaulted,
    pod,
    viewed,
)
from tests.paths import SHARED_DATA
from webhook import gpu_limits

GPU = names.GPU_RESOURCE


def noted(made: dict[str, Any]) -> Resolved:
    return resolved.read(made["metadata"]["annotations"])


@pytest.mark.shared_data
def test_the_limits_of_other_drivers_manifests_are_read() -> None:
    def first(name: str) -> dict[str, Any]:
        found = yaml.safe_load((SHARED_DATA / "manifests" / f"{name}.yaml").read_text())
        template = found["spec"].get("template")
        return found if template is None else {"kind": "Pod", **template, "metadata": {"name": "p"}}

    assert gpu_limits.asks(viewed(first("mig-pod"))) == {"cuda-container": ("1g.5gb",)}
    # 4096 GiB no GPU has: this cluster's device plugin counts in MiB.
    assert gpu_limits.asks(viewed(first("gpushare-deployment"))) == {"model-server": Amount(cores=25, memory_mib=4096)}
    with pytest.raises(WordError, match="vGPUs are for virtual machines and need NVIDIA's licence server"):
        gpu_limits.asks(viewed(first("vgpu-pod")))


@pytest.mark.parametrize(
    ("limits", "words", "told"),
    [
        ({"nvidia.com/vgpu": "1"}, {}, "container 'c0': limits nvidia.com/vgpu: '1': vGPU"),
        ({GPU: "4"}, {"gpu.topology/share": "0.5"}, "contradicts container 'c0', which requests 4 GPUs"),
    ],
)
def test_what_cannot_be_had_in_parts_is_refused(limits: dict[str, str], words: dict[str, str], told: str) -> None:
    sent = pod(1, annotations={"gpu.topology/policy": "best-effort"} | words)
    sent["spec"]["containers"][0]["resources"] = {"limits": limits}
    assert told in (admit(sent).message or "")


def test_only_the_limits_of_a_share_count() -> None:
    sent = pod(1, annotations={"gpu.topology/policy": "best-effort"})
    memory, cores = "aliyun.com/gpu-mem", "aliyun.com/gpu-core"
    resources = {"limits": {memory: "8", cores: "25", "cpu": "1"}, "requests": {memory: "4", "cpu": "1"}}
    sent["spec"]["containers"][0]["resources"] = resources
    found = viewed(sent)
    assert gpu_limits.asks(found) == {"c0": Amount(cores=25, memory_mib=8192)}
    assert gpu_limits.amounts(found.containers[0]).gpus == (
        ("limits", memory), ("limits", cores), ("requests", memory),
    )  # fmt: skip


def test_an_init_container_borrows_the_same_part() -> None:
    asks: gpu_limits.Asks = {"a": Amount(cores=25), "b": ("1g.10gb",)}
    assert gpu_limits.lender("i", ("1g.10gb",), asks) == "b"
    with pytest.raises(WordError, match=r"Write 25 % of a GPU's compute or MIG 1g\.10gb, or remove the limit"):
        gpu_limits.lender("i", 1, asks)


def test_a_share_is_gated_like_a_whole_gpu_and_has_the_request_of_its_container() -> None:
    sent = pod(1, annotations={"gpu.topology/memory": "10Gi"})
    sent["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "1"
    made = admit(defaulted(sent)).admitted
    schema.check(made)
    assert made["spec"]["containers"][0]["resources"]["claims"] == [{"name": "gpu-topology", "request": "c0"}]
    assert GPU not in made["spec"]["containers"][0]["resources"]["limits"]
    assert made["spec"]["schedulingGates"] == [{"name": "gpu.topology/placement"}]
    assert noted(made) == Resolved(containers=("c0",), request=Share(amounts=(Amount(memory_mib=10240),)))
    assert admit(made).admitted["spec"]["containers"] == made["spec"]["containers"], "a copy, and a second pass"


def test_each_of_several_slices_has_a_request_of_its_own_and_an_init_container_borrows_them() -> None:
    sent = pod(2, 1, annotations={"gpu.topology/mig-profile": "1g.10gb"})
    sent["spec"]["initContainers"] = [{"name": "i", "image": "x", "resources": {"limits": {GPU: "2"}}}]
    made = admit(defaulted(sent)).admitted
    schema.check(made)
    several = [{"name": "gpu-topology", "request": f"c0-{number}"} for number in (1, 2)]
    assert made["spec"]["containers"][0]["resources"]["claims"] == several
    assert made["spec"]["containers"][1]["resources"]["claims"] == [{"name": "gpu-topology", "request": "c1"}]
    assert made["spec"]["initContainers"][0]["resources"]["claims"] == several
    assert noted(made).request == Mig(profiles=(("1g.10gb", "1g.10gb"), ("1g.10gb",)))
    assert admit(made).admitted["spec"]["containers"] == made["spec"]["containers"]


@pytest.mark.parametrize(
    "limits",
    [{"nvidia.com/mig-1g.5gb": "1"}, {"nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}],
)
def test_limits_of_other_drivers_that_ask_for_parts_are_taken_away(limits: dict[str, str]) -> None:
    sent = pod(1, annotations={"gpu.topology/strategy": "pack"})
    sent["spec"]["containers"][0]["resources"] = {"limits": limits | {"cpu": "1"}}
    made = admit(defaulted(sent)).admitted
    schema.check(made)
    assert made["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "1"}
    assert not isinstance(noted(made).request, Whole)
