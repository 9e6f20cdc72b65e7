"""NICs as dranet published them on real machines, beside GPUs at these machines' addresses, with the claims used there.

The machine's own description knows none of these NICs, so what is near only their slices say: by root on a P5 instance,
by NUMA node alone on GB200, GB300 and MI300X, where no NIC has a root that a GPU has.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec
import pytest
import yaml

from dradriver.kube.resources import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES
from dradriver.topology.machine import Machine
from tests.fakes import nics
from tests.fakes.gpucluster import GpuCluster, claim_of
from tests.paths import SHARED_DATA

pytestmark = pytest.mark.shared_data

Object = dict[str, Any]
FOLDER = SHARED_DATA / "vendors" / "nic"
EFA = "efa.networking.k8s.aws"
SHAPES = {
    "BM.GPU.GB200-v3.4": "gb200-nvl72-tray",
    "gb300": "gb200-nvl72-tray",
    "gpu-efa": "hgx-h100",
    "mi300x": "mi300x-x8",
}


def documents(name: str) -> list[Object]:
    return [each for each in yaml.safe_load_all((FOLDER / f"dranet_{name}.yaml").read_text()) if each]


def devices(name: str) -> list[Object]:
    (one,) = documents(name)
    (piece,) = one.get("items", [one])
    found: list[Object] = piece["spec"]["devices"]
    return found


def said(device: Object, attribute: str) -> Any:
    return next(iter(device["attributes"].get(attribute, {"": None}).values()))


def of_nics(name: str) -> dict[str, Object]:
    return {said(one, "dra.net/pciAddress"): one for one in devices(f"{name}_resourceslice-dranet")}


def machine_of(name: str, shape: Machine) -> Machine:
    """Return a machine with GPUs where the captured ones are, which knows of no NIC."""
    gpus = list(shape.gpus)
    path = FOLDER / f"dranet_{name}_resourceslice-gpu.yaml"
    for at, one in enumerate(devices(f"{name}_resourceslice-gpu") if path.exists() else ()):
        pci, root = (said(one, f"resource.kubernetes.io/{key}") for key in ("pciBusID", "pcieRoot"))
        gpus[at] = msgspec.structs.replace(gpus[at], pci=pci, pcie_root=root)
    return msgspec.structs.replace(shape, gpus=tuple(gpus), nics=(), nic_paths=(), pci=())


def a_cluster(name: str) -> GpuCluster:
    cluster = GpuCluster()
    cluster.node("n", SHAPES[name])
    cluster.machines["n"] = machine_of(name, cluster.machines["n"])
    cluster.publish("n", cluster.machines["n"])
    cluster.put(RESOURCE_SLICES, nics.published("n", of_nics(name).values()))
    for one in (nics.device_class(), nics.device_class(EFA)):
        cluster.put(DEVICE_CLASSES, one)
    return cluster


def class_of(cluster: GpuCluster) -> str:
    return cluster.machines["n"].vendor.device_class


def template(cluster: GpuCluster, spec: Object, name: str = "t") -> None:
    """Put a captured template, with our class in the place of NVIDIA's, and without a choice of GPUs of its own."""
    text = json.dumps(spec).replace("gpu.nvidia.com", "gpu.topology")
    own = json.loads(text)
    for request in own["spec"]["devices"]["requests"]:
        if request["exactly"]["deviceClassName"] == "gpu.topology":
            request["exactly"].pop("selectors", None)
    cluster.put(RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": name, "namespace": "default"}, "spec": own})


def pair(device_class: str, count: int, text: str = 'device.attributes["dra.net"]["rdma"] == true') -> Object:
    gpu = {"name": "gpu", "exactly": {"deviceClassName": device_class, "count": count}}
    exactly = {"deviceClassName": "dranet.net", "count": count, "selectors": [{"cel": {"expression": text}}]}
    return {"spec": {"devices": {"requests": [gpu, {"name": "nic", "exactly": exactly}]}}}


async def placed(
    cluster: GpuCluster, name: str = "p", template: str = "t", **wishes: str
) -> tuple[list[int], list[str]]:
    """Return the GPUs and the NICs' addresses that a pod's claim is pinned to."""
    claims = [{"name": "gpus", "resourceClaimName": claim_of(name)}]
    words = {key.replace("_", "-"): text for key, text in wishes.items()}
    cluster.pod(name, 1, wishes={"template": f"gpus/{template}"} | words, resourceClaims=claims)
    await cluster.settle()
    claim = cluster.claim(name)
    assert claim is not None, cluster.note(name, "reason")
    found: list[str] = []
    for request in claim["spec"]["devices"]["requests"]:
        if request["exactly"]["deviceClassName"] != class_of(cluster):
            text = request["exactly"]["selectors"][0]["cel"]["expression"]
            found += json.loads(text.partition(" in ")[2])
    return cluster.gpus(name)[1], found


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SHAPES))
@pytest.mark.parametrize("count", [1, 2, 4])
async def test_near_ones_are_found_on_every_captured_machine(name: str, count: int) -> None:
    cluster = a_cluster(name)
    template(cluster, pair(class_of(cluster), count))
    chosen, got = await placed(cluster, near_nic="required")
    every, gpus = of_nics(name), cluster.machines["n"].gpus
    assert len(set(got)) == len(chosen) == count
    near = [said(every[address], "dra.net/numaNode") for address in got]
    assert Counter(near) == Counter(gpu.numa for gpu in gpus if gpu.index in chosen)


@pytest.mark.parametrize("name", ["BM.GPU.GB200-v3.4", "gb300", "mi300x"])
async def test_where_no_roots_are_shared_a_constraint_on_them_is_told(name: str) -> None:
    cluster = a_cluster(name)
    spec = pair(class_of(cluster), 1)
    spec["spec"]["devices"]["constraints"] = [{"matchAttribute": "resource.kubernetes.io/pcieRoot"}]
    template(cluster, spec)
    with pytest.raises(AssertionError, match="no NIC of any node has the same resource"):
        await placed(cluster)


async def test_a_p5s_claim_is_pinned_to_the_efa_at_its_gpus_root() -> None:
    cluster = a_cluster("gpu-efa")
    for number, spec in enumerate(documents("gpu-efa_resource-claim-template")):
        assert spec["metadata"]["name"] == ("gpu-efa-unaligned", "gpu-efa-aligned")[number]
        template(cluster, spec["spec"], spec["metadata"]["name"])
    gpus, every, seen = cluster.machines["n"].gpus, of_nics("gpu-efa"), set[str]()
    for at in range(4):  # as many as there are roots: an EFA and two GPUs at each
        (gpu,), (address,) = await placed(cluster, f"p{at}", "gpu-efa-aligned")
        if said(every[address], "dra.net/rdma"):
            assert said(every[address], "resource.kubernetes.io/pcieRoot") == gpus[gpu].pcie_root
        assert address not in seen
        seen.add(address)


@pytest.mark.slow
@pytest.mark.parametrize("which", range(5))
async def test_the_claims_of_gb200_nodes_are_pinned_as_they_say(which: int) -> None:
    cluster = a_cluster("BM.GPU.GB200-v3.4")
    spec = documents("BM.GPU.GB200-v3.4_resource-claim-template")[which]
    template(cluster, spec["spec"])
    chosen, got = await placed(cluster)
    (_, nic) = spec["spec"]["spec"]["devices"]["requests"]
    assert len(set(got)) == nic["exactly"].get("count", 1)
    text = nic["exactly"]["selectors"][0]["cel"]["expression"]
    numa = {said(of_nics("BM.GPU.GB200-v3.4")[address], "dra.net/numaNode") for address in got}
    if "numaNode ==" in text:
        assert numa == {int(text[-1])}
    else:
        assert (numa, len(chosen)) == ({0, 1}, 4)
