"""A word is at work wherever it has to be: in its pod's note, in the choice, in what people and the scheduler are told.

Each of these places is another module's; whoever adds a word and forgets one is told here which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import msgspec
import pytest

from dradriver.allocator.choice import phrases
from dradriver.allocator.choice.machine_choice import choose
from dradriver.allocator.fleet.node_group import NodeGroup, group_key
from dradriver.allocator.parts import part_phrases as phrases_of_parts
from dradriver.allocator.request import Amount, Mig, NoPlaceError, Request, Share, Whole
from dradriver.allocator.sets.tables import tables_of
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.claims import claim_builder
from dradriver.api.pod import claim_alternatives, resolved
from dradriver.api.pod.annotations import Annotations
from dradriver.api.pod.resolved import Resolved
from dradriver.api.vocabulary import annotation_words, values
from dradriver.api.vocabulary.annotation_words import About, Word
from dradriver.kube.resources import RESOURCE_CLAIMS
from dradriver.topology.machine import Machine
from tests.fakes import machines
from tests.fakes.gpucluster import GpuCluster
from tests.unit.api.test_annotation_words import TAKEN

# Of words that are no field of a request or a gang: where in the note their value is.
ELSEWHERE: Final[dict[str, Callable[[Resolved], Any]]] = {
    names.GPUS: lambda noted: noted.request.gpus,  # type: ignore[union-attr]
    names.SHARE: lambda noted: noted.request.amounts[0].cores,  # type: ignore[union-attr]
    names.SHARE_CORES: lambda noted: noted.request.amounts[0].cores,  # type: ignore[union-attr]
    names.SHARE_MEMORY: lambda noted: noted.request.amounts[0].memory_mib,  # type: ignore[union-attr]
    names.MIG_PROFILE: lambda noted: noted.request.profiles[0][0],  # type: ignore[union-attr]
    names.POLICY: lambda noted: noted.request.required[0].value,  # type: ignore[union-attr]
    names.NCCL: lambda noted: noted.nccl or values.NCCL_AUTO,
    names.PLACEMENT: lambda noted: noted.placement or values.PLACED,
    names.WHEN_FULL: lambda noted: noted.when_full or values.WAIT,
    names.SPOT: lambda noted: noted.spot or values.ANY_NODE,
    names.SHARED_CLAIM: lambda noted: noted.shared,
    names.IDLE_TIMEOUT: lambda noted: noted.idle_timeout_s,
    names.ON_MEMBER_LOSS: lambda noted: values.REPLACE if noted.gang is msgspec.UNSET else noted.gang.on_member_loss,
}
# Other words stand in the place of a workload; which claim is the GPUs, and what ends it, is said in the pod itself.
NOT_NOTED: Final = {names.WORKLOAD, names.CLAIM, names.MAX_DURATION}
# What notes had to say when version 2, and when version 3 was the newest: releases that know no later one are at work.
SAID_SINCE: Final = {
    2: {
        "strategy", "product", "architecture", "min_memory_mib", "required", "preferred", "min_bandwidth_gbps",
        "min_busbw_gbps", "max_cross_nvswitch_gpus", "prefer_same_numa",
    },
    3: {"min_driver", "min_cuda"},
}  # fmt: skip
# These say what is taken first of all that may be taken: nothing is refused for them.
WISHES: Final = {"strategy", "preferred", "prefer_same_numa"}
DEMANDS: Final = [word for word in annotation_words.OF_REQUESTS if word.field not in WISHES]
OF_GPUS: Final = [word for word in DEMANDS if word.about is About.GPU]
# A machine that says nothing of itself but which GPUs it has: no demand can be met by it.
SILENT: Final = Machine(
    name="silent",
    gpus=tuple(
        msgspec.structs.replace(gpu, product="", compute_capability="", memory_mib=0) for gpu in machines.dgx1().gpus
    ),
    links=machines.dgx1().links,
    paths=machines.dgx1().paths,
)


def name(word: Word) -> str:
    return word.name


def text_of(word: Word) -> str:
    """Return a text by which the word says something else than who does not say it."""
    default = getattr(Whole(containers=()), word.field)
    return next(text for text in word.choices or (TAKEN[word.key],) if word.read(word.key, text) not in (default, ()))


def resolve(word: Word, text: str) -> Resolved:
    """Return the note of a pod that says one word."""
    return resolved.resolve(Annotations({word.key: text}), {"main": 1 if word.about is About.PART else 4})


def asking(word: Word, plain: Request) -> Request:
    """Return a request with a word's value."""
    changes: dict[str, Any] = {word.field: word.read(word.key, text_of(word))}
    return msgspec.structs.replace(plain, **changes)


SAYING: Final = [
    pytest.param(word, text, id=f"{word.name}={text}")
    for word in annotation_words.EVERY
    if word.key not in NOT_NOTED
    for text in word.choices or (TAKEN[word.key],)
]


@pytest.mark.parametrize(("word", "text"), SAYING)
def test_what_a_word_says_is_read_out_of_the_note(word: Word, text: str) -> None:
    noted = resolve(word, text)
    found = resolved.read({names.REQUEST: resolved.write(noted)})
    assert found == noted
    if word.key in ELSEWHERE:
        value = ELSEWHERE[word.key](found)
    else:
        value = getattr(found.gang if word.about is About.GANG else found.request, word.field)
    assert value == word.read(word.key, text)


@pytest.mark.parametrize("word", annotation_words.OF_REQUESTS, ids=name)
def test_a_word_that_older_controllers_do_not_know_has_a_version_that_they_refuse(word: Word) -> None:
    older = {field: since for since, fields in SAID_SINCE.items() for field in fields}
    assert word.since == older.get(word.field, word.since)
    assert word.field in older or word.since > max(SAID_SINCE), "since the version after the newest"
    assert resolve(word, text_of(word)).version == max(resolved.VERSION, word.since)


@pytest.mark.parametrize("kind", [4, Amount(cores=50), ("1g.10gb",)], ids=["whole", "share", "mig"])
def test_a_note_says_nothing_new_of_a_pod_that_does_not_say_a_new_word(kind: Any) -> None:
    """Older controllers refuse a note with a field that they do not know: pods would wait over a rollback."""
    noted = resolved.resolve(Annotations({}), {"main": kind})
    asked = {"kind", "containers", "amounts", "profiles", "include", "exclude", "weights"}
    plain = msgspec.json.decode(resolved.write(noted))
    assert plain.keys() == {"version", "containers", "request"}
    assert plain["request"].keys() <= asked.union(*SAID_SINCE.values())
    assert plain["version"] == resolved.VERSION


@pytest.fixture
def _cuda_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it be the next version of notes that first says ``min-cuda``."""
    of_cuda = annotation_words.BY_KEY[names.MIN_CUDA]
    others = [word for word in annotation_words.OF_REQUESTS if word is not of_cuda]
    next_one = msgspec.structs.replace(of_cuda, since=resolved.NEWEST + 1)
    monkeypatch.setattr(annotation_words, "OF_REQUESTS", (*others, next_one))
    monkeypatch.setitem(annotation_words.BY_KEY, names.MIN_CUDA, next_one)
    monkeypatch.setattr(resolved, "NEWEST", next_one.since)


@pytest.mark.usefixtures("_cuda_comes_next")
@pytest.mark.parametrize("said", [False, True])
def test_a_field_that_comes_next_is_in_the_notes_that_say_it_alone(said: bool) -> None:
    noted = resolved.resolve(Annotations({names.MIN_CUDA: "12.4"} if said else {}), {"main": 4})
    text = resolved.write(noted)
    assert ("min_cuda" in text, noted.version == resolved.NEWEST) == (said, said)
    assert resolved.read({names.REQUEST: text}) == noted


@pytest.mark.usefixtures("_cuda_comes_next")
@pytest.mark.looptime
async def test_a_field_that_comes_next_is_not_in_shared_claims_that_do_not_say_it() -> None:
    cluster = GpuCluster()
    cluster.node("a")
    cluster.pod("p", 4, wishes={"shared-claim": "duo"})
    await cluster.settle()
    claim = cluster.find(RESOURCE_CLAIMS, "duo", "default")
    assert claim is not None
    text = claim["metadata"]["annotations"][names.SET]
    assert "min_cuda" not in text
    assert claim_builder.read_set(text) == Whole(containers=(4,))


ONE: Final = Whole(containers=(1,))
PLAIN: Final = (
    ONE,
    Share(amounts=(Amount(cores=50, memory_mib=1024),)),
    Mig(profiles=(("1g.10gb",),)),
)


@pytest.mark.parametrize("plain", PLAIN, ids=lambda plain: type(plain).__name__)
@pytest.mark.parametrize("word", OF_GPUS, ids=name)
def test_what_a_word_demands_of_each_gpu_a_node_that_says_nothing_does_not_have(word: Word, plain: Request) -> None:
    group = NodeGroup(tables_of(SILENT), SILENT, key=group_key(SILENT))
    assert group.suitable(plain) == 0xFF
    assert group.suitable(asking(word, plain)) == 0


@pytest.mark.parametrize("word", OF_GPUS, ids=name)
def test_what_a_word_demands_of_each_gpu_a_machine_that_says_nothing_does_not_have(word: Word) -> None:
    choose(SILENT, range(8), ONE)
    with pytest.raises(NoPlaceError):
        choose(SILENT, range(8), cast("Whole", asking(word, ONE)))


def wanted(request: Request) -> str:
    return phrases.wanted(request) if isinstance(request, Whole) else phrases_of_parts.wanted(request)


@pytest.mark.parametrize("plain", PLAIN, ids=lambda plain: type(plain).__name__)
@pytest.mark.parametrize("word", DEMANDS, ids=name)
def test_what_a_word_demands_is_told_to_people(word: Word, plain: Request) -> None:
    if word.about is About.GPU or isinstance(plain, Whole):
        assert wanted(asking(word, plain)) != wanted(plain)


def spec(request: Request) -> object:
    return claim_alternatives.spec(Resolved(containers=("main",), request=request))


@pytest.mark.parametrize("plain", [Whole(containers=(4,)), PLAIN[1]], ids=lambda plain: type(plain).__name__)
@pytest.mark.parametrize("word", DEMANDS, ids=name)
def test_what_a_word_demands_is_told_to_the_scheduler_or_refused(word: Word, plain: Request) -> None:
    if word.about is About.GPU or isinstance(plain, Whole):
        try:
            assert spec(asking(word, plain)) != spec(plain)
        except WordError as refusal:
            assert word.name in str(refusal)
