"""Who has which NICs: allocations, promises over the end of a controller, and the audit of the books."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dradriver.cluster.nics.nic_devices import read_slice
from dradriver.kube.reflector import Change
from dradriver.kube.resources import RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.fakes import nics
from tests.fakes.gpucluster import Killed, claim_of
from tests.fakes.nic_pods import NEAREST, a_cluster, addresses, given, gpus, pod, run, template, wanted
from tests.fakes.nics import DRANET
from tests.kept import lose_one_by_one

Object = dict[str, Any]


async def test_what_is_allocated_counts_with_any_later_slice() -> None:
    """A NIC that is in a pod may lose its addresses and names; it may even leave the slice for a while."""
    cluster = a_cluster()
    machine = cluster.machines["a"]
    taken = {"driver": DRANET, "pool": "a", "device": "pci-0000-18-00-0", "request": "nic"}
    given_to = {"allocation": {"devices": {"results": [taken]}}}
    template(cluster, gpus(count=8), wanted("nic", 8))
    pod(cluster)
    cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": "theirs", "namespace": "other"}, "status": given_to})
    devices = nics.of_machine(machine)
    for now in (devices, devices[1:], devices):
        cluster.put(RESOURCE_SLICES, nics.published("a", now))
        await cluster.settle()
        assert cluster.claim("p") is None
    cluster.remove(RESOURCE_CLAIMS, "theirs", "other")
    await run(cluster)
    assert len(given(cluster)) == 8


async def test_monitoring_and_a_nic_without_an_address_take_nothing() -> None:
    cluster = a_cluster()
    watched = {"driver": DRANET, "pool": "a", "device": "pci-0000-18-00-0", "request": "nic", "adminAccess": True}
    given_to = {"allocation": {"devices": {"results": [watched]}}}
    cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": "theirs", "namespace": "other"}, "status": given_to})
    template(cluster, gpus(count=8), wanted("nic", 8))
    pod(cluster)
    await run(cluster)
    assert len(given(cluster)) == 8


async def test_a_new_controller_reads_the_promise_out_of_the_claim() -> None:
    cluster = a_cluster()
    template(cluster, gpus(count=2), wanted("nic", 4))
    pod(cluster)
    await cluster.settle()
    promised = addresses(cluster)
    cluster.restart()
    pod(cluster, "q")
    await cluster.settle()
    assert addresses(cluster) == promised
    assert not set(addresses(cluster, "q")) & set(promised)


@pytest.mark.parametrize("kill_at", [1, 2, 3, -1, -2])
async def test_a_claim_that_a_killed_controller_left_is_kept_with_its_nics(kill_at: int) -> None:
    cluster = a_cluster()
    template(cluster, gpus(count=2), wanted("nic", 2))
    pod(cluster)
    cluster.client.kill_at = kill_at
    with pytest.raises((Killed, BaseExceptionGroup)):
        await cluster.settle()
    left = cluster.claim("p")
    cluster.restart()
    await run(cluster)
    now = cluster.claim("p")
    assert now is not None
    assert left is None or now["metadata"]["uid"] == left["metadata"]["uid"]
    assert (left is None) == (kill_at in (1, 2, -1)), "the reason comes first, then the claim"
    assert len(given(cluster)) == 2


async def test_a_promise_ends_at_once_when_others_got_its_nic() -> None:
    cluster = a_cluster()
    template(cluster, gpus(), wanted())
    pod(cluster)
    await cluster.settle()
    (lost,) = addresses(cluster)
    device = f"pci-{lost.replace(':', '-').replace('.', '-')}"
    taken = {"driver": DRANET, "pool": "a", "device": device, "request": "nic"}
    given_to = {"allocation": {"devices": {"results": [taken]}}}
    cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": "theirs", "namespace": "other"}, "status": given_to})
    await run(cluster)
    cluster.collect()
    await run(cluster)
    assert addresses(cluster) != [lost]
    assert given(cluster)


@pytest.mark.parametrize(
    "harm",
    [
        lambda nics: nics.hold(("default", claim_of("p")), ()),
        lambda nics: nics.hold(("default", "ghost"), [("a", NEAREST[7])]),
    ],
)
async def test_the_audit_puts_the_book_of_nics_right(harm: Callable[[Any], object]) -> None:
    cluster = a_cluster()
    template(cluster, gpus(count=2), wanted("nic", 2))
    pod(cluster)
    await run(cluster)
    harm(cluster.worker.picture.nics)
    assert await cluster.audit() == 1
    assert await cluster.audit() == 0
    pod(cluster, "q")
    await run(cluster)
    assert not set(addresses(cluster, "p")) & set(addresses(cluster, "q"))


async def test_the_audit_puts_right_what_the_accounting_of_nics_has_lost() -> None:
    cluster = a_cluster()
    template(cluster, gpus(count=2), wanted("nic", 2))
    pod(cluster)
    await run(cluster)
    chosen = addresses(cluster)
    accounting, audits = cluster.worker.picture.nics, list[int]()
    for key in (("default", claim_of("p")), ("a", chosen[0])):
        for _ in lose_one_by_one(accounting, key):
            audits += [await cluster.audit(), await cluster.audit()]
            assert not {nic.address for nic in accounting.free("a")} & set(chosen)
    assert audits
    assert audits == [1, 0] * (len(audits) // 2)
    pod(cluster, "q")
    await run(cluster)
    assert not set(chosen) & set(addresses(cluster, "q"))


async def test_the_audit_puts_slices_of_nics_right() -> None:
    cluster = a_cluster("a", "b")
    template(cluster, gpus(), wanted())
    pod(cluster)
    await run(cluster)
    picture, shown = cluster.worker.picture, nics.published("a", nics.of_machine(cluster.machines["a"]))
    key = "", shown["metadata"]["name"]
    piece = read_slice(msgspec.Raw(json.dumps(shown).encode()))
    assert piece is not None
    picture.nics_changed(Change(key, piece, None))  # as if an event had been misread
    assert (await cluster.audit(), await cluster.audit()) == (1, 0)
    picture.nics_changed(Change(key, piece, msgspec.structs.replace(piece, nics=piece.nics[:1])))
    cluster.remove(RESOURCE_SLICES, "b-dra.net")
    assert (await cluster.audit(), await cluster.audit()) == (2, 0)
    pod(cluster, "q", near_nic="required")
    pod(cluster, "r", near_nic="required")
    await run(cluster)
    assert {cluster.gpus(name)[0] for name in "qr"} == {"a"}
