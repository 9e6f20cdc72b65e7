"""Parts of a GPU on the real cluster."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.kubectl import Namespace

Object = dict[str, Any]


def claim(device_class: str, requests: Object | None, *, ladder: bool = False) -> Object:
    one: Object = {"deviceClassName": device_class} | ({"capacity": {"requests": requests}} if requests else {})
    request = {"name": "g", "firstAvailable": [one | {"name": "a"}]} if ladder else {"name": "g", "exactly": one}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c"},
        "spec": {"devices": {"requests": [request]}},
    }


@pytest.mark.parametrize("ladder", [False, True])
@pytest.mark.parametrize(
    ("device_class", "requests", "missing"),
    [
        ("share.gpu.topology", None, "cores"),
        ("share.gpu.topology", {"cores": "25"}, "memory"),
        ("share.gpu.topology", {"memory": "1Gi"}, "cores"),
        ("mig.gpu.topology", None, "memorySlices"),
        ("mig.gpu.topology", {"memorySlices": "1"}, "computeSlices"),
    ],
)
def test_a_claim_of_a_part_says_all_that_it_takes(
    namespace: Namespace, device_class: str, requests: Object | None, missing: str, ladder: bool
) -> None:
    done = namespace.apply(claim(device_class, requests, ladder=ladder), check=False)

    assert done.returncode != 0
    assert missing in done.stderr
    assert "would take a whole GPU" in done.stderr


def test_a_claim_that_asks_for_nothing_is_nobodys_business(namespace: Namespace) -> None:
    empty = claim("gpu.topology", None) | {"spec": {}}
    namespace.apply(empty)


def test_a_claim_of_a_whole_gpu_needs_no_amounts(namespace: Namespace) -> None:
    namespace.apply(claim("gpu.topology", None))
