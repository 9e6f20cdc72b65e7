"""Claims of MIG slices that the controller did not write: how many slices one may ask for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.kubectl import Namespace

Object = dict[str, Any]
ONE: Object = {
    "deviceClassName": "mig.gpu.topology",
    "capacity": {"requests": {"memorySlices": "1", "computeSlices": "1"}},
}
DISTINCT: Object = {"distinctAttribute": "gpu.topology/parentUUID"}


def request(count: int | None, *, name: str = "g", **more: Any) -> Object:
    return {"name": name, "exactly": ONE | ({} if count is None else {"count": count}) | more}


def ladder(*counts: int) -> Object:
    return {"name": "g", "firstAvailable": [ONE | {"name": f"s{n}", "count": c} for n, c in enumerate(counts)]}


def claim(requests: list[Object], *constraints: Object, template: bool = False) -> Object:
    spec: Object = {"devices": {"requests": requests, "constraints": list(constraints)}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate" if template else "ResourceClaim",
        "metadata": {"generateName": "c-"},
        "spec": {"spec": spec} if template else spec,
    }


def create(namespace: Namespace, manifest: Object) -> str:
    """Return what the server says against it; empty where it takes it."""
    done = namespace.kubectl("create", "-f", "-", stdin=str(manifest).replace("'", '"'), check=False)
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("template", [False, True])
def test_so_many_slices_that_the_scheduler_would_search_for_long_are_refused(
    namespace: Namespace, template: bool
) -> None:
    more = [request(5), request(4, name="h")]
    for requests, constraints in (([request(9)], ()), (more, ()), ([ladder(1, 9)], ()), ([request(5)], (DISTINCT,))):
        said = create(namespace, claim(requests, *constraints, template=template))
        assert "at most" in said, requests
        assert "gpu.topology/mig-profile" in said


@pytest.mark.parametrize("template", [False, True])
def test_as_many_as_do_no_harm_are_taken(namespace: Namespace, template: bool) -> None:
    some = [request(4), request(None, name="h"), request(3, name="i")]
    every = request(None, allocationMode="All")
    for requests, constraints in (
        ([request(8)], ()),
        (some, ()),
        ([ladder(8, 2)], ()),
        ([every], ()),
        ([request(4)], (DISTINCT,)),
        ([{"name": "g", "exactly": {"deviceClassName": "gpu.topology", "count": 16}}], ()),
    ):
        assert create(namespace, claim(requests, *constraints, template=template)) == ""


def test_amounts_are_asked_of_templates_too(namespace: Namespace) -> None:
    bare = {"name": "g", "exactly": {"deviceClassName": "mig.gpu.topology"}}
    assert "would take a whole GPU" in create(namespace, claim([bare], template=True))
