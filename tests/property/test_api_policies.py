"""The section ``gpus`` beside a brute force that reads its rules as their documentation does; files of any content."""

from __future__ import annotations

import fnmatch
import json
import re
from typing import Any

import jsonschema
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dradriver.api.policies.gpu_modes import Mode, mode_of
from dradriver.api.policies.policies_reader import PoliciesError, notes, read
from dradriver.api.policies.policy_sections import UNKNOWN, plain
from dradriver.topology.machine import Gpu, MigDevice
from tests.paths import REPO

NODES = ("node-a", "node-b")
LABELS = {"pool": ("train", "serve"), "a.b/tier": ("0", "1")}
PRODUCTS = ("NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3")
GLOBS = (*PRODUCTS, "NVIDIA A100*", "*H100*", "*", "nvidia*")
NUMBERS = range(3)
ADDRESSES = ("0000:06:00.0", "0001:07:00.0")
NAMED = {"numbers", "uuids", "pciAddresses"}


def some(values: Any) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True)


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    which = st.fixed_dictionaries(
        {},
        optional={
            "nodes": some(NODES),
            "nodeSelector": st.dictionaries(
                st.sampled_from(sorted(LABELS)), st.sampled_from(["train", "serve", "0", "1"]), min_size=1
            ),
            "products": some(GLOBS),
            "numbers": some(NUMBERS),
            "uuids": some(("GPU-0", "gpu-0", "GPU-1")),
            "pciAddresses": some(ADDRESSES),
        },
    )
    whole = st.sampled_from(({}, {"mig": "off"}, {"shared": "none"}))
    cut = st.fixed_dictionaries(
        {"mig": st.sampled_from(("static", "dynamic", "placements"))},
        optional={"exclusiveTo": st.just("namespace"), "fractionsOnly": st.booleans()},
    )
    shared = st.fixed_dictionaries(
        {"shared": st.sampled_from(("mps", "time-slicing"))},
        optional={"mig": st.just("off"), "exclusiveTo": st.just("namespace"), "fractionsOnly": st.booleans()},
    )
    by_mps = st.fixed_dictionaries({"shared": st.just("mps"), "devShmMib": st.sampled_from((64, 512, 500_000))})
    sizes: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
        ({}, {"equalShares": 2}, {"equalShares": 48}, *({"memoryOvercommit": factor} for factor in (1.0, 1.5, 16.0)))
    )
    said: dict[str, Any] = draw(st.one_of(whole, cut, shared, by_mps))
    return draw(which) | said | (draw(sizes) if said.get("shared", "none") != "none" else {})


GPUS = st.builds(
    Gpu,
    index=st.sampled_from(NUMBERS),
    uuid=st.just("GPU-0"),
    minor=st.just(0),
    pci=st.sampled_from(("", *ADDRESSES)),
    product=st.sampled_from(PRODUCTS),
    mig=st.sampled_from((None, (), (MigDevice(0, "MIG-0", 1, 0),))),
)
NODE_LABELS = st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, values in LABELS.items()})


def expected(found: list[dict[str, Any]], node: str, labels: dict[str, str], gpu: Gpu) -> Mode:
    """Try the rules from the last to the first: what fits covers what was found below it."""
    state = "off" if gpu.mig is None else "static"
    mode: dict[str, Any] = {"mig": state}
    for rule in reversed(found):
        tests = [
            node in rule.get("nodes", [node]),
            rule.get("nodeSelector", {}).items() <= labels.items(),
            any(re.fullmatch(fnmatch.translate(glob), gpu.product) for glob in rule.get("products", ["*"])),
            rule.keys().isdisjoint(NAMED)
            or gpu.index in rule.get("numbers", [])
            or gpu.uuid in map(str.upper, rule.get("uuids", []))
            or gpu.pci in rule.get("pciAddresses", []),
        ]
        if all(tests):
            said = rule.get("shared", "none")
            mode = {
                "mig": rule.get("mig", state if said == "none" else "off"),
                "shared": said,
                "memory_overcommit": rule.get("memoryOvercommit", 1.0),
                "equal_shares": rule.get("equalShares", 0),
                "exclusive_to": rule.get("exclusiveTo", ""),
                "dev_shm_mib": rule.get("devShmMib", 0),
                "fractions_only": rule.get("fractionsOnly", False),
            }
    return Mode(**mode)


@given(st.lists(rules(), max_size=6), st.sampled_from(NODES), NODE_LABELS, GPUS)
def test_the_first_rule_that_fits_decides(
    found: list[dict[str, Any]], node: str, labels: dict[str, str], gpu: Gpu
) -> None:
    policies = read(yaml.safe_dump({"gpus": found}).encode(), source="x")
    mode = mode_of(policies, node=node, labels=labels, gpu=gpu)
    assert mode == expected(found, node, labels, gpu)
    assert mode is not None
    assert mode.whole == (mode.mig == "off" and mode.shared == "none")
    again = read(yaml.safe_dump(plain(policies)).encode(), source="x")
    assert mode_of(again, node=node, labels=labels, gpu=gpu) == mode


SCHEMA = json.loads((REPO / "helm" / "gpu-topology-dra" / "values.schema.json").read_text())
HELM = jsonschema.Draft7Validator(SCHEMA)


@given(st.lists(rules(), max_size=6))
def test_what_the_processes_take_helm_takes(found: list[dict[str, Any]]) -> None:
    read(yaml.safe_dump({"gpus": found}).encode(), source="x")
    assert list(HELM.iter_errors({"policies": {"gpus": found}})) == []


@given(st.sampled_from(NODES), NODE_LABELS, GPUS)
def test_of_no_gpu_is_said_anything_while_the_file_is_not_known(node: str, labels: dict[str, str], gpu: Gpu) -> None:
    assert mode_of(UNKNOWN, node=node, labels=labels, gpu=gpu) is None


WORDS = st.sampled_from(
    ("gpus", "policies", "workloads", "weights", "nccl", "mig", "shared", "off", "static", "nvlink", "required", "pack",
     "strategy", "servers", "tuning", "auto", "nodes", "numbers", "products", "inference", "tensor-parallel", "share",
     "0", "1", "-1", "1e99", "nan", "true", "false", "null")
)  # fmt: skip
TREES = st.recursive(
    WORDS | st.text(max_size=8) | st.integers() | st.floats() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(max_size=8), inner, max_size=5),
    max_leaves=20,
)
LINE = re.compile(r"x:\d+: ")


def check(text: bytes) -> None:
    try:
        policies = read(text, source="x")
    except PoliciesError as error:
        assert LINE.match(str(error))
    else:
        notes(policies)
        assert plain(read(yaml.safe_dump(plain(policies)).encode(), source="x")) == plain(policies)


@given(st.dictionaries(WORDS, TREES, max_size=5) | TREES)
def test_any_content_is_taken_or_refused_with_its_line(tree: Any) -> None:
    check(yaml.safe_dump(tree).encode("utf-8", "surrogatepass"))


@given(
    st.binary(max_size=200) | st.text(alphabet="abgpus:{}[]-&*!|>'\"#? \n\t\\uUxdDfF80", max_size=120).map(str.encode)
)
def test_any_bytes_are_taken_or_refused_with_their_line(text: bytes) -> None:
    check(text)
