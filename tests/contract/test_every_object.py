"""Every object that the code builds is accepted, strictly, by each Kubernetes version, and comes back as sent.

Each version's API server has no nodes; nothing is stored. Helm is needed for the chart's objects.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import pytest

from dradriver.api.base import quantity
from dradriver.api.base.errors import WordError
from dradriver.api.slices.slice_features import FIELDS
from dradriver.kube.client import ApiError, Client
from dradriver.kube.config import from_kubeconfig
from dradriver.kube.resources import Resource
from tests import kubernetes_versions
from tests.cluster.nodeless import Nodeless
from tests.contract.admitted import NAMESPACE
from tests.contract.built import BUILDERS, Object
from tests.contract.conftest import ensure_namespace
from tests.contract.planes import Planes
from tests.deploy import NAMESPACE as OURS

pytestmark = [pytest.mark.cluster, pytest.mark.helm]

# What servers before 1.36 drop without a word; node agent and controller find it out and publish nothing that needs it.
LOST: Final = (
    *(field for fields in FIELDS.values() for field in fields),
    *("exactly.capacity", "bindingConditions", "bindingFailureConditions"),
)
LOST_IN: Final = {(1, 34): LOST, (1, 35): (*LOST, "exactly.tolerations")}  # 1.34 keeps these without the taints


@pytest.fixture(scope="module", params=kubernetes_versions.params())
def plane(request: pytest.FixtureRequest, planes: Planes) -> Iterator[Nodeless]:
    with planes.restored("contract", request.param) as plane:
        yield plane


async def test_every_object_is_accepted_and_comes_back_as_sent(plane: Nodeless) -> None:
    major, minor, _ = map(int, plane.version.split("."))
    losing = LOST_IN.get((major, minor), ())
    wrong, lost, sent = [], set(), 0
    config = from_kubeconfig(plane.folder / "kubeconfig")
    async with Client(config, user_agent="contract", timeout_s=30) as client:
        for name in (NAMESPACE, OURS):
            await ensure_namespace(client, name)
        for what, build in BUILDERS.items():
            objects = await asyncio.to_thread(build, plane.version)
            assert objects, what
            for obj in objects:
                sent += 1
                try:
                    stored = await tried(client, plane.api.resource(obj), obj)
                except ApiError as error:
                    wrong.append(f"{what}: {obj['kind']} {obj['metadata'].get('name')}: refused: {error}")
                    continue
                for path in differences(obj, stored):
                    if field := next((one for one in losing if f".{one}" in path), ""):
                        lost.add(field)
                    else:
                        wrong.append(f"{what}: {obj['kind']} {obj['metadata'].get('name')}: {path}")
    assert not wrong, f"{len(wrong)} times in {sent} objects:\n" + "\n".join(wrong[:40])
    assert lost == set(losing), "what is kept after all need not stand in the list"


async def tried(client: Client, resource: Resource, obj: Object) -> Object:
    """Create an object for a try, and return it as it would be stored; a field that nobody knows is an error.

    Who has written which fields the server lists itself.
    """
    obj["metadata"].pop("managedFields", None)
    path = resource.path(obj["metadata"].get("namespace", OURS) if resource.namespaced else None)
    params = {"dryRun": "All", "fieldValidation": "Strict"}
    found: Object = msgspec.json.decode(await client.connection.request("POST", path, params=params, body=obj))
    return found


def differences(sent: Any, stored: Any, path: str = "") -> Iterator[str]:
    """Yield each path of what was sent that came back otherwise, or not at all.

    Nothing that is empty counts, nor what the server adds to an object or at the end of a list.
    """
    if isinstance(sent, dict) and isinstance(stored, dict):
        for key, value in sent.items():
            if key in stored:
                yield from differences(value, stored[key], f"{path}.{key}")
            elif value not in (None, "", [], {}, False, 0):
                yield f"{path}.{key}: dropped"
    elif isinstance(sent, list) and isinstance(stored, list) and len(sent) <= len(stored):
        for number, (one, other) in enumerate(zip(sent, stored, strict=False)):
            yield from differences(one, other, f"{path}[{number}]")
    elif not equal(sent, stored):
        yield f"{path}: {str(sent)[:60]!r} came back as {str(stored)[:60]!r}"


def equal(sent: Any, stored: Any) -> bool:
    if sent == stored or (sent in (None, [], {}) and stored in (None, [], {})):
        return True
    with contextlib.suppress(WordError):
        return quantity.exact(str(sent)) == quantity.exact(str(stored))
    return False


@pytest.mark.parametrize(
    ("sent", "stored", "paths"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, []),
        ({"a": 1}, {}, [".a: dropped"]),
        ({"a": []}, {}, []),
        ({"a": "1024Mi"}, {"a": "1Gi"}, []),
        ({"a": [{"b": "x"}]}, {"a": [{"b": "y"}]}, [".a[0].b: 'x' came back as 'y'"]),
        ({"a": [1]}, {"a": [1, 2]}, []),
        ({"a": [1, 2]}, {"a": [1]}, [".a: '[1, 2]' came back as '[1]'"]),
    ],
)
def test_what_was_dropped_is_seen(sent: Object, stored: Object, paths: Sequence[str]) -> None:
    assert list(differences(sent, stored)) == list(paths)
