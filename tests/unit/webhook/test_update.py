"""UPDATE of pods: unchanged manifests stay clean, and what the driver wrote is the driver's."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dradriver.allocator.request import Constraint, Whole
from dradriver.api.base import names
from dradriver.api.pod import resolved
from tests.fakes.admission import CONTROLLER, Object, admit, applied, defaulted, lifted, pod, running, stored

NVLINK = {names.POLICY: "nvlink"}
TERMS = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
AFFINITY = {
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": TERMS}}}
}
INIT = {"initContainers": [{"name": "init", "image": "x", "resources": {"limits": {names.GPU_RESOURCE: 4}}}]}
MANIFESTS = {
    "plain": pod(4, annotations=NVLINK),
    "two containers": pod(2, None, 1, annotations=NVLINK),
    "init container": pod(4, annotations=NVLINK, spec=INIT),
    "affinity": pod(4, annotations=NVLINK, spec=AFFINITY),
    "invented scheduler": pod(4, annotations=NVLINK, spec={"schedulerName": "gpu-scheduler"}),
    "duration": pod(4, annotations={names.MAX_DURATION: "1h"}, spec={"activeDeadlineSeconds": 7200}),
    "gate and claim of its own": pod(
        4,
        annotations=NVLINK,
        spec={
            "schedulingGates": [{"name": "example.com/a"}],
            "resourceClaims": [{"name": "nic", "resourceClaimName": "nic"}],
        },
    ),
}
STAGES = {"waiting": lambda live: live, "placed": lifted, "running": lambda live: running(lifted(live))}


def lived(manifest: Object, stage: str) -> Object:
    made: Object = STAGES[stage](stored(admit(defaulted(manifest)).admitted))  # type: ignore[no-untyped-call]
    return made


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", MANIFESTS)
def test_an_unchanged_apply_gives_back_the_live_pod(name: str, stage: str) -> None:
    live = lived(MANIFESTS[name], stage)
    if stage != "waiting" and name.startswith("gate"):
        live["spec"]["schedulingGates"] = [{"name": "example.com/a"}]
    sent = applied(MANIFESTS[name], live)
    verdict = admit(sent, old=live)
    assert sent != live or name == "gate and claim of its own", "the manifest has limits that the live pod has not"
    assert verdict.admitted == live
    assert verdict.warnings == []


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", MANIFESTS)
def test_a_replace_with_the_manifest_gives_back_the_live_pod(name: str, stage: str) -> None:
    live = lived(MANIFESTS[name], stage)
    sent = defaulted(MANIFESTS[name])
    if stage != "waiting":
        sent["spec"].pop("schedulingGates", None)
        live["spec"].pop("schedulingGates", None)
    made = admit(sent, old=live).admitted
    assert made["spec"] == live["spec"]
    assert made["metadata"]["labels"] == live["metadata"]["labels"]
    assert made["metadata"]["annotations"] == live["metadata"]["annotations"]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("spec", [{}, AFFINITY])
def test_an_unchanged_apply_of_a_copy_gives_back_the_live_pod(stage: str, spec: Object) -> None:
    """The manifest came from ``kubectl get -o yaml``: it names the original's claim, nodes and results."""
    manifest = lived(pod(4, annotations=NVLINK, spec=spec), "running")
    manifest["metadata"] = {k: manifest["metadata"][k] for k in ("labels", "annotations")} | {"name": "copy"}
    del manifest["status"]
    live = stored(admit(defaulted(manifest)).admitted, uid="other")
    if stage != "waiting":
        live = lifted(live, nodes=("n7",))
    if stage == "running":
        live = running(live, node="n7")
    assert admit(applied(manifest, live), old=live).admitted == live


def test_a_users_own_changes_pass() -> None:
    live = lived(MANIFESTS["plain"], "running")
    sent = copy.deepcopy(live)
    sent["metadata"]["labels"]["team"] = "b"
    sent["metadata"]["annotations"]["example.com/x"] = "y"
    sent["spec"]["containers"][0]["image"] = "busybox:2"
    verdict = admit(sent, old=live)
    assert (verdict.allowed, verdict.patch) == (True, [])


def test_the_gate_notes_and_results_cannot_be_changed() -> None:
    live = lived(MANIFESTS["plain"], "waiting")
    sent = copy.deepcopy(live)
    del sent["spec"]["schedulingGates"], sent["metadata"]["labels"]
    sent["metadata"]["annotations"] |= {names.REQUEST: '{"version":1}', names.ALLOCATED: "GPU-9"}
    sent["spec"]["resourceClaims"][0]["resourceClaimName"] = "gpus-0123456789"
    assert admit(sent, old=live).admitted == live


def test_the_controller_passes_untouched() -> None:
    live = lived(MANIFESTS["affinity"], "waiting")
    placed = lifted(live)
    assert admit(placed, old=live, user=CONTROLLER).admitted == placed
    assert admit(placed, old=live, user="alice").admitted != placed


def test_a_changed_affinity_of_a_placed_pod_is_kept_with_a_warning() -> None:
    live = lived(MANIFESTS["affinity"], "placed")
    sent = copy.deepcopy(live)
    node = sent["spec"]["affinity"]["nodeAffinity"]
    node["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] = [{"matchExpressions": []}]
    verdict = admit(sent, old=live)
    assert verdict.admitted == live
    assert "the old value stays" in verdict.warnings[0]


def test_a_waiting_pods_affinity_may_be_tightened() -> None:
    live = lived(MANIFESTS["plain"], "waiting")
    sent = copy.deepcopy(live)
    sent["spec"] |= copy.deepcopy(AFFINITY)
    assert admit(sent, old=live).patch == []


@pytest.mark.parametrize("placed", [True, False])
def test_an_unknown_word_that_is_added_is_refused(placed: bool) -> None:
    live = lived(MANIFESTS["plain"], "running") if placed else defaulted(pod(1))
    for key in ("gpu.topology/polcy", "gpu-topology.example.com/requird"):
        sent = copy.deepcopy(live)
        sent["metadata"].setdefault("annotations", {})[key] = "nvlink"
        verdict = admit(sent, old=live)
        assert not verdict.allowed
        assert key in verdict.message
        assert admit(sent, old=sent).allowed, "a word that is there already must not hold up other updates"


def request(live: Object) -> Whole:
    found = resolved.read(live["metadata"]["annotations"]).request
    assert isinstance(found, Whole)
    return found


def annotated(live: Object, **words: str | None) -> Object:
    """The pod with words of ours set, or taken away where they are None."""
    sent = copy.deepcopy(live)
    found = sent["metadata"].setdefault("annotations", {})
    for key, value in words.items():
        found[names.PREFIX + key.replace("_", "-")] = value
    sent["metadata"]["annotations"] = {key: value for key, value in found.items() if value is not None}
    return sent


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ({"preferred": "same-numa"}, {"required": (Constraint.NVLINK,), "preferred": (Constraint.SAME_NUMA,)}),
        ({"policy": "single-numa"}, {"required": (Constraint.SAME_NUMA,)}),
        ({"policy": None}, {}),
        ({"policy": None, "min_memory": "40Gi", "gpus": "4"}, {"min_memory_mib": 40960}),
    ],
)
def test_changed_words_of_a_waiting_pod_are_resolved_again(words: dict[str, str | None], fields: Object) -> None:
    live = lived(MANIFESTS["plain"], "waiting")
    verdict = admit(annotated(live, **words), old=live)
    assert request(verdict.admitted) == Whole(containers=(4,), **fields)
    assert verdict.warnings == []
    assert admit(verdict.admitted, old=verdict.admitted).patch == []


BAD = [
    ("policy", "nonsense", "is not a known policy"),
    ("min_memory", "9" * 5000, "5000 characters"),
    ("min_busbw", "NaN", "not a bandwidth"),
    ("gpus", "two", "not a number of GPUs"),
]


@pytest.mark.parametrize(("key", "value", "part"), BAD)
@pytest.mark.parametrize("stage", [*STAGES, "never ours"])
def test_words_are_read_as_strictly_as_on_creation(stage: str, key: str, value: str, part: str) -> None:
    live = defaulted(pod(1)) if stage == "never ours" else lived(MANIFESTS["plain"], stage)
    bad = annotated(live, **{key: value})
    assert part in admit(bad, old=live).message
    bad["metadata"]["finalizers"] = ["example.com/x"]
    released = copy.deepcopy(bad)
    released["metadata"]["finalizers"] = []
    verdict = admit(released, old=bad)
    assert (verdict.allowed, verdict.warnings) == (True, []), "what is there already must not hold up other updates"
    assert verdict.patch == []


def test_the_gpus_of_a_waiting_pod_cannot_change() -> None:
    live = lived(MANIFESTS["plain"], "waiting")
    assert "contradicts" in admit(annotated(live, gpus="2"), old=live).message


def test_a_waiting_pod_keeps_its_part() -> None:
    live = lived(pod(1, annotations={"gpu.topology/share": "0.25"}), "waiting")
    assert admit(live, old=live).patch == []
    assert admit(annotated(live, min_memory="40Gi"), old=live).allowed
    for words in ({"share": "0.5"}, {"share": None}, {"share": None, "mig_profile": "1g.10gb"}):
        message = admit(annotated(live, **words), old=live).message
        assert "a pod's fraction of a GPU cannot change. Delete the pod and create it again" in message


def test_a_waiting_pod_cannot_have_more_slices_than_its_containers_name() -> None:
    live = lived(pod(2, annotations=NVLINK), "waiting")
    sliced = annotated(live, required=None, policy=None, mig_profile="1g.10gb", preferred=None)
    assert "The number of MIG slices of a pod's containers cannot change" in admit(sliced, old=live).message


@pytest.mark.parametrize("stage", ["placed", "running"])
def test_words_that_come_too_late_are_warned_about(stage: str) -> None:
    live = lived(MANIFESTS["plain"], stage)
    for words in ({"policy": "single-numa"}, {"policy": None}):
        verdict = admit(annotated(live, **words), old=live)
        assert "This change has none" in verdict.warnings[0]
        assert request(verdict.admitted) == request(live)
    mixed = annotated(live, policy="nvlink,pack")
    assert "contradicts" in admit(annotated(mixed, strategy="spread"), old=mixed).message


def test_words_of_a_pod_that_was_created_without_any_do_nothing() -> None:
    live = defaulted(pod(1))
    verdict = admit(annotated(live, policy="nvlink"), old=live)
    assert (verdict.allowed, verdict.patch) == (True, [])
    assert "This change has none" in verdict.warnings[0]


def test_a_good_word_next_to_one_that_was_bad_before_is_admitted_and_does_nothing() -> None:
    live = annotated(lived(MANIFESTS["plain"], "waiting"), min_memory="lots")
    verdict = admit(annotated(live, preferred="same-numa"), old=live)
    assert "min-memory: 'lots'" in verdict.warnings[0]
    assert request(verdict.admitted) == request(live)
    assert "is not allowed" in admit(annotated(live, preferred="numa"), old=live).message
    repaired = admit(annotated(live, min_memory="40Gi"), old=live).admitted
    assert request(repaired).min_memory_mib == 40960


@pytest.mark.parametrize("note", [None, "{}"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_pod_without_a_note_gets_one_from_its_words_and_its_claim(stage: str, note: str | None) -> None:
    live = annotated(lived(pod(None, None, annotations=NVLINK | {names.GPUS: "3"}), stage), request=note)
    made = admit(live, old=live).admitted
    assert request(made) == Whole(containers=(3,), required=(Constraint.NVLINK,))
    assert resolved.read(made["metadata"]["annotations"]).asked == {"c0": 3}


def test_a_pod_without_a_note_that_nothing_tells_is_left_as_it_is() -> None:
    live = annotated(lived(MANIFESTS["plain"], "waiting"), request=None)
    sent = copy.deepcopy(live)
    sent["metadata"]["finalizers"] = []
    assert admit(sent, old=live).patch == []
    verdict = admit(annotated(sent, preferred="same-numa"), old=live)
    assert (verdict.allowed, verdict.patch) == (True, [])
    assert "is missing" in verdict.warnings[0]
    assert "is not allowed" in admit(annotated(sent, preferred="numa"), old=live).message


def test_a_list_of_a_live_pod_may_be_too_long_but_may_not_grow() -> None:
    live = lived(MANIFESTS["plain"], "waiting")
    toleration = {"key": "example.com/some-key", "operator": "Exists"}
    long = copy.deepcopy(live)
    long["spec"]["tolerations"] = [toleration] * 300
    assert "spec.tolerations: 300 entries" in admit(long, old=live).message
    labelled = copy.deepcopy(long)
    labelled["metadata"]["labels"]["team"] = "b"
    assert admit(labelled, old=long).patch == []
    labelled["spec"]["tolerations"] = [toleration] * 301
    assert "301 entries" in admit(labelled, old=long).message


def test_the_label_cannot_be_added_later() -> None:
    live = defaulted(pod(1))
    sent = copy.deepcopy(live)
    sent["metadata"]["labels"] = {names.LABEL: "placed"}
    assert "set only when a pod is created" in admit(sent, old=live).message


def test_a_labelled_pod_that_kept_its_limits_can_still_be_updated() -> None:
    """The webhook was away when it was created; its resources cannot change any more."""
    live = defaulted(pod(1, labels={names.LABEL: "placed"}))
    sent = copy.deepcopy(live)
    sent["metadata"]["labels"]["x"] = "y"
    assert admit(sent, old=live).patch == []


@pytest.mark.parametrize("more", [{"subResource": "status"}, {"operation": "DELETE"}])
def test_other_operations_pass(more: dict[str, Any]) -> None:
    live = lived(MANIFESTS["plain"], "running")
    sent = defaulted(MANIFESTS["plain"])
    assert admit(sent, old=live, **more).patch == []


@pytest.mark.parametrize(
    ("before", "word", "ends_s", "told"),
    [
        ({}, "30m", 1800, False),
        ({names.MAX_DURATION: "1h"}, "30m", 1800, False),
        ({names.MAX_DURATION: "1h"}, "2h", 3600, True),
        ({names.MAX_DURATION: "1h"}, None, 3600, True),
    ],
)
def test_a_pod_that_waits_is_ended_sooner_where_its_duration_changes_and_never_later(
    before: dict[str, str], word: str | None, ends_s: int, told: bool
) -> None:
    live = stored(admit(defaulted(pod(4, annotations=NVLINK | before))).admitted)
    sent = copy.deepcopy(live)
    sent["metadata"]["annotations"].pop(names.MAX_DURATION, None)
    if word is not None:
        sent["metadata"]["annotations"][names.MAX_DURATION] = word
    verdict = admit(sent, old=live)
    assert verdict.admitted["spec"]["activeDeadlineSeconds"] == ends_s
    assert [names.MAX_DURATION in warning for warning in verdict.warnings] == [True] * told


def test_a_pod_that_has_its_place_is_not_ended_sooner_for_a_word() -> None:
    live = lived(pod(4, annotations={names.MAX_DURATION: "1h"}), "running")
    sent = copy.deepcopy(live)
    sent["metadata"]["annotations"][names.MAX_DURATION] = "1m"
    verdict = admit(sent, old=live)
    assert verdict.admitted["spec"]["activeDeadlineSeconds"] == 3600
    assert "have an effect until the pod is placed" in verdict.warnings[0]
