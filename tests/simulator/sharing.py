"""Pods that share one claim by its name: who they are, for whom their set is chosen, and what they may expect."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from dradriver.allocator.request import Whole
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.pod import resolved
from dradriver.kube.resources import PODS
from tests.fakes.apistore import Key, Object
from tests.fakes.control_plane import fit
from tests.simulator import cast
from tests.simulator.server import Server

SETS: Final = ("duo", "duo", "duo", "trio")
WISHES: Final[tuple[dict[str, str], ...]] = ({}, {}, {}, {}, {}, {"policy": "nvlink"})
_TWO: Final = {"main": 2}
COUNTS: Final[tuple[dict[str, int], ...]] = (_TWO, _TWO, _TWO, _TWO, {"left": 2, "right": 2}, {"main": 4})


def any_pod(name: str, namespace: str, rng: random.Random, spec: Mapping[str, object]) -> Object:
    """Return a pod that shares one of a few sets; some of them ask for something else than others."""
    words = rng.choice(WISHES) | {"shared-claim": rng.choice(SETS)}
    kept = {key: spec[key] for key in ("priority", "schedulerName", "schedulingGates", "tolerations") if key in spec}
    return cast.pod(name, namespace, rng.choice(COUNTS), words, cpu=rng.choice(("0", "0", "1", "5")), **kept)


def claim_of(pod: Object) -> Key | None:
    """Return the claim that a pod shares; None where it has one of its own."""
    if not fit.placed(pod):
        return None
    shared = next((name for name in fit.claim_names(pod) if name in SETS), None)
    return None if shared is None else (pod["metadata"]["namespace"], shared)


def owners(claim: Object) -> list[tuple[str, str]]:
    """Return name and uid of the pods that a shared claim belongs to."""
    return [(owner["name"], owner["uid"]) for owner in claim["metadata"].get("ownerReferences") or ()]


def waiting(pod: Object) -> bool:
    """Return whether a pod lives and is not bound."""
    ends = fit.finished(pod) or "deletionTimestamp" in pod["metadata"]
    return not (ends or pod["spec"].get("nodeName"))


def first(server: Server, claim: Key, among: Iterable[str] | None = None) -> Object | None:
    """Return the pod for which a set is chosen: of those that wait the first, if only owners may be of these uids."""
    found = [pod for pod in server.all(PODS) if claim_of(pod) == claim and waiting(pod)]
    if among is None:
        found = [pod for pod in found if fit.gates(pod) in ([], [names.GATE])]
    else:
        found = [pod for pod in found if pod["metadata"]["uid"] in among]
    return min(found, key=_order, default=None)


def alike(pod: Object, claim: Object) -> bool:
    """Return whether a pod asks for what a set was chosen for."""
    try:
        asked = resolved.read(fit.notes_of(pod)).request
        return asked == msgspec.json.decode(fit.notes_of(claim)[names.SET], type=Whole)
    except (WordError, KeyError, msgspec.DecodeError):
        return False


def _order(pod: Object) -> tuple[bool, str, str]:
    return bool(fit.gates(pod)), pod["metadata"]["creationTimestamp"], pod["metadata"]["uid"]
