"""GPUs of Ascend on a real cluster, as a profile has them."""

from __future__ import annotations

import pytest

from dradriver.node.vendors.ascend.simulated_ascend import SHARED
from tests.cluster import Cluster
from tests.e2e.kubectl import Namespace
from tests.e2e.test_vendors import asks, given, machine, seen

pytestmark = pytest.mark.chart("simulated.machines.node-b=ascend-910b-x8")


def test_npus_of_ascend_are_handed_out_whole(driver: Cluster, namespace: Namespace) -> None:
    found = machine(driver, "node-b", "ascend")
    assert len(found.gpus) == 8
    namespace.apply(asks("npus", "huawei.com/Ascend910", 2))
    namespace.wait_running("npus")
    minors = {gpu.index: gpu.minor for gpu in found.gpus}
    nodes = {f"/dev/davinci{minors[number]}" for number in given(namespace, "npus", found)}
    assert len(nodes) == 2
    assert seen(namespace, "npus", "/dev/davinci", *SHARED) == nodes | set(SHARED)
    variables = namespace.kubectl("exec", "npus", "--", "env").stdout
    assert not any(word in variables for word in ("NVIDIA", "CUDA", "NCCL", "ASCEND"))
