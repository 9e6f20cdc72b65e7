"""``gputopo lint``: what the webhook would say of manifests, with no server."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from dradriver.api.base import names, other_schedulers
from dradriver.cli.linter.admission_results import GROUPS
from dradriver.cli.linter.manifest_documents import Document, documents
from dradriver.cli.linter.patched import patched
from dradriver.cli.main import main
from tests.effort import examples
from tests.fakes.admission import admit
from tests.paths import REPO, SHARED_DATA
from webhook.workloads import TEMPLATES

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: trainer
  annotations:
    gpu.topology/policy: nvlink
spec:
  containers:
    - name: main
      image: busybox
      resources: {limits: {nvidia.com/gpu: 4}}
"""
TEMPLATE = {
    "metadata": {"annotations": {names.POLICY: "nvlink"}},
    "spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": 2}}}]},
}


def lint(text: str | bytes, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["lint", "-", *arguments], input=text)


def results(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(lint(text, "-o", "json").stdout)["results"]
    return found


def test_a_good_pod_comes_out_as_the_webhook_makes_it() -> None:
    result = lint(POD, "-o", "yaml")
    assert (result.exit_code, result.stderr) == (0, "")
    made = yaml.safe_load(result.stdout)
    wanted = admit(yaml.safe_load(POD)).admitted
    for one in (made, wanted):
        (claim,) = one["spec"]["resourceClaims"]
        assert claim.pop("resourceClaimName").startswith(names.CLAIM_PREFIX)
    assert made["spec"]["schedulingGates"] == [{"name": names.GATE}]
    assert made["spec"]["resourceClaims"] == wanted["spec"]["resourceClaims"]
    assert made["metadata"]["annotations"] == wanted["metadata"]["annotations"]


def test_what_another_driver_cannot_have_is_refused_where_it_hands_out_the_gpus() -> None:
    text = POD.replace("  annotations:", "  annotations:\n    gpu.topology/placement: static")
    assert lint(text).exit_code == 0
    result = lint(text, "--allocating-driver", "gpu.nvidia.com")
    assert result.exit_code == 1
    assert "n this cluster gpu.nvidia.com allocates the GPUs" in result.stdout


@pytest.mark.parametrize("name", other_schedulers.TABLE)
def test_a_scheduler_that_chooses_gpus_is_told_at_its_line(name: str) -> None:
    (found,) = results(POD.replace("spec:\n", f"spec:\n  schedulerName: {name}\n"))
    assert found["warnings"] == [{"line": 8, "message": other_schedulers.warning(name)}]


_BROKEN = """\
kind: Pod
metadata:
  name: a
  annotations:
    gpu.topology/policy: nvlnk
    gpu.topology/gang-size: many
    gpu.topology/min-memory: 40Q
spec:
  containers:
  - {name: c, image: x, resources: {limits: {nvidia.com/gpu: four}}}
---
metadata: {name: nothing}
---
a: [1
---
apiVersion: batch/v1
kind: Job
metadata:
  name: b
  annotations: {gpu.topology/polici: nvlink}
spec:
  template:
    metadata:
      annotations: {gpu.topology/strategy: tight}
    spec:
      containers:
      - {name: c, image: x, resources: {limits: {nvidia.com/gpu: 1}}}
"""


def test_all_errors_of_a_file_are_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(_BROKEN)
    result = CliRunner().invoke(main, ["lint", "-f", str(file), "-o", "json"])
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert [[error["line"] for error in one["errors"]] for one in found["results"]] == [[5, 6, 7, 10], [20], [24]]
    assert [text.partition(": ")[0] for text in found["unreadable"]] == [f"{file}:{line}" for line in (12, 15)]


def test_an_error_that_follows_from_another_is_not_named() -> None:
    """Without the number of GPUs that cannot be read the pod would ask for none."""
    words = "gpu.topology/policy: nvlink\n    gpu.topology/gpus: four"
    (found,) = results(POD.replace("gpu.topology/policy: nvlink", words).replace("nvidia.com/gpu: 4", "cpu: 4"))
    assert [error["line"] for error in found["errors"]] == [7]


def test_files_are_named_by_an_option_too(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(POD)
    assert CliRunner().invoke(main, ["lint", "-f", str(file), str(file)]).stdout.startswith("2 objects and templates")
    assert CliRunner().invoke(main, ["lint", "-f", "-"], input=POD).stdout.startswith("1 object or template, 1 of them")


def test_what_is_refused_has_its_file_document_and_line(tmp_path: Path) -> None:
    file = tmp_path / "pods.yaml"
    file.write_text(POD + "---\n# nothing\n---\n" + POD.replace("nvlink", "nvlnk"))
    result = CliRunner().invoke(main, ["lint", str(file)])
    assert result.exit_code == 1
    first, last = result.stdout.splitlines()
    assert first.startswith(
        f"{file}:20: document 3, Pod trainer: error: gpu.topology/policy: 'nvlnk' is not a known policy"
    )
    assert last == "2 objects and templates, 2 of them for this driver: 1 refused, 0 warnings"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("gpu.topology/policy: nvlink", "gpu.topology/polici: nvlink"), 6),
        (("nvidia.com/gpu: 4", "nvidia.com/gpu: -4"), 9),
        (("spec:\n", "spec:\n  nodeName: node-a\n"), 8),
    ],
)
def test_the_line_is_the_one_to_change(change: tuple[str, str], line: int) -> None:
    (found,) = results(POD.replace(*change))
    assert [error["line"] for error in found["errors"]] == [line]


@pytest.mark.parametrize(
    ("kind", "spec", "paths"),
    [
        ("Deployment", {"template": TEMPLATE}, ["spec.template"]),
        ("CronJob", {"jobTemplate": {"spec": {"template": TEMPLATE}}}, ["spec.jobTemplate.spec.template"]),
        (
            "JobSet",
            {"replicatedJobs": [{"name": n, "template": {"spec": {"template": TEMPLATE}}} for n in "ab"]},
            [f"spec.replicatedJobs.{n}.template.spec.template" for n in range(2)],
        ),
        (
            "PyTorchJob",
            {"pytorchReplicaSpecs": {"Master": {"template": TEMPLATE}, "Worker": {"template": TEMPLATE}}},
            ["spec.pytorchReplicaSpecs.Master.template", "spec.pytorchReplicaSpecs.Worker.template"],
        ),
        (
            "LeaderWorkerSet",
            {"leaderWorkerTemplate": {"leaderTemplate": TEMPLATE, "workerTemplate": TEMPLATE}},
            ["spec.leaderWorkerTemplate.leaderTemplate", "spec.leaderWorkerTemplate.workerTemplate"],
        ),
    ],
)
def test_every_pod_template_is_found(kind: str, spec: dict[str, Any], paths: list[str]) -> None:
    text = json.dumps({"apiVersion": "v1", "kind": kind, "metadata": {"name": "x", "namespace": "n"}, "spec": spec})
    found = results(text)
    assert [one["path"] for one in found] == paths
    assert {(one["name"], one["ours"]) for one in found} == {("n/x", True)}
    for one in found:
        assert (one["pod"]["metadata"]["namespace"], one["pod"]["metadata"]["generateName"]) == ("n", "x-")


def job(kind: str = "Job", version: str = "batch/v1", policy: str = "nvlink", **metadata: Any) -> str:
    """Return a manifest with a word above a template that has none; the word stands in line 5."""
    template = {"spec": TEMPLATE["spec"]} | ({"metadata": metadata} if metadata else {})
    above = {"annotations": {names.POLICY: policy}}
    made = {"apiVersion": version, "kind": kind, "metadata": above, "spec": {"template": template}}
    return str(yaml.safe_dump(made, sort_keys=False))


def test_words_above_a_template_reach_its_pods() -> None:
    (found,) = results(job())
    assert (found["ours"], found["warnings"]) == (True, [])
    assert found["pod"]["metadata"]["annotations"][names.POLICY] == "nvlink"
    (found,) = results(job(annotations={names.POLICY: "pcie"}))
    assert found["pod"]["metadata"]["annotations"][names.POLICY] == "pcie"


@pytest.mark.parametrize("word", ["nvlnk", "nvlink,x"])
def test_a_bad_word_above_is_an_error_where_it_stands(word: str) -> None:
    (found,) = results(job(policy=word))
    assert [error["line"] for error in found["errors"]] == [5]
    assert found["path"] == ""


def test_what_only_the_pod_makes_bad_of_a_word_above_is_told_above() -> None:
    made = yaml.safe_load(job())
    made["metadata"]["annotations"] = {names.GPUS: "3"}
    (found,) = results(yaml.safe_dump(made, sort_keys=False))
    assert found["errors"][0]["message"].startswith(names.GPUS)
    assert (found["errors"][0]["line"], found["path"]) == (5, "spec.template")


@pytest.mark.parametrize(("kind", "version"), [("Widget", "example.com/v1"), ("Job", "batch.volcano.sh/v1alpha1")])
def test_words_that_are_copied_from_no_such_kind_are_told(kind: str, version: str) -> None:
    (found,) = results(job(kind, version))
    assert found["warnings"] == [
        {
            "line": 5,
            "message": f"gpu.topology/policy stands on the {kind}, from which it is not copied to the pods. Write it "
            "in spec.template.metadata.annotations",
        }
    ]


def ray(words: dict[str, str], *, head: int = 0, at_worker: dict[str, str] | None = None) -> dict[str, Any]:
    """Return a RayCluster with annotations, a head, and workers with 4 GPUs."""

    def template(gpus: int, words: dict[str, str] | None = None) -> dict[str, Any]:
        limits = {"limits": {names.GPU_RESOURCE: gpus}} if gpus else {}
        metadata = {"metadata": {"annotations": words}} if words else {}
        return {"template": metadata | {"spec": {"containers": [{"name": "ray", "resources": limits}]}}}

    groups = {"headGroupSpec": template(head), "workerGroupSpecs": [template(4, at_worker)]}
    metadata = {"name": "r", "annotations": words}
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": groups}


def warned(manifest: dict[str, Any]) -> list[str]:
    return [warning["message"] for found in results(json.dumps(manifest)) for warning in found["warnings"]]


def test_a_ray_head_without_gpus_is_advised_nothing_that_admission_refuses() -> None:
    (advice,) = warned(ray({names.POLICY: "nvlink"}))
    assert advice.endswith("Write it in spec.workerGroupSpecs.0.template.metadata.annotations")
    both = warned(ray({names.POLICY: "nvlink"}, head=1))
    assert [text.rpartition(" ")[2] for text in both] == [
        f"spec.{group}.template.metadata.annotations" for group in ("headGroupSpec", "workerGroupSpecs.0")
    ]


def test_advice_that_admission_would_refuse_is_its_refusal() -> None:
    (text,) = warned(ray({names.GANG: "auto"}))
    assert "write it in" not in text
    assert "the pods of spec.workerGroupSpecs.0.template cannot have it" in text
    assert "the number of pods of a Ray cluster (ray.io/cluster) changes while it runs" in text
    head, worker = results(json.dumps(ray({}, at_worker={names.GANG: "auto"})))
    assert (head["errors"], len(worker["errors"])) == ([], 1), "KubeRay's label is on its pods"


def service(words: dict[str, str], *, predictor: dict[str, str] | None = None, transformer: int = 0) -> dict[str, Any]:
    """Return an InferenceService of KServe's with a model on 4 GPUs and a transformer."""
    limits = {"limits": {names.GPU_RESOURCE: transformer}} if transformer else {}
    model = {"modelFormat": {"name": "huggingface"}, "resources": {"limits": {names.GPU_RESOURCE: 4}}}
    components = {
        "predictor": {"model": model} | ({"annotations": predictor} if predictor else {}),
        "transformer": {"containers": [{"name": "kserve-container", "resources": limits}]},
    }
    metadata = {"name": "s", "annotations": words}
    return {
        "apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "metadata": metadata, "spec": components
    }  # fmt: skip


def test_words_on_an_inference_service_reach_all_its_components() -> None:
    predictor, transformer = results(json.dumps(service({names.POLICY: "nvlink"})))
    assert (predictor["path"], predictor["ours"], predictor["errors"]) == ("spec.predictor", True, [])
    assert predictor["pod"]["metadata"]["annotations"][names.POLICY] == "nvlink"
    (error,) = transformer["errors"]
    assert "requests no GPU" in error["message"]
    assert error["message"].endswith("Write them in spec.predictor.annotations")
    for found in (
        results(json.dumps(service({}, predictor={names.POLICY: "nvlink"}))),
        results(json.dumps(service({names.POLICY: "nvlink"}, transformer=1))),
    ):
        assert [result["errors"] + result["warnings"] for result in found] == [[], []]
        assert found[0]["ours"]


def test_a_gang_of_an_inference_service_is_one_of_deployments() -> None:
    (predictor, _) = results(json.dumps(service({}, predictor={names.GANG: "auto"})))
    assert "which pods of a Deployment" in predictor["errors"][0]["message"]
    predictor, transformer = results(json.dumps(service({names.GANG: "s", names.GANG_SIZE: "2"})))
    assert (predictor["errors"], len(transformer["errors"])) == ([], 1)


def test_an_inference_service_whose_runtime_says_the_gpus_is_not_judged() -> None:
    sent = service({names.POLICY: "nvlink"})
    del sent["spec"]["transformer"], sent["spec"]["predictor"]["model"]["resources"]
    (found,) = results(json.dumps(sent))
    assert (found["errors"], found["warnings"], found["path"]) == ([], [], "")


def test_words_on_what_has_no_pod_template_are_told() -> None:
    made = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": "x"}}
    (bare,) = results(json.dumps(made))
    assert bare["warnings"] == []
    for key in (names.POLICY, names.ALIAS_PREFIX + "required"):
        (found,) = results(json.dumps(made | {"metadata": {"name": "x", "annotations": {key: "nvlink"}}}))
        assert [one["message"].partition(",")[0] for one in found["warnings"]] == [f"{key} stands on the TrainJob"]
    (other,) = results(json.dumps(made | {"metadata": {"name": "x", "annotations": {names.MACHINE: "{}"}}}))
    assert other["warnings"] == []


@pytest.mark.parametrize(
    ("step", "warned"),
    [
        ({"container": {"resources": {"limits": {"nvidia.com/gpu": 2}}}}, True),
        ({"podSpecPatch": '{"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": 2}}}]}'}, True),
        ({"metadata": {"annotations": {names.POLICY: "nvlnk"}}, "script": {"source": "x"}}, True),
        ({"container": {"image": "busybox"}}, False),
    ],
)
def test_steps_of_argo_workflows_are_not_looked_into_and_it_says_so(step: dict[str, Any], warned: bool) -> None:
    workflow = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"name": "w"}}
    (found,) = results(json.dumps(workflow | {"spec": {"templates": [step]}}))
    assert [("are not looked into" in one["message"]) for one in found["warnings"]] == [True] * warned
    assert found["errors"] == []


def test_a_launcher_that_gets_no_words_is_not_told_of() -> None:
    templates = [TEMPLATE, {"spec": {"containers": [{"name": "launcher"}]}}]
    made = yaml.safe_load(job("JobSet", "jobset.x-k8s.io/v1alpha2"))
    made["spec"] = {"replicatedJobs": [{"name": "r", "template": {"spec": {"template": one}}} for one in templates]}
    worker, launcher = results(yaml.safe_dump(made))
    assert (worker["ours"], launcher["ours"]) == (True, False)
    assert worker["warnings"] + launcher["warnings"] == []


def test_the_webhook_is_asked_of_the_same_kinds() -> None:
    text = (REPO / "helm/gpu-topology-dra/templates/webhook/configuration.yaml").read_text()
    asked = re.findall(r"apiGroups: \[([\w.-]+)\], apiVersions: .*, resources: \[([a-z, ]+)\], scope", text)
    assert {(kind.lower() + "s", group) for kind, group in GROUPS.items()} == {
        (plural, group) for group, plurals in asked for plural in plurals.split(", ")
    }
    assert GROUPS.keys() == TEMPLATES.keys()


BARE = POD.replace("  annotations:\n    gpu.topology/policy: nvlink\n", "")


@pytest.mark.parametrize(
    ("limit", "here", "there"),
    [("nvidia.com/gpu", "it gets ours", ""), ("nvidia.com/vgpu", "it is refused: ", "licence server")],
)
def test_a_pod_without_words_is_translated_or_told_of(limit: str, here: str, there: str) -> None:
    text = BARE.replace("nvidia.com/gpu", limit)
    (found,) = results(text)
    assert (found["ours"], found["errors"], found["warnings"], found["pod"]) == (False, [], [], None)
    (note,) = found["notes"]
    assert "the webhook does not change it" in note["message"]
    assert here in note["message"]
    assert there in note["message"]
    assert note["line"] == 5
    assert f"note: {note['message']}" in lint(text).stdout
    (found,) = (json.loads(lint(text, "--translate", "-o", "json").stdout))["results"]
    assert found["notes"] == []
    assert [there in error["message"] for error in found["errors"]] == ([True] if there else [])
    assert found["ours"]
    if not there:
        assert found["pod"]["spec"]["schedulingGates"] == [{"name": names.GATE}]


def test_a_pod_without_limits_is_ignored() -> None:
    text = BARE.replace("nvidia.com/gpu", "cpu")
    for arguments in ((), ("--translate",)):
        (found,) = json.loads(lint(text, *arguments, "-o", "json").stdout)["results"]
        assert (found["ours"], found["notes"], found["warnings"]) == (False, [], [])


FIELD = sorted((SHARED_DATA / "manifests").glob("*.yaml"))
WORDED = {"required-preferred-pod", "distributed-job"}


@pytest.mark.skipif(not FIELD, reason="no manifests of the field beside the checkout")
@pytest.mark.parametrize("translate", [False, True])
def test_manifests_of_the_field(translate: bool) -> None:
    for file in FIELD:
        result = CliRunner().invoke(main, ["lint", str(file), "-o", "json", *["--translate"] * translate])
        found = json.loads(result.stdout)["results"]
        ours, noted = any(one["ours"] for one in found), any(one["notes"] for one in found)
        refused = any(one["errors"] for one in found)
        worded = file.stem in WORDED
        assert (ours, noted) == (worded or translate, not worded and not translate), file.stem
        assert refused is (translate and file.stem == "vgpu-pod"), result.stdout
        assert result.exit_code == refused


def test_lists_and_what_is_not_ours() -> None:
    pod = yaml.safe_load(POD)
    found = results(json.dumps({"kind": "List", "items": [pod, {"kind": "ConfigMap", "metadata": {"name": "c"}}]}))
    assert [(one["kind"], one["ours"]) for one in found] == [("Pod", True), ("ConfigMap", False)]


def test_claims_are_checked_too() -> None:
    config = {"opaque": {"driver": names.DRIVER, "parameters": {"apiVersion": "x", "kind": "y"}}}
    for kind, spec in (
        ("ResourceClaim", {"devices": {"config": [config]}}),
        ("ResourceClaimTemplate", {"spec": {"devices": {"config": [config]}}}),
    ):
        (found,) = results(yaml.safe_dump({"kind": kind, "metadata": {"name": "c"}, "spec": spec}))
        assert ".devices.config[0].opaque.parameters" in found["errors"][0]["message"]
        assert found["errors"][0]["line"] > 1


def test_names_of_the_policies_file_are_known_with_it(tmp_path: Path) -> None:
    text = POD.replace("nvlink", "ours")
    assert lint(text).exit_code == 1
    file = tmp_path / "policies.yaml"
    file.write_text("policies:\n  ours: {required: nvlink}\n")
    assert lint(text, "--policies", str(file)).exit_code == 0
    file.write_text("policies: 3\n")
    assert lint(text, "--policies", str(file)).exit_code == 2


def _laughs(n: int) -> bytes:
    """Return a line whose value is nine times the one before."""
    return b"a%d: &b%d [%s]\n" % (n, n, b",".join([b"*b%d" % (n - 1)] * 9))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"kind: [", "not YAML"),
        (b"kind: Pod\nspec:\n  a: 1\n  a: 2\n", ":4: document 1: not YAML: a key is given twice"),
        (b"kind: Pod\n? [1]\n: 2\n", "not YAML"),
        (b"kind: Pod\nspec: {null: 1}", "a key that is no text"),
        (b"\xff", "no UTF-8"),
        (b"a: 1", "it has no kind"),
        (b"- 1", "it has no kind"),
        (b"a: &a [*a]", ""),
        (b"kind: Pod\nx: &a {b: *a}", "an alias of itself"),
        (b"kind: " + b"[" * 100_000, "nested deeper"),
        (b"- " * 100_000, "nested deeper"),
        (b"kind: Pod\nx: !!bool x", "document 1: not YAML: 'x'"),
        (b"kind: Pod\nx: !!int ''", "document 1: not YAML"),
        (b"kind: Pod\nx: !!float ''", "document 1: not YAML"),
        (b"kind: x\na: &b0 [1]\n" + b"".join(map(_laughs, range(1, 12))), "behind aliases"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_a_line_and_no_traceback(text: bytes, says: str) -> None:
    result = lint(text)
    assert result.exit_code == 1
    assert "error: standard input" in result.stdout
    assert says in result.stdout


def test_a_message_repeats_no_more_of_a_text_than_a_line() -> None:
    for text in (
        b"kind: *" + b"a" * 100_000,
        b"kind: Pod\n? 2.5e" + b"9" * 100_000 + b"\n: 1",
        b"x: !" + b"a" * 100_000 + b" b",
    ):
        result = lint(text)
        assert result.exit_code == 1
        assert len(result.stdout) < 500


def test_wrong_usage(tmp_path: Path) -> None:
    assert CliRunner().invoke(main, ["lint"]).exit_code == 2
    assert CliRunner().invoke(main, ["lint", str(tmp_path / "none.yaml")]).exit_code == 2


def test_yaml_is_read_as_kubernetes_reads_it() -> None:
    text = b"kind: X\nclock: 12:30\nday: 2026-01-31\nmode: 0644\nsize: 1e3\nyes: no\nn: 1_000\nf: .5\nh: 0x1F\n"
    (found,) = documents(text, "x")
    assert isinstance(found, Document)
    assert found.data == {
        "kind": "X", "clock": "12:30", "day": "2026-01-31", "mode": 0o644, "size": 1e3, "true": False, "n": 1000,
        "f": 0.5, "h": 31,
    }  # fmt: skip


@given(st.binary(max_size=400))
@settings(max_examples=examples(300))
def test_any_bytes_are_objects_or_an_error(text: bytes) -> None:
    for one in documents(text, "x"):
        if isinstance(one, Document):
            assert isinstance(one.data["kind"], str)
            assert one.line() >= 1


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@given(_VALUES, st.sampled_from(["Pod", "Job", "ResourceClaim", "List"]))
@settings(max_examples=examples(200), deadline=None)
def test_any_object_gets_an_answer(value: object, kind: str) -> None:
    text = json.dumps({"kind": kind, "metadata": {"annotations": {names.POLICY: "nvlink"}}, "spec": value})
    assert lint(text, "-o", "json").exit_code in (0, 1)
    text = json.dumps({"kind": kind, "metadata": value, "spec": {"containers": value}})
    assert lint(text, "-o", "json").exit_code in (0, 1)


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=2, max_size=4), st.data())
def test_patches_are_applied_as_the_rfc_has_it(entries: list[str], data: st.DataObject) -> None:
    made: dict[str, Any] = {"list": list(entries), "m": {"k/ey": 1}}
    ops: list[dict[str, Any]] = []
    for _ in range(data.draw(st.integers(1, 4))):
        length = len(made["list"])
        at = data.draw(st.integers(0, length - 1)) if length else 0
        op: dict[str, Any]
        kinds = ["add", "end", "member"] + (["remove", "replace", "move"] if length else [])
        match data.draw(st.sampled_from(kinds)):
            case "add":
                op = {"op": "add", "path": f"/list/{at}", "value": "n"}
            case "end":
                op = {"op": "add", "path": "/list/-", "value": "e"}
            case "member":
                op = {"op": "add", "path": "/m/k~1ey", "value": 2}
            case "move":
                op = {"op": "move", "from": f"/list/{at}", "path": f"/list/{data.draw(st.integers(0, length - 1))}"}
            case "replace":
                op = {"op": "replace", "path": f"/list/{at}", "value": "r"}
            case _:
                op = {"op": "remove", "path": f"/list/{at}"}
        ops.append(op)
        made = jsonpatch.apply_patch(made, [op])
    sent: dict[str, Any] = {"list": list(entries), "m": {"k/ey": 1}}
    before = copy.deepcopy(sent)
    assert patched(sent, ops) == made
    assert sent == before


def test_our_own_examples_are_admitted() -> None:
    files = [str(file) for file in sorted((REPO / "examples").glob("*.yaml"))]
    result = CliRunner().invoke(main, ["lint", *files])
    assert result.exit_code == 0, result.stdout


@pytest.mark.parametrize(
    ("wrong", "line", "meant"),
    [
        ("  annotations:\n    gpu-topology: nvlink", 6, "did you mean gpu.topology/policy?"),
        ("  annotations:\n    gpu.topologi/policy: nvlink", 6, "did you mean gpu.topology/policy?"),
        ("  labels:\n    gpu.topology/policy: nvlink", 6, "label gpu.topology/policy"),
    ],
)
@pytest.mark.parametrize("kind", ["Pod", "Job", "ConfigMap"])
def test_near_misses_of_the_prefix_are_warned_of(wrong: str, line: int, meant: str, kind: str) -> None:
    text = POD.replace("  annotations:\n    gpu.topology/policy: nvlink", wrong)
    if kind == "Job":
        made = yaml.safe_load(POD)
        del made["metadata"]["annotations"]
        spec = yaml.safe_dump({"spec": {"template": made}})
        text = text[: text.index("spec:")].replace("kind: Pod", "kind: Job").replace(": v1", ": batch/v1") + spec
    elif kind == "ConfigMap":
        text = text[: text.index("spec:")].replace("kind: Pod", "kind: ConfigMap")
    result = lint(text)
    assert result.exit_code == 0
    (told,) = [one for one in result.stdout.splitlines() if ": warning: " in one]
    assert told.startswith(f"-:{line}: ") or f":{line}: " in told
    assert meant in told


def test_a_near_miss_in_a_template_is_warned_of_where_it_stands() -> None:
    template = TEMPLATE | {"metadata": {"annotations": {"gpu.topologi/policy": "nvlink"}}}
    text = yaml.safe_dump({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": template}})
    at = next(i for i, one in enumerate(text.splitlines(), 1) if "gpu.topologi" in one)
    (told,) = [one for one in lint(text).stdout.splitlines() if ": warning: " in one]
    assert f":{at}: " in told
