"""Odd objects of every kind among good ones: ``python -m tests.bench.fuzz_objects [--objects N] [--seed S]``.

Objects as the API server passes them on are changed anywhere: nulls, half surrogate pairs, bytes that are no UTF-8,
numbers without end, 9,000 levels of nesting, annotations of 250 kB. They come in lists and in watches, with good ones
between them. The good ones must always be shown, in the reflector's store and to the picture, and one of the odd ones
must neither end a watch nor an exception reach anybody.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import functools
import json
import logging
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import msgspec

from dradriver.api.base.allocating_driver import NVIDIA, OURS, Ledger, bound
from dradriver.api.base.dra_objects import ResourceClaim, ResourceSlice
from dradriver.api.base.objects import Node
from dradriver.api.base.pods import Pod
from dradriver.cli.cluster import cluster_reading
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nics import nic_devices
from dradriver.cluster.records import records
from dradriver.controller.controller import Source, sources
from dradriver.kube import codec, metrics
from dradriver.kube.client import ApiError, Client
from dradriver.kube.config import ServerConfig
from dradriver.kube.reflector import Change, Reflector
from dradriver.kube.resources import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from dradriver.kube.store import key_of
from tests.contract.built import BUILDERS
from tests.fakes import chart, domains
from tests.fakes import nics as fakes_of_nics

OBJECTS: Final = 1_000_000
BATCH: Final = 100
GOOD: Final = 5  # good ones among them
LATE_S: Final = 60.0

Object = dict[str, Any]
Told = dict[tuple[str, str], object]


class Kind(msgspec.Struct):
    """A kind of object, who reads it where whose devices are handed out, and good ones of it."""

    name: str
    resource: Resource
    read: codec.Reading[Any]
    corpus: list[Object]
    changed: Callable[[Picture, Change[Any]], None] | None = None
    ledger: Ledger = OURS


def kinds() -> list[Kind]:
    """Return every kind that a process of ours lists or watches, once for each of its readers."""
    corpora = _corpora()
    every = [_of(source, corpora, "controller", OURS) for source in sources()]
    every += [_of(source, corpora, "add-on", NVIDIA) for source in sources() if source.resource in _OTHERWISE]
    more: list[tuple[str, Resource, codec.Reading[Any]]] = [
        ("agent", NODES, Node),
        ("agent", RESOURCE_SLICES, ResourceSlice),
        ("prepare", RESOURCE_CLAIMS, ResourceClaim),
        ("gputopo", RESOURCE_CLAIMS, cluster_reading.read_claim),
        ("gputopo", PODS, Pod),
        ("whole", RESOURCE_CLAIM_TEMPLATES, records.read_template),
    ]
    every.append(Kind("resourceslices, NICs", RESOURCE_SLICES, nic_devices.read_slice, _NICS, Picture.nics_changed))
    every += [
        Kind(f"{resource.plural}, {who}", resource, read, corpora[resource.plural]) for who, resource, read in more
    ]
    return every


_OTHERWISE: Final = (RESOURCE_CLAIMS, RESOURCE_SLICES)


def _of(source: Source, corpora: dict[str, list[Object]], who: str, ledger: Ledger) -> Kind:
    name, corpus = f"{source.resource.plural}, {who}", corpora[source.resource.plural]
    if source.read is records.read_channels:
        name, corpus = f"{name} of channels", _CHANNELS
    return Kind(name, source.resource, source.read, corpus, source.changed, ledger)


@functools.cache
def _corpora() -> dict[str, list[Object]]:
    built = [one for name, build in BUILDERS.items() if not name.startswith("chart") for one in build("1.36.0")]
    built += [one for one in chart.objects(kubernetes="1.36.0").values() if one["kind"] == DEVICE_CLASSES.kind]
    kinds_ = (PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES)
    found = {one.plural: [obj for obj in built if obj["kind"] == one.kind] for one in kinds_}
    found[RESOURCE_CLAIMS.plural] = [_allocated(claim) for claim in found[RESOURCE_CLAIMS.plural]]
    found[PODS.plural] += [_bound(pod) for pod in found[PODS.plural]] + [_FOREIGN]
    found[NODES.plural] = [_NODE]
    small = sorted(found[RESOURCE_SLICES.plural], key=lambda piece: len(json.dumps(piece)))
    return found | {RESOURCE_SLICES.plural: small[: max(len(small) // 2, 8)]}


def _allocated(claim: Object) -> Object:
    """Return a claim with what a scheduler and an agent write."""
    result = {"request": "main", "driver": "gpu.topology", "pool": "n", "device": "gpu-1", "consumedCapacity": {}}
    part = result | {"device": "gpu-2", "shareID": "s", "consumedCapacity": {"gpu.topology/memorySlices": "4"}}
    told = {"driver": "gpu.topology", "pool": "n", "device": "gpu-2", "shareID": "s", "data": {"type": "mig"}}
    config = [one | {"source": "FromClaim"} for one in claim["spec"]["devices"].get("config", [])]
    others = {"source": "FromClaim", "opaque": {"driver": "x", "parameters": {"a": ["b", {"c": 1}]}}}
    return claim | {
        "status": {
            "allocation": {"devices": {"results": [result, part], "config": [*config, others]}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
            "devices": [told],
        }
    }


def _bound(pod: Object) -> Object:
    return pod | {"spec": pod["spec"] | {"nodeName": "n"}, "status": {"phase": "Running", "conditions": []}}


_FOREIGN: Final[Object] = {
    "metadata": {"labels": {"app": "x"}, "annotations": {"a": "b"}},
    "spec": {
        "nodeName": "n",
        "overhead": {"cpu": "1m"},
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"a/b": "1"}}}],
        "initContainers": [{"name": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "2"}}}],
    },
    "status": {"phase": "Running"},
}
_CHANNELS: Final = [domains.resource_slice("n"), domains.resource_slice("n", "channel")]
_NICS: Final = [
    fakes_of_nics.published("n", [fakes_of_nics.device("0000:18:00.0", root="pci0000:10"), fakes_of_nics.device("0")]),
    fakes_of_nics.published("n", [fakes_of_nics.function("0000:18:00.1", "0000:18:00.0")], driver=fakes_of_nics.SRIOV),
]
_NODE: Final[Object] = {
    "metadata": {"labels": {"kubernetes.io/hostname": "n"}, "annotations": {"a": "b"}},
    "spec": {"unschedulable": False, "taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]},
    "status": {
        "allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "r", "message": "m"}],
    },
}


# What is odd.

_LITERAL: Final = "\x00{}\x00"  # stands for JSON that json.dumps would not write
_ODD: Final[tuple[Any, ...]] = (
    *(None, [], {}, "", 0, -1, True, 1.5, [None], {"a": None}, [[]], [{}], {"": {}}, "null", "\ud800", "a\udfffb"),
    *("\\ud800", "\ud83d\ude00", "\ud83d\ude00\ude00", "\\\ud800", {"\ud800": 1}, "x" * 250_000, {"a": "\ud800"}),
    *("-1", "1e999", "9" * 5000, "0.1.2", "Ki", "1Ei", "-9223372036854775809", "٣", "\u2028", "\x7f", "/", "a/b/c"),
)
_LITERALS: Final = (
    *(b"1e999", b"-1e-999", b"9" * 5000, b"-" + b"9" * 30, b"18446744073709551616", b"1E400", b"-0.0", b"1.0"),
    *(b'"\xff\xfe"', b'"\xed\xa0\x80"', b'{"a":1,"a":null}', b'{"\xff":1}', b'"\\uD800\\uD800\\uDC00"', b'"\\u0000"'),
    *(b"[" * 1500 + b"]" * 1500, b"[" * 9000 + b"]" * 9000, b'{"a":' * 4500 + b"1" + b"}" * 4500),
)


def mutated(obj: Object, rng: random.Random) -> bytes:
    """Return an object's JSON with one to four changes; its kind's own name and namespace are changed seldom."""
    literals: list[bytes] = []
    copied: Object = json.loads(json.dumps(obj))
    for _ in range(rng.choice((1, 1, 2, 4))):
        _change(copied, rng, literals)
    text = json.dumps(copied, separators=(",", ":")).encode()
    for number, literal in enumerate(literals):
        text = text.replace(json.dumps(_LITERAL.format(number)).encode(), literal)
    return text


def _change(obj: Object, rng: random.Random, literals: list[bytes]) -> None:
    places = list(_places(obj))
    where, key = rng.choice(places)
    what = rng.randrange(8)
    if what == 0:
        del where[key]
    elif what == 1:
        other, its = rng.choice(places)
        with contextlib.suppress(KeyError, IndexError):
            where[key] = json.loads(json.dumps(other[its]))
    elif what == 2 and isinstance(where, dict):
        where[rng.choice(("\ud800", "x", "metadata", "é"))] = copy.deepcopy(where[key])
    elif what == 3:
        literals.append(rng.choice(_LITERALS))
        where[key] = _LITERAL.format(len(literals) - 1)
    elif what == 4:
        where[key] = [where[key]]
    else:
        where[key] = copy.deepcopy(rng.choice(_ODD))


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    left = [value]
    while left:
        one = left.pop()
        for key, inner in one.items() if isinstance(one, dict) else enumerate(one):
            found.append((one, key))
            if isinstance(inner, dict | list):
                left.append(inner)
    return found


# How they come.


class _Lines:
    """The lines of a watch, which stays open after them."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = iter(lines)
        self.silence_s = 0.0

    def __aiter__(self) -> _Lines:
        return self

    async def __anext__(self) -> bytes:
        line = next(self._lines, None)
        if line is None:
            await asyncio.Event().wait()
        assert line is not None
        return line


class Fed(Client):
    """A server that answers with what it is given: an object in a list and in a watch."""

    def __init__(self, first: Sequence[bytes], then: Sequence[bytes], *, watch_list: bool) -> None:
        super().__init__(ServerConfig(url="http://127.0.0.1:1"), user_agent="fuzz")
        self.connection.request = self._answer  # type: ignore[method-assign]
        self.streams = 0
        self._first, self._then, self._watch_list = first, then, watch_list

    async def _answer(self, *_: Any, **__: Any) -> bytes:
        return b'{"metadata":{"resourceVersion":"5"},"items":[' + b",".join(self._first) + b"]}"

    @contextlib.asynccontextmanager
    async def stream(self, *_: Any, params: Any, **__: Any) -> AsyncIterator[Any]:
        self.streams += 1
        initial = "sendInitialEvents" in params
        if initial and not self._watch_list:
            raise ApiError(422, "Invalid", "no WatchList")
        events = [_event(b"ADDED", one) for one in self._first] + [_WHOLE] if initial else []
        yield _Lines(events + [_event(b"MODIFIED", one) for one in self._then])


_WHOLE: Final = (
    b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"5",'
    b'"annotations":{"k8s.io/initial-events-end":"true"}}}}'
)


def _event(kind: bytes, obj: bytes) -> bytes:
    return b'{"type":"' + kind + b'","object":' + obj + b"}"


def _named(obj: Object, name: str, version: int) -> Object:
    metadata = obj["metadata"] | {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return obj | {"metadata": metadata | {"namespace": "a"}}


def _of_node(piece: Object, name: str) -> Object:
    pool = piece["spec"]["pool"] | {"name": name}
    return piece | {"spec": piece["spec"] | {"pool": pool, "nodeName": name}}


async def batch(kind: Kind, rng: random.Random, *, objects: int, watch_list: bool) -> str | None:
    """Let a reflector read odd objects among good ones; return what went wrong, None for nothing."""
    good = {name: _named(rng.choice(kind.corpus), name, 7) for name in (f"good-{n}" for n in range(GOOD))}
    if kind.resource is RESOURCE_SLICES:
        good = {name: _of_node(one, name) for name, one in good.items()}
    before = [mutated(_named(rng.choice(kind.corpus), f"odd-{n}", 3), rng) for n in range(objects // 2)]
    after = [mutated(_named(rng.choice(kind.corpus), f"odd-{n}", 9), rng) for n in range(objects - len(before))]
    dumped = [json.dumps(one).encode() for one in good.values()]
    read = codec.reader(kind.read)
    wanted = {}
    for text in dumped:
        if (kept := read(msgspec.Raw(text))) is not None:
            wanted[key_of(kept)] = kept
    first = before + dumped[: GOOD // 2]
    then = after + dumped[GOOD // 2 :]
    rng.shuffle(first)
    rng.shuffle(then)
    last = _named(rng.choice(kind.corpus), "last", 11)
    while read(msgspec.Raw(json.dumps(last).encode())) is None:
        last = _named(rng.choice(kind.corpus), "last", 11)
    client = Fed(first, [*then, json.dumps(last).encode()], watch_list=watch_list)
    failed = metrics.FAILED_HANDLERS.labels(kind.resource.plural)
    failures = failed._value.get()
    picture = Picture(lambda _: None, lambda: None)
    seen, done = Told(), asyncio.Event()

    def changed(change: Change[Any]) -> None:
        seen[change.key] = change.new
        if change.key[1] == "last":
            done.set()
        if kind.changed is not None:
            kind.changed(picture, change)

    reflector = Reflector(client, kind.resource, kind.read, on_change=changed)
    loop = asyncio.get_running_loop()
    running, waiting = loop.create_task(reflector.run()), loop.create_task(done.wait())
    await asyncio.wait((running, waiting), timeout=LATE_S, return_when=asyncio.FIRST_COMPLETED)
    for task in (running, waiting):
        task.cancel()
    ended, _ = await asyncio.gather(running, waiting, return_exceptions=True)
    if not isinstance(ended, asyncio.CancelledError):
        return f"{kind.name}: the reflector ended: {ended!r}"
    if not done.is_set():
        return f"{kind.name}: not all was read in {LATE_S:g} s"
    _ = picture.inventory.fleet
    if missing := [key for key, one in wanted.items() if reflector.store.get(key) != one or seen.get(key) != one]:
        return f"{kind.name}: not shown: {missing}"
    if client.streams != (1 if watch_list else 2):
        return f"{kind.name}: {client.streams} streams"
    if failed._value.get() != failures:
        return f"{kind.name}: a handler failed"
    return None


async def fuzz(kind: Kind, *, objects: int, rng: random.Random) -> str | None:
    """Give a kind's reader so many odd objects, half of them in lists; return what went wrong first."""
    for start in range(0, objects, BATCH):
        watch_list = rng.random() < 0.5
        with bound(kind.ledger):
            wrong = await batch(kind, rng, objects=min(BATCH, objects - start), watch_list=watch_list)
        if wrong is not None:
            return wrong
    return None


def main(arguments: Sequence[str]) -> int:
    """Run and print one line a kind; return 1 where one failed."""
    options = argparse.ArgumentParser(prog="python -m tests.bench.fuzz_objects")
    options.add_argument("--objects", type=int, default=OBJECTS, help="of all kinds together (%(default)s)")
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args(arguments)
    every = kinds()
    logging.disable(logging.CRITICAL)
    for kind in every:
        start = time.perf_counter()
        each = -(-given.objects // len(every))
        wrong = asyncio.run(fuzz(kind, objects=each, rng=random.Random(f"{given.seed} {kind.name}")))
        print(f"{kind.name:36} {each:9,} odd objects  {time.perf_counter() - start:6.1f} s", flush=True)
        if wrong is not None:
            print(f"FAILED: {wrong}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
