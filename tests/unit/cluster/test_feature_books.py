"""The books of features are told of claims and pods that concern them, until what these have is given back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dradriver.allocator.request import Choice, Level
from dradriver.api.base import names
from dradriver.api.base.objects import Metadata, Node
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Claim, Key
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.cache.feature_books import Book, FeatureBooks
from dradriver.cluster.records import records
from dradriver.cluster.records.placement import Placement
from dradriver.cluster.records.records import ChannelSlice, ClaimRecord
from dradriver.kube.reflector import Change
from tests.fakes import domains
from tests.fakes.gpucluster import claim_of
from tests.fakes.nics import DRANET

Object = dict[str, Any]
CLAIM, OWN, POD = ("default", "theirs"), ("default", claim_of("p")), ("default", "p")
NIC = DRANET, "a", "pci-0000-18-00-0"


def cache() -> Picture:
    """Return a cluster cache with one node that has a channel of multi-node NVLink."""
    made = Picture(lambda _: None, lambda: None)
    made.node_changed(Change(("", "a"), None, Node(metadata=Metadata(name="a"))))
    made.channels_changed(Change(("", "s"), None, ChannelSlice(Metadata(name="s"), "a")))
    return made


def record(*results: Object) -> ClaimRecord:
    """Return what is kept of a claim that was given this."""
    obj: Object = {"metadata": {"name": CLAIM[1], "namespace": CLAIM[0], "uid": "u"}}
    if results:
        obj["status"] = {"allocation": {"devices": {"results": list(results)}}}
    return records.claim_record(msgspec.json.decode(json.dumps(obj), type=Claim))


def result(driver: str, device: str) -> Object:
    return {"request": "r", "driver": driver, "pool": "a", "device": device}


def placement(*nics: str) -> Placement:
    """Return a placement on the node, with these NICs."""
    choice = Choice(
        node="a", gpus=(), containers=(), ring=(), busbw_gbps=0.0, bandwidth_gbps=0.0, level=Level.NVLINK, score=0
    )
    return Placement(choice=choice, hostnames={}, uuids={}, texts={}, nics={"nic": nics} if nics else {})


CHANNEL = record(result(domains.DRIVER, "channel-0"))
CARD = record(result(DRANET, NIC[2]))


def has_channel(picture: Picture) -> bool:
    return not picture.nodes.channels().any()


def has_card(picture: Picture) -> bool:
    return picture.nics.held(CLAIM) == {NIC}


def test_a_book_is_told_of_what_concerns_it_and_of_nothing_else() -> None:
    users, told = {CLAIM}, list[tuple[str, Key]]()

    def book(name: str) -> Book:
        return Book(users.__contains__, lambda key: told.append((name, key)))

    books = FeatureBooks(of_claims=(book("first"), book("second")), of_pods=(book("pods"),))
    for key in (CLAIM, POD):
        books.recount_claim(key)
        books.recount_pod(key)
    assert told == [("first", CLAIM), ("second", CLAIM), ("pods", CLAIM)]


@pytest.mark.parametrize(("given", "has"), [(CHANNEL, has_channel), (CARD, has_card)], ids=["channel", "NIC"])
@pytest.mark.parametrize("after", [None, record()], ids=["gone", "given nothing"])
def test_what_a_claim_gives_back_is_free(
    given: ClaimRecord, has: Callable[[Picture], bool], after: ClaimRecord | None
) -> None:
    picture = cache()
    assert not has(picture)
    picture.claim_changed(Change(CLAIM, None, given))
    assert has(picture)
    picture.claim_changed(Change(CLAIM, given, given))
    assert has(picture), "the same once more"
    picture.claim_changed(Change(CLAIM, given, after))
    assert not has(picture)


@pytest.mark.parametrize(
    ("before", "after", "has", "had"),
    [(CHANNEL, CARD, has_card, has_channel), (CARD, CHANNEL, has_channel, has_card)],
    ids=["NIC", "channel"],
)
def test_a_claim_can_change_from_one_feature_to_another(
    before: ClaimRecord, after: ClaimRecord, has: Callable[[Picture], bool], had: Callable[[Picture], bool]
) -> None:
    picture = cache()
    picture.claim_changed(Change(CLAIM, None, before))
    picture.claim_changed(Change(CLAIM, before, after))
    assert has(picture)
    assert not had(picture)


def test_nics_that_a_claim_was_to_get_are_free_if_it_is_not_created() -> None:
    picture = cache()
    picture.promise(CLAIM, POD, placement("0000:18:00.0"))
    assert picture.nics.held(CLAIM) == {("a", "0000:18:00.0")}
    picture.release(CLAIM)
    assert not picture.nics.held(CLAIM)


def pod(template: str, *, phase: str = "Running", node: str = "a") -> Pod:
    own = {"name": names.POD_CLAIM, "resourceClaimName": OWN[1]}
    obj = {
        "metadata": {"name": POD[1], "namespace": POD[0], "uid": "p"},
        "spec": {"nodeName": node, "resourceClaims": [own, domains.entry(template)]},
        "status": {"phase": phase},
    }
    return msgspec.json.decode(json.dumps(obj), type=Pod)


@pytest.mark.parametrize("after", [None, pod("t", phase="Succeeded"), pod("other")], ids=["gone", "ended", "another"])
def test_the_channel_of_a_pod_is_free_once_the_pod_does_not_need_it(after: Pod | None) -> None:
    picture, template = cache(), domains.template("t", "d")
    known = records.known_template(msgspec.Raw(json.dumps(template).encode()))
    picture.template_changed(Change(("default", "t"), None, known))
    picture.pod_changed(Change(POD, None, pod("t")))
    assert has_channel(picture)
    picture.pod_changed(Change(POD, pod("t"), after))
    assert not has_channel(picture)


@pytest.mark.parametrize("is_read", [False, True], ids=["shown", "read"])
def test_the_channel_of_a_waiting_pod_follows_its_template(is_read: bool) -> None:
    picture, key = cache(), ("default", "t")
    template = records.read_template(msgspec.Raw(json.dumps(domains.template("t", "d")).encode()))
    picture.pod_changed(Change(POD, None, pod("t", node="")))
    picture.promise(OWN, POD, placement())
    assert not has_channel(picture), "nobody knows what its template asks for"
    picture.template_changed(Change(key, None, template))
    assert has_channel(picture)
    if is_read:
        picture.template_read(key, None)
    else:
        picture.template_changed(Change(key, template, None))
    assert not has_channel(picture)


def test_the_channel_of_a_running_pod_follows_its_template() -> None:
    picture, key = cache(), ("default", "t")
    template = records.known_template(msgspec.Raw(json.dumps(domains.template("t", "d")).encode()))
    picture.pod_changed(Change(POD, None, pod("t")))
    assert not has_channel(picture), "nobody knows what its template asks for"
    picture.template_changed(Change(key, None, template))
    assert has_channel(picture)
    picture.template_changed(Change(key, template, None))
    assert not has_channel(picture)
