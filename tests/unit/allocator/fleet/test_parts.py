"""Parts of GPUs over a fleet: whole GPUs, shares and MIG slices in one set of books."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pytest

from dradriver.allocator import Fleet, NoPlaceError, Offer, UnknownGpuError
from dradriver.allocator.parts.offers import ShareRule
from dradriver.allocator.request import (
    Amount,
    Mig,
    MigPart,
    Part,
    PartChoice,
    Request,
    Share,
    SharePart,
    Strategy,
    Whole,
)
from dradriver.topology import profiles
from dradriver.topology.machine import Machine

HALF = Share(amounts=(Amount(cores=50),))
ONE = Whole(containers=(1,))
EIGHT = frozenset(range(8))
ALL = Offer(shared=EIGHT, sliced=EIGHT)
HGX = profiles.load("hgx-h100")


def share(gpu: int, cores: int, machine: Machine = HGX) -> SharePart:
    return SharePart(gpu=gpu, amount=Amount(cores=cores).of(machine.gpus[gpu].memory_mib))


def mig(gpu: int, profile: str, start: int) -> MigPart:
    size = next(p.size for p in HGX.gpus[0].profiles if p.name == profile)
    return MigPart(gpu=gpu, profile=profile, start=start, size=size)


def slices(*profile_names: str, strategy: Strategy = Strategy.BEST_FIT) -> Mig:
    return Mig(profiles=(profile_names,), strategy=strategy)


def on_gpus(parts: Sequence[Part]) -> dict[int, list[Part]]:
    return {gpu: [part for part in parts if part.gpu == gpu] for gpu in {part.gpu for part in parts}}


def fleet(
    nodes: Mapping[str, Sequence[Part]], *, machine: Machine = HGX, offer: Offer = ALL, held: Sequence[int] = ()
) -> Fleet:
    """Return a fleet of nodes with these parts on their GPUs, and others that are held whole."""
    made = Fleet()
    for name, parts in nodes.items():
        made.set_node(name, machine, [gpu.index for gpu in machine.gpus if gpu.index not in held])
        made.set_offer(name, offer)
        made.set_parts(name, on_gpus(parts))
    return made


def first(found: Fleet, request: Share | Mig) -> PartChoice:
    return found.rank(request, limit=1)[0]


def only(choice: PartChoice) -> Part:
    ((part,),) = choice.containers
    return part


def test_a_gpu_with_a_part_on_it_is_not_free_for_whole_requests_until_the_last_is_gone() -> None:
    found = fleet({"a": [share(0, 50), mig(1, "1g.10gb", 6)]})
    assert found.free("a") == EIGHT - {0, 1}
    found.set_free("a", EIGHT)
    assert found.free("a") == EIGHT - {0, 1}
    with pytest.raises(NoPlaceError):
        found.rank(Whole(containers=(7,)))
    found.set_parts("a", {1: [mig(1, "1g.10gb", 6)]})
    assert found.rank(Whole(containers=(7,)))[0].gpus == (0, 2, 3, 4, 5, 6, 7)


def test_a_share_goes_to_the_fullest_gpu_that_still_fits() -> None:
    found = fleet({"a": [share(3, 25), share(5, 50), share(6, 75)], "b": [share(2, 40)]})
    assert only(first(found, HALF)) == share(5, 50)
    assert [(choice.node, choice.gpus) for choice in found.rank(HALF)] == [("a", (5,)), ("b", (2,))]


def test_over_nodes_the_fullest_gpu_and_the_start_that_spoils_least_are_taken_wherever_they_are() -> None:
    found = fleet({"a": [share(0, 40)], "b": [share(2, 50)], "c": [share(3, 60)]})
    assert [choice.node for choice in found.rank(HALF, limit=2)] == ["b", "a"]
    # Beside a 1g.10gb at 0 slice 1 is of use to another 1g.10gb alone; beside a 3g.40gb at 4 a 4g.40gb is spoiled.
    found = fleet({"a": [mig(0, "3g.40gb", 4)], "b": [mig(0, "1g.10gb", 0)]})
    assert [choice.node for choice in found.rank(slices("1g.10gb"), limit=2)] == ["b", "a"]
    assert only(first(found, slices("1g.10gb"))) == mig(0, "1g.10gb", 1)


def test_a_node_that_goes_takes_what_was_said_of_it_along() -> None:
    found = fleet({"a": [], "b": [share(1, 10)], "c": [share(2, 50), mig(3, "1g.10gb", 6)]})
    found.remove("a")
    found.remove("b")
    assert found.free("c") == EIGHT - {2, 3}
    assert only(first(found, HALF)) == share(2, 50)
    found.set_node("d", HGX, EIGHT)
    with pytest.raises(NoPlaceError, match="no eligible node has room"):
        found.rank(HALF, eligible=["d"])


def test_nodes_are_found_by_the_rows_of_an_array() -> None:
    found = Fleet()
    for row, name in enumerate("cab"):
        found.set_node(name, HGX, EIGHT, row=row)
        found.set_offer(name, ALL)
    two = Share(amounts=(Amount(cores=50), Amount(cores=60)))
    for request in (HALF, two, slices("1g.10gb")):
        assert [choice.node for choice in found.rank(request, eligible=np.array([True, False, True]))] == ["b", "c"]


def test_a_gpu_that_is_taken_whole_or_unhealthy_takes_no_part() -> None:
    found = fleet({"a": []}, held=range(1, 8))
    assert first(found, HALF).gpus == (0,)
    found.set_free("a", [])
    with pytest.raises(NoPlaceError, match=r"no eligible node has room for it. No GPU in use by fractions has"):
        found.rank(HALF)


QUARTERS = Offer(shared=EIGHT, sliced=EIGHT, tenants=((0, 1), (1, 1), (2, 2)))


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (HALF, r"The other namespace uses 2 such GPUs, with room for 75 % and 61170 MiB on a.$"),
        (Share(amounts=(Amount(cores=80),)), r"room for it. Most room on one GPU: 40 % and 32624 MiB, on a.$"),
        (
            Share(amounts=(Amount(cores=60), Amount(cores=75))),
            r"GPU: 40 % .* on a. The other namespace uses 2 such GPUs",
        ),
        (
            Share(amounts=(Amount(cores=75), Amount(cores=80))),
            r"GPU: 40 % .* on a. The other namespace uses 1 such GPU",
        ),
    ],
)
def test_gpus_that_are_another_namespaces_are_the_cause_where_they_have_room(request_: Share, said: str) -> None:
    """The reason names no pod and no namespace."""
    found = fleet({"a": [share(0, 25), share(1, 30), share(2, 60)]}, offer=QUARTERS, held=range(3, 8))
    with pytest.raises(NoPlaceError, match=said) as refused:
        found.rank(request_, tenant=2)
    cause = "Another namespace uses fractions of GPUs with room for it"
    assert (cause in refused.value.stable) == ("other namespace" in said)
    assert not any(character.isdigit() for character in refused.value.stable.partition(": no ")[2])


def test_slices_of_another_namespaces_gpu_are_the_cause_and_a_node_that_is_left_out_is_not() -> None:
    parts = {"a": [mig(0, "1g.10gb", 6)], "b": [mig(0, "1g.10gb", 6)]}
    found = fleet(parts, offer=Offer(sliced=frozenset({0}), tenants=((0, 1),)))
    with pytest.raises(NoPlaceError, match=r"uses 2 such GPUs, with room for 1g.10gb, .* on a"):
        found.rank(slices("1g.10gb"), tenant=2)
    with pytest.raises(NoPlaceError, match=r"uses 1 such GPU, with room .* on b"):
        found.rank(slices("1g.10gb"), tenant=2, eligible=["b"])
    with pytest.raises(NoPlaceError, match=r"room for it. No GPU in use by fractions has any room for it.$"):
        found.rank(slices("7g.80gb"), tenant=2)


def test_an_empty_gpu_is_opened_out_of_a_broken_pair_before_one_of_a_whole_one() -> None:
    machine = profiles.load("a100-pcie-x8-bridge-pairs")
    pairs = [{i, j} for i in range(8) for j in range(i) if machine.links[i][j]]
    found = fleet({"a": []}, machine=machine, held=sorted(pairs[2])[:1])
    opened = first(found, HALF).gpus
    assert set(opened) | {min(pairs[2])} == pairs[2]
    assert first(found, slices("1g.10gb")).gpus == opened


def test_over_nodes_the_broken_pair_is_opened_wherever_it_is() -> None:
    machine = profiles.load("a100-pcie-x8-bridge-pairs")
    found = fleet({"a": [], "b": []}, machine=machine)
    found.set_free("b", EIGHT - {0})
    assert first(found, HALF).node == "b"


def test_a_slice_goes_where_it_spoils_least() -> None:
    # On GPU 0 only the start that a 4g.40gb needs is free; on GPU 1 there is a slice beside others of its size.
    found = fleet({"a": [mig(0, "3g.40gb", 4), mig(1, "3g.40gb", 0), mig(1, "1g.10gb", 4), mig(1, "1g.10gb", 5)]})
    assert only(first(found, slices("1g.10gb"))) == mig(1, "1g.10gb", 6)
    assert only(first(found, slices("4g.40gb"))) == mig(0, "4g.40gb", 0)
    assert only(first(found, slices("7g.80gb"))) == mig(2, "7g.80gb", 0)


def test_shares_and_slices_never_share_a_gpu() -> None:
    found = fleet({"a": [share(0, 10), mig(1, "1g.10gb", 6)]}, held=range(2, 8))
    assert first(found, slices("1g.10gb")).gpus == (1,)
    assert first(found, HALF).gpus == (0,)
    with pytest.raises(NoPlaceError, match=r"90 % and 73404 MiB, on a"):
        found.rank(Share(amounts=(Amount(cores=91),)))
    with pytest.raises(NoPlaceError, match=r"Most room on one GPU: 1g\.10gb, .*4g\.40gb, on a"):
        found.rank(slices("7g.80gb"))


def test_only_what_is_offered_is_given_in_parts() -> None:
    found = fleet({"a": [], "b": []}, offer=Offer(shared=frozenset({4}), sliced=frozenset({5})))
    assert first(found, HALF).gpus == (4,)
    assert first(found, slices("1g.10gb")).gpus == (5,)
    found.set_offer("a", Offer())
    assert [choice.node for choice in found.rank(HALF)] == ["b"]


def test_a_gpu_that_is_never_had_whole_takes_parts_first() -> None:
    machine = profiles.load("dgx-a100")
    offer = Offer(shared=EIGHT, sliced=EIGHT, parts_only=frozenset({6, 7}))
    found = fleet({"a": []}, machine=machine, offer=offer)
    assert found.free("a") == EIGHT - {6, 7}
    assert first(found, slices("1g.5gb")).gpus == (6,)
    assert first(found, HALF).gpus == (6,)
    found.set_free("a", EIGHT - {6})  # somebody has it, or it is ill
    assert first(found, HALF).gpus == (7,)


def test_a_pod_has_its_parts_of_one_gpu_or_of_several_and_opens_as_few_as_it_can() -> None:
    found = fleet({"a": [share(0, 60)], "b": []})
    two = Share(amounts=(Amount(cores=70), Amount(cores=40)))
    choice = first(found, two)
    assert (choice.node, [part.gpu for (part,) in choice.containers]) == ("a", [1, 0])
    both = Share(amounts=(Amount(cores=30), Amount(cores=70)))
    assert len(first(found, both).gpus) == 1


def test_several_parts_by_other_strategies() -> None:
    found = fleet({"a": [share(0, 10)], "b": [share(0, 10), share(1, 10)], "c": []})
    two = Share(amounts=(Amount(cores=30), Amount(cores=40)))
    nodes = {s: first(found, msgspec.structs.replace(two, strategy=s)).node for s in Strategy}
    assert nodes == {
        Strategy.BEST_FIT: "a", Strategy.PACK: "b", Strategy.SPREAD: "c", Strategy.FIRST_FIT: "a",
    }  # fmt: skip


def test_each_container_gets_its_own_slices() -> None:
    wanted = Mig(profiles=(("1g.10gb", "4g.40gb"), ("2g.20gb",)))
    choice = first(fleet({"a": []}), wanted)
    assert [[part.profile for part in parts if isinstance(part, MigPart)] for parts in choice.containers] == [
        ["1g.10gb", "4g.40gb"], ["2g.20gb"],
    ]  # fmt: skip
    assert len(choice.gpus) == 1


def test_many_kinds_of_parts_are_dealt_out_all_the_same() -> None:
    amounts = tuple(Amount(cores=n) for n in range(2, 32))  # more numbers of each kind than are all looked at
    choice = first(fleet({"a": []}), Share(amounts=amounts))
    every = [part for parts in choice.containers for part in parts if isinstance(part, SharePart)]
    cores = [sum(part.amount.cores for part in every if part.gpu == gpu) for gpu in choice.gpus]
    assert sum(cores) == sum(range(2, 32))
    assert max(cores) <= 100


@pytest.mark.slow
def test_many_different_parts_find_the_one_node_with_a_place_behind_many_fuller_ones() -> None:
    # 40 % are left of each GPU, which is enough in sum, and yet only for one part each.
    fuller = {f"a-{number:02}": [share(gpu, 60) for gpu in range(7)] for number in range(40)}
    found = fleet({**fuller, "b": [share(gpu, 60) for gpu in range(7)]}, held=[7])
    different = Share(amounts=tuple(Amount(cores=21 + n) for n in range(8)))
    with pytest.raises(NoPlaceError, match="no eligible node has room"):
        found.rank(different)
    found.set_parts("b", on_gpus([share(gpu, 50) for gpu in range(7)]))
    assert first(found, different).node == "b"


def test_parts_that_cost_least_are_found_on_any_node() -> None:
    # As full as the others is the one node where nothing is left beside both.
    nodes = {f"a-{number:02}": [share(0, 45), share(1, 55)] for number in range(20)}
    found = fleet({**nodes, "b": [share(0, 40), share(1, 60)]})
    assert first(found, Share(amounts=(Amount(cores=60), Amount(cores=40)))).node == "b"


@pytest.mark.parametrize("request_", [HALF, slices("1g.10gb")])
@pytest.mark.parametrize(
    ("strategy", "node", "gpu"),
    [(Strategy.PACK, "c", 3), (Strategy.SPREAD, "b", 0), (Strategy.FIRST_FIT, "a", 0)],
)
def test_other_strategies(request_: Share | Mig, strategy: Strategy, node: str, gpu: int) -> None:
    shared = isinstance(request_, Share)
    fuller = share(2, 50) if shared else mig(2, "1g.10gb", 0)
    found = fleet({"a": [fuller], "b": [], "c": [share(3, 40) if shared else mig(3, "1g.10gb", 6)]})
    assert first(found, request_).node == "a"
    found.set_free("c", [0, 1, 2])
    choice = first(found, msgspec.structs.replace(request_, strategy=strategy))
    assert (choice.node, choice.gpus) == (node, (gpu,))


def test_only_eligible_nodes_and_the_wanted_kind_of_gpu() -> None:
    found = fleet({"a": [share(0, 10)], "b": []})
    found.set_node("old", profiles.load("dgx-a100"), range(8))
    found.set_offer("old", ALL)
    assert [choice.node for choice in found.rank(HALF, eligible=["b", "nobody"])] == ["b"]
    assert first(found, Share(amounts=(Amount(cores=50),), architecture="ampere")).node == "old"
    assert first(found, Share(amounts=(Amount(memory_mib=70_000),))).node != "old"
    assert first(found, slices("1g.5gb")).node == "old"


def test_only_nodes_whose_driver_is_new_enough() -> None:
    found = fleet({"new": []})
    old = msgspec.structs.replace(HGX, driver_version="535.104.05", cuda_version="12.2")
    found.set_node("old", old, range(8))
    found.set_offer("old", ALL)
    found.set_parts("old", {0: [SharePart(gpu=0, amount=Amount(10, 100))]})
    assert first(found, HALF).node == "old", "the fuller one"
    assert first(found, msgspec.structs.replace(HALF, min_driver="550")).node == "new"
    assert first(found, msgspec.structs.replace(HALF, min_cuda="12.2")).node == "old"
    with pytest.raises(NoPlaceError, match=r"on CUDA 13\.1 or later: no"):
        found.rank(msgspec.structs.replace(HALF, min_cuda="13.1"))


def test_of_a_mixed_machine_only_the_wanted_kind_of_gpu_is_taken_or_opened() -> None:
    old = profiles.load("dgx-a100").gpus[0]
    gpus = tuple(
        msgspec.structs.replace(gpu, product=old.product, architecture="ampere", profiles=old.profiles)
        if gpu.index < 4 else gpu
        for gpu in HGX.gpus
    )  # fmt: skip
    mixed = msgspec.structs.replace(HGX, gpus=gpus)
    found = fleet({"a": [share(0, 10)]}, machine=mixed)
    for amounts in ((Amount(cores=50),), (Amount(cores=50), Amount(cores=60))):
        assert min(first(found, Share(amounts=amounts, architecture="hopper")).gpus) == 4
    assert first(found, slices("1g.5gb", "1g.10gb")).gpus == (1,)  # the older product has both
    assert first(found, slices("1g.5gb", "3g.40gb")).gpus == (1, 4)
    found.set_free("a", [])
    with pytest.raises(NoPlaceError):
        found.rank(Share(amounts=(Amount(cores=5), Amount(cores=6)), architecture="hopper"))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (slices("1g.12gb"), "even if the GPU is empty. The GPUs have the MIG profiles 1g.10gb, 1g.10gb+me, 1g.20gb"),
        (Share(amounts=(Amount(memory_mib=90_000),)), "a share of a GPU: 90000 MiB: no GPU that nodes offer as shares"),
        (Share(amounts=(Amount(1, 90_000),)), "The largest possible share is 100 % and 81559 MiB"),
        (slices(*["7g.80gb"] * 8), "MIG slices: 8 times 7g.80gb: no eligible node has room for it"),
        (slices(*["7g.80gb"] * 9), "9 times 7g.80gb: no node of this cluster has room for all of it, even if"),
        (Share(amounts=(Amount(cores=60),) * 8), "shares of GPUs: 8 times 60 %: no eligible node has room"),
        (Share(amounts=(Amount(cores=60),) * 9), "shares of GPUs: 9 times 60 %: no node of this cluster has room"),
        (Share(amounts=()), "Request at least one"),
        (Share(amounts=(Amount(cores=5), Amount())), "of at least 1 % or 1 MiB"),
    ],
)  # fmt: skip
def test_refusals(request_: Share | Mig, message: str) -> None:
    with pytest.raises(NoPlaceError) as refusal:
        fleet({"a": [share(0, 50)]}).rank(request_)
    assert message in str(refusal.value)
    with pytest.raises(NoPlaceError) as short:
        fleet({"a": [share(1, 70)]}).rank(request_, explain=False)
    assert short.value.stable == refusal.value.stable


def ruled(**rule: int) -> Offer:
    return Offer(shared=EIGHT, rules=tuple((gpu, ShareRule(**rule)) for gpu in range(8)))


def test_memory_that_is_promised_twice_is_given_twice_and_compute_is_not() -> None:
    big = Amount(30, 60_000)
    found = fleet({"a": []}, offer=ruled(memory_mib=122_000), held=range(1, 8))
    assert first(found, Share(amounts=(big, big))).gpus == (0,)
    found.set_parts("a", {0: [SharePart(gpu=0, amount=big)]})
    assert only(first(found, Share(amounts=(Amount(70, 60_000),)))).gpu == 0
    for refused in (Amount(71, 60_000), Amount(1, 62_001)):
        with pytest.raises(NoPlaceError, match="no eligible node has room"):
            found.rank(Share(amounts=(refused,)))
    with pytest.raises(NoPlaceError, match=r"empty. The largest possible share is 100 % and 81559"):
        found.rank(Share(amounts=(Amount(1, 81_560),)))
    found.set_offer("a", ruled())
    with pytest.raises(NoPlaceError, match="no eligible node has room"):
        found.rank(Share(amounts=(big,)))
    assert found.free("a") == frozenset()
    found.set_parts("a", {})
    assert found.free("a") == {0}, "what is free stays when the rules change"


def test_of_a_gpu_in_equal_shares_each_takes_one_for_any_smaller_request() -> None:
    found = fleet({"a": []}, offer=ruled(equal=4), held=range(1, 8))
    quarter = Amount(25, 81559 // 4)
    choice = first(found, Share(amounts=(Amount(cores=10), Amount(cores=25), Amount(memory_mib=1), Amount(20, 20_000))))
    assert choice.containers == ((SharePart(gpu=0, amount=quarter),),) * 4
    with pytest.raises(NoPlaceError, match="no eligible node has room"):
        found.rank(Share(amounts=(Amount(cores=10),) * 5))
    for refused in (Amount(cores=26), Amount(10, 20_390)):
        with pytest.raises(NoPlaceError, match=r"empty. The largest possible share is 25 % and 20389 MiB"):
            found.rank(Share(amounts=(refused,)))
    found.set_parts("a", {0: [SharePart(gpu=0, amount=quarter)] * 3})
    assert only(first(found, Share(amounts=(Amount(cores=1),)))) == SharePart(gpu=0, amount=quarter)
    found.set_parts("a", {0: [SharePart(gpu=0, amount=quarter)] * 4})
    with pytest.raises(NoPlaceError, match="no eligible node has room"):
        found.rank(Share(amounts=(Amount(cores=1),)))


def test_nonsense_about_memory_is_bounded() -> None:
    found = fleet({"a": [share(0, 1)]}, offer=ruled(memory_mib=1 << 40), held=range(1, 8))
    assert only(first(found, Share(amounts=(Amount(99, 81559),)))).gpu == 0
    with pytest.raises(NoPlaceError):
        found.rank(Share(amounts=(Amount(1, 81559),) * 17))


def test_nodes_of_one_kind_may_be_shared_by_different_rules() -> None:
    found = fleet({"a": [], "b": []}, offer=ruled(equal=2))
    found.set_offer("b", ruled(equal=4))
    assert first(found, Share(amounts=(Amount(cores=40),))).node == "a"
    found.set_node("b", HGX, EIGHT)  # told of its machine again
    one = Share(amounts=(Amount(cores=20),), strategy=Strategy.FIRST_FIT)
    half, quarter = (SharePart(gpu=0, amount=Amount(100 // equal, 81559 // equal)) for equal in (2, 4))
    assert only(first(found, one)) == half
    found.remove("a")
    assert only(first(found, one)) == quarter
    found.set_node("b", HGX.subset([0, 1]), [0, 1])
    assert only(first(found, one)) == quarter


def test_without_an_offer_there_is_no_part() -> None:
    found = Fleet()
    found.set_node("a", HGX, EIGHT)
    requests: list[Request] = [HALF, slices("1g.10gb")]
    for request, word in zip(requests, ("shares", "MIG slices"), strict=True):
        assert not isinstance(request, Whole)
        with pytest.raises(NoPlaceError, match=f"no node offers GPUs as {word}"):
            found.rank(request)
    found.set_parts("a", {0: [share(0, 50)]})  # a policy that has changed since
    assert found.free("a") == EIGHT - {0}
    with pytest.raises(NoPlaceError, match="no node offers"):
        found.rank(HALF)


def test_what_was_said_of_parts_stays_when_a_node_loses_a_gpu() -> None:
    found = fleet({"a": [share(0, 50), mig(7, "1g.10gb", 6)]}, offer=Offer(shared=EIGHT, parts_only=frozenset({2})))
    found.set_node("a", HGX.subset([0, 1, 2, 3]), range(4))
    assert found.free("a") == {1, 3}
    assert only(first(found, HALF)) == share(0, 50)
    found.set_node("a", HGX, EIGHT)
    assert found.free("a") == EIGHT - {0, 2}  # what was on the lost one must be told again


def test_unknown_gpus_are_refused() -> None:
    found = fleet({"a": []})
    with pytest.raises(UnknownGpuError, match="has no GPU 8"):
        found.set_offer("a", Offer(shared=frozenset({8})))
    with pytest.raises(UnknownGpuError, match="has no GPU 9"):
        found.set_parts("a", {9: [share(0, 50)]})
