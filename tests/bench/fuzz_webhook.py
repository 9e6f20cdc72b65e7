"""Words and damaged reviews for the webhook: ``python -m tests.bench.fuzz_webhook [--words N] [--reviews N]``.

Pods and workloads get drawn annotations, and real reviews of every path are damaged where their readers look. Whatever
is sent, the answer is checked as the API server would: a review of the same question, a patch that applies, texts that
are bounded and on one line, and a pod that the next call and, of some, Kubernetes' own schema accept.
"""

from __future__ import annotations

import argparse
import base64
import copy
import functools
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import jsonpatch
import kubernetes_validate
import msgspec

from dradriver.api.base import names
from dradriver.api.vocabulary import annotation_words as words_of_pods
from tests import schema
from tests.fakes.admission import CONTROLLER, Object
from tests.fakes.reviews import KINDS, Review, corpus, subjects
from webhook import review
from webhook.admission import POLICIES_PATH, Admission

WORDS, REVIEWS = 1_000_000, 200_000
AGAIN, VALIDATED = 20, 400  # of so many admitted pods one is sent again, one is held against the schema
MOST_ADDED: Final = 1 << 17  # bytes that a patch may bring: others' values are moved, never sent

_ODD: Final = (
    *("", " ", "0", "-1", "1e99", "NaN", "٣", "²", "0x10", "9" * 300, "true", "True", "1,2", ",", "\n", "\0", "\u202e"),
    *("a" * 257, "[" * 300, "{", '{"version":1}', "nvlink,", "nvlink,pack", "a=b", "../..", "*", "%s", "\U0001d7d9"),
)  # fmt: skip
_RUNGS: Final = (
    *("nvlink", "linked", "same-numa", "same-pcie-root", "same-pcie-switch", "nvlink-domain", "nvlink,same-numa"),
)
_VALUES: Final[dict[str, Sequence[str]]] = {
    names.POLICY: ("nvlink", "linked", "single-numa", "pcie", "best-effort", "nvlink,pack"),
    names.REQUIRED: _RUNGS,
    names.PREFERRED: _RUNGS,
    names.ALIAS_PREFIX + "required": _RUNGS,
    names.ALIAS_PREFIX + "preferred": _RUNGS,
    names.REQUIRE_NVLINK: ("true", "false"),
    names.GPUS: ("1", "2", "32"),
    names.STRATEGY: ("best-fit", "pack", "spread", "first-fit"),
    names.MIN_BANDWIDTH: ("100", "100GB/s", "0.5"),
    names.MIN_BUSBW: ("100", "40GB/s"),
    names.PRODUCT: ("*H100*", "NVIDIA-A100-SXM4-40GB"),
    names.ARCHITECTURE: ("hopper", "volta"),
    names.MIN_MEMORY: ("40Gi", "80Gi"),
    names.MIN_DRIVER: ("580.95.05", "535"),
    names.MIN_CUDA: ("12.4", "13.0"),
    names.VENDOR: ("nvidia", "amd", "ascend"),
    names.MAX_CROSS_NVSWITCH: ("0", "4"),
    names.PREFER_SAME_NUMA: ("true", "false"),
    names.NEAR_NIC: ("required", "preferred"),
    names.SHARE: ("0.25", "0.5"),
    names.SHARE_MEMORY: ("10Gi", "512Mi"),
    names.SHARE_CORES: ("25", "100"),
    names.MIG_PROFILE: ("1g.10gb", "3g.40gb"),
    names.NCCL: ("auto", "file", "env", "near-nics", "off"),
    names.WORKLOAD: ("tensor-parallel", "inference"),
    names.GANG: ("g", "team-a"),
    names.GANG_SIZE: ("2", "4", "2-4"),
    names.NEAR: ("leaf", "preferred leaf"),
    names.ON_MEMBER_LOSS: ("replace", "restart"),
    names.MULTI_NODE_POLICY: ("pack", "spread"),
    names.MAX_NODES: ("2",),
    names.MIN_GPUS_PER_NODE: ("2", "4"),
    names.MIN_NETWORK_BANDWIDTH: ("100Gbps", "100"),
    names.IDLE_TIMEOUT: ("30m", "1h30m"),
    names.SPOT: ("prefer", "avoid"),
    names.CLAIM: ("gpus", "gpu"),
    names.PLACEMENT: ("placed", "static"),
    names.WHEN_FULL: ("wait", "hand-over"),
    names.SHARED_CLAIM: ("duo", "gpus-abc"),
}
_ANY_VALUE: Final = (*_ODD, *{value for some in _VALUES.values() for value in some})
_KEYS: Final = tuple(dict.fromkeys((*_VALUES, *words_of_pods.KEYS)))  # a new word, too
_OTHER_KEYS: Final = (
    *(*names.NOTES, *names.RESULTS, names.PREFIX + "polici", names.PREFIX, names.PREFIX + "\n"),
    *("example.com/x", "gpu-topology.example.com/", names.PREFIX + "x" * 999),
)  # fmt: skip
_JUNK: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1.5, 10**30, "", "x", "\u202e\0\n", "9" * 5000, [], {}, [None], {"": None}, [[]], [{}]),
    *({"name": 3}, {"name": "x" * 70_000}, [{"name": "a"}, {"name": "a"}], "a/b~c", {"a/b~c": {"~1": []}}),
)  # fmt: skip


class Failure(Exception):  # noqa: N818 - it is what is looked for
    """An answer that the API server could not use."""


class _Status(msgspec.Struct, forbid_unknown_fields=True):
    status: str
    code: int
    reason: str
    message: str


class _Response(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    uid: str
    allowed: bool
    patch_type: str | None = None
    patch: str | None = None
    warnings: list[str] = []
    status: _Status | None = None


class _Answer(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    api_version: str
    kind: str
    response: _Response


_ANSWER = msgspec.json.Decoder(_Answer)
_ADMISSION = Admission(controller_user=CONTROLLER)


def checked(path: str, body: bytes, *, uid: str) -> tuple[_Response, list[Object]]:
    """Return the answer to a review with its patch.

    Raises:
        Failure: The API server could not use it.
    """
    answer = _ANSWER.decode(_ADMISSION.answer(path, body))
    response = answer.response
    if (answer.api_version, answer.kind, response.uid) != ("admission.k8s.io/v1", "AdmissionReview", uid):
        raise Failure("an answer to another question")
    said = [(warning, review.MOST_WARNING) for warning in response.warnings]
    if not response.allowed:
        if response.status is None or not response.status.message or response.patch is not None:
            raise Failure("refused without a reason, or with a patch")
        head, *details = response.status.message.split("\n")
        if details and (path != POLICIES_PATH or sum(map(len, details[:-1])) > review.MOST_DETAILS):
            raise Failure(f"details without bounds: {details}")
        said += [(line, review.MOST_MESSAGE) for line in (head, *details)]
    if len(response.warnings) > review.MOST_WARNINGS or any(
        len(text) > most or not text.isprintable() for text, most in said
    ):
        raise Failure(f"texts without bounds: {said}")
    if response.patch is None:
        return response, []
    if response.patch_type != "JSONPatch" or len(response.patch) > MOST_ADDED:
        raise Failure(f"a patch of {len(response.patch)} bytes, type {response.patch_type}")
    return response, msgspec.json.decode(base64.b64decode(response.patch))


def asked(given: Review, rng: random.Random) -> str:
    """Send a review that is JSON, check what becomes of its object, and return what became of it."""
    uid = f"{rng.getrandbits(64):x}"
    body = msgspec.json.encode(given.body(uid))
    response, ops = checked(given.path, body, uid=uid)
    if not response.allowed:
        return "refused"
    if not ops:
        return "unchanged"
    made = jsonpatch.apply_patch(given.new, ops)
    if given.kind == "Pod" and given.old is None and not rng.randrange(AGAIN):
        again = msgspec.structs.replace(given, new=made)
        second, more = checked(given.path, msgspec.json.encode(again.body(uid)), uid=uid)
        if not second.allowed:
            raise Failure(f"a pod that was admitted is refused the second time: {second.status}")
        jsonpatch.apply_patch(made, more)
    if (
        given.kind == "Pod"
        and not rng.randrange(VALIDATED)
        and not _complaint(given.new)
        and (wrong := _complaint(made))
    ):
        raise Failure(f"Kubernetes would refuse what was made: {wrong}")
    return "patched"


def _complaint(pod: Object) -> str:
    """Return what Kubernetes' own schema has against a pod; empty where it has nothing."""
    try:
        schema.check(pod | {"apiVersion": "v1", "kind": "Pod"}, minors=("1.36",))
    except kubernetes_validate.ValidationError as error:
        return str(error)
    return ""


def words(rng: random.Random) -> dict[str, str]:
    """Return annotations: mostly words of ours, mostly with values that they have."""
    made = {}
    odd = rng.choice((0.0, 0.05, 0.5))
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        key = rng.choice(_OTHER_KEYS) if rng.random() < odd else rng.choice(_KEYS)
        value = rng.choice(_VALUES.get(key, _ANY_VALUE) if rng.random() >= odd else _ANY_VALUE)
        if rng.random() < odd:
            at = rng.randint(0, len(value))
            value = value[:at] + rng.choice(_ANY_VALUE) + value[at + rng.randint(0, 2) :]
        made[key] = value
    return made


def damaged(given: Review, others: Sequence[Review], rng: random.Random) -> Review:
    """Return a review with one to four damages in its object or in the older one."""
    new, old = copy.deepcopy(given.new), copy.deepcopy(given.old)
    for _ in range(rng.choice((1, 1, 2, 4))):
        root = {"object": old if old is not None and rng.random() < 0.3 else new}
        holder, key = _place(root, rng)
        donor = rng.choice(others).new
        match rng.randrange(7):
            case 0:
                del holder[key]
            case 1 | 2:
                holder[key] = copy.deepcopy(rng.choice(_JUNK))
            case 3:
                from_, which = _place({"object": donor}, rng)
                holder[key] = copy.deepcopy(from_[which])
            case 4:
                holder[key] = _nested(holder[key], rng)
            case 5 if isinstance(holder, list):
                holder[key:key] = [copy.deepcopy(holder[key]) for _ in range(rng.choice((1, 3, 300)))]
            case _ if isinstance(holder, dict):
                from_, which = _place({"object": donor}, rng)
                holder[str(which)] = copy.deepcopy(from_[which])
        if root.get("object") is not new and root.get("object") is not old:
            new = root.get("object")
            break
    kind = rng.choice(KINDS) if rng.random() < 0.02 else given.kind
    return msgspec.structs.replace(given, new=new, old=old, kind=kind)


def _place(root: Any, rng: random.Random) -> tuple[Any, Any]:
    """Return a container of values below a root, and a key of it; the deep are as likely as the shallow."""
    holder, key = root, next(iter(root))
    while rng.random() < 0.85:
        inner = holder[key]
        if not isinstance(inner, dict | list) or not inner:
            break
        holder, key = inner, rng.choice(list(inner)) if isinstance(inner, dict) else rng.randrange(len(inner))
    return holder, key


def _nested(value: Any, rng: random.Random) -> Any:
    for _ in range(rng.choice((1, 5, 100))):
        value = [value] if rng.random() < 0.5 else {"spec": value}
    return value


_PIECES: Final = (
    *(b"\xff", b"\xed\xa0\x80", b"\0", b'"', b"{", b"}", b"[" * 2000, b"1e999", b"NaN", b"-", b":", b"\\"),
    b"\xef\xbb\xbf",
)  # fmt: skip
_IN_TEXTS: Final = (b"\\ud800", b"\\udfff\\ud800", b"\\u0000", b"\\u202e", b"\\n")
_MEMBERS: Final = (
    *(b'"uid":"other"', b'"spec":null', b'"metadata":{}', b'"annotations":{"a":"b"}', b'"name":1', b'"object":{}'),
    *(b'"operation":"UPDATE"', b'"containers":[]', b'"labels":{}', b'"limits":{"nvidia.com/gpu":1}'),
    *(b'"deep":' + b"[" * 3000 + b"]" * 3000, b'"deep":' + b'{"a":' * 3000 + b"1" + b"}" * 3000),
)  # fmt: skip


def sprinkled(body: bytes, rng: random.Random) -> bytes:
    """Return a body with damages below JSON: doubled members, surrogates, bytes that are no text, cuts."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randint(0, len(body))
        match rng.randrange(4):
            case 0 | 1:  # stands beside a member of that name, maybe
                at = body.find(b"{", at) + 1 or 1
                piece = rng.choice(_MEMBERS) + b"," * (body[at : at + 1] != b"}")
            case 2 if (found := body.find(b'":"', at)) >= 0:
                at, piece = found + 3, rng.choice(_IN_TEXTS)
            case _:
                piece = rng.choice(_PIECES)
        body = body[:at] + piece + body[at:]
    return body[: rng.randint(0, len(body))] if rng.random() < 0.05 else body


def send_words(rng: random.Random) -> str:
    """Draw one annotation set, send it, and return what became of it."""
    return asked(rng.choice(_SUBJECTS()).noted(words(rng)), rng)


def send_review(rng: random.Random) -> str:
    """Draw a review, damage and send it, and return what became of it."""
    every = _CORPUS()
    given = damaged(rng.choice(every), every, rng)
    if rng.random() < 0.75:
        return asked(given, rng)
    body = sprinkled(msgspec.json.encode(given.body("u")), rng)
    try:
        uid = review.decode(body).uid
    except review.ReviewError:
        try:
            _ADMISSION.answer(given.path, body)
        except review.ReviewError as error:
            if not str(error):
                raise Failure("no review, and nothing is said") from None
            return "no review"
    checked(given.path, body, uid=uid)
    return "answered, damaged below JSON"


_SUBJECTS, _CORPUS = functools.cache(subjects), functools.cache(corpus)
_SENT: Final = {"words": send_words, "reviews": send_review}


def run(what: str, count: int, seed: str) -> tuple[Counter[str], str]:
    """Send so many of one kind; return how they ended, and how the first failed that did, with what draws it again."""
    ends: Counter[str] = Counter()
    for number in range(count):
        drawn_by = f"{seed} {what} {number}"
        try:
            ends[_SENT[what](random.Random(drawn_by))] += 1
        except Exception as error:  # whatever it is, it is the defect that is looked for
            return ends, f"{type(error).__name__}: {str(error)[:2000]}\nrandom.Random({drawn_by!r})"
    return ends, ""


def main(arguments: Sequence[str]) -> int:
    """Run and print how each kind ended; return 1 where something failed."""
    options = argparse.ArgumentParser(prog="python -m tests.bench.fuzz_webhook")
    options.add_argument("--words", type=int, default=WORDS, help="annotation sets (%(default)s)")
    options.add_argument("--reviews", type=int, default=REVIEWS, help="damaged reviews (%(default)s)")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--processes", type=int, default=os.cpu_count())
    given = options.parse_args(arguments)
    status = 0
    with multiprocessing.Pool(given.processes, initializer=os.nice, initargs=(10,)) as pool:
        for what, count in (("words", given.words), ("reviews", given.reviews)):
            start = time.perf_counter()
            share = -(-count // given.processes)
            jobs = [(what, share, f"{given.seed} {number}") for number in range(given.processes)]
            ends: Counter[str] = Counter()
            for found, failed in pool.starmap(run, jobs):
                ends += found
                if failed:
                    print(f"FAILED: {failed}")
                    status = 1
            took_s = time.perf_counter() - start
            said = ", ".join(f"{number:,} {end}" for end, number in ends.most_common())
            print(f"{ends.total():,} {what} in {took_s:.0f} s: {said}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
