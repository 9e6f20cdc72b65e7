"""Policies and workloads of the policies file at admission, while the file changes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from dradriver.allocator.request import Constraint, Whole
from dradriver.api.base import names
from dradriver.api.pod import resolved
from dradriver.api.policies.policy_sections import Policies, Workloads
from dradriver.process.policies_file import PoliciesFile
from tests.fakes.admission import Object, admit, applied, defaulted, lifted, pod, stored

FILE = "policies: {train: {required: nvlink}}\nworkloads: {inference: train}\n"
TRAIN = pod(2, annotations={names.POLICY: "train"})


class Admin:
    """Whoever writes the file."""

    def __init__(self, folder: Path, text: str) -> None:
        self._path = folder / "policies.yaml"
        self._path.write_text(text)
        self.file = PoliciesFile(self._path)

    def write(self, text: str) -> None:
        self._path.write_text(text)
        self.file.step()


@pytest.fixture
def admin(tmp_path: Path) -> Admin:
    return Admin(tmp_path, FILE)


class Counted(dict[str, dict[str, str]]):
    """Policies that count how often each is looked up."""

    def __init__(self, policies: dict[str, dict[str, str]]) -> None:
        super().__init__(policies)
        self.looked_up: Counter[str] = Counter()

    def __getitem__(self, name: str) -> dict[str, str]:
        self.looked_up[name] += 1
        return super().__getitem__(name)


def counting(policies: Counted) -> PoliciesFile:
    """Return a policies file with them, and a workload that stands for one."""
    file = PoliciesFile()
    file.in_force = Policies(policies=policies, workloads=Workloads(inference="looked-up"))
    return file


def asked(of: Object) -> Whole:
    request = resolved.read(of["metadata"]["annotations"]).request
    assert isinstance(request, Whole)
    return request


@pytest.mark.parametrize("words", [{names.POLICY: "train"}, {names.WORKLOAD: "inference"}])
def test_a_name_of_the_file_is_in_the_note_as_its_words(admin: Admin, words: dict[str, str]) -> None:
    admitted = admit(defaulted(pod(2, annotations=words)), policies=admin.file).admitted
    assert asked(admitted).required == (Constraint.NVLINK,)
    assert words.items() <= admitted["metadata"]["annotations"].items(), "the author's words stay as they are"


@pytest.mark.parametrize("words", [{names.POLICY: "looked-up"}, {names.WORKLOAD: "inference"}])
def test_a_review_spells_out_a_pods_annotations_once(words: dict[str, str]) -> None:
    policies = Counted({"looked-up": {"required": "nvlink", "idle-timeout": "1h", "max-duration": "2h"}})
    file = counting(policies)
    sent = pod(2, annotations=words | {names.NCCL: "file"})
    live = stored(admit(defaulted(sent), policies=file).admitted)
    assert asked(live).required == (Constraint.NVLINK,)
    assert policies.looked_up == {"looked-up": 1}
    policies.looked_up.clear()
    changed = applied(sent, live)
    changed["metadata"]["annotations"][names.NCCL] = "off"
    assert admit(changed, old=live, policies=file).allowed
    assert policies.looked_up == {"looked-up": 2}, "for the pod as it was sent, and as it is"


def test_a_review_of_what_makes_pods_spells_out_its_annotations_once() -> None:
    policies = Counted({"looked-up": {"required": "nvlink"}})
    annotations = {names.POLICY: "looked-up", names.GANG: "auto"}
    job = {"metadata": {"annotations": annotations}, "spec": {"parallelism": 8, "template": {"spec": {}}}}
    assert admit(job, kind="Job", path="/mutate-workloads", policies=counting(policies)).allowed
    assert policies.looked_up == {"looked-up": 1}


def test_schedulers_that_there_are_not_stand_in_the_file(admin: Admin) -> None:
    def scheduler(name: str) -> str:
        sent = defaulted(pod(1, annotations={names.POLICY: "nvlink"}, spec={"schedulerName": name}))
        return str(admit(sent, policies=admin.file).admitted["spec"]["schedulerName"])

    assert (scheduler("gpu-scheduler"), scheduler("topology")) == ("default-scheduler", "topology")
    admin.write("schedulers: [topology]")
    assert (scheduler("gpu-scheduler"), scheduler("topology")) == ("gpu-scheduler", "default-scheduler")


def test_a_name_that_is_nowhere_is_refused_with_the_nearest(admin: Admin) -> None:
    verdict = admit(defaulted(pod(2, annotations={names.POLICY: "trian"})), policies=admin.file)
    assert not verdict.allowed
    assert "Write one of: best-effort, nvlink, single-numa, pcie, linked, train. A comma" in verdict.message
    assert "(did you mean train?)" in verdict.message


def test_a_change_is_for_pods_that_come_after_it(admin: Admin) -> None:
    before = stored(admit(defaulted(TRAIN), policies=admin.file).admitted)
    admin.write("policies: {train: {required: same-numa}}")
    after = admit(defaulted(TRAIN), policies=admin.file).admitted
    assert asked(after).required == (Constraint.SAME_NUMA,)
    for live in (before, lifted(before)):
        assert admit(applied(TRAIN, live), old=live, policies=admin.file).admitted == live


def test_words_that_change_while_a_pod_waits_are_read_by_the_file_in_force(admin: Admin) -> None:
    live = stored(admit(defaulted(pod(2, annotations={names.POLICY: "pcie"})), policies=admin.file).admitted)
    sent = applied(TRAIN, live)
    assert asked(admit(sent, old=live, policies=admin.file).admitted).required == (Constraint.NVLINK,)
    assert not admit(sent, old=live).allowed


def test_a_policy_that_went_holds_up_no_pod_that_named_it(admin: Admin) -> None:
    live = stored(admit(defaulted(TRAIN), policies=admin.file).admitted)
    admin.write("policies: {}")
    sent = applied(TRAIN, live)
    sent["metadata"]["labels"]["x"] = "y"
    assert asked(admit(sent, old=live, policies=admin.file).admitted) == asked(live)
    sent["metadata"]["annotations"][names.NCCL] = "off"
    verdict = admit(sent, old=live, policies=admin.file)
    assert verdict.allowed
    assert "has no effect: gpu.topology/policy: 'train' is not a known policy" in verdict.warnings[0]
    assert not admit(defaulted(TRAIN), policies=admin.file).allowed


def test_a_bad_file_changes_nothing(admin: Admin) -> None:
    admin.write("policies: {train: {requird: nvlink}}")
    assert asked(admit(defaulted(TRAIN), policies=admin.file).admitted).required == (Constraint.NVLINK,)


def test_without_any_good_file_only_what_it_could_change_is_refused(tmp_path: Path) -> None:
    admin = Admin(tmp_path, "policies: 3")
    verdict = admit(defaulted(TRAIN), policies=admin.file)
    assert not verdict.allowed
    assert "the meaning of 'train' is in the policies file, which is invalid or cannot be read now" in verdict.message
    assert admit(defaulted(pod(2, annotations={names.POLICY: "nvlink,pack"})), policies=admin.file).allowed
    admin.write(FILE)
    assert admit(defaulted(TRAIN), policies=admin.file).allowed


def test_what_the_administrator_weighs_is_no_pods_note(tmp_path: Path) -> None:
    plain = admit(defaulted(TRAIN), policies=Admin(tmp_path, FILE).file).admitted
    weighed = admit(defaulted(TRAIN), policies=Admin(tmp_path, FILE + "weights: {nvlink: 1}").file).admitted
    assert asked(plain) == asked(weighed)
