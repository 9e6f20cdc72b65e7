"""Whatever a pod or its owner says, it is read, bounded, or refused with a message."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.base.objects import OwnerReference
from dradriver.api.gangs import gang_of_pod, gang_size_of_owner
from dradriver.api.gangs.gang_annotations import Gang
from dradriver.api.gangs.gang_owners import Alone, Facts, Owner
from dradriver.api.pod import resolved
from dradriver.api.pod.annotations import Annotations
from tests.effort import sampled
from tests.fakes.owners import STORIES

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
PODS = [pod for build in STORIES.values() for pod in build().pods]
KEYS = [
    *sorted({key for pod in PODS for where in ("labels", "annotations") for key in pod["metadata"].get(where, ())}),
    "spark-role", "ray.io/cluster", "alpha.jobset.sigs.k8s.io/exclusive-topology", "kueue.x-k8s.io/pod-group-serving",
    "kueue.x-k8s.io/pod-group-pod-index-label",
]  # fmt: skip
HALVES = st.text(st.characters(categories=("Cs", "Ll")), max_size=20)  # JSON may hold half a letter
TEXTS = st.text(max_size=300) | HALVES | st.sampled_from(("0", "3", "9999", "99999", "-1", "driver", "trainer", "true"))
SAID = st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=20), TEXTS, max_size=12)
OWNERS = st.lists(
    st.builds(
        OwnerReference,
        api_version=st.sampled_from(("batch/v1", "apps/v1", "kubeflow.org/v1")) | TEXTS,
        kind=st.sampled_from(("Job", "StatefulSet", "PyTorchJob", "MPIJob")) | TEXTS,
        name=TEXTS,
        uid=TEXTS,
        controller=st.none() | st.booleans(),
    ),
    max_size=3,
)
GANGS = st.none() | st.builds(
    Gang, name=st.sampled_from((None, "auto", "train")), pods=st.sampled_from((None, 4, (2, 4)))
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))


@given(SAID, SAID, OWNERS, TEXTS, TEXTS, GANGS)
def test_any_pod_is_of_a_gang_or_of_none(
    labels: dict[str, str],
    annotations: dict[str, str],
    owners: list[OwnerReference],
    group: str,
    scheduler: str,
    gang: Gang | None,
) -> None:
    said = Facts(
        namespace="team", labels=labels, annotations=annotations, owners=owners, group=group, scheduler=scheduler
    )
    found = gang_of_pod.find(said, gang)
    assert found == gang_of_pod.find(said, gang)
    if isinstance(found, Alone):
        assert len(found.why) < 400
        return
    assert LABEL.fullmatch(found.identity)
    assert found.size is None or 1 <= found.size[0] <= found.size[1] <= 9999
    assert all(0 <= number <= 9999 for number in found.rank or ())
    assert len(gang_of_pod.unknown_size(found)) < 400
    if found.read is not None:
        assert found.read.kind in gang_size_of_owner.OBJECTS
        assert max(len(found.read.name), len(found.read.uid), len(found.read.role)) <= 253
    told = gang_of_pod.unknown_size(found)
    assert told.isprintable()


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(name for name, build in STORIES.items() if build().owner is not None))
@given(data=st.data())
def test_a_damaged_owner_has_a_size_or_is_refused(name: str, data: st.DataObject) -> None:
    story = STORIES[name]()
    assert story.owner is not None
    owner = _damaged(story.owner, data)
    read = Owner(api_version="x/v1", kind=story.owner["kind"], name="train", role="worker")
    _is_size(read, owner)


@given(st.sampled_from(sorted(gang_size_of_owner.OBJECTS)), JSON)
def test_any_object_has_a_size_or_is_refused(kind: str, spec: Any) -> None:
    owner = {"metadata": {"uid": "u"}, "spec": spec}
    _is_size(Owner(api_version="x/v1", kind=kind, name="train", uid="u", role="worker"), owner)


@given(
    st.sampled_from((names.GANG_SIZE, names.NEAR, names.ON_MEMBER_LOSS, names.GANG)),
    TEXTS | st.from_regex(r"[0-9]{1,5}-[0-9]{1,5}"),
)
def test_any_text_of_a_word_is_noted_and_read_again_or_refused(key: str, text: str) -> None:
    try:
        noted = resolved.resolve(Annotations({key: text}), {"main": 4})
    except WordError as error:
        assert str(error).startswith(key)
        assert str(error).isprintable()
        return
    assert resolved.read({names.REQUEST: resolved.write(noted)}) == noted


@pytest.mark.parametrize("kind", sorted(gang_size_of_owner.OBJECTS))
@given(spec=JSON)
@example(spec={"\ud800": 1})
def test_any_object_says_why_it_is_never_a_gang_or_nothing(kind: str, spec: Any) -> None:
    assert gang_size_of_owner.why_never(kind, spec).isprintable()
    _is_size(Owner(api_version="x/v1", kind=kind, name="train", role="worker"), {"metadata": {}, "spec": spec})


def _is_size(read: Owner, owner: Any) -> None:
    try:
        found = gang_size_of_owner.size_from(read, owner)
    except WordError as error:
        assert str(error).isprintable()
        assert len(str(error)) < 512
        return
    assert isinstance(found, Alone) or 1 <= found[0] <= found[1] <= 9999


def _damaged(value: Any, data: st.DataObject) -> Any:
    """Return JSON of which one part is something else."""
    if isinstance(value, dict) and value and data.draw(st.integers(0, 9)):
        key = data.draw(st.sampled_from(sorted(value)))
        return value | {key: _damaged(value[key], data)}
    if isinstance(value, list) and value and data.draw(st.integers(0, 9)):
        at = data.draw(st.integers(0, len(value) - 1))
        return [*value[:at], _damaged(value[at], data), *value[at + 1 :]]
    return data.draw(JSON)
