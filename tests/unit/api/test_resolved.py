"""The note of the resolved request: what the webhook writes is read back, and what it never writes is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.allocator.request import Amount, Constraint, Mig, Request, Share, Strategy, Weights
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.gangs.gang_annotations import Gang
from dradriver.api.pod import resolved
from dradriver.api.pod.annotations import Annotations
from dradriver.api.pod.resolved import Resolved
from dradriver.api.policies.policy_sections import Policies
from dradriver.api.vocabulary import values
from dradriver.api.vocabulary.values import Near

GOOD = resolved.resolve(Annotations({names.POLICY: "nvlink,pack", names.MIN_MEMORY: "40Gi"}), {"main": 2, "side": 1})


def test_a_note_is_read_back() -> None:
    assert resolved.read({names.REQUEST: resolved.write(GOOD)}) == GOOD


def test_a_note_is_plain_json_with_its_version() -> None:
    plain = msgspec.json.decode(resolved.write(GOOD))
    assert (plain["version"], plain["containers"]) == (2, ["main", "side"])
    assert (plain["request"]["kind"], plain["request"]["required"]) == ("whole", ["nvlink"])


def test_a_note_with_every_field_is_read_as_one_without_defaults() -> None:
    """Commit f73f0e72 wrote the fields that have their defaults, too."""
    written = (
        '{"version":2,"containers":["c0"],"request":{"kind":"whole","strategy":"best-fit","product":"","architecture":"",'
        '"min_memory_mib":0,"min_driver":"","min_cuda":"","containers":[4],"required":["nvlink"],"preferred":[],'
        '"min_bandwidth_gbps":0.0,"min_busbw_gbps":0.0,"include":[],"exclude":[],"max_cross_nvswitch_gpus":null,'
        '"prefer_same_numa":false,"weights":{"nvlink":40,"pcie":25,"numa":20,"memory":10,"power":5}}}'
    )
    now = resolved.write(resolved.resolve(Annotations({names.POLICY: "nvlink"}), {"c0": 4}))
    assert now == '{"version":2,"containers":["c0"],"request":{"kind":"whole","containers":[4],"required":["nvlink"]}}'
    assert resolved.read({names.REQUEST: written}) == resolved.read({names.REQUEST: now})


@pytest.mark.parametrize("word", [names.MIN_DRIVER, names.MIN_CUDA])
def test_a_request_that_older_releases_would_read_past_has_a_version_that_they_refuse(word: str) -> None:
    """They know versions 1 and 2, and skipped members of a request that they had never heard of."""
    found = resolved.resolve(Annotations({word: "12.4"}), {"main": 2})
    assert found.version == 3
    assert resolved.read({names.REQUEST: resolved.write(found)}) == found
    before = msgspec.structs.replace(found, version=2)
    assert resolved.read({names.REQUEST: resolved.write(before)}) == before


def test_a_request_with_something_of_a_later_release_is_refused() -> None:
    note = resolved.write(GOOD).replace('"kind":"whole"', '"kind":"whole","min_pcie":5')
    with pytest.raises(WordError, match="unknown field `min_pcie`"):
        resolved.read({names.REQUEST: note})


@pytest.mark.parametrize(
    "request_",
    [
        Share(amounts=(Amount(cores=50), Amount(memory_mib=10240)), product="NVIDIA A100*"),
        Mig(profiles=(("1g.10gb", "3g.40gb"), ("1g.10gb+me",)), strategy=Strategy.PACK),
    ],
)
def test_a_note_of_parts_is_read_back(request_: Request) -> None:
    noted = Resolved(containers=("main", "side"), request=request_)
    assert resolved.read({names.REQUEST: resolved.write(noted)}) == noted


GANG = {
    names.GANG: "auto",
    names.GANG_SIZE: "16",
    names.MULTI_NODE_POLICY: "pack",
    names.MAX_NODES: "2",
    names.MIN_GPUS_PER_NODE: "4",
    names.MIN_NETWORK_BANDWIDTH: "12.5GB/s",
}


def test_what_is_said_of_a_gang_is_noted_and_not_asked() -> None:
    found = resolved.resolve(Annotations(GANG), {"main": 4})
    assert found.gang == Gang(
        name="auto", pods=16, strategy=Strategy.PACK, max_nodes=2, min_gpus_per_node=4, min_network_gbps=12.5
    )
    assert resolved.read({names.REQUEST: resolved.write(found)}) == found
    assert found.request == resolved.resolve(Annotations({}), {"main": 4}).request
    assert "gang" not in resolved.write(GOOD)


@pytest.mark.parametrize(
    ("text", "size", "noted"),
    [("8", (8, 8), 8), ("4-8", (4, 8), [4, 8]), (" 8-8 ", (8, 8), 8), ("1-9999", (1, 9999), [1, 9999])],
)
def test_a_gang_may_start_with_fewer_pods(text: str, size: tuple[int, int], noted: object) -> None:
    found = resolved.resolve(Annotations({names.GANG_SIZE: text}), {"main": 4})
    assert found.gang is not msgspec.UNSET
    assert found.gang.size == size
    assert msgspec.json.decode(resolved.write(found))["gang"] == {"pods": noted}
    assert resolved.read({names.REQUEST: resolved.write(found)}) == found


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("leaf", Near(level="leaf")),
        ("required  leaf", Near(level="leaf")),
        ("preferred rack-a", Near(level="rack-a", preferred=True)),
    ],
)
def test_a_level_of_the_network_is_required_unless_it_says_otherwise(text: str, near: Near) -> None:
    found = resolved.resolve(Annotations({names.NEAR: text}), {"main": 4})
    assert found.gang == Gang(near=near)
    assert resolved.read({names.REQUEST: resolved.write(found)}) == found


@pytest.mark.parametrize("word", [{names.GANG_SIZE: "4-8"}, {names.NEAR: "leaf"}, {names.ON_MEMBER_LOSS: "restart"}])
def test_a_controller_that_is_older_refuses_what_it_would_read_past(
    word: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    note = {names.REQUEST: resolved.write(resolved.resolve(Annotations(word), {"main": 4}))}
    monkeypatch.setattr(resolved, "NEWEST", 3)
    with pytest.raises(WordError, match="its version is 4, and this release reads 2 to 3"):
        resolved.read(note)


@pytest.mark.parametrize(("text", "seconds"), [("30m", 1800), ("1h30m", 5400), ("90s", 90), ("48h", 172_800)])
def test_how_long_gpus_may_be_idle_is_noted(text: str, seconds: int) -> None:
    found = resolved.resolve(Annotations({names.IDLE_TIMEOUT: text}), {"main": 4})
    assert found.idle_timeout_s == seconds
    assert resolved.read({names.REQUEST: resolved.write(found)}) == found
    assert "idle" not in resolved.write(GOOD)
    policies = Policies(policies={"notebook": {"idle-timeout": text}})
    by_policy = resolved.resolve(Annotations({names.POLICY: "notebook"}, policies), {"main": 4})
    assert by_policy.idle_timeout_s == seconds
    own = {names.POLICY: "notebook", names.IDLE_TIMEOUT: "7h"}
    assert resolved.resolve(Annotations(own, policies), {"main": 4}).idle_timeout_s == 7 * 3600


@pytest.mark.parametrize(
    ("key", "text", "told"),
    [
        (names.GANG, "Train", "'Train' is not the name of a gang. Write lower-case letters, digits and -"),
        (names.GANG_SIZE, "0", "'0' is not a number of pods. Write a whole number from 1 to 9999"),
        (
            names.GANG_SIZE,
            "8-4",
            "'8-4' is not a number of pods. Write a whole number from 1 to 9999, or a range such as 4-8",
        ),
        (names.NEAR, "preferred", "'preferred' is not a network level. Write the level's name, for example leaf"),
        (names.NEAR, "leaf spine", "'leaf spine' is not a network level"),
        (names.ON_MEMBER_LOSS, "stop", "'stop' is not allowed. Write one of: replace, restart"),
        (
            names.MULTI_NODE_POLICY,
            "packed",
            "'packed' is not a strategy. Write one of: best-fit, pack, spread, first-fit",
        ),
        (names.MAX_NODES, "two", "'two' is not a count"),
        (names.MIN_GPUS_PER_NODE, "33", "'33' is not a number of GPUs"),
        (names.MIN_NETWORK_BANDWIDTH, "100Gbit", "'100Gbit' is not a bandwidth"),
    ],
)
def test_a_bad_word_of_a_gang_is_refused(key: str, text: str, told: str) -> None:
    with pytest.raises(WordError) as refusal:
        resolved.resolve(Annotations({key: text}), {"main": 1})
    assert str(refusal.value).startswith(f"{key}: {told}")


def test_a_gang_or_a_product_that_was_not_named_is_refused() -> None:
    noted = resolved.resolve(Annotations(GANG), {"main": 4}, product="*A10")
    assert resolved.read({names.REQUEST: resolved.write(noted)}) == noted
    for change in (
        {"gang": Gang(max_nodes=0)},
        {"gang": Gang(name="a/b")},
        {"gang": Gang(pods=0)},
        {"gang": Gang(pods=(8, 4))},
        {"gang": Gang(pods=(4, 4))},
        {"gang": Gang(near=Near(level="a/b"))},
        {"gang": Gang(on_member_loss="stop")},
        {"gang": Gang(min_gpus_per_node=33)},
        {"gang": Gang(min_network_gbps=-1)},
        {"product": "*L4"},
        {"product": ""},
        {"idle_timeout_s": 0},
    ):
        changed = resolved.write(msgspec.structs.replace(noted, **change))
        with pytest.raises(WordError, match="was changed"):
            resolved.read({names.REQUEST: changed})


@pytest.mark.parametrize(
    "request_",
    [
        Share(amounts=(Amount(), Amount(cores=1))),
        Share(amounts=(Amount(cores=101), Amount(cores=1))),
        Share(amounts=(Amount(cores=-1, memory_mib=1), Amount(cores=1))),
        Share(amounts=(Amount(memory_mib=values.MOST_MEMORY_MIB + 1), Amount(cores=1))),
        Share(amounts=(Amount(cores=1),)),
        Mig(profiles=(("1g.10gb",), ())),
        Mig(profiles=(("1g.10gb",), ("1g",))),
        Mig(profiles=(("1g.10gb",), (" 1g.10gb",))),
        Mig(profiles=(("1g.10gb",), ('1g.10gb" || true',))),
        Mig(profiles=(("1g.10gb",), ("1g.10gb",) * 32)),
        Mig(profiles=()),
    ],
)
def test_parts_that_no_words_give_are_refused(request_: Request) -> None:
    noted = Resolved(containers=("main", "side"), request=request_)
    with pytest.raises(WordError, match=r"was changed: .* Delete the pod and create it again"):
        resolved.read({names.REQUEST: resolved.write(noted)})


@pytest.mark.parametrize(("words", "said"), [({}, None), ({names.NCCL: "auto"}, None), ({names.NCCL: "off"}, "off")])
def test_what_nccl_is_told_is_noted_where_the_author_says_it(words: dict[str, str], said: str | None) -> None:
    note = resolved.write(resolved.resolve(Annotations(words), {"main": 1}))
    assert msgspec.json.decode(note).get("nccl") == said
    assert resolved.read({names.REQUEST: note}).nccl == (said or msgspec.UNSET)


def test_a_note_with_something_else_for_nccl_is_refused() -> None:
    note = resolved.write(GOOD).replace('"version":2', '"version":2,"nccl":"x\\n"')
    with pytest.raises(WordError, match="its NCCL setting is not valid"):
        resolved.read({names.REQUEST: note})


def test_a_missing_note_is_said() -> None:
    with pytest.raises(WordError, match=r"missing\. Delete the pod and create it again"):
        resolved.read({})


@pytest.mark.parametrize(
    "changes",
    [
        {"min_busbw_gbps": -1.0},
        {"min_memory_mib": -1},
        {"min_memory_mib": values.MOST_MEMORY_MIB + 1},
        {"max_cross_nvswitch_gpus": 100},
        {"product": "A100' || true"},
        {"architecture": "hop'per"},
        {"required": (Constraint.NVLINK,) * 5},
        {"include": (0,)},
        {"exclude": (7,)},
        {"weights": Weights(nvlink=1)},
    ],
)
def test_a_request_that_no_words_give_is_refused(changes: dict[str, Any]) -> None:
    note = resolved.write(msgspec.structs.replace(GOOD, request=msgspec.structs.replace(GOOD.request, **changes)))
    with pytest.raises(WordError, match=r"was changed: .* Delete the pod and create it again"):
        resolved.read({names.REQUEST: note})


@pytest.mark.parametrize(
    ("containers", "counts", "message"),
    [
        ((), (), "the containers in it are not"),
        (("main",), (), "the containers in it are not"),
        (("main", "main"), (2, 1), "the containers in it are not"),
        (("main",), (2, 1), "the containers in it are not"),
        (("main", "side"), (0, 3), "its number of GPUs"),
        (("main", "side"), (-1, 4), "its number of GPUs"),
        (("main",), (33,), "its number of GPUs"),
    ],
)
def test_counts_that_are_none_or_not_the_containers_are_refused(
    containers: tuple[str, ...], counts: tuple[int, ...], message: str
) -> None:
    request = msgspec.structs.replace(GOOD.request, containers=counts)
    note = resolved.write(msgspec.structs.replace(GOOD, containers=containers, request=request))
    with pytest.raises(WordError, match=message):
        resolved.read({names.REQUEST: note})


LATER = f'{{"version":{resolved.NEWEST + 1}}}'


@pytest.mark.parametrize("text", ["", "null", "[" * 100_000, "\ud800", "x" * 20_000, LATER, "1e999"])
def test_a_hostile_note_is_refused(text: str) -> None:
    with pytest.raises(WordError, match="create it again"):
        resolved.read({names.REQUEST: text})


def test_a_refusal_shows_little_of_a_hostile_note() -> None:
    with pytest.raises(WordError) as refusal:
        resolved.read({names.REQUEST: '{"' + "\\n\u202e" * 2000 + '":1}'})
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 300


@given(st.text(max_size=200))
def test_any_note_is_read_or_refused(text: str) -> None:
    try:
        found = resolved.read({names.REQUEST: text})
    except WordError as refusal:
        assert names.REQUEST in str(refusal)
    else:
        assert isinstance(found, Resolved)


@pytest.mark.parametrize("words", [{}, {names.GANG: "a", names.GANG_SIZE: "2"}, {names.IDLE_TIMEOUT: "30m"}])
@pytest.mark.parametrize("indent", [-1, 0, 2])
def test_rare_fields_are_those_that_a_note_has(words: dict[str, str], indent: int) -> None:
    found = resolved.resolve(Annotations(words), {"main": 4})
    rare = resolved.rare({names.REQUEST: msgspec.json.format(resolved.write(found), indent=indent)})
    for field in resolved.Rare.__struct_fields__:
        assert (getattr(rare, field) is msgspec.UNSET) is (getattr(found, field) is msgspec.UNSET)


@given(st.text(max_size=200) | st.sampled_from(["", "null", "[]", "[" * 100_000, '{"gang":', "x" * 20_000, LATER]))
def test_no_note_is_refused_for_its_rare_fields(text: str) -> None:
    resolved.rare({})
    resolved.rare({names.REQUEST: text})
