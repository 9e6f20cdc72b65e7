"""From the text of a policies file to ``Policies``: what is wrong is said with line, place and what to write."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dradriver.allocator.request import Strategy
from dradriver.allocator.set_policies import LINKED, POLICIES
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.policies import partitions
from dradriver.api.policies.policy_sections import MOST_BYTES, WORKLOADS, Nccl, Policies, Sections
from dradriver.api.policies.tenant_policies import RESERVED_TENANT, Tenant
from dradriver.api.policies.workload_words import LATER, WORDS
from dradriver.api.vocabulary import annotation_words, container_requests, values
from dradriver.api.vocabulary.messages import shown
from dradriver.topology import profiles
from dradriver.topology.vendors import NVIDIA
from dradriver.yamltext import read as yamltext
from dradriver.yamltext.value_hints import hint


class PoliciesError(WordError):
    """A policies file cannot be used: the message names the line, the place and what to write there."""

    reason = "PoliciesInvalid"


_FORM: Final = yamltext.Form(
    error=PoliciesError,
    key=re.compile(r"[A-Za-z0-9][\w./-]{0,319}", re.ASCII),
    keys="a word, a name or a label",
    start="",
    whole="policies file",
)
_SAID: Final = re.compile(re.escape(names.PREFIX) + r"[a-z-]+: ")


def read(text: bytes, *, source: str) -> Policies:
    """Return the policies that a policies file's text contains; an empty text gives the defaults.

    Args:
        text: YAML in UTF-8.
        source: The file's name, for messages.

    Raises:
        PoliciesError: The text is not a valid policies file; with file, line and what to write.
    """
    if len(text) > MOST_BYTES:
        raise PoliciesError(f"{source}:1: {len(text)} bytes; {MOST_BYTES} are the most")

    # 1. The YAML as data and types. Both raise PoliciesError with the line: ``_FORM`` names the error.
    try:
        document = yamltext.read(text.decode("utf-8-sig"), _FORM, source=source)
    except UnicodeDecodeError as error:
        raise PoliciesError(f"{source}:1: not UTF-8: {error}") from None
    # Helm writes an unquoted ``off`` as ``false``. Fields whose values include ``off`` get it back.
    _restore_off(document.data)
    sections = document.convert(Sections)

    # 2. What types cannot express: fields that do not go together. ``document`` knows the line of each place.
    try:
        _check_rules(sections)
        _check_words(sections)
        _check_servers(sections.nccl)
        _check_tenants(sections.tenants)
        _check_preemption(sections)
    except _PlacedError as error:
        raise document.refusal(error.place, error.says) from None

    # 3. The digest by which processes say in metrics which policies they use.
    # 6 bytes, because a metric's value is a float, which holds integers of up to 53 bits exactly.
    digest = int.from_bytes(hashlib.sha256(text).digest()[:6], "big")
    return Policies(**{name: getattr(sections, name) for name in Sections.__struct_fields__}, digest=digest)


def notes(policies: Policies) -> list[str]:
    """Return what a policies file says and nothing uses yet, in sentences with their places."""
    places = [(f"policies.{name}", words) for name, words in policies.policies.items()]
    places += [(place, words) for place, words in _workloads(policies) if not isinstance(words, str)]
    found = []
    if policies.weights.price and not policies.prices.gpus:
        found.append("weights.price: has no effect without prices; write prices: {gpus: [{perHour: 1}]}")
    return found + [
        f"{place}: {', '.join(later)} is not available yet: pods that ask for it are refused"
        for place, words in places
        if (later := [word for word in words if word in LATER])
    ]


class _PlacedError(Exception):
    def __init__(self, place: str, says: str) -> None:
        self.place = place
        self.says = says


def _restore_off(data: object) -> None:
    """Replace ``false`` by ``off`` in place, in the fields ``mig`` and ``nccl``, which have no value ``false``.

    Helm reads an unquoted ``off`` as a bool (YAML 1.1), and writes it into the policies file as ``false``.
    """

    def put(place: Any, key: str) -> None:
        if isinstance(place, dict) and place.get(key) == "false":
            place[key] = "off"

    if isinstance(data, dict):
        rules, named, meant = (data.get(key) for key in ("gpus", "policies", "workloads"))
        for rule in rules if isinstance(rules, list) else ():
            put(rule, "mig")
        for words in (*_values(named), *_values(meant)):
            put(words, "nccl")


def _values(data: object) -> tuple[object, ...]:
    return tuple(data.values()) if isinstance(data, dict) else ()


def _check_rules(sections: Sections) -> None:
    """Check that the fields of each GPU rule go together.

    Most fields need ``shared`` or ``mig`` in the same rule.

    Raises:
        _PlacedError: With the field's place.
    """
    for i, rule in enumerate(sections.gpus):
        rule_path, is_split_by_mig = f"gpus[{i}]", rule.mig not in (None, "off")
        is_shared = rule.shared != "none"
        if is_shared and is_split_by_mig:
            raise _PlacedError(f"{rule_path}.shared", f"{rule.shared} beside mig: {rule.mig}; leave one of the two out")
        if rule.memory_overcommit != 1 and not is_shared:
            raise _PlacedError(
                f"{rule_path}.memoryOvercommit",
                "of GPUs that are not shared; write shared: mps or time-slicing beside it",
            )
        if rule.equal_shares is not None and not is_shared:
            raise _PlacedError(
                f"{rule_path}.equalShares", "of GPUs that are not shared; write shared: mps or time-slicing beside it"
            )
        if rule.equal_shares is not None and rule.memory_overcommit != 1:
            raise _PlacedError(
                f"{rule_path}.memoryOvercommit",
                f"beside equalShares: {rule.equal_shares}, which have equal parts of the memory there is; leave one of "
                "the two out",
            )
        if rule.dev_shm_mib is not None and rule.shared != "mps":
            raise _PlacedError(
                f"{rule_path}.devShmMib", "of GPUs that are not shared by MPS; write shared: mps next to it"
            )
        if rule.exclusive_to and not (is_shared or is_split_by_mig):
            raise _PlacedError(f"{rule_path}.exclusiveTo", "of GPUs that have no parts; write shared or mig beside it")
        if rule.fractions_only and not (is_shared or is_split_by_mig):
            raise _PlacedError(
                f"{rule_path}.fractionsOnly", "of GPUs that have no fractions; write shared or mig in the same rule"
            )


def _check_words(sections: Sections) -> None:
    for name, words in sections.policies.items():
        if name in POLICIES and name != LINKED:  # files may have had one of this name before it was built in
            raise _PlacedError(f"policies.{name}", "is built in and stays what it is; give yours another name")
        _check_set(f"policies.{name}", words)
    known = tuple(dict.fromkeys((*POLICIES, *sections.policies)))
    for place, meant in _workloads(sections):
        if isinstance(meant, str):
            _check_name(place, meant, known)
        else:
            _check_set(place, meant)


def _check_name(place: str, text: str, known: Sequence[str]) -> None:
    name, comma, strategy = (part.strip() for part in text.partition(","))
    if name not in known:
        raise _PlacedError(
            place, f"{shown(text)}; write words, or one of the policies {', '.join(known)}{hint(name, known)}"
        )
    if comma and values.strategy(strategy) is None:
        raise _PlacedError(
            place, f"{shown(text)}; write after the comma one of {', '.join(Strategy)}{hint(strategy, Strategy)}"
        )


def _workloads(sections: Sections) -> list[tuple[str, str | dict[str, str]]]:
    workloads = sections.workloads
    return [(f"workloads.{name}", workloads.meaning(name)) for name in WORKLOADS]


def _check_set(place: str, words: Mapping[str, str]) -> None:
    allowed = (*WORDS, *LATER)
    for word, value in words.items():
        if word not in allowed:
            raise _PlacedError(
                f"{place}.{word}", f"is no word for a policy; write one of {', '.join(allowed)}{hint(word, allowed)}"
            )
        if word in WORDS:
            _check(f"{place}.{word}", {word: value})
    _check(place, {word: value for word, value in words.items() if word in WORDS})


def _check(place: str, words: Mapping[str, str]) -> None:
    try:
        said = annotation_words.Values({names.PREFIX + word: value for word, value in words.items()})
        annotation_words.fields(said)
        container_requests.of_words(said)
    except WordError as error:
        raise _PlacedError(place, _SAID.sub("", str(error), count=1)) from None


def _check_servers(nccl: Nccl) -> None:
    known = profiles.names(NVIDIA.word) if nccl.servers else ()
    for kind, server in nccl.servers.items():
        if server not in known:
            raise _PlacedError(
                f"nccl.servers.{kind}",
                f"{shown(server)} is no profile; write one of {', '.join(known)}{hint(server, known)}",
            )


def _check_tenants(tenants: Mapping[str, Tenant]) -> None:
    _check_names(tenants)
    _check_labels(tenants)
    _check_partitions(tenants)
    for name, tenant in tenants.items():
        _check_caps(name, tenant)


def _check_names(tenants: Mapping[str, Tenant]) -> None:
    if (taken := RESERVED_TENANT) in tenants:
        raise _PlacedError(
            f"tenants.{taken}", f"is how metrics call all smaller tenants together; write another name, as team-{taken}"
        )
    whose: dict[str, str] = {}
    for name, tenant in tenants.items():
        for i, namespace in enumerate(tenant.namespaces):
            if (other := whose.setdefault(namespace, name)) != name or namespace in tenant.namespaces[:i]:
                where = f"of tenant {other} already" if other != name else "there twice"
                raise _PlacedError(f"tenants.{name}.namespaces[{i}]", f"{namespace} is {where}; leave it out here")


def _check_labels(tenants: Mapping[str, Tenant]) -> None:
    """Refuse tenants that can never have a namespace: of two whose labels fit, the first in the file has it."""
    before: dict[str, Tenant] = {}
    for name, tenant in tenants.items():
        labels = tenant.namespace_labels.items()
        if not labels:
            if not tenant.namespaces:
                raise _PlacedError(f"tenants.{name}", "has no namespaces; write namespaces or namespaceLabels")
            continue
        for other, one in before.items():
            if one.namespace_labels.items() <= labels:
                raise _PlacedError(
                    f"tenants.{name}.namespaceLabels",
                    f"every namespace with these is of tenant {other}, which stands before it; write other labels, or "
                    "this tenant first",
                )
        before[name] = tenant


def _check_caps(name: str, tenant: Tenant) -> None:
    known = [frozenset(cap.products) for cap in tenant.cap]
    for i, products in enumerate(known):
        if products in known[:i]:
            says = f"is of the same products as cap[{known.index(products)}]; leave one of the two out"
            raise _PlacedError(f"tenants.{name}.cap[{i}]", says)


def _check_partitions(tenants: Mapping[str, Tenant]) -> None:
    for name, tenant in tenants.items():
        if tenant.exclusive and tenant.partition is None:
            raise _PlacedError(
                f"tenants.{name}.exclusive", "of a tenant without a partition; write one beside it, or leave this out"
            )
    if (both := partitions.overlap(tenants)) is not None:
        raise _PlacedError(
            f"tenants.{both[1]}.partition",
            f"has GPUs that tenant {both[0]} has to itself, and both are exclusive; give them different nodes, "
            "products or numbers, or leave exclusive out of one",
        )


def _check_preemption(sections: Sections) -> None:
    for i, name in enumerate(sections.queue.preemption.unpreemptable_tenants):
        if name not in sections.tenants:
            known = tuple(sections.tenants)
            allowed = f"write one of {', '.join(known)}{hint(name, known)}" if known else "tenants names none"
            raise _PlacedError(f"queue.preemption.unpreemptableTenants[{i}]", f"{shown(name)} is no tenant; {allowed}")
