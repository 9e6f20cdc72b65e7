"""Caps and partitions that select no GPU of the cluster are named, and no others."""

from __future__ import annotations

import pytest

from dradriver.api.policies.policies_reader import read
from dradriver.api.policies.unmatched_selectors import NodeGpus, unmatched
from tests.fakes import machines

NODES = [NodeGpus("n1", {"pool": "train"}, machines.dgx_h100().gpus), NodeGpus("empty", {"pool": "none"}, ())]
PRODUCT = machines.dgx_h100().gpus[0].product


@pytest.mark.parametrize(
    ("tenant", "place", "selector"),
    [
        ("cap: [{gpus: 1}, {products: [H100], gpus: 1}]", "cap[1].products", "H100"),
        ("cap: [{products: [nvidia*, '*A100*'], gpus: 1}]", "cap[0].products", "nvidia*, *A100*"),
        ("partition: {products: [H100]}", "partition", "products: [H100]"),
        ("partition: {nodes: [n2]}", "partition", "nodes: [n2]"),
        ("partition: {nodes: [n1], numbers: [9]}", "partition", "nodes: [n1], numbers: [9]"),
        ("partition: {nodeSelector: {pool: trian}}", "partition", "nodeSelector: {pool: trian}"),
        ("partition: {nodeSelector: {pool: none}}", "partition", "nodeSelector: {pool: none}"),
        ("cap: [{products: ['*H100*', A100], gpus: 1}]", "", ""),
        ("partition: {nodes: [n1, n2], products: ['*H100*'], numbers: [7]}", "", ""),
        ("partition: {nodeSelector: {pool: train}}", "", ""),
    ],
)
def test_what_selects_nothing_is_named_with_what_exists(tenant: str, place: str, selector: str) -> None:
    tenants = read(f"tenants: {{a: {{namespaces: [a], {tenant}}}}}".encode(), source="x").tenants
    says = f"tenants.a.{place}: no GPU of the cluster matches {selector}. The cluster has {PRODUCT}."
    assert unmatched(tenants, NODES) == ({"a": [says]} if place else {})
    assert unmatched(tenants, NODES[1:]) == {}, "a cluster without GPUs shows nothing"
