"""The policies file: what is read, what is refused and how, and what names stand for in a pod's words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import pytest
import yaml

from dradriver.allocator.request import Constraint, NodeWeights, Request, Strategy, Weights, Whole
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.pod import resolved
from dradriver.api.pod.annotations import Annotations
from dradriver.api.policies.policies_reader import PoliciesError, notes, read
from dradriver.api.policies.policy_sections import (
    DEFAULTS,
    MOST_BYTES,
    UNKNOWN,
    WORKLOADS,
    Policies,
    Sections,
    plain,
)
from dradriver.api.policies.workload_words import LATER, WORDS
from dradriver.api.vocabulary import annotation_words
from dradriver.api.vocabulary.annotation_words import About
from dradriver.topology.nccl import tuning
from dradriver.yamltext.read import Problem

GOOD = """\
# What the platform team says.
gpus:
  - nodeSelector: {pool: inference, nvidia.com/gpu.family: ampere}
    products: [NVIDIA A100*]
    mig: dynamic
    exclusiveTo: namespace
  - nodes: [gpu-7]
    numbers: [0, 3]
    shared: mps
    memoryOvercommit: 1.5
policies:
  colocate-nvlink:
    required: nvlink
    strategy: pack
  big:
    min-memory: 40Gi
    min-bandwidth: 100
    nccl: off
  gpu-share-small: {share: 0.25}
workloads:
  tensor-parallel: colocate-nvlink
  inference-small: {product: NVIDIA L4, prefer-same-numa: true}
weights: {nvlink: 50}
nccl:
  version: 2.30
  servers: {p5.48xlarge: hgx-h100}
  tuning: auto
"""


def policies(text: str = GOOD) -> Policies:
    return read(text.encode(), source="policies.yaml")


def said(text: str) -> str:
    with pytest.raises(PoliciesError) as caught:
        policies(text)
    return str(caught.value)


def test_a_file_says_what_it_says_and_the_rest_is_the_default() -> None:
    found = policies()
    first, second = found.gpus
    assert (first.mig, first.shared, first.exclusive_to) == ("dynamic", "none", "namespace")
    assert (second.mig, second.shared, second.memory_overcommit, second.numbers) == (None, "mps", 1.5, (0, 3))
    assert found.policies["big"] == {"min-memory": "40Gi", "min-bandwidth": "100", "nccl": "off"}
    assert found.workloads.tensor_parallel == "colocate-nvlink"
    assert found.workloads.inference == DEFAULTS.workloads.inference
    assert msgspec.structs.astuple(found.preference) == (50, 25, 20, 10, 5)
    assert (found.nccl.version, found.nccl.servers, found.nccl.tuning) == ("2.30", {"p5.48xlarge": "hgx-h100"}, "auto")
    assert found.known
    assert notes(found) == []
    assert notes(read(b"policies: {new: {near: leaf}}", source="x")) == [
        "policies.new: near is not available yet, and pods that request it are refused."
    ]


def test_a_cap_that_kueue_makes_useless_is_a_warning() -> None:
    both = "tenants: {a: {namespaces: [x], cap: [{gpus: 4}], admission: kueue}, b: {namespaces: [y], admission: kueue}}"
    assert notes(policies(both)) == [
        "tenants.a.cap has no effect, because Kueue limits a tenant with admission: kueue. Remove one of the two."
    ]


@pytest.mark.parametrize("text", ["", "{}", "# nothing\n", "gpus: []\npolicies: {}\nweights: {}\n"])
def test_what_says_nothing_is_the_defaults(text: str) -> None:
    assert plain(policies(text)) == plain(DEFAULTS)


def test_texts_are_told_apart_by_their_digests() -> None:
    assert policies().digest == policies().digest
    assert len({policies(text).digest for text in (GOOD, GOOD + "#", "")}) == 3
    assert all(0 < policies(text).digest < 2**53 for text in (GOOD, "")), "a metric is a float"


def test_what_is_in_force_can_be_written_down_and_read_again() -> None:
    again = policies(yaml.safe_dump(plain(policies())))
    assert plain(again) == plain(policies())


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("mig: dynamic", "mig: dynamc", "5: gpus[0].mig: 'dynamc' is not allowed (did you mean dynamic?). Write "
                                        "dynamic"),
        ("gpus:", "gpu:", "2: gpu: This field is unknown. Known fields: gpus, policies, workloads, we"),
        ("exclusiveTo", "exlusiveTo", "gpus[0].exlusiveTo: This field is unknown. Known fields: nodes"),
        ("exclusiveTo: namespace", "exclusiveTo: team", "gpus[0].exclusiveTo: 'team' is not allowed. Write namespace"),
        ("numbers: [0, 3]", "numbers: [0, 256]", "8: gpus[1].numbers[1]: '256' is not allowed. Write a whole number "
                                                 "from 0 to 255"),
        ("numbers: [0, 3]", "numbers: []", "8: gpus[1].numbers: a list is not allowed. Write a list with one number "
                                           "or more"),
        ("nodes: [gpu-7]", "nodes: gpu-7", "7: gpus[1].nodes: 'gpu-7' is not allowed. Write a list with one node or "
                                           "more"),
        ("nodes: [gpu-7]", "nodes: [GPU_7]", "7: gpus[1].nodes[0]: 'GPU_7' is not allowed. Write the name of a node"),
        ("pool: inference", "pool: in ference", "3: gpus[0].nodeSelector.pool: 'in ference' is not allowed. Write the "
                                                "value of a l"),
        ("pool: inference", "-pool: inference", "3: This key is not allowed"),
        ("pool: inference", "a//b: x", "3: gpus[0].nodeSelector: 'a//b' is not allowed as a key. Write it like "
                                       "nvidia.com/gpu.family"),
        ("[NVIDIA A100*]", "['A100\"']", "4: gpus[0].products[0]: 'A100\"' is not allowed. Write the full name as "
                                         "nvidia-smi -L gi"),
        ("memoryOvercommit: 1.5", "memoryOvercommit: 0.5", "gpus[1].memoryOvercommit: '0.5' is not allowed. Write a "
                                                           "number from 1 t"),
        ("memoryOvercommit: 1.5", "memoryOvercommit: nan", "gpus[1].memoryOvercommit: 'nan' is not allowed. Write a "
                                                           "number from 1 t"),
        ("memoryOvercommit: 1.5", "equalShares: 1", "gpus[1].equalShares: '1' is not allowed. Write a whole number "
                                                    "from 2 to 48"),
        ("memoryOvercommit: 1.5", "equalShares: four", "gpus[1].equalShares: 'four' is not allowed. Write a whole "
                                                       "number from 2"),
        ("memoryOvercommit: 1.5", "equal-shares: 4", "gpus[1].equal-shares: This field is unknown. Known fields: no"),
        ("memoryOvercommit: 1.5", "equalShare: 4", "(did you mean equalShares?)"),
        ("memoryOvercommit: 1.5", "memoryOvercommit: 1.5\n    equalShares: 4", "Overcommit: with equalShares: 4"),
        ("mig: dynamic", "equalShares: 4", "gpus[0].equalShares: the GPUs of this rule are not shared. Add shared: "
                                           "mps or"),
        ("memoryOvercommit: 1.5", "devShmMib: 63", "gpus[1].devShmMib: '63' is not allowed. Write a whole number from "
                                                   "64 to 500000"),
        ("memoryOvercommit: 1.5", "devShmMib: 8Gi", "gpus[1].devShmMib: '8Gi' is not allowed. Write a whole number "
                                                    "from 64 to"),
        ("mig: dynamic", "mig: dynamic\n    devShmMib: 256", "gpus[0].devShmMib: the GPUs of this rule are not shared "
                                                             "by MPS"),
        ("shared: mps", "shared: MPS", "9: gpus[1].shared: 'MPS' is not allowed (did you mean mps?). Write mps, none "
                                       "or time-slicing"),
        ("    shared: mps\n", "", "gpus[1].memoryOvercommit: the GPUs of this rule are not shared. Add shared: mps or"),
        ("mig: dynamic", "mig: off", "gpus[0].exclusiveTo: the GPUs of this rule are not divided. Add shared or mig"),
        ("shared: mps", "shared: mps\n    mig: static", "9: gpus[1].shared: a GPU can be shared or split by MIG, and "
                                                        "this rule says both (mps, mig: static)"),
        ("required: nvlink", "requird: nvlink", "policies.colocate-nvlink.requird: a policy cannot contain this"),
        ("required: nvlink", "gpus: 4", "policies.colocate-nvlink.gpus: a policy cannot contain this"),
        ("required: nvlink", "policy: nvlink", "policies.colocate-nvlink.policy: a policy cannot contain this"),
        ("required: nvlink", "required: nvlnk", "13: policies.colocate-nvlink.required: 'nvlnk' is not allowed"),
        ("strategy: pack", "strategy: packed", "policies.colocate-nvlink.strategy: 'packed' is not allowed"),
        ("min-memory: 40Gi", "min-memory: much", "policies.big.min-memory: 'much' is not an amount of GPU memory. "
                                                 "Write a"),
        ("min-bandwidth: 100", "min-bandwidth: [100]", "policies.big.min-bandwidth: a list is not allowed. Write the "
                                                       "value as in an"),
        ("  big:", "  Big:", "15: policies: 'Big' is not allowed as a key. Write a name in lower case, as train-fast"),
        ("  big:", "  single-numa:", "15: policies.single-numa: this policy is built in and cannot change. Choose "
                                     "another"),
        ("  big:", "  colocate-nvlink:", "15: The key colocate-nvlink occurs twice. Write it once"),
        (": colocate-nvlink", ": colocate-nvlin", "workloads.tensor-parallel: 'colocate-nvlin' is not a known policy"),
        (": colocate-nvlink", ": 'nvlink,fast'", "workloads.tensor-parallel: 'nvlink,fast' has no known strategy"),
        ("tensor-parallel", "tensor-paralel", "workloads.tensor-paralel: This field is unknown. Known fields: "),
        ("prefer-same-numa: true", "prefer-same-numa: 1", "workloads.inference-small.prefer-same-numa: '1' is not a"),
        ("nvlink: 50", "nvlink: -1", "23: weights.nvlink: '-1' is not allowed. Write a number from 0 to 1000"),
        ("nvlink: 50", "nvlnk: 50", "weights.nvlnk: This field is unknown. Known fields: "),
        ("version: 2.30", "version: latest", "25: nccl.version: 'latest' is not allowed. Write 2.19 or a later one"),
        ("hgx-h100", "hgx-h10", "26: nccl.servers.p5.48xlarge: 'hgx-h10' is not a known profile"),
        ("p5.48xlarge", "p5/48xlarge", "26: nccl.servers: 'p5/48xlarge' is not allowed as a key. Write it like "
                                       "p5.48xlarge"),
        ("tuning: auto", "tuning: fast", "27: nccl.tuning: 'fast' is not allowed. Write auto, multinode, nvlink, "
                                         "nvswitch or pcie"),
        ("weights: {", "weights: [", "not YAML"),
        ("{nvlink: 50}", "&a {nvlink: *a}", "23: The policies file is nested too deeply, or an alias contains itself"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_line_place_and_cure(old: str, new: str, says: str) -> None:
    assert old in GOOD
    told = said(GOOD.replace(old, new, 1))
    assert told.startswith("policies.yaml:")
    assert says in told


@pytest.mark.parametrize(
    ("bad", "near"),
    [
        ("gpus: [{mig: dynamc}]", "dynamic"),
        ("gpu: []", "gpus"),
        ("gpus: [{node: [a]}]", "nodes"),
        ("policies: {x: {requird: nvlink}}", "required"),
        ("policies: {x: {required: nvlnk}}", "nvlink"),
        ("policies: {train: {}}\nworkloads: {inference: trian}", "train"),
        ("workloads: {inference: 'nvlink,pak'}", "pack"),
        ("nccl: {servers: {a: hgx-h10}}", "hgx-h100"),
        ("nccl: {tuning: nvswich}", "nvswitch"),
    ],
)
def test_a_near_miss_is_told(bad: str, near: str) -> None:
    assert f"(did you mean {near}?)" in said(bad)


MANY = """\
gpu: []
gpus:
  - {mig: dynamc}
  - {equalShares: 4}
policies:
  good: {required: nvlink}
  a: {requird: nvlink}
  b: {required: nvlnk, strategy: packed}
workloads: {inference: a, tensor-parallel: none}
tenants:
  one: {namespaces: [x], cap: [{gpus: many}]}
  two: {namespaces: [y], wight: 2}
  three: {namespaces: [z, z]}
queue: {preemption: {unpreemptableTenants: [one, four]}}
"""


def test_all_errors_of_a_file_are_found_at_once() -> None:
    with pytest.raises(PoliciesError) as caught:
        policies(MANY)

    places = [(problem.line, problem.place) for problem in caught.value.problems if isinstance(problem, Problem)]
    assert places == [
        (1, "gpu"),
        (3, "gpus[0].mig"),
        (4, "gpus[1].equalShares"),
        (7, "policies.a.requird"),
        (8, "policies.b.required"),
        (8, "policies.b.strategy"),
        (9, "workloads.tensor-parallel"),
        (11, "tenants.one.cap[0].gpus"),
        (12, "tenants.two.wight"),
        (13, "tenants.three.namespaces[1]"),
        (14, "queue.preemption.unpreemptableTenants[1]"),
    ]
    assert said(MANY).startswith("policies.yaml:1: gpu: This field is unknown. ")
    assert said(MANY).endswith(" The file has 10 more errors: gputopo policies check FILE prints all.")


WRONG: Final = (
    ("gpus:", ""),
    ("  - mig: dynamc", "gpus[0].mig"),
    ("    numbers: [0, x,", "gpus[0].numbers[1]"),
    ("      256]", "gpus[0].numbers[2]"),
    ("    nodeSelector:", ""),
    ("      a//b: x", "gpus[0].nodeSelector"),
    ("      pool: in ference", "gpus[0].nodeSelector.pool"),
    ("      c//d: x", "gpus[0].nodeSelector"),
    ("  - many", "gpus[1]"),
    ("prices:", ""),
    ("  currency: euro", "prices.currency"),
    ("  gpus:", ""),
    ("    - products: NVIDIA H100", "prices.gpus[0].products"),
    ("      perHours: 2", "prices.gpus[0].perHours"),
    ("      perHour: cheap", "prices.gpus[0].perHour"),
    ("policies:", ""),
    ("  Big: {required: nvlink}", "policies"),
    ("  small: {product: [NVIDIA H100]}", "policies.small.product"),
    ("  -odd: {}", ""),  # no key of any YAML text that the driver reads
    ("tenants:", ""),
    ("  vision:", ""),
    ("    wieght: 2", "tenants.vision.wieght"),
    ("    weight: heavy", "tenants.vision.weight"),
    ("    cap:", ""),
    ("      - gpus: eight", "tenants.vision.cap[0].gpus"),
    ("      - product: [NVIDIA H100]", "tenants.vision.cap[1].product"),
    ("        gpus: -1", "tenants.vision.cap[1].gpus"),
    ("      - {products: [NVIDIA H100]}", "tenants.vision.cap[2]"),  # without the number of GPUs
    ("    partition: {numbrs: [1],", "tenants.vision.partition.numbrs"),
    ("      uuids: []}", "tenants.vision.partition.uuids"),
    ("    weight: 2", ""),  # occurs twice
    ("  language:", ""),
    ("    namespaces: language", "tenants.language.namespaces"),
    ("    cap: [{gpus: -1}, {gpus: 4, products: [NVIDIA H100*,", "tenants.language.cap[0].gpus"),
    ("      'a\"']}]", "tenants.language.cap[1].products[1]"),
    ("queue:", ""),
    ("  reservation: {moves: 99,", "queue.reservation.moves"),
    ("    move: 1}", "queue.reservation.move"),
    ("xids: {94: taint, 079: taint,", "xids"),
    ("  95: taunt}", "xids.95"),
    ("schedulers: [A_B, default-scheduler,", "schedulers[0]"),
    ("  C_D]", "schedulers[2]"),
    ("wieghts: {}", "wieghts"),
)
"""The lines of a file, each with the place of the error in it."""


def test_each_wrong_key_and_value_of_a_file_is_named_with_its_line() -> None:
    with pytest.raises(PoliciesError) as caught:
        policies("\n".join(line for line, _ in WRONG))

    problems = [problem for problem in caught.value.problems if isinstance(problem, Problem)]
    places = {number: place for number, (_, place) in enumerate(WRONG, 1) if place}
    places |= {number: "" for number, (line, _) in enumerate(WRONG, 1) if line in ("  -odd: {}", "    weight: 2")}
    assert [problem.line for problem in problems] == sorted(places)
    for problem in problems:
        assert problem.place == places[problem.line]


def test_a_value_that_is_wrong_does_not_hide_that_its_list_is_too_long() -> None:
    with pytest.raises(PoliciesError) as caught:
        policies("gpus:\n- {mig: dynamc}\n" + "- {}\n" * 256)
    assert [str(problem).partition(" is ")[0] for problem in caught.value.problems] == [
        "policies.yaml:1: gpus: a list",
        "policies.yaml:2: gpus[0].mig: 'dynamc'",
    ]


def test_all_tenants_whose_exclusive_partitions_overlap_are_named() -> None:
    exclusive = "{{namespaces: [{}], partition: {{nodes: [n1]}}, exclusive: true}}"
    with pytest.raises(PoliciesError) as caught:
        policies("tenants:\n" + "".join(f"  {name}: {exclusive.format(name)}\n" for name in "abc"))
    assert [re.findall(r"tenant \w\b|tenants\.\w", str(problem)) for problem in caught.value.problems] == [
        ["tenants.b", "tenant a"],
        ["tenants.c", "tenant a"],
    ]


@pytest.mark.parametrize("text", ["tenants: {A: {}}\nqueue: {preemption: {unpreemptableTenants: [a]}}",
                                  "policies: {A: {}}\nworkloads: {inference: a}"])  # fmt: skip
def test_no_error_is_named_that_another_error_causes(text: str) -> None:
    with pytest.raises(PoliciesError) as caught:
        policies(text)
    (problem,) = caught.value.problems
    assert "'A' is not allowed as a key" in str(problem)


def test_the_message_about_a_text_of_helm_begins_with_the_key() -> None:
    for text, says in (
        ("\ntenants: {a: {namespaces: [a], cap: [{gpus: x}]}}",
         "tenants.a.cap[0].gpus: 'x' is not allowed. Write a number from 0 to 1e+06. This is line 2 of the ConfigMap."),
        ("a: [", "line 1 of the ConfigMap: The text is not YAML: "),
        ("7", "line 1 of the ConfigMap: '7' is not allowed. "),
    ):  # fmt: skip
        with pytest.raises(PoliciesError) as caught:
            policies(text)
        assert caught.value.by_key("the ConfigMap").startswith(says)


@pytest.mark.parametrize("null", ["null", "~"])
def test_a_null_removes_a_tenant_a_policy_and_a_workload_as_in_the_chart(null: str) -> None:
    found = policies(
        f"tenants:\n  a: {null}\n  b: {{namespaces: [x]}}\npolicies:\n  c: {null}\nworkloads:\n  inference: {null}"
    )
    assert (list(found.tenants), found.policies, found.workloads) == (["b"], {}, DEFAULTS.workloads)
    assert "workloads.inference: '' is not a known policy" in said("workloads: {inference: ''}")
    assert "weights.nvlink: 'null' is not allowed" in said("weights: {nvlink: null}")


def test_a_file_is_bounded() -> None:
    assert len(policies("gpus:\n" + "- {numbers: [0, 1, 2, 3], mig: dynamic}\n" * 256).gpus) == 256
    assert f"at most {MOST_BYTES} are allowed" in said("#" * (MOST_BYTES + 1))
    assert "gpus: a list is not allowed. Write a list of rules" in said("gpus:\n" + "- {}\n" * 257)
    many = "\n".join(f"  p{i}: {{}}" for i in range(257))
    assert "policies: a mapping is not allowed. Write names" in said(f"policies:\n{many}")
    assert "Write the value as in an annotation" in said(f"policies: {{a: {{product: {'x' * 257}}}}}")


@pytest.mark.parametrize("text", [b"\xff", b"a: \0", b"- a", b"a word", b"[" * 1200, b"? [a]\n: b", b"\xef\xbb\xbf- a"])
def test_what_is_no_policies_file_at_all_is_refused(text: bytes) -> None:
    with pytest.raises(PoliciesError, match=r"^policies\.yaml:1: "):
        read(text, source="policies.yaml")


@pytest.mark.parametrize(
    "text", [r'gpus: "\uD800"', r'gpus: "\U00110000"', r'{"\UFFFFFFFF": 1}', r'weights: {a: "\uDFFF"}']
)
def test_an_escape_that_is_no_character_is_refused(text: str) -> None:
    assert said(text).startswith("policies.yaml:1: ")


@pytest.mark.slow
@pytest.mark.parametrize("one", ["[", "{", "{a: ", "- ", "? "])
def test_a_text_of_brackets_is_not_read_to_its_end(one: str, monkeypatch: pytest.MonkeyPatch) -> None:
    composed = 0
    compose = yaml.BaseLoader.compose_node

    def count(self: Any, *arguments: Any) -> Any:
        nonlocal composed
        composed += 1
        return compose(self, *arguments)

    monkeypatch.setattr(yaml.BaseLoader, "compose_node", count)
    assert "The policies file is nested too deeply" in said(one * (MOST_BYTES // len(one)))
    assert 0 < composed < 20


def test_the_dots_of_a_label_are_no_nesting() -> None:
    label = "gpu.team-a.eu-1.cloud.corp.example.com/a.b.c"
    (rule,) = policies(f"gpus: [{{nodeSelector: {{{label}: x}}}}]").gpus
    assert rule.node_selector == {label: "x"}


def test_off_is_off_also_where_helm_made_a_bool_of_it() -> None:
    found = policies(
        "gpus: [{mig: false}]\npolicies: {a: {nccl: false}}\n"
        "workloads: {inference: {nccl: false, require-nvlink: false}}"
    )
    assert found.gpus[0].mig == "off"
    assert found.policies == {"a": {"nccl": "off"}}
    assert found.workloads.inference == {"nccl": "off", "require-nvlink": "false"}


def test_the_words_of_a_policy_are_those_of_a_pod_but_who_it_is_and_how_many() -> None:
    pods = (names.POLICY, names.WORKLOAD, names.GPUS, names.CLAIM, names.SHARED_CLAIM)
    own = {key.removeprefix(names.PREFIX) for key in pods}
    said = {word.name for word in annotation_words.EVERY if word.about is not About.GANG}
    assert set(WORDS) == said - own
    assert set(LATER) == {word.name for word in annotation_words.EVERY} - said


def test_the_profiles_of_tuning_are_those_there_are() -> None:
    for profile in ("", tuning.AUTO, *tuning.PROFILES):
        assert policies(f"nccl: {{tuning: '{profile}'}}").nccl.tuning == profile


def test_every_section_has_a_default() -> None:
    assert Sections() == Sections(gpus=(), policies={})
    words = {"policies", "workloads", "weights", "schedulers", "nics"}
    assert plain(DEFAULTS).keys() == words | {"gpus", "nccl", "network", "spot", "prices", "tenants", "queue", "xids"}


def test_the_first_price_that_fits_a_product_is_its_price() -> None:
    text = "prices: {currency: EUR, gpus: [{products: [NVIDIA H100*], perHour: 2.5}, {perHour: 1}]}"
    prices = policies(text).prices
    assert [prices.per_hour(each) for each in ("NVIDIA H100 80GB HBM3", "Tesla T4", "")] == [2.5, 1.0, None]
    assert policies("prices: {gpus: [{perHour: 2}]}").prices.per_hour("") == 2.0, "all cost the same"
    assert policies("prices: {gpus: [{products: [A*], perHour: 2}]}").prices.per_hour("B") is None
    assert "Write a number from 0 to 100000" in said("prices: {gpus: [{perHour: -1}]}")
    assert "ISO 4217" in said("prices: {currency: euro}")
    assert "perHour" in said("prices: {gpus: [{products: [A]}]}")


def test_prices_decide_only_where_they_have_a_weight() -> None:
    prices = "prices: {gpus: [{products: [A*, B], perHour: 2.5}, {perHour: 1}]}"
    assert policies(prices).preference == Weights()
    weighed = policies(f"weights: {{price: 10}}\n{prices}")
    preference = weighed.preference
    assert isinstance(preference, NodeWeights)
    assert preference.prices == (("A*", 2.5), ("B", 2.5), ("*", 1.0))
    assert [preference.relative_price(each) for each in ("A1", "C")] == [1.0, 0.4]
    assert notes(weighed) == []
    assert "no effect without prices" in notes(policies("weights: {price: 10}"))[0]
    assert policies("weights: {price: 10}").preference == Weights()
    assert policies("weights: {utilisation: -5}").preference == NodeWeights(utilisation=-5)
    assert "Write a number from -1000 to 1000" in said("weights: {utilisation: -1001}")


def test_an_xids_number_is_a_key_with_and_without_quotes() -> None:
    assert policies("xids: {94: taint, '63': warn, 119: ignore}").xids == {"94": "taint", "63": "warn", "119": "ignore"}


# What names stand for.

FILE = """\
policies:
  train: {required: nvlink, strategy: pack, min-bandwidth: 100, nccl: file}
  later: {near: leaf}
workloads:
  inference: train
  inference-small: {preferred: same-numa, strategy: spread}
  asynchronous: later
"""


def wish(words: Mapping[str, str], on: Policies | None = None) -> Request:
    found = {names.PREFIX + key: value for key, value in words.items()}
    return Annotations(found, policies(FILE) if on is None else on).request({"main": 2})


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"policy": "train"}, {"required": "nvlink", "strategy": "pack", "min-bandwidth": "100"}),
        ({"policy": "train,spread"}, {"required": "nvlink", "strategy": "spread", "min-bandwidth": "100"}),
        # What a pod says itself stands above,
        ({"policy": "train", "strategy": "spread"}, {"policy": "train,spread"}),
        ({"policy": "train", "min-bandwidth": "50"}, {"required": "nvlink", "strategy": "pack", "min-bandwidth": "50"}),
        # but what a set must be adds up.
        (
            {"policy": "train", "required": "same-numa"},
            {"required": "nvlink,same-numa", "strategy": "pack", "min-bandwidth": "100"},
        ),
        ({"workload": "inference"}, {"policy": "train"}),
        ({"workload": "inference", "strategy": "spread"}, {"policy": "train,spread"}),
        ({"workload": "inference", "policy": "nvlink"}, {"policy": "nvlink"}),
        ({"workload": "inference-small"}, {"preferred": "same-numa", "strategy": "spread"}),
        (
            {"workload": "inference-small", "policy": "train"},
            {"required": "nvlink", "preferred": "same-numa", "strategy": "pack", "min-bandwidth": "100"},
        ),
        ({"workload": "inference-small", "policy": "nvlink,pack"}, {"policy": "nvlink,pack", "preferred": "same-numa"}),
        ({"workload": "tensor-parallel"}, {"policy": "nvlink"}),
        ({"workload": "data-parallel"}, {"policy": "best-effort"}),
    ],
)
def test_a_name_means_its_words(short: Mapping[str, str], long: Mapping[str, str]) -> None:
    assert wish(short) == wish(long)


PARTS = """
policies: {half: {share: 0.5}, linked: {required: nvlink}}
workloads: {inference: {preferred: nvlink}, inference-small: half}
"""


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"policy": "half"}, {"share": "0.5"}),
        ({"workload": "inference-small"}, {"share": "0.5"}),
        # What a pod says of a part takes the place of all that its policy says of one,
        ({"policy": "half", "memory": "10Gi"}, {"memory": "10Gi"}),
        ({"workload": "inference-small", "mig-profile": "1g.10gb"}, {"mig-profile": "1g.10gb"}),
        # and what is best for a kind of job is nothing to a part.
        ({"workload": "inference", "share": "0.5"}, {"share": "0.5"}),
    ],
)
def test_a_name_may_mean_a_part_of_a_gpu(short: Mapping[str, str], long: Mapping[str, str]) -> None:
    short, long = ({names.PREFIX + key: value for key, value in words.items()} for words in (short, long))
    assert Annotations(short, policies(PARTS)).request({"main": 1}) == Annotations(long).request({"main": 1})


def test_a_policy_about_sets_contradicts_a_part_and_is_named() -> None:
    words = {names.POLICY: "linked", names.SHARE: "0.5"}
    with pytest.raises(WordError, match=r"gpu\.topology/policy: 'linked' is about sets of whole GPUs"):
        Annotations(words, policies(PARTS)).request({"main": 1})


def test_what_nccl_is_told_may_stand_in_a_policy() -> None:
    words = {names.POLICY: "train"}
    assert resolved.resolve(Annotations(words, policies(FILE)), {"a": 1}).nccl == "file"
    assert resolved.resolve(Annotations(words | {names.NCCL: "off"}, policies(FILE)), {"a": 1}).nccl == "off"
    assert resolved.resolve(Annotations({names.POLICY: "nvlink"}, policies(FILE)), {"a": 1}).nccl is msgspec.UNSET


def test_the_note_of_a_named_policy_is_that_of_its_words() -> None:
    short = resolved.resolve(Annotations({names.POLICY: "train"}, policies(FILE)), {"a": 2})
    assert resolved.read({names.REQUEST: resolved.write(short)}) == short
    assert isinstance(short.request, Whole)
    assert short.request.required == (Constraint.NVLINK,)
    assert short.request.strategy is Strategy.PACK


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            {"policy": "trian"},
            "Write one of: best-effort, nvlink, single-numa, pcie, linked, train, later. A comma and a ",
        ),
        ({"policy": "trian"}, "(did you mean train?)"),
        ({"policy": "train,fast"}, "gpu.topology/policy: 'train,fast' is not a known policy"),
        ({"policy": "train,pack", "strategy": "spread"}, "strategy: 'spread' contradicts gpu.topology/policy"),
        ({"policy": "train", "required": "nvlnk"}, "gpu.topology/required: 'nvlnk' is not allowed"),
        (
            {"policy": "later"},
            "gpu.topology/policy: 'later' contains near, which is not available yet. Choose another",
        ),
        ({"workload": "asynchronous"}, "gpu.topology/policy: 'later' contains near, which is not available yet"),
        (
            {"workload": "inferenc"},
            "Write one of: tensor-parallel, pipeline-parallel, data-parallel, asynchronous, inf",
        ),
        ({"workload": "inferenc"}, "(did you mean inference?)"),
    ],
)
def test_a_bad_name_is_refused_with_what_to_write(words: Mapping[str, str], says: str) -> None:
    with pytest.raises(WordError) as caught:
        wish(words)
    assert says in str(caught.value)


def test_a_file_of_very_many_policies_does_not_fill_the_message() -> None:
    many = policies("policies:\n" + "\n".join(f"  policy-{i}: {{}}" for i in range(256)))
    with pytest.raises(WordError) as caught:
        wish({"policy": "policy-x"}, many)
    assert len(str(caught.value)) < 700
    assert "241 more" in str(caught.value)
    assert "did you mean policy-" in str(caught.value)


@pytest.mark.parametrize("words", [{"policy": "train"}, {"policy": "no-such"}, *({"workload": w} for w in WORKLOADS)])
def test_an_unreadable_file_is_not_guessed(words: Mapping[str, str]) -> None:
    with pytest.raises(WordError, match="is in the policies file, which is invalid or cannot be read now"):
        wish(words, UNKNOWN)


@pytest.mark.parametrize("words", [{"policy": "nvlink,pack"}, {"required": "nvlink"}, {}])
def test_what_needs_no_file_goes_on_without(words: Mapping[str, Any]) -> None:
    assert wish(words, UNKNOWN) == wish(words, DEFAULTS)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "tenants: {a: {namespaces: [x], weight: 0}}",
            "tenants.a.weight: '0' is not allowed. Write a number above 0 to 1000",
        ),
        ("tenants: {a: {namespaces: [x], weight: -1}}", "above 0 to 1000"),
        ("tenants: {a: {namespaces: [x], weight: 1001}}", "above 0 to 1000"),
        ("tenants: {a: {namespaces: [x], weight: heavy}}", "above 0 to 1000"),
        ("tenants: {a: {namespaces: [x], weight: .nan}}", "above 0 to 1000"),
        ("tenants: {a: {namespaces: [x], highestPriority: 1000000001}}", "a whole number from"),
        ("tenants: {a: {namespaces: []}}", "one namespace or more"),
        ("tenants: {a: {namespaces: [x, x]}}", "tenants.a.namespaces[1]: the namespace x occurs twice"),
        (
            "tenants: {a: {namespaces: [x]}, b: {namespaces: [y, x]}}",
            "tenants.b.namespaces[1]: the namespace x also belongs to tenant a",
        ),
        (
            "tenants: {a: {namespaces: [x], exclusive: true}}",
            "tenants.a.exclusive: the tenant has no partition. Add a partition",
        ),
        ("tenants: {a: {namespaces: [x], partition: {numbers: []}}}", "tenants.a.partition.numbers"),
        ("tenants: {a: {namespaces: [x], partition: {gpus: [1]}}}", "tenants.a.partition"),
        (
            "tenants: {b: {namespaces: [x], exclusive: true, partition: {numbers: [1, 2]}}, "
            "a: {namespaces: [y], exclusive: true, partition: {numbers: [2, 3]}}}",
            "tenants.b.partition: some of these GPUs are also in the partition of tenant a",
        ),
        ("tenants: {a: {weight: 2}}", "tenants.a: the tenant has no namespaces. Write namespaces or namespaceLabels"),
        ("tenants: {other: {namespaces: [x]}}", "Choose another name, for example team-other"),
        (
            "tenants: {a: {namespaces: [x], cap: [{gpus: -1}]}}",
            "tenants.a.cap[0].gpus: '-1' is not allowed. Write a number from 0",
        ),
        ("tenants: {a: {namespaces: [x], cap: [{gpus: .inf}]}}", "Write a number from 0"),
        ("tenants: {a: {namespaces: [x], cap: []}}", "a list of caps, as [{gpus: 16}]"),
        ("tenants: {a: {namespaces: [x], cap: 16}}", "a list of caps, as [{gpus: 16}]"),
        ("tenants: {a: {namespaces: [x], cap: [{products: [A*]}]}}", "gpus"),
        ("tenants: {a: {namespaces: [x], cap: [{gpus: 1, products: []}]}}", "a list with one product or more"),
        (
            "tenants: {a: {namespaces: [x], cap: [{gpus: 1}, {gpus: 2, products: [A*]}, {gpus: 2}]}}",
            "tenants.a.cap[2]: this cap has the same products as cap[0]. Remove one of the two",
        ),
        ("tenants: {a: {namespaces: [x], caps: [{gpus: 1}]}}", "did you mean cap?"),
        ("tenants: {a: {namespaceLabels: {}}}", "labels that the namespaces have"),
        ("tenants: {a: {namespaceLabels: {-x: y}}}", "label"),
        (
            "tenants: {a: {namespaceLabels: {t: x}}, b: {namespaceLabels: {t: x, u: y}}}",
            "tenants.b.namespaceLabels: all namespaces with these labels belong to tenant a, which comes first by name",
        ),
        ("network: {gbps: {cluster: 0}}", "above 0 to 100000"),
        ("queue: {halfLifeHours: 0}", "from 0.1 to 10000"),
        ("queue: {keepDays: 36}", "from 1 to 35"),
        ("queue: {preemption: {workloadsPerMinute: 0}}", "from 1 to 10000"),
        ("queue: {preemption: {minRun: 3}}", "minRunMinutes"),
        ("queue: {preemption: {unitsPerMinute: 3}}", "workloadsPerMinute"),
        ("queue: {preemption: {unpreemptableTenants: [x]}}", "'x' is not a tenant. The file has no tenants"),
        (
            "tenants: {vision: {namespaces: [v]}}\nqueue: {preemption: {unpreemptableTenants: [vison]}}",
            "queue.preemption.unpreemptableTenants[0]: 'vison' is not a tenant (did you mean vision?). Write one of: "
            "vision",
        ),
        ("queue: {aheadMinutes: .inf}", "from 0 to 10000"),
    ],
)
def test_what_is_wrong_with_tenants_and_amounts(text: str, says: str) -> None:
    with pytest.raises(PoliciesError, match=re.escape(says)):
        policies(text)


@pytest.mark.parametrize(
    "tenants",
    [
        ("a: {namespaceLabels: {t: x}}", "b: {namespaceLabels: {t: x, u: y}}"),
        ("a: {namespaces: [x]}", "b: {namespaces: [x]}"),
        ("t2: {namespaceLabels: {t: x}}", "t10: {namespaceLabels: {t: x}}"),
    ],
)
def test_the_order_of_tenants_in_the_file_does_not_matter(tenants: tuple[str, str]) -> None:
    """Helm sorts them, so an administrator's file and the stored one have different orders."""
    one, other = (said(f"tenants: {{{', '.join(order)}}}") for order in (tenants, tenants[::-1]))
    assert one == other
    for tenant in tenants:
        assert re.search(rf"\b{tenant.partition(':')[0]}\b", one), "the message names both"


def test_all_errors_can_be_read_without_the_lines() -> None:
    with pytest.raises(PoliciesError) as caught:
        policies("weights: {nvlnk: 1}\ntenants: {a: {namespaces: [x], cap: [{}]}}\n")
    first, second = caught.value.all_by_key()
    assert first.startswith("weights.nvlnk: This field is unknown. Known fields: nvlink, ")
    assert second.startswith("tenants.a.cap[0]: ")
    with pytest.raises(PoliciesError) as caught:
        policies("weights:\n  nvlink: [\n")
    (only,) = caught.value.all_by_key()
    assert only.startswith("line 3: The text is not YAML: ")


RED, BLUE = "nodeSelector: {pool: red}", "nodeSelector: {pool: blue}"


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        (RED, RED, True),
        (RED, BLUE, False),
        (RED, "nodeSelector: {pool: red, zone: a}", True),
        (RED, "nodeSelector: {zone: a}", False),  # only nodes tell
        (RED, "numbers: [1]", True),
        (f"{RED}, numbers: [0, 1]", f"{RED}, numbers: [1, 2]", True),
        (f"{RED}, numbers: [0, 1]", f"{RED}, numbers: [2, 3]", False),
        (f"{RED}, products: [NVIDIA H100*]", f"{RED}, products: [NVIDIA A100*, NVIDIA H100*]", True),
        (f"{RED}, products: [NVIDIA H100*]", f"{RED}, products: [NVIDIA A100*]", False),
        ("nodes: [a, b]", "nodes: [b, c]", True),
        ("nodes: [a]", "nodes: [c]", False),
        ("nodes: [a]", "numbers: [1]", True),
        ("nodes: [a]", RED, False),  # only node a tells
        (f"nodes: [a], {RED}", RED, True),
        (f"nodes: [a], {RED}", f"nodes: [a], {BLUE}", False),
    ],
)
def test_exclusive_partitions_that_have_gpus_in_common_are_refused_as_far_as_the_file_tells(
    one: str, other: str, meet: bool
) -> None:
    for first, second in ((one, other), (other, one)):
        text = (
            f"tenants: {{a: {{namespaces: [x], exclusive: true, partition: {{{first}}}}}, "
            f"b: {{namespaces: [y], exclusive: true, partition: {{{second}}}}}}}"
        )
        if meet:
            with pytest.raises(
                PoliciesError,
                match=r"tenants\.b\.partition: some of these GPUs are also in the "
                r"partition of tenant a",
            ):
                read(text.encode(), source="x")
        else:
            read(text.encode(), source="x")
        read(text.replace("exclusive: true", "exclusive: false", 1).encode(), source="x")


def test_caps_and_labels_of_tenants() -> None:
    found = policies(
        "tenants: {a: {namespaces: [x], weight: 2, cap: [{gpus: 0}, {gpus: 2.5, products: [NVIDIA H100*]}]}, "
        "b: {namespaceLabels: {t: x, u: y}}, c: {namespaceLabels: {t: x}, namespaces: [z]}}"
    ).tenants
    assert [(cap.gpus, cap.products) for cap in found["a"].cap] == [(0, ()), (2.5, ("NVIDIA H100*",))]
    assert found["b"].namespace_labels == {"t": "x", "u": "y"}, "the narrower one first, and then the wider"
    assert found["c"].namespaces == ("z",)
