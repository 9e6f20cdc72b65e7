"""Whether a claim's devices worked: nobody is said to be idle of whom it is not known."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dradriver.node.claims.checkpoint import PreparedClaim, PreparedDevice
from dradriver.node.gpu_work import GpuWork
from dradriver.node.idle.claim_work import worked
from dradriver.topology import profiles
from dradriver.topology.machine import MigDevice

NOTHING = GpuWork(0, frozenset())
LOAD = GpuWork(40, frozenset({1}))
PODS = {1: "pod-a", 2: "pod-b", 3: None}
SHARE: dict[str, Any] = {"part": "mps", "told": {"type": "share"}}


def claim(*gpus: str, uid: str = "a", **more: Any) -> PreparedClaim:
    devices = tuple(PreparedDevice(request="r", pool="n", device=gpu, uuid=gpu, **more) for gpu in gpus)
    return PreparedClaim(uid=uid, namespace="team", name=uid, devices=devices)


def did(claimed: PreparedClaim, **work: GpuWork) -> bool | None:
    users = {"a": ("pod-a",), "b": ("pod-b",)}
    sharing = dict.fromkeys(work, ("a", "b"))
    return worked(claimed, work, users=users, sharing=sharing, machine=None, pod_of=PODS.get)


def test_whole_gpus_work_for_their_claim_with_any_process() -> None:
    assert did(claim("g0", "g1"), g0=NOTHING, g1=NOTHING) is False
    assert did(claim("g0", "g1"), g0=NOTHING, g1=LOAD) is True
    assert did(claim("g0"), g0=GpuWork(0, frozenset({3}))) is True


def test_one_gpu_that_says_nothing_leaves_the_claim_unknown() -> None:
    assert did(claim("g0", "g1"), g0=NOTHING) is None
    assert did(claim("g0", "g1"), g0=LOAD) is True
    assert did(claim("g0"), g0=GpuWork(0, None)) is None


def test_access_next_to_the_owner_is_no_work() -> None:
    assert did(claim("g0", admin=True), g0=NOTHING) is None


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (NOTHING, False),
        (LOAD, True),
        (GpuWork(40, frozenset({2})), False),  # another's who has a share of it
        (GpuWork(40, frozenset({1, 2})), True),
        (GpuWork(40, frozenset({2, 3})), None),  # whose 3 is nobody knows: an MPS server's
        (GpuWork(40, frozenset()), None),
        (GpuWork(40, None), None),
        (GpuWork(0, None), None),
    ],
)
def test_a_share_worked_for_the_pods_whose_processes_did(work: GpuWork, expected: bool | None) -> None:
    assert did(claim("g0", **SHARE), g0=work) is expected


def test_of_a_share_whose_pods_are_not_known_yet_a_busy_gpu_says_nothing() -> None:
    assert did(claim("g0", uid="c", **SHARE), g0=GpuWork(40, frozenset({2}))) is None
    assert did(claim("g0", uid="c", **SHARE), g0=NOTHING) is False


def test_a_mig_slice_without_a_process_does_nothing_and_another_is_unknown() -> None:
    machine = profiles.load("dgx-h100")
    instances = (MigDevice(0, "MIG-0", 3, 0), MigDevice(1, "MIG-1", 4, 0))
    first = msgspec.structs.replace(machine.gpus[0], mig=instances)
    machine = msgspec.structs.replace(machine, gpus=(first, *machine.gpus[1:]))

    def slice_of(own: str, work: GpuWork | None) -> bool | None:
        wanted = claim("g0", part="mig", told={"type": "mig", "uuid": own})
        return worked(
            wanted, {} if work is None else {"g0": work}, users={}, sharing={}, machine=machine, pod_of=PODS.get
        )

    one = GpuWork(instances=frozenset({4}))
    assert [slice_of(own, one) for own in ("MIG-0", "MIG-1", "MIG-2")] == [False, None, None]
    assert slice_of("MIG-2", GpuWork(instances=frozenset())) is False
    assert slice_of("MIG-0", None) is None
    assert slice_of("MIG-0", NOTHING) is None, "it is not in MIG mode any more"
