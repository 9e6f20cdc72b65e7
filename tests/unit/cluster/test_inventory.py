"""What fits beside what on one GPU, and whom a GPU that is one namespace's at a time is offered to."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from dradriver.allocator import Fleet
from dradriver.allocator.request import Amount, Mig, NoPlaceError, Share
from dradriver.api.base.objects import Node
from dradriver.api.claims.pins import Key, MigSlice, Usage
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.slices import resource_slices
from dradriver.cluster.gpus.fleets import Fleets
from dradriver.cluster.gpus.inventory import Inventory
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.cluster.records.slice_records import read_slice
from dradriver.topology import profiles
from dradriver.topology.machine import Nic, PathType
from tests.effort import sampled
from tests.fakes.instances import in_mig_mode

Instances = Sequence[tuple[str, int]]
A, B, C = ("one", "a"), ("one", "b"), ("two", "c")
SHARED = Mode(shared="mps")
DYNAMIC = Mode(mig="dynamic")
TOTAL = profiles.load("hgx-h100").gpus[0].memory_mib


def inventory(
    *nodes: str, mode: Mode = SHARED, table: NodeTable | None = None, taint: str = "", instances: Instances = ()
) -> Inventory:
    """Nodes whose GPUs are all handed out so; the first has these instances, and one device of each may be tainted."""
    table = NodeTable() if table is None else table
    found = Inventory(table)
    for name in nodes:
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
        table.set_node(name, msgspec.convert({"metadata": metadata, "spec": {}, "status": {}}, Node))
        machine = profiles.load("hgx-h100", seed=name)
        modes = {gpu.uuid: mode for gpu in machine.gpus}
        machine = in_mig_mode(machine, {0: list(instances)}) if instances else machine
        for piece in resource_slices.build(machine, node=name, node_uid="u", modes=modes):
            for device in piece["spec"].get("devices", ()):
                if device["name"] == taint:
                    device["taints"] = [{"key": "k", "effect": "NoSchedule"}]
            found.set_slice(None, read_slice(msgspec.Raw(json.dumps(piece).encode())))
    return found


def gpu(node: str, number: int = 0) -> tuple[str, str]:
    return node, profiles.load("hgx-h100", seed=node).gpus[number].uuid.lower()


def share(cores: int, memory_mib: int = 1) -> tuple[Amount, ...]:
    return (Amount(cores, memory_mib),)


@pytest.mark.parametrize(
    ("mode", "wanted", "held", "fits"),
    [
        (SHARED, share(50), {}, True),
        (SHARED, None, {}, True),
        (SHARED, None, {B: share(1)}, False),
        (SHARED, share(1), {B: None}, False),
        (SHARED, share(1), {B: share(1), C: None}, False),
        (SHARED, None, {A: None}, True),
        (SHARED, share(60), {A: share(60)}, True),
        (SHARED, share(60), {B: share(40)}, True),
        (SHARED, share(61), {B: share(40)}, False),
        (SHARED, share(1, TOTAL - 5), {B: share(1, 5)}, True),
        (SHARED, share(1, TOTAL - 4), {B: share(1, 5)}, False),
        (Mode(shared="mps", memory_overcommit=2.0), share(1, TOTAL), {B: share(1, TOTAL)}, True),
        (Mode(shared="mps", memory_overcommit=2.0), share(1, TOTAL), {B: share(1, TOTAL), C: share(1, 1)}, False),
        (SHARED, share(1), {C: share(1)}, True),
        (Mode(shared="mps", exclusive_to="namespace"), share(1), {C: share(1)}, False),
        (Mode(shared="mps", exclusive_to="namespace"), share(1), {B: share(1)}, True),
        (DYNAMIC, (MigSlice("1g.10gb", 0, 1),), {B: (MigSlice("1g.10gb", 1, 1),)}, True),
        (DYNAMIC, (MigSlice("1g.10gb", 5, 1),), {B: (MigSlice("3g.40gb", 4, 4),)}, False),
        (DYNAMIC, (MigSlice("3g.40gb", 4, 4),), {A: (MigSlice("3g.40gb", 4, 4),)}, True),
        (DYNAMIC, (MigSlice("1g.10gb", 0, 1),), {B: share(10)}, False),
        (DYNAMIC, (MigSlice("1g.10gb", 0, 1),), {B: None}, False),
    ],
)
def test_what_fits_next_to_what_others_hold(mode: Mode, wanted: Usage, held: Mapping[Key, Usage], fits: bool) -> None:
    found = inventory("n", mode=mode)
    for claim, taken in held.items():
        found.hold(claim, {gpu("n"): taken})
    assert found.fits(A, gpu("n"), wanted, list(held)) is fits


def test_those_that_hold_nothing_of_a_gpu_disturb_no_pod() -> None:
    found = inventory("n", mode=Mode(shared="mps", exclusive_to="namespace"))
    found.hold(B, {gpu("n"): share(1)})
    found.hold(C, {gpu("n", 1): share(1)})
    assert found.fits(A, gpu("n"), share(99), [B, C])


def test_it_is_unknown_what_fits_on_a_gpu_that_is_not_listed() -> None:
    found = inventory("n")
    found.hold(B, {("away", "gpu-1"): share(1)})
    assert found.fits(A, ("away", "gpu-1"), share(1), [])
    assert not found.fits(A, ("away", "gpu-1"), share(1), [B])


def test_a_workload_that_asks_in_turns_has_no_node_looked_at_again() -> None:
    found = inventory(*"abcd", mode=Mode(shared="mps", exclusive_to="namespace"))
    for node in "abcd":
        found.hold((f"tenant-of-{node}", "c"), {gpu(node): share(1)})
    assert not found.catch_up(lambda: False)
    numbers = {found.tenant(namespace) for namespace in ("tenant-of-a", "tenant-of-b", "nobody")}
    assert len(numbers) == 3
    assert 0 in numbers, "nobody's own GPUs are none"
    assert not found.catch_up(lambda: True), "of thousands of nodes none is looked at again"


def test_a_number_is_no_other_namespaces_once_its_own_has_left() -> None:
    found = inventory("a", mode=Mode(shared="mps", exclusive_to="namespace"))
    found.hold(("first", "c"), {gpu("a"): share(1)})
    number = found.tenant("first")
    found.hold(("first", "c"), {})
    found.hold(("second", "c"), {gpu("a"): share(1)})
    assert found.tenant("first") == 0
    assert found.tenant("second") not in (0, number)


def test_of_a_gpu_that_two_namespaces_had_before_it_was_exclusive_no_pod_gets_more() -> None:
    found = inventory("n", mode=Mode(shared="mps", exclusive_to="namespace"))
    for claim in (A, C):
        found.hold(claim, {gpu("n"): share(10)})
    for namespace in ("one", "two", "three"):
        (choice,) = found.fleet.rank(Share(amounts=(Amount(10, 1),)), tenant=found.tenant(namespace))
        assert choice.containers[0][0].gpu != 0


@pytest.mark.slow
def test_a_searched_pod_is_offered_what_it_would_be_as_the_only_one() -> None:
    rng = random.Random(7)
    mode = Mode(shared="mps", exclusive_to="namespace")
    found, held = inventory("a", "b", mode=mode), dict[Key, dict[tuple[str, str], Usage]]()
    for step in range(150):
        claim = f"ns{rng.randrange(3)}", f"c{rng.randrange(20)}"
        held[claim] = {gpu(rng.choice("ab"), rng.randrange(8)): share(rng.choice((30, 60)))} if step % 3 else {}
        found.hold(claim, held[claim])
        viewer = f"ns{rng.randrange(4)}"
        fresh = inventory("a", "b", mode=mode)
        for other, devices in held.items():  # another's GPU as one that somebody has whole: nothing is left of it
            mine = other[0] == viewer
            fresh.hold(other, {device: taken if mine else None for device, taken in devices.items()})
        assert best(found, viewer) == best(fresh, viewer)


def best(found: Inventory, viewer: str) -> object:
    request = Share(amounts=(Amount(40, 1000), Amount(20, 1000)))
    try:
        return found.fleet.rank(request, tenant=found.tenant(viewer), explain=False)
    except NoPlaceError as error:
        return error.stable.partition(" Another namespace")[0]


STATIC = Mode(mig="static")
TWO = [("1g.10gb", 0), ("3g.40gb", 4)]
SMALL, LARGE = MigSlice("1g.10gb", 0, 1), MigSlice("3g.40gb", 4, 4)


def instance(one: MigSlice) -> tuple[str, str]:
    first = profiles.load("hgx-h100", seed="n").gpus[0]
    return "n", resource_slices.part_name(
        first.uuid, next(p.id for p in first.profiles if p.name == one.profile), one.start
    )


def test_instances_are_held_as_parts_of_their_gpu_whichever_is_asked_for() -> None:
    found = inventory("n", mode=STATIC, instances=TWO)
    found.hold(A, {instance(SMALL): None, instance(LARGE): None})
    found.hold(B, {gpu("n"): (SMALL,)})
    found.hold(C, {gpu("n"): None, instance(SMALL): None})
    for device in (gpu("n"), instance(SMALL), instance(LARGE)):
        held = found.holders(device)
        assert set(held[A] or ()) == {SMALL, LARGE}
        assert held[B] == (SMALL,)
        assert held[C] is None


@pytest.mark.parametrize(
    ("mode", "taken", "usable"),
    [
        (Mode(), None, True),
        (Mode(), share(1), False),
        (Mode(), (SMALL,), False),
        (SHARED, None, True),
        (SHARED, share(1), True),
        (SHARED, (SMALL,), False),
        (DYNAMIC, None, True),
        (DYNAMIC, (SMALL,), True),
        (DYNAMIC, share(1), False),
        (Mode(mig="placements"), None, True),
        (Mode(mig="placements"), (SMALL, LARGE), True),
        (Mode(mig="placements"), share(1), False),
        (STATIC, None, False),
        (STATIC, (SMALL, LARGE), True),
        (STATIC, (MigSlice("1g.10gb", 1, 1),), False),
        (STATIC, share(1), False),
    ],
)
def test_a_promise_can_be_kept_as_long_as_the_gpu_is_handed_out_so(mode: Mode, taken: Usage, usable: bool) -> None:
    found = inventory("n", mode=mode, instances=TWO if mode == STATIC else ())
    assert found.usable(gpu("n"), taken) is usable


def test_what_is_tainted_is_of_no_use_and_nothing_more_is_given_of_it() -> None:
    found = inventory("n", mode=STATIC, instances=TWO, taint=instance(SMALL)[1])
    assert found.usable(gpu("n"), (SMALL,)) is False
    assert found.usable(gpu("n"), (LARGE,)) is True
    found = inventory("n", taint=gpu("n")[1])
    found.hold(A, {gpu("n"): share(10)})
    assert found.usable(gpu("n"), share(1)) is False
    (choice,) = found.fleet.rank(Share(amounts=(Amount(10, 1),)))
    assert choice.containers[0][0].gpu != 0


@pytest.mark.parametrize("mode", [SHARED, DYNAMIC])
def test_a_gpu_of_another_namespace_is_not_offered(mode: Mode) -> None:
    found = inventory("n", mode=msgspec.structs.replace(mode, exclusive_to="namespace"))
    found.hold(A, {gpu("n"): share(10) if mode == SHARED else (SMALL,)})
    request = Share(amounts=(Amount(10, 1),)) if mode == SHARED else Mig(profiles=(("1g.10gb",),))
    for namespace, same in (("one", True), ("two", False), ("one", True)):
        (choice,) = found.fleet.rank(request, tenant=found.tenant(namespace))
        assert (choice.containers[0][0].gpu == 0) is same


def test_who_waits_is_asked_again_when_something_may_have_become_free_and_else_not() -> None:
    table = NodeTable()
    found = inventory("n", mode=DYNAMIC, table=table)

    def news(claim: Key, taken: Usage | str) -> bool:
        before = table.clock
        found.hold(claim, {} if isinstance(taken, str) else {gpu("n"): taken})
        return table.clock != before

    assert not news(A, None)
    assert news(A, (SMALL,)), "it is known now which part it is"
    assert not news(B, (LARGE,)), "who takes gives nobody anything"
    assert news(B, "nothing")
    assert not news(B, None)
    assert not news(A, "nothing"), "somebody has it whole"
    assert news(B, "nothing")


def test_next_to_a_whole_gpu_user_nothing_is_given_with_any_parts_on_it() -> None:
    found = inventory("n")
    found.hold(A, {gpu("n"): None})
    found.hold(B, {gpu("n"): share(10)})
    (choice,) = found.fleet.rank(Share(amounts=(Amount(10, 1),)))
    assert choice.containers[0][0].gpu != 0


def test_a_gpu_that_is_never_whole_is_not_free_and_its_tainted_instance_is_of_no_pod() -> None:
    found = inventory("n", mode=STATIC, instances=TWO, taint=instance(SMALL)[1])
    assert found.free().tolist()[0] == 7
    assert found.fleet.rank(Mig(profiles=(("3g.40gb",),)))
    with pytest.raises(NoPlaceError):
        found.fleet.rank(Mig(profiles=(("1g.10gb",),)))


def test_a_machine_of_which_too_much_is_said_is_not_read() -> None:
    found = Inventory(NodeTable())
    machine = profiles.load("hgx-h100", seed="a")
    nics = tuple(Nic(name=f"mlx5_{number}") for number in range(4000))
    paths = ((PathType.SYS,) * 8,) * len(nics)
    (piece,) = resource_slices.build(
        msgspec.structs.replace(machine, nics=nics, nic_paths=paths), node="a", node_uid="u"
    )
    read = read_slice(msgspec.Raw(json.dumps(piece).encode()))
    assert read is not None
    assert isinstance(read.machine, str)
    assert "at most 98304 are read" in read.machine
    found.set_slice(None, read)
    assert not found.uuids("a")


def state(fleet: Fleet) -> dict[str, object]:
    """What a fleet says of each node."""
    found: dict[str, object] = {
        name: (group.free(slot), group.offer_and_parts(slot))
        for group in fleet.groups
        for slot, name in enumerate(group.names)
    }
    assert found.keys() == set(fleet.nodes)
    return found


@pytest.mark.parametrize("seed", sampled(range(8)))
def test_the_fleet_without_some_claims_is_what_it_would_be_and_the_live_one_stays(seed: int) -> None:
    rng = random.Random(seed)
    modes = (SHARED, DYNAMIC, Mode(shared="mps", exclusive_to="namespace"))
    table = NodeTable()
    found = inventory("x", "y", "z", mode=rng.choice(modes), table=table)
    claims: dict[Key, dict[tuple[str, str], Usage]] = {}
    for number in range(12):
        claim = rng.choice(("one", "two")), f"c{number}"
        kinds: tuple[Usage, ...] = (None, share(10), share(30, 1000), (MigSlice("1g.10gb", rng.randrange(7), 1),))
        claims[claim] = {
            gpu(rng.choice("xyz"), rng.randrange(8)): rng.choice(kinds) for _ in range(rng.randrange(1, 4))
        }
        found.hold(claim, claims[claim])
    leaving = rng.sample(sorted(claims), 3)
    before = state(found.fleet)
    fleets = Fleets(found, table)
    overlay = fleets.without(*leaving, namespace="one")
    assert state(found.fleet) == before
    seen = state(overlay)
    for claim in leaving:
        found.hold(claim, {})
    assert seen == state(found.fleet)
    assert state(overlay) == seen, "nothing that happens later is seen in it"
    assert fleets.without(("no", "such"), namespace="one") is found.fleet
