"""Whatever comes in, an answer goes out: allowed, refused with a message, or no review at all."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver import __version__
from dradriver.api.base import names
from dradriver.api.pod import resolved
from dradriver.api.pod.annotations import Annotations
from dradriver.api.vocabulary import annotation_words
from tests.bench import fuzz_webhook
from tests.fakes.admission import (
    CONTROLLER,
    Object,
    admit,
    affine,
    applied,
    body,
    defaulted,
    lifted,
    pod,
    running,
    stored,
)
from webhook import review
from webhook.admission import Admission

TEXTS = st.text(max_size=40)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4))
READ = (*annotation_words.KEYS, "gpu-topology.example.com/required")
KEYS = st.sampled_from((*READ, *names.NOTES, *names.RESULTS))
FIELDS = (
    "metadata", "spec", "containers", "initContainers", "resources", "limits", "requests", "claims", "name", "labels",
    "annotations", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms",
    "resourceClaims", "schedulingGates", "env", "securityContext", names.GPU_RESOURCE, names.LABEL, names.POLICY,
    names.REQUEST, names.AFFINITY, "devices", "config", "opaque", "driver", "parameters", "order",
)  # fmt: skip
LIKE = st.recursive(
    SCALARS | st.sampled_from(("nvlink", names.DRIVER, names.POD_CLAIM, "gpus-0123456789", "2", "c0")),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=12,
)


def answered(request: review.Request, path: str) -> dict[str, Any]:
    if path == "pods":
        encoded, _ = Admission(controller_user=CONTROLLER).mutate_pod(request)
    elif path == "workloads":
        encoded, _ = Admission(controller_user=CONTROLLER).mutate_workload(request)
    elif path == "policies":
        encoded, _ = Admission(controller_user=CONTROLLER).validate_policies(request)
    else:
        encoded, _ = Admission(controller_user=CONTROLLER).validate_claim(request)
    response: dict[str, Any] = json.loads(encoded)["response"]
    assert response["allowed"] or response["status"]["message"]
    return response


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_a_review_or_is_refused(sent: bytes) -> None:
    try:
        review.decode(sent)
    except review.ReviewError as error:
        assert str(error)


@pytest.mark.parametrize("damage", [b"\xff", b"\xed\xa0\x80", "\u00e9".encode()[:1]])
def test_bytes_that_are_no_text_are_no_review_wherever_they_stand(damage: bytes) -> None:
    """What nobody reads is passed on as it stands, into a patch that would be no text either."""
    terms = [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]
    live = lifted(stored(admit(defaulted(pod(2, annotations={names.POLICY: "nvlink"}, spec=affine(terms)))).admitted))
    sent = json.dumps(body(live)).encode().replace(b"nodeSelectorTerms", b"nodeSelector" + damage + b"Terms")
    with pytest.raises(review.ReviewError):
        review.decode(sent)


@pytest.mark.parametrize("kind", ["Pod", "ResourceClaim", "ResourceClaimTemplate", "ConfigMap"])
@given(new=LIKE | JSON, old=LIKE | JSON)
def test_any_object_gets_an_answer(kind: str, new: object, old: object) -> None:
    sent = review.decode(json.dumps(body(new, old=old, kind=kind)).encode())
    answered(sent, {"Pod": "pods", "ConfigMap": "policies"}.get(kind, "claims"))


@given(text=st.text() | JSON.map(json.dumps))
def test_any_policies_file_gets_an_answer(text: str) -> None:
    stored = {"metadata": {"labels": {names.VERSION_LABEL: __version__}}, "data": {names.POLICIES_KEY: text}}
    answered(review.decode(json.dumps(body(stored, kind="ConfigMap")).encode()), "policies")


@pytest.mark.parametrize("kind", ["Job", "JobSet"])
@given(new=LIKE | JSON, old=LIKE | JSON, spec=LIKE)
def test_any_workload_gets_an_answer(kind: str, new: object, old: object, spec: object) -> None:
    worded = {"metadata": {"annotations": {names.POLICY: "nvlink"}}, "spec": {"template": spec, "replicatedJobs": spec}}
    for sent in (new, worded):
        answered(review.decode(json.dumps(body(sent, old=old, kind=kind)).encode()), "workloads")


@pytest.mark.parametrize("what", ["words", "reviews"])
def test_what_the_fuzzer_sends_gets_an_answer_that_can_be_used(what: str) -> None:
    ends, failed = fuzz_webhook.run(what, 400, "a test")
    assert not failed
    assert {"patched", "refused", "unchanged"} <= ends.keys()


LIMITS = st.dictionaries(
    st.sampled_from(("nvidia.com/gpu.", "nvidia.com/mig-", "nvidia.com/gpu")).flatmap(
        lambda start: st.text(max_size=60).map(lambda rest: start + rest)
    ),
    SCALARS | st.sampled_from(("1", "2")),
    max_size=3,
)


@given(LIMITS)
def test_any_limits_are_translated_or_refused_on_one_line(limits: dict[str, Any]) -> None:
    sent = defaulted(pod(None))
    sent["spec"]["containers"][0]["resources"] = {"limits": limits, "requests": dict(limits)}
    verdict = admit(sent, path="/translate-pods")
    assert verdict.message.isprintable()
    if verdict.allowed and verdict.patch:
        assert resolved.read(verdict.admitted["metadata"]["annotations"]).asked


def marked(values: dict[str, Any]) -> Object:
    made = defaulted(pod(2, None, annotations={names.POLICY: "nvlink"}))
    for key, value in values.items():
        (made["metadata"] if key in ("labels", "annotations") else made["spec"])[key] = value
    return made


PARTS = st.dictionaries(
    st.sampled_from(("labels", "annotations", "affinity", "resourceClaims", "schedulingGates", "initContainers")),
    LIKE,
    max_size=3,
)


@given(PARTS, PARTS)
def test_any_part_of_a_pod_of_ours_gets_an_answer(new: dict[str, Any], old: dict[str, Any]) -> None:
    answered(review.decode(json.dumps(body(marked(new))).encode()), "pods")
    live = stored(admit(marked({})).admitted)
    for sent, was in ((marked(new), live), (marked(new), marked(old)), (live, marked(old))):
        answered(review.decode(json.dumps(body(sent, old=was)).encode()), "pods")


@given(st.dictionaries(KEYS | TEXTS.map(lambda text: names.PREFIX + text), TEXTS, min_size=1, max_size=3))
def test_any_annotation_is_taken_or_refused_on_one_line(annotations: dict[str, str]) -> None:
    verdict = admit(defaulted(pod(2, annotations=annotations)))
    assert verdict.allowed or verdict.message
    assert verdict.message.isprintable()
    assert all(warning.isprintable() for warning in verdict.warnings)


# What trips readers of numbers: digits of other scripts, exponents, what is no number, signs.
ODD = (
    st.text(alphabet="0123456789.eE+-kKMGTPi٣²½\U0001d7d9\x00\n\u202e GBs/nan∞,", max_size=300)
    | st.text(max_size=300)
    | st.sampled_from(("9" * 250, "9" * 5000, "1e99", "1e-99", "nvlink," * 36, "-0", "NaN", "Infinity", "0x10"))
)
WORDS = st.dictionaries(st.sampled_from(READ), ODD, min_size=1, max_size=3)
LIVE = stored(admit(defaulted(pod(2, annotations={names.POLICY: "nvlink"}))).admitted)
LIVES = {"waiting": LIVE, "placed": lifted(LIVE), "never ours": defaulted(pod(2))}


@given(WORDS)
def test_any_value_of_any_word_is_taken_or_refused_on_creation(words: dict[str, str]) -> None:
    verdict = admit(defaulted(pod(2, annotations=words)))
    if verdict.allowed:
        noted = resolved.read(verdict.admitted["metadata"]["annotations"])
        assert noted == resolved.resolve(Annotations(words), {"c0": 2})
    else:
        assert verdict.message.isprintable()
        assert 0 < len(verdict.message) <= review.MOST_MESSAGE


@pytest.mark.parametrize("life", LIVES)
@given(words=WORDS)
def test_any_value_of_any_word_is_taken_or_refused_on_update(life: str, words: dict[str, str]) -> None:
    live = LIVES[life]
    sent = copy.deepcopy(live)
    sent["metadata"].setdefault("annotations", {}).update(words)
    verdict = admit(sent, old=live)
    assert verdict.message.isprintable()
    assert verdict.allowed or verdict.message
    if verdict.allowed and life == "waiting":
        assert resolved.read(verdict.admitted["metadata"]["annotations"]) == resolved.resolve(
            Annotations(sent["metadata"]["annotations"]), {"c0": 2}
        )
    assert admit(sent, old=sent).allowed, "what is there already must not hold up other updates"


@given(
    st.sampled_from(annotation_words.KEYS),
    st.text(alphabet="\n\r\t\x1b\u202e\"\\'<>", min_size=1, max_size=10),
)
def test_a_value_appears_quoted_only(key: str, value: str) -> None:
    verdict = admit(defaulted(pod(2, annotations={key: f"a{value}z"})))
    assert repr(f"a{value}z") in verdict.message
    assert verdict.message.isprintable()


ENTRIES = st.lists(st.sampled_from(("a", "b", "c", "d", names.POD_CLAIM)), unique=True)


def claims(found: list[str], *, own: str) -> Object:
    named = ({"name": n, "resourceClaimName": own if n == names.POD_CLAIM else f"of-{n}"} for n in found)
    return {"resourceClaims": list(named)} if found else {}


@given(ENTRIES, ENTRIES, st.booleans())
def test_a_list_gets_the_drivers_entry_where_the_live_pod_has_it_and_keeps_all_others(
    sent: list[str], was: list[str], same: bool
) -> None:
    live = defaulted(pod(None, labels={names.LABEL: "placed"}, spec=claims(was, own="gpus-1")))
    new = defaulted(pod(None, labels={names.LABEL: "placed"}, spec=claims(sent, own="gpus-1" if same else "gpus-2")))
    made = admit(new, old=live).admitted["spec"].get("resourceClaims", [])
    others = [name for name in sent if name != names.POD_CLAIM]
    expected: list[str] = []
    for name in was:
        expected += [name] if name == names.POD_CLAIM else [n for n in others if n == name]
        others = others if name == names.POD_CLAIM else [n for n in others if n != name]
    assert [entry["name"] for entry in made] == expected + others
    assert {entry["resourceClaimName"] for entry in made if entry["name"] == names.POD_CLAIM} <= {"gpus-1"}


COUNTS = st.lists(st.none() | st.integers(1, 8), min_size=1, max_size=4).filter(any)


@given(COUNTS, st.sampled_from(("nvlink", "best-effort")), st.booleans(), st.booleans())
def test_every_life_of_a_pod_keeps_an_unchanged_apply_clean(
    counts: list[int | None], policy: str, placed: bool, bound: bool
) -> None:
    manifest = pod(*counts, annotations={names.POLICY: policy})
    live = stored(admit(defaulted(manifest)).admitted)
    if placed:
        live = running(lifted(live)) if bound else lifted(live)
    assert admit(applied(manifest, live), old=live).admitted == live
    assert resolved.read(live["metadata"]["annotations"]).asked == {
        f"c{i}": count for i, count in enumerate(counts) if count
    }
