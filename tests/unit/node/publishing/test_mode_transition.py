"""As what GPUs are published while the policies file changes and claims hold them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.policies.fields import MigWord
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.policies.policy_sections import DEFAULTS, UNKNOWN, GpuRule, Policies
from dradriver.api.slices import resource_slices
from dradriver.api.slices.slice_features import ALL, SliceFeatures
from dradriver.node.publishing.mode_transition import ASK_S, GRACE_S, MOST_ASK_S, ModeTransitions, kept_off, published
from dradriver.node.publishing.remembered_modes import Remembered
from dradriver.topology import profiles
from dradriver.topology.machine import Machine

MACHINE = profiles.load("hgx-h100", seed="a")
FIRST = MACHINE.gpus[0].uuid
SHARED = Mode(shared="time-slicing")
DYNAMIC = Mode(mig="dynamic")


def rule(**fields: Any) -> Policies:
    return msgspec.structs.replace(DEFAULTS, gpus=(GpuRule(numbers=(0,), **fields),))


class Node:
    """A node whose slices are what was decided last."""

    def __init__(
        self, policies: Policies = DEFAULTS, *, able: SliceFeatures = ALL, mps: bool = True, file: Path | None = None
    ) -> None:
        self.policies, self.able, self.mps, self.file = policies, able, mps, file
        self.now = 0.0
        self.machine = MACHINE
        self.slices: list[ResourceSlice] = []
        self.allocated: set[str] | None = set()  # as the API server says
        self.asked = 0
        self.writes = True  # whether the API server takes slices
        self.restart()

    def restart(self) -> None:
        self.changing = ModeTransitions(
            lambda: self.policies,
            node="a",
            mps=self.mps,
            remembered=None if self.file is None else Remembered(self.file),
            clock=lambda: self.now,
            wall=lambda: 1.7e9 + self.now,
        )

    def decide(self, *used: str, known: bool = True) -> tuple[Mode, bool]:
        """Decide and publish; return the first GPU's mode, and whether it is kept from new claims."""
        decide = functools.partial(
            self.changing.decide,
            self.machine,
            labels={},
            published=published(self.slices, self.machine),
            kept_off=kept_off(self.slices, self.machine),
            used=used if known else None,
            able=self.able,
        )
        taints = decide()
        if self.changing.to_confirm:
            self.asked += 1
            taints = decide(allocated=self.allocated)
        modes, first = self.changing.modes, self.machine.gpus[0].uuid
        if not self.writes:
            return modes[first], first in taints
        built = resource_slices.build(
            self.machine, node="a", node_uid="u", modes=modes, taints=taints, features=self.able
        )
        self.slices = [msgspec.convert(one, ResourceSlice) for one in built]
        return modes[first], first in taints


@pytest.mark.parametrize(
    "mode",
    [
        Mode(),
        SHARED,
        DYNAMIC,
        Mode(mig="placements"),
        Mode(shared="mps", memory_overcommit=1.5, exclusive_to="namespace"),
        Mode(shared="mps", equal_shares=4),
        Mode(mig="dynamic", exclusive_to="namespace"),
    ],
)
def test_slices_tell_as_what_gpus_are_published(mode: Mode) -> None:
    built = resource_slices.build(MACHINE, node="a", node_uid="u", modes={gpu.uuid: mode for gpu in MACHINE.gpus})
    found = published([msgspec.convert(one, ResourceSlice) for one in built], MACHINE)
    assert found == {gpu.uuid: mode for gpu in MACHINE.gpus}


def test_a_gpu_changes_after_its_last_claim_and_takes_no_new_ones_until_then() -> None:
    node = Node()
    assert node.decide() == (Mode(), False)
    node.policies = rule(mig="dynamic")
    assert node.decide(FIRST) == (Mode(), True)
    assert node.decide(FIRST) == (Mode(), True)
    node.now = 10 * GRACE_S
    assert node.decide(FIRST) == (Mode(), True)
    assert node.decide(known=False) == (Mode(), True)
    assert node.asked == 0, "while a claim is prepared nobody need ask"
    assert node.decide() == (DYNAMIC, False)
    assert node.decide(FIRST) == (DYNAMIC, False)
    assert not node.changing.waiting


@pytest.mark.parametrize("word", ["dynamic", "placements"])
@pytest.mark.parametrize("profile", ["dgx-a100", "hgx-h100"])
@pytest.mark.parametrize("fractions_only", [False, True])
def test_a_gpu_in_mig_mode_takes_claims_as_soon_as_it_is_as_the_policies_say(
    profile: str, word: MigWord, fractions_only: bool
) -> None:
    node = Node(rule(mig=word, fractions_only=fractions_only))
    whole = profiles.load(profile, seed="a")
    gpus = tuple(msgspec.structs.replace(gpu, mig=()) for gpu in whole.gpus)
    node.machine = msgspec.structs.replace(whole, gpus=gpus)
    assert [node.decide()[1] for _ in range(3)] == [False] * 3


def test_a_claim_that_was_allocated_before_has_time_to_be_prepared() -> None:
    node = Node(rule(shared="time-slicing"))
    assert node.decide() == (SHARED, False)
    node.policies = DEFAULTS
    assert node.decide() == (SHARED, True)
    node.now = 1.0
    assert node.decide() == (SHARED, True)
    node.now = GRACE_S
    assert node.decide() == (SHARED, True), "it is a minute since it was seen to be kept off"
    node.now = GRACE_S + 1
    assert node.decide() == (Mode(), False)


@pytest.mark.parametrize("policies", [UNKNOWN, DEFAULTS])
@pytest.mark.parametrize("restarts", [False, True])
def test_shares_keep_what_slices_do_not_tell_of_them_while_no_policy_says_otherwise_or_a_claim_has_one(
    policies: Policies, restarts: bool, tmp_path: Path
) -> None:
    mode = Mode(shared="mps", dev_shm_mib=65536)
    node = Node(rule(shared="mps", dev_shm_mib=65536), file=tmp_path / "modes")
    assert [node.decide(FIRST)[0] for _ in range(2)] == [mode] * 2
    node.policies = policies
    if restarts:
        node.restart()
    assert [node.decide(FIRST)[0] for _ in range(2)] == [mode] * 2
    assert node.changing.sharing(MACHINE.gpus[0]).shm_mib == 65536


DEVICE = resource_slices.device_name(FIRST)


@pytest.mark.slow
@pytest.mark.parametrize("device", [DEVICE, f"{DEVICE}-19-6", f"{DEVICE}-share-3"])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_claim_that_is_allocated_and_not_prepared_keeps_its_gpu_as_it_is(device: str, restarts: bool) -> None:
    """Its pod may wait for a volume for an hour."""
    node = changing_node()
    node.allocated = {device}
    for number in range(1, 40):
        node.now = GRACE_S * number
        if restarts and number % 3 == 0:
            node.restart()
        assert node.decide() == (SHARED, True)
    node.allocated = {resource_slices.device_name(MACHINE.gpus[1].uuid), "gpu-0"}
    node.now += MOST_ASK_S
    node.decide()
    node.now += GRACE_S  # of an agent that was just started
    assert node.decide() == (Mode(), False)


def changing_node(**how: Any) -> Node:
    """A node whose first GPU is shared, and is to be whole; that stands in its slices."""
    node = Node(rule(shared="time-slicing"), **how)
    node.decide()
    node.policies = DEFAULTS
    node.decide()
    node.now = 0.1
    assert node.decide() == (SHARED, True)
    return node


def test_nothing_changes_while_the_api_server_does_not_say_what_is_allocated() -> None:
    node = changing_node()
    node.allocated = None
    node.now = 2 * GRACE_S
    assert [node.decide() for _ in range(3)] == [(SHARED, True)] * 3
    assert node.asked == 1, "it is not asked at every look"
    node.allocated = set()
    node.now += ASK_S
    assert node.decide() == (Mode(), False)


@pytest.mark.slow
def test_all_claims_of_the_cluster_are_read_ever_more_rarely_for_one_that_stays() -> None:
    node = Node()
    node.decide()
    node.policies = rule(mig="dynamic")
    node.allocated = {resource_slices.device_name(FIRST)}
    for _ in range(2 * 3600 // 5):
        assert node.decide() == (Mode(), True)
        node.now += 5.0
    assert node.asked <= 6 + 2 * 3600 / MOST_ASK_S
    node.allocated = set()
    node.now += MOST_ASK_S
    assert node.decide() == (DYNAMIC, False)


def test_gpus_that_come_free_one_after_the_other_share_the_reading_of_all_claims() -> None:
    node = Node()
    node.decide()
    node.policies = msgspec.structs.replace(DEFAULTS, gpus=(GpuRule(mig="dynamic"),))
    node.decide()
    node.now = GRACE_S
    node.decide()
    uuids = [gpu.uuid for gpu in MACHINE.gpus]
    for _ in range(int(3 * ASK_S)):
        node.now += 1.0
        node.decide(*uuids[int((node.now - GRACE_S) // 5) :])
    assert not node.changing.waiting
    assert node.asked <= 3


def test_time_counts_only_while_new_claims_are_kept_off() -> None:
    """The API server may be away while the agent would write the taint."""
    node = Node(rule(shared="time-slicing"))
    node.decide()
    node.policies, node.writes = DEFAULTS, False
    for number in range(5):
        node.now = GRACE_S * number
        assert node.decide() == (SHARED, True)
    node.writes = True
    node.decide()
    node.decide()
    assert node.decide() == (SHARED, True)
    assert node.asked == 0
    node.now += GRACE_S
    assert node.decide() == (Mode(), False)


def test_who_lets_new_claims_on_again_has_the_time_begin_again() -> None:
    node = changing_node()
    node.now = GRACE_S
    tainted, node.slices = node.slices, []
    for obj in resource_slices.build(
        MACHINE, node="a", node_uid="u", modes=node.changing.modes
    ):  # another agent's, without
        node.slices.append(msgspec.convert(obj, ResourceSlice))
    node.writes = False
    assert node.decide() == (SHARED, True)
    node.slices, node.writes = tainted, True
    assert node.decide() == (SHARED, True)
    node.now = 2 * GRACE_S - 1.0
    node.decide()
    assert node.asked == 0, "what the scheduler began while they were on may not be written yet"
    node.now = 2 * GRACE_S
    assert node.decide() == (Mode(), False)


def test_where_taints_are_not_kept_a_gpu_that_is_in_no_slice_takes_no_claims() -> None:
    node = changing_node(able=SliceFeatures(taints=False))
    assert all(device.name != DEVICE for piece in node.slices for device in piece.spec.devices)
    node.now = 2 * GRACE_S
    assert node.decide() == (Mode(), False)


def test_a_change_that_is_undone_does_not_count() -> None:
    node = Node()
    node.decide()
    node.policies = rule(shared="time-slicing")
    assert node.decide(FIRST) == (Mode(), True)
    node.policies = DEFAULTS
    assert node.decide(FIRST) == (Mode(), False)
    assert not node.changing.waiting


def test_what_a_share_may_have_changes_at_once() -> None:
    node = Node(rule(shared="time-slicing"))
    node.decide()
    node.policies = rule(shared="time-slicing", memory_overcommit=2.0)
    assert node.decide(FIRST) == (Mode(shared="time-slicing", memory_overcommit=2.0), False)


@pytest.mark.parametrize("able", [ALL, SliceFeatures(shares=False)])
def test_the_size_of_equal_shares_changes_once_none_is_used(able: SliceFeatures) -> None:
    node = Node(rule(shared="mps", equal_shares=4), able=able)
    assert node.decide() == (Mode(shared="mps", equal_shares=4), False)
    node.policies = rule(shared="mps", equal_shares=2)
    node.restart()
    assert node.decide(FIRST) == (Mode(shared="mps", equal_shares=4), True)
    node.decide()
    node.now = 2 * GRACE_S
    assert node.decide() == (Mode(shared="mps", equal_shares=2), False)


def test_a_new_agent_keeps_what_is_published_and_used() -> None:
    node = Node(rule(mig="dynamic"))
    node.decide()
    node.policies = DEFAULTS
    node.restart()
    assert node.decide(FIRST) == (DYNAMIC, True)


def test_nothing_changes_while_the_file_cannot_be_read() -> None:
    node = Node(rule(mig="dynamic", exclusive_to="namespace"))
    node.decide()
    node.policies = UNKNOWN
    node.restart()
    assert node.decide() == (Mode(mig="dynamic", exclusive_to="namespace"), False)
    assert Node(UNKNOWN).decide() == (Mode(), False)


def test_a_deleted_slice_does_not_let_a_used_gpu_change() -> None:
    node = Node()
    node.decide()
    node.policies = rule(mig="dynamic")
    node.slices = []  # the kubelet deletes them when it starts
    assert node.decide(FIRST) == (Mode(), True)


def test_a_node_that_starts_without_slices_hands_out_its_gpus_as_before(tmp_path: Path) -> None:
    """It lost power while a GPU waited to be handed out otherwise: the kubelet has deleted the slices."""
    node = Node(rule(mig="dynamic"), file=tmp_path / "state" / "modes.json")
    node.decide()
    node.policies = DEFAULTS
    assert node.decide(FIRST) == (DYNAMIC, True)
    node.slices, node.now = [], 1e6
    node.restart()
    assert node.changing.modes[FIRST] == DYNAMIC, "also before anything is decided: claims are prepared meanwhile"
    assert node.decide(FIRST) == (DYNAMIC, True)
    node.decide()
    node.now += GRACE_S
    assert node.decide() == (Mode(), False)
    node.slices = []
    node.restart()
    assert node.decide() == (Mode(), False)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"GPU-1": {"mig": "some"}}', "\xff", "[" * 5000])
def test_a_damaged_memory_does_not_count(tmp_path: Path, text: str) -> None:
    file = tmp_path / "modes.json"
    file.write_bytes(text.encode("latin-1"))
    assert Node(rule(mig="dynamic"), file=file).decide() == (DYNAMIC, False)
    assert Remembered(file).read()[FIRST] == DYNAMIC


def test_an_entry_of_another_version_costs_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "modes.json"
    Remembered(file).write({FIRST: DYNAMIC})
    file.write_text(file.read_text().replace("{", '{"GPU-1": {"mig": "some"}, "GPU-2": 3, ', 1))
    assert Remembered(file).read() == {FIRST: DYNAMIC}
    assert "GPU-1" in caplog.text


def test_what_cannot_be_remembered_now_is_remembered_later(tmp_path: Path) -> None:
    file = tmp_path / "state" / "modes.json"
    file.parent.write_text("in the way")
    node = Node(rule(mig="dynamic"), file=file)
    assert node.decide() == (DYNAMIC, False)
    file.parent.unlink()
    node.decide()
    assert Remembered(file).read()[FIRST] == DYNAMIC


def test_a_gpu_that_was_away_comes_back_as_it_was() -> None:
    node = Node(rule(mig="dynamic"))
    node.decide()
    node.policies, node.machine = DEFAULTS, MACHINE.subset([1, 2])
    node.decide()
    node.machine = MACHINE
    assert node.decide(FIRST) == (DYNAMIC, True)


@pytest.mark.parametrize("fields", [{"mig": "dynamic"}, {"mig": "placements"}, {"mig": "static"}])
def test_what_the_server_or_the_gpu_cannot_do_is_no_change(fields: dict[str, Any]) -> None:
    able = SliceFeatures(shares=False, counters=False)
    node = Node(able=able)
    node.decide()
    node.policies = rule(**fields)
    assert node.decide(FIRST) == (Mode(), False)


def test_a_gpu_is_not_shared_by_what_the_node_does_not_have() -> None:
    assert Node(rule(shared="mps")).decide() == (Mode(shared="mps"), False)
    assert Node(rule(shared="mps"), mps=False).decide() == (Mode(), False)


OLD = profiles.load("dgx-a100", seed="a")


def in_mig_mode(on: bool) -> Machine:
    """A machine whose GPUs change their MIG mode at a reset only, and its first GPU."""
    first = msgspec.structs.replace(OLD.gpus[0], mig=() if on else None)
    return msgspec.structs.replace(OLD, gpus=(first, *OLD.gpus[1:]))


@pytest.mark.parametrize("mig", ["dynamic", "placements"])
def test_a_gpu_that_needs_a_reset_for_mig_mode_is_whole_until_it_is_on(mig: MigWord) -> None:
    node = Node(rule(mig=mig))
    node.machine = in_mig_mode(False)
    first = OLD.gpus[0].uuid
    for _ in range(2):
        node.decide()
        assert node.changing.modes[first] == Mode()
        assert node.changing.mig_off == {first}
    node.machine = in_mig_mode(True)
    node.decide()
    assert node.changing.mig_off == set()
    node.decide()
    node.now = 2 * GRACE_S
    node.decide()
    assert node.changing.modes[first] == Mode(mig=mig)


def test_slices_of_a_gpu_whose_mig_mode_went_off_are_no_longer_handed_out() -> None:
    node = Node(rule(mig="dynamic"))
    node.machine = in_mig_mode(True)
    first = OLD.gpus[0].uuid
    node.decide()
    assert node.changing.modes[first] == DYNAMIC
    node.machine = in_mig_mode(False)
    node.decide()
    assert (node.changing.modes[first], set(node.changing.waiting)) == (DYNAMIC, {first})
    node.decide()
    node.now = 2 * GRACE_S
    node.decide()
    assert node.changing.modes[first] == Mode()


def test_what_was_published_tells_that_a_gpu_is_in_mig_mode() -> None:
    """Beside a driver that hangs from the agent's start on, that is all that is known of the machine."""
    node = Node(rule(mig="dynamic"))
    node.machine = in_mig_mode(True)
    node.decide()
    earlier = resource_slices.read_machine(node.slices)
    assert earlier is not None
    node.machine = earlier
    node.restart()
    node.decide()
    assert node.changing.modes[OLD.gpus[0].uuid] == DYNAMIC
    assert not node.changing.waiting
