"""Reads the text of a policies file as ``Policies``. Errors name the line, the field and what to write."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dradriver.allocator.request import Strategy
from dradriver.allocator.set_policies import LINKED, POLICIES
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.policies import all_errors, partitions
from dradriver.api.policies.policy_sections import MOST_BYTES, WORKLOADS, Nccl, Policies, Sections
from dradriver.api.policies.tenant_policies import RESERVED_TENANT, Tenant
from dradriver.api.policies.workload_words import LATER, WORDS
from dradriver.api.vocabulary import annotation_words, container_requests, values
from dradriver.api.vocabulary.messages import shown
from dradriver.counted import counted
from dradriver.reason import sentences
from dradriver.topology import profiles
from dradriver.topology.natural import natural
from dradriver.topology.vendors import NVIDIA
from dradriver.yamltext import read as yamltext
from dradriver.yamltext.read import Problem
from dradriver.yamltext.value_hints import hint


class PoliciesError(WordError):
    """A policies file cannot be used; the message names the line, the field and what to write.

    Attributes:
        problems: All errors of the file, in the order of its lines. A text, if the file cannot be read.
    """

    reason = "PoliciesInvalid"

    def __init__(self, *problems: Problem | str) -> None:
        """Make the error from at least one problem."""
        super().__init__(*problems)
        self.problems = problems

    def __str__(self) -> str:
        """Return the first error, with file and line, and the number of the other errors."""
        return sentences(str(self.problems[0]), self._more())

    def by_key(self, source: str) -> str:
        """Return the message for people who did not write the lines of the text, because Helm wrote it.

        The path of the key comes first, then the line in ``source``, the name of the text.
        """
        first = self.problems[0]
        if isinstance(first, str):
            return str(self)
        where = f"line {first.line} of {source}"
        if not (key := _key(first)):
            return sentences(f"{where}: {first.says}", self._more())
        return sentences(f"{key}: {first.says}", f"This is {where}", self._more())

    def all_by_key(self) -> list[str]:
        """Return all errors for people who did not write the lines of the text: the key comes first, without a line.

        An error that has no key has the line.
        """
        return [
            problem if isinstance(problem, str) else f"{_key(problem) or f'line {problem.line}'}: {problem.says}"
            for problem in self.problems
        ]

    def _more(self) -> str:
        if len(self.problems) == 1:
            return ""
        others = counted(len(self.problems) - 1, "more error", "more errors")
        return f"The file has {others}: gputopo policies check FILE prints all"


def _key(problem: Problem) -> str:
    """Return the path of the key that an error is about; empty for an error of the whole text."""
    return problem.place.removeprefix("$")


_FORM: Final = yamltext.Form(
    error=PoliciesError,
    key=re.compile(r"[A-Za-z0-9][\w./-]{0,319}", re.ASCII),
    keys="the name of a field, a policy, a tenant or a label",
    start="",
    whole="policies file",
)
_NULLS: Final = ("null", "Null", "NULL", "~")  # not an empty text: it can also be quoted, which is no null
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
        says = f"The file has {len(text)} bytes, and at most {MOST_BYTES} are allowed."
        raise PoliciesError(Problem(source, 1, "", says))

    # 1. The YAML as data and types. Both raise PoliciesError with the line: ``_FORM`` names the error.
    try:
        document = yamltext.read(text.decode("utf-8-sig"), _FORM, source=source)
    except UnicodeDecodeError as error:
        raise PoliciesError(Problem(source, 1, "", f"The file is not UTF-8: {error}.")) from None
    # Helm writes an unquoted ``off`` as ``false``. Fields whose values include ``off`` get it back.
    _restore_off(document.data)
    _remove_nulls(document.data)
    _sort_tenants(document.data)
    sections, problems, left_out = all_errors.convert(document)

    # 2. What types cannot express: fields that do not go together. ``document`` knows the line of each place.
    problems += [
        document.problem(misfit.place, misfit.says)
        for misfit in (() if sections is None else _check_sections(sections))
        if all_errors.counts(misfit.place, left_out)
    ]
    if sections is None or problems:
        raise PoliciesError(*sorted(problems, key=lambda problem: problem.line))

    # 3. The digest by which processes say in metrics which policies they use.
    # 6 bytes, because a metric's value is a float, which holds integers of up to 53 bits exactly.
    digest = int.from_bytes(hashlib.sha256(text).digest()[:6], "big")
    return Policies(**{name: getattr(sections, name) for name in Sections.__struct_fields__}, digest=digest)


def notes(policies: Policies) -> list[str]:
    """Return messages about settings of a policies file that have no effect or are not available yet."""
    places = [(f"policies.{name}", words) for name, words in policies.policies.items()]
    places += [(place, words) for place, words in _workloads(policies) if not isinstance(words, str)]
    found = []
    if policies.weights.price and not policies.prices.gpus:
        found.append("weights.price has no effect without prices. Write prices: {gpus: [{perHour: 1}]}.")
    found += [
        f"tenants.{name}.cap has no effect, because Kueue limits a tenant with admission: kueue. Remove one of the two."
        for name, tenant in policies.tenants.items()
        if tenant.cap and tenant.admission == "kueue"
    ]
    return found + [
        f"{place}: {', '.join(later)} is not available yet, and pods that request it are refused."
        for place, words in places
        if (later := [word for word in words if word in LATER])
    ]


class _PlacedError(NamedTuple):
    """An error that types cannot express, and its place, such as ``gpus[1].shared``."""

    place: str
    says: str


def _remove_nulls(data: object) -> None:
    """Remove tenants, policies and workloads that are ``null``, in place, as the chart does with its values."""
    sections = (data.get(key) for key in ("policies", "tenants", "workloads")) if isinstance(data, dict) else ()
    for entries in sections:
        if isinstance(entries, dict):
            for name in [name for name, entry in entries.items() if entry in _NULLS]:
                del entries[name]


def _sort_tenants(data: object) -> None:
    """Sort the tenants by name, in place, as Helm sorts the keys of the chart's values.

    Otherwise a file and its copy in the ConfigMap could give a namespace to different tenants.
    """
    tenants = data.get("tenants") if isinstance(data, dict) else None
    if isinstance(data, dict) and isinstance(tenants, dict):
        data["tenants"] = {name: tenants[name] for name in sorted(tenants, key=natural)}


def _restore_off(data: object) -> None:
    """Replace ``false`` by ``off`` in the decoded file ``data``, in the fields ``mig`` and ``nccl``.

    These fields have no value ``false``. Helm reads an unquoted ``off`` as a bool (YAML 1.1), and writes it into the
    policies file as ``false``.
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


def _check_sections(sections: Sections) -> Iterator[_PlacedError]:
    yield from _check_rules(sections)
    yield from _check_words(sections)
    yield from _check_servers(sections.nccl)
    yield from _check_tenants(sections.tenants)
    yield from _check_preemption(sections)


def _check_rules(sections: Sections) -> Iterator[_PlacedError]:
    """Yield the fields of GPU rules that do not go together: most need ``shared`` or ``mig`` in the same rule."""
    for i, rule in enumerate(sections.gpus):
        rule_path, is_split_by_mig = f"gpus[{i}]", rule.mig not in (None, "off")
        is_shared = rule.shared != "none"
        if is_shared and is_split_by_mig:
            yield _PlacedError(
                f"{rule_path}.shared",
                f"a GPU can be shared or split by MIG, and this rule says both ({rule.shared}, mig: {rule.mig}). "
                f"Remove one of the two.",
            )
        if rule.memory_overcommit != 1 and not is_shared:
            yield _PlacedError(
                f"{rule_path}.memoryOvercommit",
                "the GPUs of this rule are not shared. Add shared: mps or shared: time-slicing.",
            )
        if rule.equal_shares is not None and not is_shared:
            yield _PlacedError(
                f"{rule_path}.equalShares",
                "the GPUs of this rule are not shared. Add shared: mps or shared: time-slicing.",
            )
        if rule.equal_shares is not None and rule.memory_overcommit != 1:
            yield _PlacedError(
                f"{rule_path}.memoryOvercommit",
                f"with equalShares: {rule.equal_shares} all shares have an equal part of the real memory. Remove one "
                f"of the two.",
            )
        if rule.dev_shm_mib is not None and rule.shared != "mps":
            yield _PlacedError(
                f"{rule_path}.devShmMib", "the GPUs of this rule are not shared by MPS. Add shared: mps."
            )
        if rule.exclusive_to and not (is_shared or is_split_by_mig):
            yield _PlacedError(
                f"{rule_path}.exclusiveTo", "the GPUs of this rule are not divided. Add shared or mig to the rule."
            )
        if rule.fractions_only and not (is_shared or is_split_by_mig):
            yield _PlacedError(
                f"{rule_path}.fractionsOnly", "the GPUs of this rule have no fractions. Add shared or mig to the rule."
            )


def _check_words(sections: Sections) -> Iterator[_PlacedError]:
    for name, words in sections.policies.items():
        if name in POLICIES and name != LINKED:  # files may have had one of this name before it was built in
            yield _PlacedError(f"policies.{name}", "this policy is built in and cannot change. Choose another name.")
        yield from _check_set(f"policies.{name}", words)
    known = tuple(dict.fromkeys((*POLICIES, *sections.policies)))
    for place, meant in _workloads(sections):
        if isinstance(meant, str):
            yield from _check_name(place, meant, known)
        else:
            yield from _check_set(place, meant)


def _check_name(place: str, text: str, known: Sequence[str]) -> Iterator[_PlacedError]:
    name, comma, strategy = (part.strip() for part in text.partition(","))
    if name not in known:
        yield _PlacedError(
            place,
            f"{shown(text)} is not a known policy{hint(name, known)}. Write annotations, or one of the policies: "
            f"{', '.join(known)}.",
        )
    if comma and values.strategy(strategy) is None:
        yield _PlacedError(
            place,
            f"{shown(text)} has no known strategy{hint(strategy, Strategy)}. Write after the comma one of: "
            f"{', '.join(Strategy)}.",
        )


def _workloads(sections: Sections) -> list[tuple[str, str | dict[str, str]]]:
    workloads = sections.workloads
    return [(f"workloads.{name}", workloads.meaning(name)) for name in WORKLOADS]


def _check_set(place: str, words: Mapping[str, str]) -> Iterator[_PlacedError]:
    allowed = (*WORDS, *LATER)
    are_good = True
    for word, value in words.items():
        problems = list(_check(f"{place}.{word}", {word: value})) if word in WORDS else []
        are_good = are_good and not problems
        yield from problems
        if word not in allowed:
            yield _PlacedError(
                f"{place}.{word}",
                f"a policy cannot contain this{hint(word, allowed)}. Write one of: {', '.join(allowed)}.",
            )
    if are_good:  # else this would find the same errors again
        yield from _check(place, {word: value for word, value in words.items() if word in WORDS})


def _check(place: str, words: Mapping[str, str]) -> Iterator[_PlacedError]:
    try:
        said = annotation_words.Values({names.PREFIX + word: value for word, value in words.items()})
        annotation_words.fields(said)
        container_requests.of_words(said)
    except WordError as error:
        yield _PlacedError(place, _SAID.sub("", str(error), count=1))


def _check_servers(nccl: Nccl) -> Iterator[_PlacedError]:
    known = profiles.names(NVIDIA.word) if nccl.servers else ()
    for kind, server in nccl.servers.items():
        if server not in known:
            yield _PlacedError(
                f"nccl.servers.{kind}",
                f"{shown(server)} is not a known profile{hint(server, known)}. Write one of: {', '.join(known)}.",
            )


def _check_tenants(tenants: Mapping[str, Tenant]) -> Iterator[_PlacedError]:
    yield from _check_names(tenants)
    yield from _check_labels(tenants)
    yield from _check_partitions(tenants)
    for name, tenant in tenants.items():
        yield from _check_caps(name, tenant)


def _check_names(tenants: Mapping[str, Tenant]) -> Iterator[_PlacedError]:
    if (taken := RESERVED_TENANT) in tenants:
        yield _PlacedError(
            f"tenants.{taken}",
            f"metrics use this name for all smaller tenants together. Choose another name, for example team-{taken}.",
        )
    whose: dict[str, str] = {}
    for name, tenant in tenants.items():
        for i, namespace in enumerate(tenant.namespaces):
            if (other := whose.setdefault(namespace, name)) != name or namespace in tenant.namespaces[:i]:
                where = f"also belongs to tenant {other}" if other != name else "occurs twice"
                yield _PlacedError(
                    f"tenants.{name}.namespaces[{i}]",
                    f"the namespace {namespace} {where}. Remove it from one of the two places.",
                )


def _check_labels(tenants: Mapping[str, Tenant]) -> Iterator[_PlacedError]:
    """Yield the tenants that can never get a namespace, because an earlier tenant has the same labels.

    A namespace belongs to the first tenant by name whose labels match. So a tenant gets none if an earlier tenant
    requires the same labels or only some of them.
    """
    before: dict[str, Tenant] = {}
    for name, tenant in tenants.items():
        labels = tenant.namespace_labels.items()
        if not labels:
            if not tenant.namespaces:
                yield _PlacedError(
                    f"tenants.{name}", "the tenant has no namespaces. Write namespaces or namespaceLabels."
                )
            continue
        for other, one in before.items():
            if one.namespace_labels.items() <= labels:
                yield _PlacedError(
                    f"tenants.{name}.namespaceLabels",
                    f"all namespaces with these labels belong to tenant {other}, which comes first by name. Write "
                    f"other labels, or rename one of the two tenants.",
                )
                break
        before[name] = tenant


def _check_caps(name: str, tenant: Tenant) -> Iterator[_PlacedError]:
    known = [frozenset(cap.products) for cap in tenant.cap]
    for i, products in enumerate(known):
        if products in known[:i]:
            says = f"this cap has the same products as cap[{known.index(products)}]. Remove one of the two."
            yield _PlacedError(f"tenants.{name}.cap[{i}]", says)


def _check_partitions(tenants: Mapping[str, Tenant]) -> Iterator[_PlacedError]:
    for name, tenant in tenants.items():
        if tenant.exclusive and tenant.partition is None:
            yield _PlacedError(
                f"tenants.{name}.exclusive",
                "the tenant has no partition. Add a partition, or remove exclusive.",
            )
    for name, other in partitions.overlaps(tenants).items():
        yield _PlacedError(
            f"tenants.{name}.partition",
            f"some of these GPUs are also in the partition of tenant {other}, and both partitions are exclusive. "
            f"Choose different nodes, products or numbers, or remove exclusive from one of the two.",
        )


def _check_preemption(sections: Sections) -> Iterator[_PlacedError]:
    for i, name in enumerate(sections.queue.preemption.unpreemptable_tenants):
        if name not in sections.tenants:
            known = tuple(sections.tenants)
            allowed = f"Write one of: {', '.join(known)}." if known else "The file has no tenants."
            yield _PlacedError(
                f"queue.preemption.unpreemptableTenants[{i}]",
                f"{shown(name)} is not a tenant{hint(name, known)}. {allowed}",
            )
